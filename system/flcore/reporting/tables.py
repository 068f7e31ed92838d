"""The table of the methods: a number and its spread over seeds a cell, as text, Markdown, LaTeX or CSV."""

import csv
import io
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from flcore import registry
from flcore.reporting.frames import Results
from flcore.reporting.statistics import Difference, mean_and_spread, paired_difference
from flcore.utils.errors import UsageError

RECONSTRUCTED = "†"
MISSING = "–"
HEADLINE = "test_acc"  # what the margin is of: the last A
LEVEL = 0.95


@dataclass
class Cell:
    """What a cell shows, and the numbers behind it, by the end of their columns' names in CSV.

    mark: best or second, of the methods on one data set.
    """

    text: str
    numbers: dict[str, float | str] = field(default_factory=dict)
    mark: str = ""


@dataclass
class Table:
    """Rows of cells under their columns' names, the first `left` columns flush left."""

    header: list[str]
    rows: list[list[Cell]]
    left: int


@dataclass(frozen=True)
class Column:
    """A number of every run: its name, the column of `Results.runs`, how it is shown.

    better: 1 where the largest is the best, 0 where none is marked.
    """

    name: str
    metric: str
    scale: float = 1.0
    digits: int = 2
    better: int = 0


COLUMNS = {
    column.name: column
    for column in (
        Column("last A", "test_acc", 100, better=1),
        Column("best A*", "best_acc", 100, better=1),
        Column("last B", "test_acc_after", 100, better=1),
        Column("std over clients (A)", "test_std", 100),
        Column("worst 10% of clients (A)", "worst_decile", 100, better=1),
        Column("AUC (A)", "test_auc", digits=4, better=1),
        Column("forgetting", "forgetting", 100),
        Column("MB down", "bytes_down", 1e-6),
        Column("MB up", "bytes_up", 1e-6),
    )
}
OTHERS = ("time", "margin")
NAMES = [*COLUMNS, *OTHERS]  # the columns that can be chosen, in the table's order

NOTES = (
    "Accuracies in percent over all clients' test samples. A: after download; B: after local training. ±: standard "
    "deviation over the seeds (n - 1); std over clients and worst 10% of clients: of the last A, in one run. * best A "
    "is selected on the test set. Forgetting: mean of B of the round before minus A. MB: a round's traffic. Time: of a "
    "round, relative to FedAvg (where it is missing, to the first row). Margin: of the best last A to the second's, of "
    "the others to the best's, as the mean difference at the same seed, with a 95 % bootstrap interval over the seeds."
)
FEW_SEEDS = "An interval over fewer than five seeds is narrower than it should be: read it as a range, not as a test."


def summary_table(results: Results, columns: Sequence[str] = NAMES) -> Table:
    """One row a group of runs that differ in their seed alone; accuracies in percent, traffic in MB (10^6 bytes).

    Best and second of a data set are marked as they are shown, unfinished and diverged runs never.
    """
    groups = [runs for _, runs in results.runs.groupby("group")]
    seconds = _reference_seconds(groups)
    margins = _margins(groups) if "margin" in columns else {}
    rows = []
    for runs in groups:
        first = runs.iloc[0]
        cells = {
            "algorithm": _words(first["label"] + RECONSTRUCTED * is_reconstruction(first["algorithm"]) + marks(runs)),
            "data set": _words(first["dataset"]),
            "seeds": Cell(str(len(runs)), {"": len(runs)}),
            "rounds": _number(runs["rounds"].max(), digits=0),
        }
        for name in columns:
            if name == "time":
                cells[name] = _number(runs["seconds"].mean() / (seconds[first["dataset"]] or np.nan))
            elif name == "margin":
                cells[name] = _margin(margins.get(first["group"]))
            else:
                cells[name] = measured(runs, COLUMNS[name])
        rows.append(cells)
    for name in columns:
        if name in COLUMNS and COLUMNS[name].better:
            _mark(groups, [row[name] for row in rows])
    header = ["algorithm", "data set", "seeds", "rounds", *columns]
    return Table(header, [[row[name] for name in header] for row in rows], left=2)


def by_data_set(table: Table) -> Table:
    """The same with one row a method, and every number once for each data set."""
    names, datasets = ([row[column].text for row in table.rows] for column in (0, 1))
    found = dict(zip(zip(names, datasets, strict=True), table.rows, strict=True))
    rows, columns = list(dict.fromkeys(names)), list(dict.fromkeys(datasets))
    header = [table.header[0], *(f"{dataset}: {name}" for dataset in columns for name in table.header[4:])]
    empty = [Cell(MISSING)] * len(table.header)
    return Table(
        header,
        [
            [_words(name), *(cell for dataset in columns for cell in found.get((name, dataset), empty)[4:])]
            for name in rows
        ],
        left=1,
    )


def is_reconstruction(algorithm: str) -> bool:
    """Whether it was written without the paper's text or code."""
    return any(method.name == algorithm and method.reconstruction for method in registry.METHODS)


