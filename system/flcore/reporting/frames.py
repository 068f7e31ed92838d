"""Result files as pandas data frames: one row a round, a run, or a client.

The names of the numbers are those in the result file without ``rs_``: ``test_acc`` is evaluation point A (after the
download, before training), ``test_acc_after`` point B (after training). Accuracies are shares from 0 to 1, traffic is
in bytes of all clients, times are in seconds.
"""

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flcore import registry
from flcore.utils.errors import UsageError
from flcore.utils.records import EVALUATED, TRAINED
from flcore.utils.runs.read import Run, read_run

IDENTITY = ["dataset", "algorithm", "label", "goal", "seed", "repeat", "status"]
SEEDS = ("seed", "repeat", "goal")  # what may differ between two runs of one setting
SHORT = {"local_learning_rate": "lr", "global_rounds": "rounds", "num_clients": "clients", "batch_size": "batch"}


def rounds_of(arrays: Mapping[str, Any]) -> pd.DataFrame:
    """The arrays of a run as one row a round, indexed by the round's number; NaN where a round has no such number.

    ``bytes_before`` and ``seconds_before`` add up all rounds before: what it took to get to this one.
    """
    values = {name: _numbers(arrays.get(f"rs_{name}", ())) for name in (*EVALUATED, *TRAINED)}
    evaluated = _evaluated_rounds(arrays, max(len(values[name]) for name in EVALUATED))
    trained = np.arange(max(len(values[name]) for name in TRAINED))
    rounds = np.union1d(evaluated, trained).astype(np.int64)
    columns = {}
    for name, own in (*((name, evaluated) for name in EVALUATED), *((name, trained) for name in TRAINED)):
        columns[name] = np.full(len(rounds), np.nan)
        columns[name][np.searchsorted(rounds, own[: len(values[name])])] = values[name]
    for name, spent in (("bytes", columns["bytes_down"] + columns["bytes_up"]), ("seconds", columns["seconds"])):
        before = np.concatenate([[0.0], np.nancumsum(spent)])[: len(rounds)]
        columns[f"{name}_before"] = before if np.isfinite(spent).any() else np.full(len(rounds), np.nan)
    return pd.DataFrame(columns, index=pd.Index(rounds, name="round"))


def _numbers(values: Any) -> NDArray[np.float64]:
    """`values` in one row, NaN in place of what is infinite."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    return np.where(np.isfinite(flat), flat, np.nan)


def _evaluated_rounds(arrays: Mapping[str, Any], evaluations: int) -> NDArray[np.int64]:
    """The round of each evaluation; PFLlib's own files do not say, so there the evaluations are counted."""
    rounds = _numbers(arrays.get("rs_round", ()))[:evaluations]
    told = len(rounds) == evaluations and bool(np.all((rounds >= 0) & (rounds < 2**53) & (rounds == np.floor(rounds))))
    if told and bool(np.all(np.diff(rounds) > 0)):
        return rounds.astype(np.int64)
    return np.arange(evaluations)


def clients_of(arrays: Mapping[str, Any]) -> pd.DataFrame:
    """One row a round and client: ``round``, ``client``, ``test_acc`` (A), ``test_acc_after`` (B)."""
    tables = {
        name: np.asarray(arrays.get(f"rs_{array}", ()), dtype=np.float64) for name, array in CLIENT_ARRAYS.items()
    }
    tables = {name: table if table.ndim == 2 else np.empty((0, 0)) for name, table in tables.items()}
    height, width = (max(table.shape[axis] for table in tables.values()) for axis in (0, 1))
    columns: dict[str, Any] = {
        "round": np.repeat(_evaluated_rounds(arrays, height), width),
        "client": np.tile(_scored(arrays, width), height),
    }
    for name, table in tables.items():
        filled = np.full((height, width), np.nan)
        filled[: table.shape[0], : table.shape[1]] = table
        columns[name] = _numbers(filled)
    return pd.DataFrame(columns)


def _scored(arrays: Mapping[str, Any], width: int) -> NDArray[np.int64]:
    """The numbers of the clients that a column each belongs to: of all, or of those of ``--eval_clients``."""
    found = np.asarray(arrays.get("rs_scored", ()), dtype=np.int64)
    return found[0] if found.shape == (1, width) else np.arange(width)


CLIENT_ARRAYS = {"test_acc": "client_acc", "test_acc_after": "client_acc_after"}


