"""Locks between processes, which end with their process; where the file system has none: one note, and on without."""

import functools
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from flcore.utils import interrupt

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PAUSE = 0.05  # seconds between two looks at a lock that another process has

log = logging.getLogger(__name__)


def lock(file: IO[Any]) -> bool | None:
    """Locks a file that is open for writing until it is closed; False if another process has the lock.

    None: there are no locks here.
    """
    if not fcntl:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # ENOSYS, ENOLCK, EOPNOTSUPP ...: file systems that many machines share
        _say_none(error.strerror)
        return None
    return True


@contextmanager
def locked(path: Path, waiting: str = "") -> Iterator[None]:
    """One process at a time in the body.

    Args:
        path: a file for the lock, made where it is missing; it stays.
        waiting: said if another process is inside.

    Raises:
        OSError: the file cannot be made.
        KeyboardInterrupt: the end was asked for while waiting.
    """
    with open(path, "w") as file:
        if waiting and lock(file) is False:
            log.info(waiting)
        while lock(file) is False:
            interrupt.check()
            time.sleep(PAUSE)
        yield


@functools.cache
def _say_none(reason: str) -> None:
    log.warning(
        f"note: this file system has no locks ({reason}), so runs started within the same instant may get in each "
        "other's way"
    )
