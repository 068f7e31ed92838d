"""What the estimates make of the bounds: one row a client and round, a table of the rounds, and sentences."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from flcore.convergence.bounds import (
    admissible_rates,
    contrast_range,
    descent_rate,
    largest_rate,
    lemma1,
    lemma2,
    smallest_gradient_bound,
    theorem1,
)
from flcore.convergence.estimates import Estimate
from flcore.reporting.tables import Cell, Table

Row = dict[str, Any]

CONSTANTS = ("L1", "L2", "sigma", "G")  # the suprema


def row(found: Estimate) -> Row:
    """All numbers of one client's round; a rate that does not exist is None."""
    c, rate = found.constants, found.rate
    aggregation = lemma2(c, rate)
    printed = admissible_rates(c, "paper")
    return {
        **{name: getattr(found, name) for name in ("round", "client", "samples", "classes", "rate")},
        **asdict(c),
        "E_G2": c.E * c.G**2,
        "lemma1": lemma1(c, rate),
        **{f"lemma2_{name}": value for name, value in aggregation._asdict().items()},
        "theorem1": theorem1(c, rate),
        "smallest_rate_paper": printed and printed[0],
        "largest_rate_paper": printed and printed[1],
        "largest_rate_derived": largest_rate(c, "derived"),
        "smallest_gradient_bound": smallest_gradient_bound(c),
        "descent_rate": descent_rate(c),
        "contrast_range": c.beta * contrast_range(c.tau, max(found.classes, 1)),
        "change_head": found.loss_before - found.loss_received,
        "change_extractor": found.loss_after - found.loss_before,
        "change_aggregation": found.loss_next - found.loss_after,
        "change_round": found.loss_next - found.loss_received,
    }


def of_whole_run(estimates: Sequence[Estimate]) -> list[Estimate]:
    """The same with the largest L1, L2, sigma and G of the whole run, as the assumptions mean them, in every round."""
    largest = {name: max(getattr(e.constants, name) for e in estimates) for name in CONSTANTS}
    return [replace(found, constants=replace(found.constants, **largest)) for found in estimates]


# ---- the table -------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> Table:
    """One line a round: constants are the largest among the clients, bounds and measured changes the clients' mean."""
    columns: dict[str, Callable[[Sequence[Row]], str]] = {
        "round": lambda part: str(part[0]["round"]),
        **{name: partial(_largest, name=name) for name in CONSTANTS},
        "G needed": lambda part: _number(min(each["smallest_gradient_bound"] for each in part)),
        "S / E G^2": lambda part: _number(_fill(part)),
        "Lemma 1": lambda part: _mean(part, "lemma1"),
        "measured, training": lambda part: _mean(part, "change_extractor"),
        "Lemma 2": lambda part: _mean(part, "lemma2_extractor", "lemma2_alignment", "lemma2_contrast"),
        "measured, aggregation": lambda part: _mean(part, "change_aggregation"),
        "Theorem 1": lambda part: _mean(part, "theorem1"),
        "measured, round": lambda part: _mean(part, "change_round"),
        "rate, as printed": lambda part: _rate(part, "largest_rate_paper"),
        "rate, derived": lambda part: _rate(part, "largest_rate_derived"),
    }
    rounds = [[each for each in rows if each["round"] == t] for t in sorted({each["round"] for each in rows})]
    return Table(list(columns), [[Cell(show(part)) for show in columns.values()] for part in rounds], left=1)


def _number(value: float) -> str:
    return f"{value:.3g}"


def _largest(rows: Sequence[Row], name: str) -> str:
    return _number(max(each[name] for each in rows))


def _mean(rows: Sequence[Row], *names: str) -> str:
    """Of the sum of these columns."""
    return _number(float(np.mean([sum(each[name] for name in names) for each in rows])))


def _rate(rows: Sequence[Row], name: str) -> str:
    """The smallest of the clients' largest rates; none if one of them has none."""
    found = [each[name] for each in rows]
    return "none" if None in found else _number(min(found))


def _fill(rows: Sequence[Row]) -> float:
    """How much of E G^2, which is its greatest value, S reaches."""
    return max((each["S"] / each["E_G2"] for each in rows if each["E_G2"]), default=0.0)


# ---- in words --------------------------------------------------------------------------------------------------------