@dataclass(frozen=True)
class Results:
    """Runs that were read together.

    runs: one row a run, indexed by the run's number. Beside its names (``dataset``, ``algorithm``, ``goal``, ``seed``,
        ``repeat``, ``status``, ``path``) and the summary of `summary_of`: ``group``, the same number for runs that
        differ in their seed alone; ``label``, the algorithm with what tells its groups on this data set apart.
    rounds: one row a run and round, see `rounds_of`.
    files: what was read, in the order of `runs`.
    """

    runs: pd.DataFrame
    rounds: pd.DataFrame
    files: Sequence[Run]

    def rounds_of_group(self, group: int) -> pd.DataFrame:
        """The rounds of the runs of one group."""
        return self.rounds[self.rounds["run"].isin(self.runs.index[self.runs["group"] == group])]

    def clients(self) -> pd.DataFrame:
        """One row a run, round and client."""
        tables = [clients_of(run.arrays).assign(run=number) for number, run in enumerate(self.files)]
        return _identified(pd.concat([t for t in tables if len(t)] or tables[:1], ignore_index=True), self.runs)

    def last_of_clients(self, numbers: Iterable[int]) -> NDArray[np.float64]:
        """The last A of every scored client (clients,), mean over the runs of these numbers; NaN without any."""
        last: list[pd.Series] = []
        for number in numbers:
            table = np.asarray(self.files[number].arrays.get("rs_client_acc", ()), dtype=np.float64)
            if table.ndim == 2 and table.size:
                usable = np.isfinite(table)
                row = len(table) - 1 - np.argmax(usable[::-1], axis=0)
                scores = np.where(usable.any(axis=0), table[row, np.arange(table.shape[1])], np.nan)
                last.append(pd.Series(scores, index=_scored(self.files[number].arrays, len(scores))))
        return pd.concat(last, axis=1).mean(axis=1).to_numpy(dtype=np.float64) if last else np.empty(0)


def load(*paths: Path | str) -> pd.DataFrame:
    """One row a run and round of all results in these folders (and theirs) and files.

    Columns: ``run`` (its number), ``dataset``, ``algorithm``, ``label``, ``goal``, ``seed``, ``repeat``, ``status``,
    ``round``, and the numbers of `rounds_of`. A file that cannot be used is told in a warning.

    Raises:
        UsageError: there is no result that can be used.
    """
    return _loaded(paths).rounds


def load_runs(*paths: Path | str) -> pd.DataFrame:
    """One row a run: the summary of `summary_of`, and every setting as ``settings.<name>``. Otherwise as `load`."""
    results = _loaded(paths)
    settings = [
        {
            f"settings.{key}": value
            for key, value in _settings(run).items()
            if isinstance(value, (str, int, float, bool))
        }
        for run in results.files
    ]
    return pd.concat([results.runs, pd.DataFrame(settings, index=results.runs.index)], axis=1)


def load_clients(*paths: Path | str) -> pd.DataFrame:
    """One row a run, round and client. Otherwise as `load`."""
    return _loaded(paths).clients()


def _loaded(paths: Iterable[Path | str]) -> Results:
    results, problems = read_results([Path(path) for path in paths])
    if not len(results.runs):
        raise UsageError("; ".join(problems) or "name at least one folder or file")
    for problem in problems:
        warnings.warn(problem, stacklevel=3)
    return results


# ---------------------------------------------------------------------------------------------- reading


def read_results(paths: Sequence[Path]) -> tuple[Results, list[str]]:
    """The runs of these files and of the folders' files, and a line about each that cannot be used."""
    runs, problems = [], []
    files: list[Path] = []
    for path in paths:
        files += sorted(path.rglob("*.h5")) if path.is_dir() else [path]
        if path.is_dir() and not any(path.rglob("*.h5")):
            problems.append(f"there is no result file in {path}")
    algorithms = [method.name for method in registry.METHODS]
    for path in dict.fromkeys(files):
        try:
            run = read_run(path, algorithms)
        except UsageError as error:
            problems.append(str(error))
            continue
        if "rs_test_acc" in run.arrays:
            runs.append(run)
        else:
            problems.append(f"{path} is not a result file: it has no array rs_test_acc")
    return results_of(runs), problems


def results_of(files: Sequence[Run]) -> Results:
    """The data frames of these runs, in their order."""
    tables = [rounds_of(run.arrays) for run in files]
    rows = [_identity(run) | summary_of(table, run) for run, table in zip(files, tables, strict=True)]
    runs = pd.DataFrame(rows, index=pd.RangeIndex(len(rows), name="run"))
    if rows:
        runs["seed"] = runs["seed"].astype("Int64")
        runs.insert(0, "group", _groups(files, runs))
        runs.insert(3, "label", _labels(files, runs))
    numbered = [table.reset_index().assign(run=number) for number, table in enumerate(tables)]
    rounds = pd.concat(numbered, ignore_index=True) if numbered else pd.DataFrame()
    return Results(runs, _identified(rounds, runs) if rows else rounds, files)


def _identity(run: Run) -> dict[str, Any]:
    seed = run.info.get("seed", _settings(run).get("seed"))
    return {
        "dataset": _printable(run.dataset),
        "algorithm": _printable(run.algorithm),
        "goal": _printable(run.goal),
        "seed": seed if type(seed) is int and 0 <= seed < 2**63 else None,
        "repeat": run.repeat,
        "status": run.status,
        "path": str(run.path),
    }