def marks(runs: pd.DataFrame) -> str:
    """What a reader must know of a group's runs, in brackets: unfinished ones, those whose last training loss is not
    finite, and how many uploads were left out because they were not.
    """
    states = set(runs["status"]) - {"finished", ""}
    states |= {"diverged"} if runs["diverged"].any() else set()
    if number := runs["left_out"].sum():
        states.add(f"{number} uploads left out")
    return f" [{', '.join(sorted(states))}]" if states else ""


def notes(results: Results) -> list[str]:
    """What a reader of the table must know, a paragraph each."""
    found = [NOTES]
    seeds = results.runs.groupby("group").size()
    if ((seeds > 1) & (seeds < 5)).any():
        found.append(FEW_SEEDS)
    mixed = [
        f"{runs['label'].iloc[0]} on {runs['dataset'].iloc[0]}"
        for _, runs in results.runs.groupby("group")
        if len({results.files[number].info.get("code_digest") for number in runs.index}) > 1
    ]
    if mixed:
        found.append(f"Not all seeds ran with the same version of the code: {', '.join(mixed)}.")
    if any(map(is_reconstruction, results.runs["algorithm"].unique())):
        found.append(f"{RECONSTRUCTED} reconstructed without the paper's text or code: not the authors' numbers.")
    return found


# ---------------------------------------------------------------------------------------------- cells


def _words(text: str) -> Cell:
    return Cell(text, {"": text})


def _number(value: float, digits: int = 2) -> Cell:
    return Cell(f"{value:.{digits}f}", {"": float(value)}) if np.isfinite(value) else Cell(MISSING, {"": np.nan})


def measured(runs: pd.DataFrame, column: Column) -> Cell:
    """Mean and spread over a group's runs; of one run's best A also the round."""
    mean, spread = mean_and_spread(runs[column.metric] * column.scale)
    cell = Cell(MISSING, {" mean": mean, " std over seeds": spread})
    if np.isfinite(mean):
        cell.text = f"{mean:.{column.digits}f}"
        if np.isfinite(spread) and (spread or column.better):
            cell.text += f" ± {spread:.{column.digits}f}"
        elif column.metric == "best_acc" and len(runs) == 1:
            cell.text += f" @{runs['best_round'].iloc[0]:.0f}"
    return cell


def _reference_seconds(groups: Iterable[pd.DataFrame]) -> dict[str, float]:
    """Of each data set: FedAvg's seconds a round, else the first group's."""
    reference: dict[str, float] = {}
    for runs in groups:
        dataset, algorithm = runs["dataset"].iloc[0], runs["algorithm"].iloc[0]
        if dataset not in reference or algorithm == "FedAvg":
            reference[dataset] = runs["seconds"].mean()
    return reference


def _comparable(runs: pd.DataFrame) -> bool:
    return bool(runs["status"].isin(["finished", ""]).all() and not runs["diverged"].any())


def _margins(groups: Sequence[pd.DataFrame]) -> dict[int, Difference]:
    """By group: of the best on a data set the lead over the second, of the others the difference to the best."""
    margins = {}
    for dataset in dict.fromkeys(runs["dataset"].iloc[0] for runs in groups):
        here = [runs for runs in groups if runs["dataset"].iloc[0] == dataset and _comparable(runs)]
        ranked = sorted(
            (runs for runs in here if runs[HEADLINE].notna().any()), key=lambda runs: -runs[HEADLINE].mean()
        )
        for runs in ranked if len(ranked) > 1 else ():
            other = ranked[1] if runs is ranked[0] else ranked[0]
            margins[int(runs["group"].iloc[0])] = paired_difference(runs, other, HEADLINE, LEVEL)
    return margins


def _margin(difference: Difference | None) -> Cell:
    mean, low, high = (100 * end for end in difference[:3]) if difference else (np.nan,) * 3
    text = f"{mean:+.2f}" if np.isfinite(mean) else MISSING
    if np.isfinite(low):
        text += f" [{low:+.2f}, {high:+.2f}]"
    return Cell(text, {"": mean, " low": low, " high": high})


def _mark(groups: Sequence[pd.DataFrame], cells: Sequence[Cell]) -> None:
    """Marks the best and the second number of each data set."""
    for dataset in {runs["dataset"].iloc[0] for runs in groups}:
        both = zip(groups, cells, strict=True)
        rank([cell for runs, cell in both if runs["dataset"].iloc[0] == dataset and _comparable(runs)])


def rank(cells: Iterable[Cell]) -> None:
    """Marks the best and the second of these cells; numbers that are shown alike share their mark."""
    here = [cell for cell in cells if cell.text != MISSING]
    shown = [float(cell.text.split()[0]) for cell in here]
    ranks = sorted(set(shown), reverse=True)[:2] if len(here) > 1 else []
    for cell, value in zip(here, shown, strict=True):
        cell.mark = dict(zip(ranks, ("best", "second"), strict=False)).get(value, "")


# ---------------------------------------------------------------------------------------------- formats


