"""The two ways a command may end early. main and the scripts print the message alone and exit with `exit_code`."""

import difflib
import logging
import sys
from collections.abc import Iterable

SHOWN = "flcore.shown"  # the logger of what is printed by itself: for --log alone


class UsageError(Exception):
    """The user asked for something that cannot be done: a wrong flag, a missing or damaged file."""

    exit_code = 2


class RunError(Exception):
    """The run itself failed, for example because the loss became NaN."""

    exit_code = 1


class DivergedError(RunError):
    """Its numbers went wrong: NaN, or beyond what a number can hold."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A sentence with the nearest of the names, in any case, to be appended to an error's; empty if none is near."""
    known = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f" Did you mean {known[near[0]]}?" if near else ""


def lacks_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "to allocate" in str(error))


def report(error: Exception) -> int:
    """Prints what a user must know of `error` and returns the exit code; what is a defect of the program is raised."""
    code = getattr(error, "exit_code", RunError.exit_code)
    text = str(error)
    if lacks_memory(error):
        text = f"not enough memory ({text.splitlines()[0] if text else 'no more is known'})"
    elif not isinstance(error, UsageError | RunError | OSError):  # OSError: no space, no permission
        raise error
    print(f"error: {text}", file=sys.stderr)
    logging.getLogger(SHOWN).info(f"error: {text}")
    return code
