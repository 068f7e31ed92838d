"""A plan's tables and figure, made of whatever of its runs there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from flcore.reporting.frames import Results, results_of
from flcore.reporting.statistics import mean_and_spread, paired_difference
from flcore.reporting.tables import COLUMNS, MISSING, Column, Table, measured, rank
from flcore.reporting.tables import Cell as Shown
from flcore.utils.runs.read import Run
from reproduction.plan import Plan, words

OURS = ("FedCPD", "FedCPD+")


def tables(plan: Plan, runs: Sequence[Run | None]) -> list[Table]:
    """The plan's tables: one a measure with a column for each of the plan's, or a single one if it has no columns.

    runs: of each of the plan's cells, or None. Cells without a run show a dash. Below stand the leads of
    FedCPD and FedCPD+ over the best of the other methods, mean over common seeds, and the paper's where it is known.
    """
    results = _results(plan, runs)
    rows = list(dict.fromkeys(cell.row for cell in plan.cells))
    columns = list(dict.fromkeys(cell.column for cell in plan.cells))
    alone = columns == [""]
    parts = (
        [[("", name) for name in plan.show]]
        if alone
        else [[(column, name) for column in columns] for name in plan.show]
    )
    made = []
    for part in parts:
        cells = {(row, place): _cell(results, row, *place) for row in rows for place in part}
        for place in part:
            if COLUMNS[place[1]].better:
                rank(cells[row, place] for row in rows)
        header = ["method" if alone else part[0][1], *(column or name for column, name in part)]
        table = Table(header, [[Shown(row), *(cells[row, place] for place in part)] for row in rows], left=1)
        if OURS[0] in rows:
            table.rows += _leads(plan, results, rows, part)
        made.append(table)
    return made


def of_runs(runs: Sequence[Run]) -> Table:
    """These runs of one data set, the best first: A after 30, 60 and all rounds, and B."""
    last = max((int(run.arrays["rs_round"][-1]) for run in runs), default=0)
    ranked = sorted(runs, key=lambda run: -run.arrays["rs_test_acc"][-1])
    rows = [
        [
            Shown(words(run.algorithm, run.info["settings"])),
            *(_at(run, "rs_test_acc", number) for number in (30, 60, last)),
            _at(run, "rs_test_acc_after", int(run.arrays["rs_round"][-2])),
            Shown(run.info["commit"][:7]),
        ]
        for run in ranked
    ]
    header = ["method", "A, round 30", "A, round 60", f"A, round {last}", "B, evaluation before", "commit"]
    return Table(header, rows, left=1)


def _at(run: Run, array: str, number: int) -> Shown:
    """The accuracy in percent of one round; a dash where it was not scored."""
    place = np.flatnonzero(run.arrays["rs_round"] == number)
    there = len(place) and place[0] < len(run.arrays[array])
    return Shown(f"{100 * run.arrays[array][place[0]]:.1f}" if there else MISSING)


def figure(plan: Plan, runs: Sequence[Run | None], path: Path) -> None:
    """Draws the plan's figure of the runs that there are.

    Raises:
        UsageError: they tell too little, or the path has no suffix of a figure.
    """
    from flcore.reporting import figures  # matplotlib takes its time

    figures.write(_results(plan, runs), plan.figure, path)


def _results(plan: Plan, runs: Sequence[Run | None]) -> Results:
    """The runs that there are, named and grouped as in the plan."""
    there = [(cell, run) for cell, run in zip(plan.cells, runs, strict=True) if run]
    results = results_of([replace(run, dataset=cell.column or run.dataset) for cell, run in there])
    frame = results.runs
    if there:
        frame["label"], frame["column"] = [cell.row for cell, _ in there], [cell.column for cell, _ in there]
    return results


def _runs(results: Results, row: str, column: str) -> pd.DataFrame:
    frame = results.runs
    return frame[(frame["label"] == row) & (frame["column"] == column)] if len(frame) else frame


def _cell(results: Results, row: str, column: str, name: str) -> Shown:
    runs = _runs(results, row, column)
    return measured(runs, COLUMNS[name]) if len(runs) else Shown(MISSING)


def _leads(plan: Plan, results: Results, rows: Sequence[str], part: Sequence[tuple[str, str]]) -> list[list[Shown]]:
    """The lead of each of ours over the best other method, and the published one, where more is better."""
    lines = [
        [Shown(f"{own}'s lead"), *(_lead(own, results, rows, column, COLUMNS[name]) for column, name in part)]
        for own in OURS
        if own in rows
    ]
    if any(column in plan.published for column, _ in part):
        published = (plan.published.get(column) for column, _ in part)
        lines.append([Shown("the paper's"), *(Shown(MISSING if one is None else f"{one:+.2f}") for one in published)])
    return lines


def _lead(own: str, results: Results, rows: Sequence[str], column: str, measure: Column) -> Shown:
    """As the mean over the seeds that both have. Methods without a run, which have a dash above, do not count."""
    each = {row: _runs(results, row, column) for row in rows if row == own or row not in OURS}
    each = {row: runs for row, runs in each.items() if len(runs)}
    if not measure.better or own not in each or len(each) < 2:
        return Shown(MISSING)
    others = {row: mean_and_spread(runs[measure.metric])[0] for row, runs in each.items() if row != own}
    best = max(others, key=lambda row: np.nan_to_num(others[row], nan=-1.0))
    mean = measure.scale * paired_difference(each[own], each[best], measure.metric).mean
    return Shown(f"{mean:+.2f}" if np.isfinite(mean) else MISSING)
