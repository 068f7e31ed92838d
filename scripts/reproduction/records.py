"""Finished runs as small files in experiments/records/: their settings, commit and curves, enough for every table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flcore.experiment import UNLESS_GIVEN, Experiment
from flcore.utils.errors import UsageError
from flcore.utils.runs.files import write_text
from flcore.utils.runs.provenance import run_settings
from flcore.utils.runs.read import Run, read_run
from reproduction.plan import FOLDER, Cell

RECORDS = FOLDER / "records"
ARRAYS = ("round", "test_acc", "test_acc_after", "test_std", "worst_decile", "train_loss", "forgetting")
TRAFFIC = ("bytes_down", "bytes_up")  # of each round, and nearly always the same
INFO = ("status", "settings", "commit", "versions", "evaluation_point", "code_digest")
OF_THE_DATA = {"shape", "num_classes", "data_digest", "device"}  # which no settings tell


def record_of(run: Run) -> dict[str, Any]:
    """What is kept of a run.

    Raises:
        UsageError: it has not finished.
    """
    if run.status != "finished":
        raise UsageError(f"{run.path}: the run is {run.status or 'without a run.json'}; only finished ones are kept")
    kept = {name: run.arrays[f"rs_{name}"] for name in (*ARRAYS, *TRAFFIC) if f"rs_{name}" in run.arrays}
    return {
        **{name: getattr(run, name) for name in ("dataset", "algorithm", "goal", "repeat")},
        "info": {name: run.info[name] for name in INFO if name in run.info},
        "arrays": {name: np.round(values, 5).tolist() for name, values in kept.items()},
    }


def run_of(path: Path) -> Run:
    """The run that a record tells of, as `flcore.reporting` takes it."""
    record = json.loads(path.read_text(encoding="utf-8"))
    arrays = {f"rs_{name}": np.asarray(values) for name, values in record.pop("arrays").items()}
    return Run(path, arrays, **record)


def keep(results: Iterable[Path], folder: Path = RECORDS) -> list[Path]:
    """Writes a record of each result file; the same run's earlier record is replaced.

    Raises:
        UsageError: a run has not finished, or a file is none.
    """
    written = []
    for path in results:
        run = read_run(path)
        target = folder / f"{path.stem}.json"
        lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in record_of(run).items())
        write_text(target, "{\n" + ",\n".join(lines) + "\n}\n")
        written.append(target)
    return written


def kept_runs() -> list[Run]:
    """All that is in experiments/records."""
    return [run_of(path) for path in sorted(RECORDS.glob("*.json"))]


def finished_runs(folder: Path) -> list[Run]:
    """The finished runs among the results in a folder."""
    return [run for run in map(read_run, sorted(folder.glob("*.h5"))) if run.status == "finished"]


def found(cells: Sequence[Cell], runs: Sequence[Run]) -> list[Run | None]:
    """Of each cell the last run with its settings; None where there is none.

    Settings that a cell does not name are today's defaults: a run made with other ones is none of its.
    """
    return [next((run for run in reversed(runs) if _fits(run, wanted)), None) for wanted in map(_wanted, cells)]


def _wanted(cell: Cell) -> dict[str, Any]:
    experiment = Experiment(**cell.settings)
    return run_settings({name: experiment.values[name] for name in experiment.used} | experiment.network, None)


def _fits(run: Run, wanted: dict[str, Any]) -> bool:
    settings = run.info["settings"]
    names = {name for name in settings.keys() | wanted.keys() if name not in OF_THE_DATA}
    return all(settings.get(name, _absent(name)) == wanted.get(name, _absent(name)) for name in names)


def _absent(name: str) -> Any:
    return None if name in UNLESS_GIVEN else ...
