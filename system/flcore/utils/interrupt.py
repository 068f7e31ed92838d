"""Ctrl-C and a batch system's SIGTERM end a run between two clients, so that records and files stay whole.

An exception thrown in the middle of anything can be swallowed there (inside a C callback, say); a flag cannot.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

MOMENT = "the clients now at work are done"

_handled = _requested = False
_moment = MOMENT


@contextmanager
def handled() -> Iterator[None]:
    """Takes over both signals in the body; a signal that the caller has ignored stays ignored.

    Only a process's main thread can; in another one nothing changes.
    """
    global _handled, _requested, _moment
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            try:
                before[number] = signal.signal(number, _ask)
            except ValueError:  # not the main thread
                break
    _handled = True
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _handled, _requested, _moment = False, False, MOMENT


def wait_for(moment: str) -> None:
    """In words, when the run will end: for a run that asks by itself, with `asked`, instead of calling `check`."""
    global _moment
    if _handled:  # otherwise the signals do what they did
        _moment = moment


def _ask(number: int, frame: FrameType | None) -> None:
    global _requested
    if _requested:
        raise KeyboardInterrupt
    _requested = True
    os.write(2, f"\nstopping when {_moment}; once more stops at once\n".encode())


def asked() -> bool:
    """Whether somebody has asked for the end."""
    return _requested


def check() -> None:
    """Raises KeyboardInterrupt if somebody has asked for the end."""
    if _requested:
        raise KeyboardInterrupt
