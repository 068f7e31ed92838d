"""What is said of the bounds, on constants whose bounds can be redone by hand."""

import math
from dataclasses import replace

import pytest

from flcore.convergence.bounds import Constants
from flcore.convergence.estimates import Estimate
from flcore.convergence.findings import findings, of_whole_run, row, table

# A = 1/2, B = -1, C = 3/8: as printed the rates from 1/2 to 3/2. Theorem 1 at rate 1: 1/2 + 1 + 3/8.
HAND = Estimate(
    round=1,
    client=4,
    samples=30,
    classes=3,
    rate=1.0,
    constants=Constants(L1=1, L2=2, sigma=0, G=1, S=0, E=1, alpha=0, beta=3, tau=16),
    loss_received=5.0,
    loss_before=4.0,
    loss_after=2.0,
    loss_next=2.5,
)
NO_RATE = replace(HAND, round=2, constants=replace(HAND.constants, tau=1.0))  # C = 6: the discriminant is 1 - 12


def said(*estimates):
    return " ".join(findings(estimates))


def test_a_row_by_hand():
    found = row(HAND)
    expected = {
        "round": 1,
        "client": 4,
        "E_G2": 1,
        "lemma1": 0,
        "lemma2_extractor": 1 + 1 / 2,
        "lemma2_alignment": 0,
        "lemma2_contrast": 3 / 8,
        "theorem1": 15 / 8,
        "smallest_rate_paper": 0.5,
        "largest_rate_paper": 1.5,
        "largest_rate_derived": None,
        "smallest_gradient_bound": math.sqrt(12 / 16),
        "change_head": -1,
        "change_extractor": -2,
        "change_aggregation": 0.5,
        "change_round": -2.5,
    }
    assert {name: found[name] for name in expected} == expected
    assert found["contrast_range"] == pytest.approx(
        3 * math.log((1 + 2 * math.exp(1 / 8)) / (1 + 2 * math.exp(-1 / 8)))
    )
    assert row(NO_RATE)["largest_rate_paper"] is None


def test_the_table_has_a_line_a_round():
    other = replace(HAND, client=5, constants=replace(HAND.constants, L1=0.5), loss_after=1.0)
    found = table([row(each) for each in (NO_RATE, HAND, other)])
    first, second = ({name: cell.text for name, cell in zip(found.header, cells, strict=True)} for cells in found.rows)
    assert (first["round"], first["L1"], first["rate, as printed"], first["rate, derived"]) == ("1", "1", "1.5", "none")
    assert first["measured, training"] == "-2.5"  # mean of -2 and -3
    assert first["Lemma 2"] == "1.75"  # mean of 1 + 1/2 + 3/8 and 1 + 1/4 + 3/8
    assert (second["round"], second["rate, as printed"]) == ("2", "none")


def test_vacuity_is_said_plainly():
    text = said(HAND, NO_RATE)
    assert "VACUOUS in 2 of 2 cases" in text
    assert "No decrease from round to round is proved." in text
    assert "with the sign that Theorem 1 gives: a positive learning rate exists in 0 of 2 cases" in text


def test_a_rate_as_printed_comes_with_the_rise_that_theorem_1_allows():
    text = said(HAND, NO_RATE)
    assert (
        "a learning rate exists in 1 of 2 cases. It takes a G of at least 0.866 to 3.46; the largest here is 1." in text
    )
    # Theorem 1 at 3/2: 9/8 + 3/2 + 3/8
    assert (
        "The largest one is 1.5; rates below 0.5 are excluded as well; the run's rate is admitted in 1 cases." in text
    )
    assert "right side is 3, a rise" in text


def test_measured_changes_above_lemma_1_are_counted():
    """The bound is 0 at the hand's constants, where S = sigma = 0."""
    text = said(HAND, NO_RATE, replace(HAND, loss_after=4.5))
    assert "promises a decrease in 0 of 3 cases" in text and "above the bound in 1 cases" in text


def test_without_contrast_and_alignment():
    text = said(replace(HAND, classes=0, constants=replace(HAND.constants, beta=0)))
    assert "VACUOUS in 1 of 1 cases" in text
    assert "exact range" not in text and "It takes a G" not in text
    assert "The largest one is 2; the run's rate is admitted in 1 cases." in text  # eta^2 / 2 - eta <= 0


def test_the_next_download_may_not_have_been_seen():
    assert "The measured change is not known." in said(replace(HAND, loss_next=math.nan))


def test_the_largest_constants_of_the_run_are_those_of_every_round():
    steep = replace(HAND, round=3, constants=replace(HAND.constants, L1=7, G=0.5, S=0.25))
    first, second = of_whole_run([HAND, steep])
    assert (first.constants.L1, first.constants.G, first.constants.S) == (7, 1, 0)
    assert (second.constants.L1, second.constants.G, second.constants.S) == (7, 1, 0.25)
