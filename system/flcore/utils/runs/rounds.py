"""A run's arrays on disk while it goes on: a round is appended, the .h5 file is written anew ever more rarely.

Rewriting the .h5 file after every round would write the square of its size. So each round's values go as one line of
JSON to `<run>.rounds.jsonl`, which holds the whole run from its first round, and the .h5 file is written whole again
once an eighth of the run is not in it, and at the end, when the lines go. A reader that knows of the lines (`read_run`)
loses no round, whatever moment the run is killed at; any other finds a whole .h5 file of an earlier round.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flcore.utils.errors import RunError
from flcore.utils.runs.files import as_arrays, write_h5

SHARE = 8  # a file is written anew when one in so many of the saved parts is not in it


def lines_of(h5: Path) -> Path:
    """The file of lines beside a result file."""
    return h5.with_suffix(".rounds.jsonl")


class GrowingFile:
    """The files of one run's arrays; an array only ever grows at its end.

    Raises, in all methods:
        RunError: the disk is full, or the folder cannot be written to; what was there can be read.
    """

    def __init__(self, h5: Path) -> None:
        self.h5, self.lines = h5, lines_of(h5)
        self.length: dict[str, int] = {}  # of each array in the lines
        self.saved = self.whole = 0  # number of lines, and of those whose values the .h5 file has

    def save(self, lists: Mapping[str, Any]) -> None:
        """Takes in what the arrays have more than at the last call."""
        if any(len(lists.get(name, ())) < length for name, length in self.length.items()):  # a loop of PFLlib's kind
            self.length, self.saved, self.whole = {}, 0, 0  # may begin a list anew
        new = {name: values[self.length.get(name, 0) :] for name, values in lists.items()}
        new = {name: values for name, values in new.items() if len(values) or name not in self.length}
        if not new:
            return
        first = not self.saved
        if first or (self.saved + 1 - self.whole) * SHARE > self.saved:
            self._write_whole(lists, 1)
        try:
            with open(self.lines, "w" if first else "a", encoding="utf-8") as file:
                file.write(json.dumps(new, default=lambda value: value.tolist()) + "\n")
        except OSError as error:
            raise RunError(f"{self.lines} cannot be written ({error.strerror}); what was there is kept") from None
        self.length = {name: len(values) for name, values in lists.items()}
        self.saved += 1

    def close(self, lists: Mapping[str, Any]) -> None:
        """Leaves the .h5 file alone, with everything."""
        self.save(lists)
        if self.saved != self.whole:
            self._write_whole(lists, 0)
        if self.saved:
            self.lines.unlink(missing_ok=True)

    def _write_whole(self, lists: Mapping[str, Any], coming: int) -> None:
        if not self.saved:  # the lines of an earlier run under this name
            self.lines.unlink(missing_ok=True)
        write_h5(self.h5, lists)
        self.whole = self.saved + coming


def read_lines(h5: Path) -> dict[str, NDArray[Any]]:
    """The arrays that the lines beside a result file hold; empty without lines.

    A line that is not whole, as a killed run may leave, ends them. Whatever else they hold makes this fail in any way.
    """
    found: dict[str, Any] = {}
    try:
        content = lines_of(h5).read_bytes()
    except OSError:
        return {}
    for line in content.splitlines():
        try:
            new = json.loads(line)
        except (ValueError, RecursionError):
            break
        for name, values in new.items():
            found.setdefault(name, []).extend(values)
    return {name: array for name, array in as_arrays(found).items() if np.isrealobj(array)}
