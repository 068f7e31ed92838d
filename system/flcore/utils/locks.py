"""Locks between processes, which end with their process; where the file system has none, one note and files instead."""

import functools
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from flcore.utils import interrupt
from flcore.utils.runs.status import is_running, process_of

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
def locked(path: Path, waiting: str = "", say: Callable[[str], object] = log.info) -> Iterator[None]:
    """One process at a time in the body.

    Args:
        path: a file for the lock, made where it is missing; it stays.
        waiting: said if another process is inside.

    Raises:
        OSError: the file cannot be made.
        KeyboardInterrupt: the end was asked for while waiting.
    """
    with open(path, "w") as file:
        first = took = lock(file)
        held = path.with_name(f"{path.name}.held")
        if first is None:
            took = _hold(held)
        if waiting and not took:
            say(waiting)
        while not took:
            interrupt.check()
            time.sleep(PAUSE)
            took = _hold(held) if first is None else lock(file)
        try:
            yield
        finally:
            if first is None:
                held.unlink(missing_ok=True)


def _hold(held: Path) -> bool:
    """Stands in for a lock: makes a file that says who has it, unless another process that lives has made it."""
    with suppress(FileExistsError), open(held, "x", encoding="utf-8") as file:
        json.dump({"host": socket.gethostname(), "pid": os.getpid(), "process": process_of(os.getpid())}, file)
        return True
    with suppress(OSError, ValueError):  # gone meanwhile, or not written yet
        if not is_running({"status": "running", **json.loads(held.read_text(encoding="utf-8"))}, held):
            held.unlink()
    return False


@functools.cache
def _say_none(reason: str) -> None:
    log.warning(f"note: this file system has no locks ({reason}); files stand in for them")