def as_text(table: Table, bold: bool = False, width: int | None = None) -> str:
    """Aligned under a header of several lines.

    bold: with the marks of a terminal, bold for the best and underlined for the second.
    width: of the terminal; a wider table is cut into several below each other, which all begin with the first column.
    """
    heads, widths = _heads(table)
    parts: list[list[int]] = [[]]
    for column in range(1, len(table.header)):
        if width and parts[-1] and sum(widths[c] + 2 for c in (*parts[-1], column)) + widths[0] > width:
            parts.append([])
        parts[-1].append(column)
    return "\n\n".join(_block(table, [0, *part], heads, widths, bold) for part in parts)


def _heads(table: Table) -> tuple[list[list[str]], list[int]]:
    """The lines of each column's head, and each column's width."""
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.header)
    heads, widths = [], []
    for name, cells in zip(table.header, columns, strict=True):
        longest = max((len(cell.text) for cell in cells), default=0)
        lines = textwrap.wrap(name, max(longest, *map(len, name.split()), 12), break_on_hyphens=False)
        heads.append(lines)
        widths.append(max(longest, *map(len, lines)))
    return heads, widths


def _block(
    table: Table, columns: Sequence[int], heads: Sequence[Sequence[str]], widths: Sequence[int], bold: bool
) -> str:
    """These columns of the table, aligned."""
    lines = []
    for number in range(height := max(len(heads[column]) for column in columns)):
        starts = {column: height - len(heads[column]) for column in columns}
        words = {c: heads[c][number - starts[c]] if number >= starts[c] else "" for c in columns}
        lines.append("  ".join(_padded(words[c], widths[c], c < table.left) for c in columns).rstrip())
    lines.append("  ".join("-" * widths[column] for column in columns))
    for row in table.rows:
        marks = {c: MARKS_OF_TERMINAL.get(row[c].mark, "") if bold else "" for c in columns}
        cells = (_padded(row[c].text, widths[c], c < table.left, marks[c]) for c in columns)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


MARKS_OF_TERMINAL = {"best": "\033[1m", "second": "\033[4m"}


def _padded(word: str, width: int, left: bool, mark: str = "") -> str:
    space = " " * (width - len(word))
    shown = f"{mark}{word}\033[0m" if mark else word
    return shown + space if left else space + shown


def as_markdown(table: Table) -> str:
    """A table of GitHub's Markdown: the best bold, the second underlined."""
    signs = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}

    def shown(text: str) -> str:
        return re.sub(r"([\\|*_<>\[\]`])", r"\\\1", text)

    rows = [[shown(name) for name in table.header]]
    rows.append([":--" if column < table.left else "--:" for column in range(len(table.header))])
    rows += [[signs[cell.mark].format(shown(cell.text)) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--"}
LATEX |= {RECONSTRUCTED: r"\textsuperscript{\dag}", "…": r"\dots{}", "<": r"$<$", ">": r"$>$", "|": r"\textbar{}"}
LATEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


def as_latex(table: Table) -> str:
    """A tabular for the package booktabs: the best bold, the second underlined."""
    signs = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}", "": "{}"}

    def shown(text: str) -> str:
        text = re.sub(r"(?<![\w.])([+-])(?=\d)", r"\0\1", text)  # a number's sign, kept apart until all is escaped
        text = "".join(LATEX.get(sign, sign) for sign in text)
        return re.sub(r"\0([+-])", r"$\1$", text)

    lines = [r"\begin{tabular}{" + "l" * table.left + "r" * (len(table.header) - table.left) + "}", r"\toprule"]
    lines += [" & ".join(shown(name) for name in table.header) + r" \\", r"\midrule"]
    lines += [" & ".join(signs[cell.mark].format(shown(cell.text)) for cell in row) + r" \\" for row in table.rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def as_csv(table: Table) -> str:
    """One column a number, with all its digits; empty where there is none."""
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.header)
    keys = [list(dict.fromkeys(key for cell in cells for key in cell.numbers)) or [""] for cells in columns]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([name + key for name, each in zip(table.header, keys, strict=True) for key in each])
    for row in table.rows:
        values = [cell.numbers.get(key, "") for cell, each in zip(row, keys, strict=True) for key in each]
        writer.writerow(["" if value != value else _rounded(value) for value in values])
    return out.getvalue().rstrip("\n")


def _rounded(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.10g}"  # without the noise of the last binary digits


FORMATS: dict[str, Callable[[Table], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
}


def chosen_columns(names: str) -> list[str]:
    """The columns that a list of names separated by commas asks for; the beginning of a name is enough.

    Raises:
        UsageError: there is no such column, or several begin like that.
    """
    chosen = []
    for word in filter(None, (part.strip() for part in names.split(","))):
        found = [name for name in NAMES if name.lower() == word.lower()]
        found = found or [name for name in NAMES if name.lower().startswith(word.lower())]
        if len(found) != 1:
            raise UsageError(f"--columns {word}: there are {', '.join(NAMES)}")
        chosen += found
    if not chosen:
        raise UsageError(f"--columns: name at least one of {', '.join(NAMES)}")
    return list(dict.fromkeys(chosen))
