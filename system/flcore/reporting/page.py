"""One HTML page with the table, the curves, and how every run came about. It holds all that it needs and asks for
nothing: it works from a disk, without a network, and its Content-Security-Policy says so.
"""

import html
import json
import string
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flcore.reporting import provenance, tables
from flcore.reporting.figures import MARKERS, Curve, curve_of, lines_of
from flcore.reporting.frames import Results
from flcore.reporting.tables import Cell, Table
from flcore.utils.runs.files import write_text

TEMPLATE = Path(__file__).with_name("page.html")
METRICS = {"test_acc": 100, "test_acc_after": 100, "forgetting": 100, "train_loss": 1}
ALONG = {"round": ("round", 1), "megabytes": ("bytes_before", 1e-6), "seconds": ("seconds_before", 1)}
MOST_POINTS = 500  # of a curve; more could not be seen, and would make a large page
DASHES = ("", "7 3", "2 2", "7 3 2 3", "12 3", "4 4", "12 3 2 3", "1 4")  # of several settings of one method


def write(results: Results, path: Path) -> None:
    """Writes the page."""
    write_text(path, page(results))


def page(results: Results) -> str:
    """The page as text."""
    runs, groups = len(results.runs), results.runs["group"].nunique()
    datasets = ", ".join(dict.fromkeys(results.runs["dataset"]))
    differing, lines = provenance.differences(results)
    found = "".join(f'<p class="note">{html.escape(line)}</p>' for line in lines)
    found += f'<div class="wide">{_table(differing, "differences")}</div>' if differing else ""
    content = {
        "summary": html.escape(f"{runs} runs of {groups} settings on {datasets}."),
        "table": _table(tables.summary_table(results), "methods"),
        "notes": "<br>".join(map(html.escape, tables.notes(results))),
        "runs": _table(_runs(results), "runs"),
        "differences": f"<h2>Settings in which the runs differ</h2>{found}" if found else "",
        "data": json.dumps(_data(results), separators=(",", ":")).replace("<", "\\u003c"),  # no </script> in it
    }
    return string.Template(TEMPLATE.read_text(encoding="utf-8")).substitute(content)


def _table(table: Table, name: str) -> str:
    """Sortable by each column: by the first number of its cells, or by their text."""
    columns = list(zip(*table.rows, strict=True))
    words = [
        column < table.left or any(isinstance(value, str) for cell in cells for value in cell.numbers.values())
        for column, cells in enumerate(columns)
    ]
    heads = "".join(
        f'<th{_class("words" * wordy)}><button type="button">{html.escape(head)}</button></th>'
        for head, wordy in zip(table.header, words, strict=True)
    )
    rows = "".join(
        f"<tr>{''.join(_cell(cell, wordy) for cell, wordy in zip(row, words, strict=True))}</tr>" for row in table.rows
    )
    return f'<table class="sortable" id="{name}"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'


def _cell(cell: Cell, words: bool) -> str:
    value: Any = cell.text if words else next(iter(cell.numbers.values()), "")
    value = "" if value != value else value
    text = html.escape(cell.text)
    shown = f"<code>{text}</code>" if words and cell.mark == "code" else text
    classes = " ".join(filter(None, ("words" * words, cell.mark if cell.mark in ("best", "second") else "")))
    return f'<td{_class(classes)} data-value="{html.escape(str(value))}">{shown}</td>'


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""


def _runs(results: Results) -> Table:
    """One row a run: what it was, and the command that makes it again."""
    header = "algorithm,data set,goal,seed,repeat,last A,command,status,commit,torch,started".split(",")
    rows = []
    for run, (_, row) in zip(results.files, results.runs.iterrows(), strict=True):
        versions = run.info.get("versions")
        commit = str(run.info.get("commit") or tables.MISSING)[:12] + (" + changes" if run.info.get("dirty") else "")
        torch = versions.get("torch") if isinstance(versions, dict) else None
        seed, last = row["seed"], 100 * row["test_acc"]
        command = provenance.command_of(run) or f"not known: {run.path} tells no settings"
        words = [str(word or tables.MISSING) for word in (run.status, commit, torch, run.info.get("start"))]
        rows.append(
            [
                *(Cell(text, {"": text}) for text in (row["label"], run.dataset, run.goal)),
                Cell(str(seed) if seed == seed else tables.MISSING, {"": float(seed) if seed == seed else np.nan}),
                Cell(str(run.repeat), {"": run.repeat}),
                Cell(f"{last:.2f}" if np.isfinite(last) else tables.MISSING, {"": last}),
                Cell(command, {"": command}, mark="code"),
                *(Cell(text, {"": text}) for text in words),
            ]
        )
    return Table(header, rows, left=3)


# ---------------------------------------------------------------------------------------------- what the charts show


def _data(results: Results) -> list[dict[str, Any]]:
    """Every data set's curves and last accuracies of the clients, as the script in the page reads them."""
    data = []
    for dataset in dict.fromkeys(results.runs["dataset"]):
        lines = []
        for line in lines_of(results, dataset):
            curves = {}
            for metric, scale in METRICS.items():
                curve = curve_of(line.rounds, metric, scale)
                if not len(curve.x):
                    continue
                kept = np.unique(np.linspace(0, len(curve.x) - 1, min(len(curve.x), MOST_POINTS)).round().astype(int))
                curve = Curve(*(values[kept] for values in curve))
                curves[metric] = {"mean": _plain(curve.mean), "spread": _plain(curve.spread)}
                each = line.rounds.dropna(subset=[metric]).groupby("round")
                for name, (along, unit) in ALONG.items():
                    x = curve.x if along == "round" else each[along].mean().reindex(curve.x) * unit
                    curves[metric][name] = _plain(x)
            variant = list(MARKERS).index(line.marker)
            style = {
                "name": line.name,
                "colour": line.colour,
                "dashes": DASHES[variant],
                "sign": MARKERS[line.marker] or "■",
            }
            lines.append({**style, "curves": curves, "clients": _plain(100 * results.last_of_clients(line.runs))})
        data.append({"name": dataset, "lines": lines})
    return data


def _plain(values: ArrayLike) -> list[float | None]:
    """For JSON: five digits, null where there is no number."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in np.asarray(values, dtype=np.float64)]