def findings(estimates: Sequence[Estimate]) -> list[str]:
    """One paragraph for each part of the statement, with what the run's numbers say of it."""
    rows = [row(found) for found in estimates]
    return [
        "Each constant is the largest value among the points looked at, so at most the true one; the bounds that the "
        "theory gives are no smaller than those shown here.",
        _lemma1(rows),
        _lemma2(rows, estimates),
        _theorem1(rows, estimates),
        _derived(rows),
        "Theorem 2 as printed, with each client's own constants of each round: " + _printed(estimates),
        "Theorem 2 as printed, with the largest constants of the whole run: " + _printed(of_whole_run(estimates)),
    ]


def _lemma1(rows: Sequence[Row]) -> str:
    negative = sum(each["lemma1"] < 0 for each in rows)
    exceeded = sum(each["change_extractor"] > each["lemma1"] for each in rows)
    return (
        f"Lemma 1 (training the extractor): at the run's rate the bound promises a decrease in {negative} of "
        f"{len(rows)} cases. The bound is {_spread(rows, 'lemma1')}, the measured change "
        f"{_spread(rows, 'change_extractor')}, which lies above the bound in {exceeded} cases (there L1 is estimated "
        f"too low, or it is chance: the bound is one of the expectation). It promises a decrease at every rate below "
        f"{_spread(rows, 'descent_rate')}."
    )


def _lemma2(rows: Sequence[Row], estimates: Sequence[Estimate]) -> str:
    squared = [replace(found.constants, L2=found.constants.L2**2) for found in estimates]
    alignment = max(lemma2(c, found.rate).alignment for c, found in zip(squared, estimates, strict=True))
    text = (
        f"Lemma 2 (aggregation): the bound allows a rise by {_spread(rows, 'lemma2_extractor')} for the averaged "
        f"extractor, {_spread(rows, 'lemma2_alignment')} for the alignment (with L2 squared, as a Lipschitz constant "
        f"enters, up to {_number(alignment)}) and {_spread(rows, 'lemma2_contrast')} for the contrast, whatever the "
        f"rate. The measured change is {_spread(rows, 'change_aggregation')}."
    )
    exact = [each["contrast_range"] for each in rows]
    if rows[0]["beta"]:
        dropped = 1 - rows[-1]["lemma2_contrast"] / exact[-1] if exact[-1] else 0.0
        text += (
            f" The contrast's exact range is {_range(exact)}: the printed 2 beta / tau leaves out {dropped:.0%} of it."
        )
    return text


def _theorem1(rows: Sequence[Row], estimates: Sequence[Estimate]) -> str:
    vacuous = sum(found.constants.vacuous for found in estimates)
    return (
        f"Theorem 1 (a whole round): VACUOUS in {vacuous} of {len(rows)} cases: at no learning rate is its right side "
        f"negative. S <= E G^2 holds for all constants that one problem can have (here S is at most {_fill(rows):.0%} "
        f"of it), so that every term is at least 0. At the run's rate the right side is {_spread(rows, 'theorem1')}, "
        f"the measured change {_spread(rows, 'change_round')}. No decrease from round to round is proved."
    )


def _derived(rows: Sequence[Row]) -> str:
    found = [each["largest_rate_derived"] for each in rows if each["largest_rate_derived"] is not None]
    return (
        f"Theorem 2 with the sign that Theorem 1 gives: a positive learning rate exists in {len(found)} of {len(rows)} "
        f"cases. This is Theorem 1's vacuity once more."
    )


def _printed(estimates: Sequence[Estimate]) -> str:
    """Whether there is a rate, and what Theorem 1 says of it."""
    found = [(e, rates) for e in estimates if (rates := admissible_rates(e.constants, "paper"))]
    needed = [smallest_gradient_bound(e.constants) for e in estimates]
    largest = max(e.constants.G for e in estimates)
    text = f"a learning rate exists in {len(found)} of {len(estimates)} cases."
    if min(needed) > 0:
        text += f" It takes a G of at least {_range(needed)}; the largest here is {_number(largest)}."
    if found:
        lowest = [low for _, (low, _) in found]
        excluded = f"; rates below {_range(lowest)} are excluded as well" if max(lowest) > 0 else ""
        inside = sum(low <= e.rate <= high for e, (low, high) in found)
        rises = [theorem1(e.constants, high) for e, (_, high) in found]
        text += (
            f" The largest one is {_range([high for _, (_, high) in found])}{excluded}; the run's rate is admitted in "
            f"{inside} cases. At the largest one Theorem 1's right side is {_range(rises)}, a rise."
        )
    return text


def _spread(rows: Sequence[Row], name: str) -> str:
    return _range([each[name] for each in rows])


def _range(values: Iterable[float]) -> str:
    """From the least to the greatest of those that are known."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "not known"
    low, high = _number(min(known)), _number(max(known))
    return low if low == high else f"{low} to {high}"
