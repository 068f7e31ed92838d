"""Compares runs: one table, one picture of their curves, and the settings in which they differ.

python scripts/report.py results/*.h5 --out curves.png --differences
python scripts/report.py results                            all .h5 files in the folder and its sub-folders

Point A is after the download, point B after local training. Repeats of one setting are shown as their mean, in the
picture with a band from the lowest to the highest. Best A is selected on the test set, so it flatters; last A does not.
"""

import argparse
import itertools
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flcore import registry
from flcore.utils.errors import RunError, UsageError
from flcore.utils.runs.files import whole_file
from flcore.utils.runs.read import Run, read_run

Curve = NDArray[np.float64]

# Okabe and Ito's colours, told apart by colour-blind readers; the markers tell apart what lies beyond eight.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F")
MARKERS = ("", "o", "s", "^", "D")


@dataclass
class Group:
    """The repeats of one setting."""

    dataset: str
    algorithm: str
    goal: str
    runs: list[Run]
    label: str = ""  # the algorithm, with the goal where one data set has two groups of the algorithm

    def curve(self, name: str) -> Curve:
        """Repeats x evaluations of one array, shorter repeats filled up with NaN; (repeats, 0) if none has it."""
        curves = [np.asarray(run.arrays.get(name, ()), dtype=np.float64).ravel() for run in self.runs]
        filled = np.full((len(curves), max(map(len, curves))), np.nan)
        for row, values in zip(filled, curves, strict=True):
            row[: len(values)] = values
        return filled

    def rounds(self, length: int) -> Curve:
        """The round of each of `length` evaluations; PFLlib's own files do not say, so there they are counted."""
        longest = max((np.ravel(run.arrays.get("rs_round", ())) for run in self.runs), key=len)
        return np.asarray(longest[:length] if len(longest) >= length else np.arange(length), dtype=np.float64)

    def last(self, name: str) -> float:
        """Mean over the repeats of each one's last value that is not NaN."""
        finals = [row[~np.isnan(row)] for row in self.curve(name)]
        return _mean([row[-1] for row in finals if len(row)])

    def mean(self, name: str) -> float:
        return _mean(self.curve(name))

    def best(self) -> tuple[float, float]:
        """Mean over the repeats of the best accuracy at A, and the round of the first repeat's best."""
        curves = [row for row in self.curve("rs_test_acc") if np.isfinite(row).any()]
        if not curves:
            return np.nan, np.nan
        rounds = self.rounds(len(curves[0]))
        return _mean([np.nanmax(row) for row in curves]), float(rounds[np.nanargmax(curves[0])])

    def seconds(self) -> float:
        """Median seconds a round, without the first, which also warms up."""
        rows = self.curve("rs_seconds")
        rows = rows[:, 1:] if rows.shape[1] > 1 else rows
        return float(np.nanmedian(rows)) if np.isfinite(rows).any() else np.nan


