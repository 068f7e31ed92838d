"""Ctrl-C and the signals of batch systems end a run between two clients, so that records and files stay whole.

An exception thrown in the middle of anything can be swallowed there (inside a C callback, say); a flag cannot.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

# Ctrl-C, a batch system's end, a closed terminal, and what Slurm's --signal sends before the time is up
SIGNALS = [getattr(signal, name) for name in "SIGINT SIGTERM SIGHUP SIGUSR1 SIGUSR2".split() if hasattr(signal, name)]
EXIT_CODE = 130
MOMENT = "the clients now at work are done"

_handled = _requested = False
_moment = MOMENT


@contextmanager
def handled() -> Iterator[None]:
    """Takes over the signals in the body; one that the caller has ignored, such as nohup SIGHUP, stays ignored.

    Only a process's main thread can; in another one nothing changes.
    """
    global _handled, _requested, _moment
    before = {}
    for number in SIGNALS:
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
    """Notes the wish. Only a second Ctrl-C ends at once: batch systems send several signals within a moment."""
    global _requested
    if _requested and number == signal.SIGINT:
        raise KeyboardInterrupt
    if not _requested:
        _requested = True
        again = "; once more stops at once" if number == signal.SIGINT else ""
        with suppress(OSError):  # the terminal may be gone
            os.write(2, f"\n{signal.Signals(number).name}: stopping when {_moment}{again}\n".encode())


def asked() -> bool:
    """Whether somebody has asked for the end."""
    return _requested


def check(left: str = "") -> None:
    """Raises KeyboardInterrupt if somebody has asked for the end; ``left``: what is left of the work, in words."""
    if _requested:
        raise KeyboardInterrupt(f"interrupted; {left}" if left else "")


def report(end: KeyboardInterrupt) -> int:
    """Prints what is left of the work, if anybody said so, and returns the exit code."""
    if str(end):
        print(end, file=sys.stderr)
    return EXIT_CODE
