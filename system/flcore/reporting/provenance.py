"""How runs came about: the settings in which they differ, and the command that makes one again."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from flcore.reporting.frames import Results
from flcore.reporting.tables import MISSING, Cell, Table
from flcore.utils.runs.read import Run

# What differs between any two runs, and what only repeats the settings.
MOMENTARY = {"pid", "host", "start", "start_time", "end", "wall_time_s", "status", "repeat", "goal"}
MOMENTARY |= {"process", "resumed", "peak_memory_bytes"}
REPEATED = {"arguments", "given", "seed", "dataset", "algorithm", "settings_digest", "command"}


def differences(results: Results) -> tuple[Table | None, list[str]]:
    """One row per setting, version or digest in which the groups' first runs differ (None if there is none), and a line
    about each whose settings are not known.
    """
    firsts = results.runs.drop_duplicates("group")
    known = [number for number in firsts.index if results.files[number].info]
    lines = [
        f"no run.json beside {results.files[number].path}: its settings are not known"
        for number in firsts.index
        if number not in known
    ]
    facts = [
        dict(
            _flat({key: value for key, value in results.files[number].info.items() if key not in MOMENTARY | REPEATED})
        )
        for number in known
    ]
    rows = []
    for key in dict.fromkeys(key for fact in facts for key in fact):
        values = [fact.get(key, MISSING) for fact in facts]
        if any(value != values[0] for value in values):
            rows.append([Cell(text, {"": text}) for text in (_short(key), *map(_short, values))])
    if not rows and len(known) > 1:
        lines.append("no setting differs")
    header = ["setting", *firsts.loc[known, "label"]]
    return (Table(header, rows, left=len(header)) if rows else None), lines


def _flat(info: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in info.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _short(value: Any) -> str:
    text = str(value) if str(value).isprintable() else repr(value)  # nothing that a terminal would obey
    return text if len(text) <= 24 else text[:21] + "..."


def command_of(run: Run) -> str:
    """The command that makes `run` again, to be typed in system/: every flag that its user gave, by its long name.

    Empty where run.json does not tell them.
    """
    given, arguments, settings = (run.info.get(key) for key in ("given", "arguments", "settings"))
    if not isinstance(given, list) or not isinstance(arguments, dict) or not isinstance(settings, dict):
        return ""
    words = ["python", "main.py"]
    for name in sorted(map(str, given), key=lambda name: (name not in FIRST, FIRST.get(name, 0), name)):
        value = arguments.get(name, settings.get(name))
        if value is not None and not isinstance(value, (list, dict)):
            words += [f"--{name}", str(value)]
    command = shlex.join(words)
    return command if command.isprintable() else ""


FIRST = {"algorithm": 0, "dataset": 1}