def _mean(values: Any) -> float:
    array = np.asarray(values, dtype=np.float64)
    return float(np.nanmean(array)) if np.isfinite(array).any() else np.nan


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Puts the repeats of one setting together, in the order in which they come; unfinished ones for themselves."""
    groups: dict[tuple[str, ...], Group] = {}
    for run in runs:
        status = run.status if run.status != "finished" else ""
        key = (str(run.path.parent), run.dataset, run.algorithm, run.goal, run.info.get("settings_digest", ""), status)
        groups.setdefault(key, Group(run.dataset, run.algorithm, run.goal, [])).runs.append(run)
    for group in groups.values():
        twins = [
            other for other in groups.values() if (other.dataset, other.algorithm) == (group.dataset, group.algorithm)
        ]
        group.label = group.algorithm if len(twins) == 1 else f"{group.algorithm} ({group.goal})"
    return list(groups.values())


# ---------------------------------------------------------------------------------------------- table


def _number(value: float, digits: int = 2, scale: float = 1.0) -> str:
    return f"{value * scale:.{digits}f}" if np.isfinite(value) else "–"


def _best(group: Group) -> str:
    accuracy, at_round = group.best()
    return f"{accuracy * 100:.2f} @{at_round:.0f}" if np.isfinite(accuracy) else "–"


def _rounds(group: Group) -> str:
    length = group.curve("rs_test_acc").shape[1]
    return f"{group.rounds(length)[-1]:.0f}" if length else "–"


def table(groups: Sequence[Group]) -> list[list[str]]:
    """Header and one row per group; accuracies in percent, traffic in MB (10^6 bytes)."""
    reference = {}  # of each data set: FedAvg's seconds a round, else the first group's
    for group in groups:
        if group.dataset not in reference or group.algorithm == "FedAvg":
            reference[group.dataset] = group.seconds()
    columns: dict[str, Callable[[Group], str]] = {
        "algorithm": lambda g: (
            g.label + RECONSTRUCTED * is_reconstruction(g) + (f" x{len(g.runs)}" if g.runs[1:] else "") + _states(g)
        ),
        "data set": lambda g: g.dataset,
        "rounds": _rounds,
        "last A": lambda g: _number(g.last("rs_test_acc"), scale=100),
        "best A*": _best,
        "last B": lambda g: _number(g.last("rs_test_acc_after"), scale=100),
        "std": lambda g: _number(g.last("rs_test_std"), scale=100),
        "worst 10%": lambda g: _number(g.last("rs_worst_decile"), scale=100),
        "AUC": lambda g: _number(g.last("rs_test_auc"), digits=4),
        "forgetting": lambda g: _number(g.mean("rs_forgetting"), scale=100),
        "MB down": lambda g: _number(g.mean("rs_bytes_down"), scale=1e-6),
        "MB up": lambda g: _number(g.mean("rs_bytes_up"), scale=1e-6),
        "time": lambda g: _number(g.seconds() / reference[g.dataset]) if reference[g.dataset] else "–",
    }
    return [list(columns), *([cell(group) for cell in columns.values()] for group in groups)]


def _states(group: Group) -> str:
    """What a reader must know of the runs: unfinished ones, those whose last training loss is not finite, and how many
    uploads were left out because they were not.
    """
    states = {run.status for run in group.runs} - {"finished", ""}
    losses = [np.ravel(run.arrays.get("rs_train_loss", ())) for run in group.runs]
    states |= {"diverged" for loss in losses if len(loss) and not np.isfinite(loss[-1])}
    if number := int(np.nansum(group.curve("rs_left_out"))):
        states.add(f"{number} uploads left out")
    return f" [{', '.join(sorted(states))}]" if states else ""


ALGORITHMS = {algorithm.name: algorithm for algorithm in registry.ALGORITHMS}
RECONSTRUCTED = "†"


def is_reconstruction(group: Group) -> bool:
    return group.algorithm in ALGORITHMS and registry.server_class(ALGORITHMS[group.algorithm]).reconstruction is True


NOTES = """Accuracies in percent over all clients' test samples. A: after download; B: after local training; std and
worst 10%: over the clients, at A. * best A is selected on the test set. Forgetting: mean of B of the round before
minus A. MB: a round's traffic. Time: of a round, relative to FedAvg (where it is missing, to the first row)."""


def print_aligned(rows: Sequence[Sequence[str]], left: int) -> None:
    """Prints rows under a header, the first `left` columns flush left and the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


# ---------------------------------------------------------------------------------------------- picture


def draw(groups: Sequence[Group], out: Path) -> None:
    """Writes a PNG with one panel per data set: accuracy over the rounds, at A solid and at B dashed."""
    import matplotlib

    matplotlib.use("Agg")  # a file only, so no display is needed
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    datasets = list(dict.fromkeys(group.dataset for group in groups))
    names = list(dict.fromkeys(group.label for group in groups))
    figure, panels = plt.subplots(
        1, len(datasets), figsize=(7.0 * len(datasets), 4.4), squeeze=False, layout="constrained"
    )
    for panel, dataset in zip(panels[0], datasets, strict=True):
        ends = []
        for group in groups:
            if group.dataset != dataset:
                continue
            number = names.index(group.label)
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number // len(COLOURS) % len(MARKERS)]
            for array, line in (("rs_test_acc", "-"), ("rs_test_acc_after", (0, (3, 1.5)))):
                rows = group.curve(array) * 100
                shown = np.isfinite(rows).any(axis=0)
                if not shown.any():
                    continue
                rounds, rows = group.rounds(rows.shape[1])[shown], rows[:, shown]
                mean = np.nanmean(rows, axis=0)
                weight = 1.9 if line == "-" else 1.2
                panel.plot(rounds, mean, color=colour, linestyle=line, linewidth=weight, marker=marker, markevery=0.1)
                if len(rows) > 1:
                    low, high = np.nanmin(rows, axis=0), np.nanmax(rows, axis=0)
                    panel.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
                if line == "-":
                    ends.append((float(mean[-1]), group.label, colour))
        _label_ends(panel, ends)
        panel.set_title(dataset, loc="left", fontweight="bold", parse_math=False)
        panel.set_xlabel("round")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        panel.grid(axis="y", color="#dddddd", linewidth=0.7)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("test accuracy (%)")
    styles = [
        Line2D([], [], color="#444444", linewidth=1.9, label="A: after download"),
        Line2D([], [], color="#444444", linewidth=1.2, linestyle=(0, (3, 1.5)), label="B: after local training"),
    ]
    figure.legend(handles=styles, loc="outside lower center", ncols=2, frameon=False)
    with whole_file(out) as temporary:
        figure.savefig(temporary, format="png", dpi=160)
    plt.close(figure)


def _label_ends(panel: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Writes every curve's name beside its right end, neighbours pushed apart until none overlap."""
    ends = sorted(ends)
    heights = [height for height, _, _ in ends]
    bottom, top = panel.get_ylim()
    gap = 0.048 * (top - bottom)
    for _ in range(100):
        for lower, upper in itertools.pairwise(range(len(heights))):
            overlap = gap - (heights[upper] - heights[lower])
            if overlap > 0:
                heights[lower] -= overlap / 2
                heights[upper] += overlap / 2
    for (_, label, colour), height in zip(ends, heights, strict=True):
        panel.text(panel.get_xlim()[1], height, f" {label}", color=colour, va="center", parse_math=False)


