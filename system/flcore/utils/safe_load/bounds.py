"""How large what a file holds may become, and what a reader says of one that breaks the rules."""

from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from flcore.utils.errors import UsageError

T = TypeVar("T")

UNPACKED, RATIO = 2**28, 100  # a file may unpack to 256 MiB, a larger one to 100 times its own size

_left: ContextVar[int] = ContextVar("_left")  # bytes that the pickle being read may still make into arrays


class RefusedError(Exception):
    """The file holds something other than plain numpy content."""


def allow(size: int) -> None:
    """Begins the count of what the next pickle makes out of its bytes."""
    _left.set(size)


def spend(size: int) -> None:
    """Counts what a pickle makes out of its bytes, since it might use the same ones many times."""
    _left.set(_left.get() - size)
    if _left.get() < 0:
        raise RefusedError("arrays that are larger than the file")


def most_unpacked(path: Path | str) -> int:
    """The bytes that a packed file may become in memory: plenty for any data, too little for a bomb."""
    return max(UNPACKED, RATIO * Path(path).stat().st_size)


def guarded(read: Callable[[], T], path: Path | str) -> T:
    """What `read` gives; whatever goes wrong is a UsageError that names the file and the reason."""
    try:
        return read()
    except FileNotFoundError:
        raise UsageError(f"{path} is missing") from None
    except (RefusedError, MemoryError) as error:
        reason = str(error) if isinstance(error, RefusedError) else "it needs more memory than there is"
        raise UsageError(
            f"{path} is refused, none of it was run: {reason}. Only numpy arrays, dicts, lists, strings and numbers "
            f"are read; make the file again with plain numpy content"
        ) from None
    except Exception as error:  # damaged and crafted content can make any operation fail in any way
        reason = " ".join(str(error).split())[:300] or "it ends too early"
        raise UsageError(f"{path} is damaged or of another kind: {reason}; make or fetch it again") from None
