"""What a command writes on the terminal: messages of the `logging` module beside its output, in signs that it has."""

import codecs
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm


class _Lines(logging.Handler):
    """One line a message, above a progress bar if there is one: warnings on stderr, the rest on stdout."""

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr if record.levelno >= logging.WARNING else sys.stdout
        tqdm.write(self.format(record), file=stream)


@contextmanager
def messages() -> Iterator[logging.Logger]:
    """Shows the messages of this package in the body, from the level INFO on; yields its logger, to choose another."""
    logger, handler = logging.getLogger("flcore"), _Lines()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


# What stands in for a sign that the terminal's character set lacks; any other becomes a question mark.
PLAIN = {"–": "-", "—": "-", "−": "-", "±": "+-", "…": "...", "†": "+", "‡": "++", "×": "x", "µ": "u", "’": "'"}
PLAIN |= {"“": '"', "”": '"', "→": "->", "│": "|", "█": "#", "▏": "|"}


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


codecs.register_error("plain", _plain)


def replace_missing_signs() -> None:
    """Makes standard output and standard error write plain signs for those that their character set lacks, where they
    would end the program otherwise."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # not so where a notebook or a test has put its own in place
            stream.reconfigure(errors="plain")
