"""What a command writes on the terminal, beside the lines that are its output: messages of the `logging` module."""

from __future__ import annotations

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
def messages(level: int = logging.INFO) -> Iterator[None]:
    """Shows the messages of this package from ``level`` on, in the body."""
    logger, handler = logging.getLogger("flcore"), _Lines()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