def summary_of(rounds: pd.DataFrame, run: Run) -> dict[str, Any]:
    """What a run comes to: its last accuracies and spreads, its best A and that one's round, means of forgetting and
    traffic over the rounds, and the median of a round's seconds without the first, which also warms up.

    diverged: its last training loss is not finite. left_out: uploads left out because they were not.
    """
    losses = np.ravel(run.arrays.get("rs_train_loss", ()))
    values = {name: column[np.isfinite(column)] for name, column in ((c, rounds[c].to_numpy()) for c in rounds)}
    accuracy, seconds = values["test_acc"], values["seconds"]
    summary: dict[str, Any] = {"rounds": rounds.index[-1] if len(rounds) else np.nan}
    summary |= {name: values[name][-1] if len(values[name]) else np.nan for name in EVALUATED}
    summary |= {name: _mean(values[name]) for name in ("forgetting", "bytes_down", "bytes_up")}
    summary |= {
        "best_acc": accuracy.max() if len(accuracy) else np.nan,
        "best_round": rounds["test_acc"].idxmax() if len(accuracy) else np.nan,
        "seconds": float(np.median(seconds[1:] if len(seconds) > 1 else seconds)) if len(seconds) else np.nan,
        "left_out": int(values["left_out"].sum()),
        "diverged": bool(len(losses) and not np.isfinite(losses[-1])),
    }
    return summary


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else np.nan


def _identified(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """`table`, which names runs by their number, with what tells the runs apart in front."""
    return table[["run"]].join(runs[IDENTITY], on="run").join(table.drop(columns="run"))


# ---------------------------------------------------------------------------------------------- equal but for the seed


def _settings(run: Run) -> dict[str, Any]:
    settings = run.info.get("settings")
    return settings if isinstance(settings, dict) else {}


def _groups(files: Sequence[Run], runs: pd.DataFrame) -> list[int]:
    """The number of each run's group: runs whose settings are equal but for the seed; unfinished ones for themselves.

    Where two of them have the same seed and repeat, as runs of other code have, their folder tells them apart, and then
    their goal. Of a file without settings (PFLlib's own) folder and goal are all that is known.
    """
    keys: list[tuple[str, ...]] = []
    for run in files:
        settings = {key: value for key, value in _settings(run).items() if key not in SEEDS}
        place = (json.dumps(settings, sort_keys=True),) if settings else _place(run)
        keys.append((run.dataset, run.algorithm, "" if run.status == "finished" else run.status, *place))
    for detail in (_folder, _goal):
        seeds = runs[["seed", "repeat"]].assign(key=pd.Series(keys, index=runs.index))
        crowded = set(seeds.loc[seeds.duplicated(keep=False), "key"])
        keys = [(*key, detail(run)) if key in crowded else key for key, run in zip(keys, files, strict=True)]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys]


def _place(run: Run) -> tuple[str, ...]:
    return _folder(run), run.goal, str(run.info.get("settings_digest", ""))


def _folder(run: Run) -> str:
    return str(run.path.parent)


def _goal(run: Run) -> str:
    return run.goal


def _labels(files: Sequence[Run], runs: pd.DataFrame) -> list[str]:
    """The algorithm, and in brackets what tells its groups on one data set apart."""
    labels = runs["algorithm"].astype(object).copy()  # pandas 2 does not copy by itself
    for _, alike in runs.groupby(["dataset", "algorithm"]):
        groups = alike.drop_duplicates("group")["group"]
        for group, detail in zip(groups, _details([files[number] for number in groups.index]), strict=True):
            if detail:
                labels[alike.index[alike["group"] == group]] += f" ({_printable(detail)})"
    return list(labels)


def _details(files: Sequence[Run]) -> list[str]:
    """What tells these runs of one algorithm on one data set apart: the settings in which they differ, if those are at
    most two, else the goal, else the folder; empty for a single one.
    """
    settings = [_settings(run) for run in files]
    differing = [
        key
        for key in dict.fromkeys(key for each in settings for key in each if key not in SEEDS)
        if len({json.dumps(each.get(key), sort_keys=True) for each in settings}) > 1
    ]
    said = [""] * len(files)
    if 1 <= len(differing) <= 2 and all(settings):
        said = [", ".join(f"{SHORT.get(key, key)}={_short(each.get(key))}" for key in differing) for each in settings]
    for detail in (_goal, _folder):
        more = [", ".join(filter(None, (text, Path(detail(run)).name))) for text, run in zip(said, files, strict=True)]
        if len(_told_apart(more, files)) > len(_told_apart(said, files)):
            said = more
    return said


def _told_apart(said: Sequence[str], files: Sequence[Run]) -> set[tuple[str, str]]:
    return {(text, run.status) for text, run in zip(said, files, strict=True)}  # tables and figures name the status


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 16 else text[:8] + "…"


def _printable(text: str) -> str:
    """`text` without what a terminal would obey."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)