# ---------------------------------------------------------------------------------------------- differences


def _flat(info: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in info.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# What differs between any two runs, and what only repeats the settings.
MOMENTARY = {"pid", "host", "start", "start_time", "end", "wall_time_s", "status", "repeat", "goal"}
MOMENTARY |= {"process", "resumed", "peak_memory_bytes"}
REPEATED = {"arguments", "given", "seed", "dataset", "algorithm", "settings_digest"}


def differences(groups: Sequence[Group]) -> list[list[str]]:
    """Header and one row per setting, version or digest in which the groups' first runs differ."""
    facts = [
        dict(_flat({key: value for key, value in group.runs[0].info.items() if key not in MOMENTARY | REPEATED}))
        for group in groups
    ]
    rows = [["setting", *(group.label for group in groups)]]
    for key in dict.fromkeys(key for fact in facts for key in fact):
        values = [fact.get(key, "–") for fact in facts]
        if any(value != values[0] for value in values):
            rows.append([_short(key), *(_short(value) for value in values)])
    return rows


def _short(value: Any) -> str:
    text = str(value) if str(value).isprintable() else repr(value)  # nothing that a terminal would obey
    return text if len(text) <= 24 else text[:21] + "..."


def report_differences(groups: Sequence[Group]) -> None:
    unknown = [str(group.runs[0].path) for group in groups if not group.runs[0].info]
    for path in unknown:
        print(f"no run.json beside {path}: its settings are not known")
    rows = differences([group for group in groups if group.runs[0].info])
    if len(rows) > 1:
        print_aligned(rows, left=len(rows[0]))
    elif len(groups) - len(unknown) > 1:
        print("no setting differs")


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs of these files and of the folders' files, and a line about each that cannot be used."""
    runs, problems = [], []
    files: list[Path] = []
    for path in paths:
        files += sorted(path.rglob("*.h5")) if path.is_dir() else [path]
        if path.is_dir() and not any(path.rglob("*.h5")):
            problems.append(f"there is no result file in {path}")
    for path in dict.fromkeys(files):
        try:
            run = read_run(path, ALGORITHMS)
        except UsageError as error:
            problems.append(str(error))
            continue
        if "rs_test_acc" in run.arrays:
            runs.append(run)
        else:
            problems.append(f"{path} is not a result file: it has no array rs_test_acc")
    return runs, problems


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 2 if one of the files could not be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.h5", help="result files, or folders of them")
    parser.add_argument("--out", type=Path, metavar="FILE.png", help="write the picture of the curves here")
    parser.add_argument("--differences", action="store_true", help="name the settings in which the runs differ")
    args = parser.parse_args(argv)

    runs, problems = read_runs(args.files)
    for problem in problems:
        print(f"report: {problem}", file=sys.stderr)
    if not runs:
        return UsageError.exit_code
    groups = group_runs(runs)
    print_aligned(table(groups), left=2)
    print(NOTES)
    if any(map(is_reconstruction, groups)):
        print(f"{RECONSTRUCTED} reconstructed without the paper's text or code: not the authors' numbers.")
    if args.differences:
        print()
        report_differences(groups)
    if args.out:
        draw(groups, args.out)
        print(f"curves: {args.out}")
    return UsageError.exit_code if problems else 0


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `report.py ... | head` ends without a word
    try:
        sys.exit(main())
    except (UsageError, RunError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        sys.exit(UsageError.exit_code)
