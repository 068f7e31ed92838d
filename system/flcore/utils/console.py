"""What a command writes on the terminal: messages of the `logging` module beside its output, in signs that it has."""

import codecs
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from flcore.utils.errors import SHOWN, UsageError


class Messages(logging.Handler):
    """One line a message, above a progress bar if there is one: warnings on stderr, the rest on stdout."""

    def __init__(self) -> None:
        super().__init__()
        self.least = logging.INFO  # on the terminal
        self.addFilter(lambda record: record.name != SHOWN)
        self.file: Any = MemoryHandler(100, flushOnClose=False)  # until it is known whether there is a log file

    def handle(self, record: logging.LogRecord) -> bool:
        self.file.handle(record)
        return record.levelno >= self.least and bool(super().handle(record))

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr if record.levelno >= logging.WARNING else sys.stdout
        tqdm.write(self.format(record), file=stream)

    def choose(self, level: int, path: Path | None) -> None:
        """Shows messages from ``level`` on; a file at ``path`` gets all of them, also what came before.

        Raises:
            UsageError: the file cannot be written.
        """
        self.least = level
        early, self.file = self.file.buffer, logging.NullHandler()
        if path:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                stream = Lasting(open(path, "a", encoding="utf-8", buffering=1), f"--log {path}")  # noqa: SIM115
            except OSError as error:
                raise UsageError(f"--log {path} cannot be written: {error.strerror}") from None
            self.file = logging.StreamHandler(stream)
            self.file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            for record in early:
                self.file.handle(record)


@contextmanager
def messages() -> Iterator[Messages]:
    """Shows the messages of this package in the body, from the level INFO on; yields the handler, to choose another."""
    logger, handler = logging.getLogger("flcore"), Messages()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        if isinstance(handler.file, logging.StreamHandler):
            handler.file.stream.close()


# What stands in for a sign that the terminal's character set lacks; any other becomes a question mark.
PLAIN = {"–": "-", "—": "-", "−": "-", "±": "+-", "…": "...", "†": "+", "‡": "++", "×": "x", "µ": "u", "’": "'"}
PLAIN |= {"“": '"', "”": '"', "→": "->", "│": "|", "█": "#", "▏": "|"}


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


codecs.register_error("plain", _plain)


class Lasting:
    """A stream whose end ends nothing: if it cannot be written (a closed pipe, a full disk), the rest is dropped.

    Args:
        name: in the note that says so; empty: there is none.
    """

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream, self._name = stream, name

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        with suppress(OSError):  # what waits in the stream's buffer goes to nowhere, too
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        if self._name:
            print(f"note: {self._name} is lost ({error.strerror}); the command goes on without", file=sys.stderr)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prepare() -> None:
    """For a command: makes standard output and standard error last. Plain signs stand in for those that their character
    set lacks, and what they cannot take is dropped. Lines are written as they come, also into a pipe or a file.

    Matplotlib draws files alone here: a notebook's or a desktop's MPLBACKEND does not matter, and that there is no home
    to keep its list of fonts in is no news.
    """
    os.environ.pop("MPLBACKEND", None)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    for name, words in (("stdout", "standard output"), ("stderr", "")):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            stream = open(os.devnull, "w")  # noqa: SIM115 (open as long as the program runs)
        if hasattr(stream, "reconfigure"):  # not so where a notebook or a test has put its own in place
            stream.reconfigure(errors="plain", line_buffering=True)
            setattr(sys, name, Lasting(stream, words))
