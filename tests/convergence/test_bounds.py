"""The bounds against toy problems on which everything is known, and what is wrong with the statement they come from."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flcore.convergence.bounds import (
    Constants,
    admissible_rates,
    contrast_range,
    descent_rate,
    largest_rate,
    lemma1,
    lemma2,
    quadratic,
    smallest_gradient_bound,
    theorem1,
)

TOLERANCE = 1 + 1e-9
SEEDS = st.integers(0, 2**32 - 1)


def constants(**values):
    """L1 = L2 = G = 1, everything else 0, one step."""
    return Constants(**{"L1": 1, "L2": 1, "sigma": 0, "G": 1, "S": 0, "E": 1, "alpha": 0, "beta": 0, "tau": 1} | values)


def drawn(rng):
    """Constants that one problem can have (S <= E G^2), over several orders of magnitude."""
    L1, L2, sigma, G, alpha, beta = 10 ** rng.uniform(-3, 3, 6)
    E, tau = int(rng.integers(1, 200)), 10 ** rng.uniform(-2, 1)
    return Constants(L1, L2, sigma, G, float(rng.uniform(0, E * G**2)), E, alpha, beta, tau)


# ---------------------------------------------------------------------------------------------------------- by hand


def test_numbers_that_can_be_redone_by_hand():
    c = constants(L1=2, L2=3, sigma=1, G=2, S=4, E=2, alpha=0.5, beta=1, tau=0.5)
    assert lemma1(c, 0.5) == -(0.5 - 0.25) * 4 + 2 * 2 * 0.25 / 2 == -0.5
    assert lemma2(c, 0.5) == (0.5 * 2 * 4 + 4, 2 * 0.5 * 3 * 4, 4) == (8, 12, 4)
    assert quadratic(c) == ((2 + 16 + 4) + 2 * 0.5 * 3 * 16, 4 - 8, 4) == (70, -4, 4)
    assert theorem1(c, 0.5) == 70 / 4 + 4 / 2 + 4 == -0.5 + 8 + 12 + 4
    assert descent_rate(c) == 2 * 4 / (2 * (4 + 2))
    assert smallest_gradient_bound(c) == math.sqrt(4 * 2 * (2 + 4 * 0.5 * 3))
    # A = 1/2 (1 + 0), B = -1, C = 3/8: the roots of eta^2 / 2 - eta + 3/8 are 1/2 and 3/2
    assert admissible_rates(constants(beta=3, tau=16)) == (0.5, 1.5)


@pytest.mark.parametrize("wrong", [{"L1": -1}, {"G": math.inf}, {"S": math.nan}, {"tau": 0}, {"E": 0}])
def test_impossible_constants_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        constants(**wrong)


# ---------------------------------------------------------------------------------------------------------- Lemma 1


@given(SEEDS)
def test_lemma_1_on_a_quadratic_problem(seed):
    """L(w) = w' H w / 2 with noise of covariance N: mean and covariance of w, and so every expectation, are exact."""
    rng = np.random.default_rng(seed)
    size, E, rate = 3, int(rng.integers(1, 12)), float(10 ** rng.uniform(-3, 0.5))
    basis, _ = np.linalg.qr(rng.normal(size=(size, size)))
    eigenvalues = rng.uniform(-1, 2, size)  # not convex: the lemma does not ask for it
    H = basis @ np.diag(eigenvalues) @ basis.T
    root = rng.normal(size=(size, size)) * rng.uniform(0, 2)
    noise = root @ root.T
    mean, covariance = rng.normal(size=size), np.zeros((size, size))

    def loss():
        return mean @ H @ mean / 2 + np.trace(H @ covariance) / 2

    start, S = loss(), 0.0
    step = np.eye(size) - rate * H
    for _ in range(E):
        S += (H @ mean) @ (H @ mean) + np.trace(H @ covariance @ H)
        mean, covariance = step @ mean, step @ covariance @ step.T + rate**2 * noise
    c = constants(L1=abs(eigenvalues).max(), sigma=math.sqrt(np.trace(noise)), S=S, E=E, G=1e9)
    bound = lemma1(c, rate)
    assert loss() - start <= bound + 1e-9 * (abs(start) + S * (rate + rate**2) + abs(bound))


@given(SEEDS)
def test_lemma_1_is_negative_exactly_below_its_rate(seed):
    c = drawn(np.random.default_rng(seed))
    rate = descent_rate(c)
    assert lemma1(c, 0.999 * rate) < 0 < lemma1(c, 1.001 * rate)


def test_without_curvature_lemma_1_allows_every_rate():
    assert descent_rate(constants(L1=0, S=1)) == math.inf


# ---------------------------------------------------------------------------------------------------------- Lemma 2


def one_round(rng, alpha=0.0):
    """Clients with L_i(w) = h |w - c_i|^2 / 2 + alpha |w - P|^2, E steps each, their average; P is that average.

    The embedding of the toy is w itself, so that L2 is 1 in both readings.
    """
    clients, size = int(rng.integers(1, 6)), 3
    E, rate, h = int(rng.integers(1, 10)), float(10 ** rng.uniform(-3, -0.5)), float(10 ** rng.uniform(-2, 0))
    targets, weights = rng.normal(size=(clients, size)) * 3, rng.dirichlet(np.ones(clients))
    start = rng.normal(size=size)
    average = start
    for _ in range(20):  # the average depends on the prototype, which is to lie there: a fixed point
        prototype, ends, longest = average, np.tile(start, (clients, 1)), 0.0
        for step in range(E + 1):
            gradient = h * (ends - targets) + 2 * alpha * (ends - prototype)
            longest = max(longest, np.linalg.norm(gradient, axis=1).max())
            if step < E:
                ends = ends - rate * gradient
        average = weights @ ends

    def loss(at, prototype):
        return h * ((at - targets) ** 2).sum(-1) / 2 + alpha * ((at - prototype) ** 2).sum(-1)

    c = constants(L1=h + 2 * alpha, G=longest, E=E, alpha=alpha)
    return c, rate, weights, ends, average, prototype, loss


@given(SEEDS)
def test_lemma_2_extractor_holds_for_the_mean_of_the_clients_and_doubled_for_each(seed):
    c, rate, weights, ends, average, prototype, loss = one_round(np.random.default_rng(seed))
    rise = loss(average, prototype) - loss(ends, prototype)
    assert weights @ rise <= lemma2(c, rate).extractor * TOLERANCE
    assert (rise <= lemma2(c, 2 * rate).extractor * TOLERANCE).all()


def test_lemma_2_extractor_does_not_hold_for_a_single_client():
    """L(w) = -w and L(w) = w with weights 0.1 and 0.9, one step of 1 from 0: to 1 and -1, whose average is -0.8."""
    c = constants(L1=0)
    rise = 0.8 - (-1)  # of the first client's loss
    assert lemma2(c, 1).extractor == 1 < rise < lemma2(c, 2).extractor == 2


@given(SEEDS)
def test_lemma_2_as_a_whole_where_the_embedding_lies_at_its_old_prototype(seed):
    rng = np.random.default_rng(seed)
    c, rate, weights, ends, average, prototype, loss = one_round(rng, alpha=float(rng.uniform(0, 0.2)))
    distance = np.linalg.norm(average - prototype)
    c = dataclasses.replace(c, beta=float(rng.uniform(0, 2)), tau=float(rng.uniform(0.1, 2)))
    way = rng.normal(size=len(average))
    moved = way / np.linalg.norm(way) * rate * c.E * c.G * rng.uniform(0, 1)
    # with two classes the range of the contrast is exactly 2 / tau
    old, new = (contrast(rng.uniform(-1, 1, 2), c.tau) for _ in range(2))
    rise = loss(average, prototype + moved) - loss(ends, prototype) + c.beta * (new - old)
    slack = 2 * c.alpha * distance * np.linalg.norm(moved)  # the fixed point is met up to this
    assert weights @ rise <= sum(lemma2(c, rate)) * TOLERANCE + slack


def test_lemma_2_alignment_drops_a_term():
    """f = 0, and a prototype that moves from 1 to 2: the squared distance rises by 3, by 1 + 2 * 1 * 1, not by 2."""
    assert lemma2(constants(alpha=1, L1=0), 1).alignment == 2 < 2**2 - 1**2 == 1 + 2


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(-5, 5))
def test_the_alignment_with_the_dropped_term_always_holds(f, old, new):
    move = abs(new - old)
    rise = (f - new) ** 2 - (f - old) ** 2
    assert rise <= move**2 + 2 * abs(f - old) * move + 1e-9
    if abs(f - old) <= move / 2:
        assert rise <= 2 * move**2 + 1e-9


# --------------------------------------------------------------------------------------------- range of the contrast


def contrast(cosines, tau):
    """Of one sample: -log of the softmax of cosines / tau at the sample's class, which is the first one."""
    logits = np.asarray(cosines) / tau
    return float(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[0])


@settings(max_examples=30)
@given(SEEDS, st.floats(0.05, 2), st.integers(2, 12), st.sampled_from([(-1, 1), (0, 1)]))
def test_the_range_of_the_contrast_by_brute_force(seed, tau, classes, interval):
    low, high = interval
    exact = contrast_range(tau, classes, width=high - low)
    cosines = np.random.default_rng(seed).uniform(low, high, (300, classes))
    values = [contrast(row, tau) for row in cosines]
    assert max(values) - min(values) <= exact * TOLERANCE
    # and it is reached: own cosine least, all others greatest, and the other way round
    worst, best = np.full(classes, float(high)), np.full(classes, float(low))
    worst[0], best[0] = low, high
    assert contrast(worst, tau) - contrast(best, tau) == pytest.approx(exact, rel=1e-9)


def test_the_range_of_the_contrast_by_hand():
    assert contrast_range(0.1, 2) == pytest.approx(20)  # two classes: exactly 2 / tau
    assert contrast_range(0.1, 1) == 0  # nothing to tell apart
    assert contrast_range(0.1, 100) == pytest.approx(20 + math.log(99), abs=1e-6)
    assert contrast_range(1e-3, 100) == pytest.approx(2000 + math.log(99))  # no overflow


@pytest.mark.parametrize(("tau", "classes", "share"), [(0.1, 10, 10), (0.1, 100, 19), (0.5, 10, 34), (0.5, 100, 47)])
def test_the_share_that_the_paper_drops(tau, classes, share):
    assert round(100 * (1 - (2 / tau) / contrast_range(tau, classes))) == share


# ------------------------------------------------------------------------------------------------- Theorems 1 and 2


@given(SEEDS, st.floats(1e-6, 10))
def test_theorem_1_is_the_sum_of_the_lemmas(seed, rate):
    c = drawn(np.random.default_rng(seed))
    parts = [lemma1(c, rate), *lemma2(c, rate)]
    assert theorem1(c, rate) == pytest.approx(sum(parts), abs=1e-9 * sum(map(abs, parts)))


@given(SEEDS, st.sampled_from(["paper", "derived"]), st.booleans())
def test_roots_satisfy_their_quadratic(seed, convention, possible):
    rng = np.random.default_rng(seed)
    c = drawn(rng)
    if not possible:  # S above E G^2, which no problem has: then the derived roots exist too
        c = dataclasses.replace(c, S=c.E * c.G**2 * (1 + 10 ** rng.uniform(-1, 4)))
    A, B, C = quadratic(c)
    linear = B if convention == "paper" else -B
    rates = admissible_rates(c, convention)
    if rates is None:
        assert linear**2 < 4 * A * C or linear >= 0
        return
    low, high = rates
    assert 0 < low <= high * TOLERANCE
    for rate in rates:
        assert A * rate**2 + linear * rate + C == pytest.approx(0, abs=1e-9 * (A * rate**2 + C))
    middle = (low + high) / 2
    assert A * middle**2 + linear * middle + C <= 1e-9 * C
    assert largest_rate(c, convention) == high


def test_derived_roots_exist_only_for_constants_that_no_problem_has():
    """E = G = 1, S = 3: A = (1 + 3) / 2 = 2, B = 2, C = 3/8, so 2 eta^2 - 2 eta + 3/8 <= 0 from 1/4 to 3/4."""
    assert admissible_rates(constants(S=3, beta=3, tau=16), "derived") == (0.25, 0.75)
    assert theorem1(constants(S=3, beta=3, tau=16), 0.5) == -0.125
    assert not constants(S=3, beta=3, tau=16).vacuous
    assert constants(S=1, beta=3, tau=16).vacuous


@pytest.mark.parametrize(
    ("convention", "case"),
    [
        (convention, case)
        for convention in ("paper", "derived")
        for case in (
            {"beta": 1, "tau": 0.1},  # discriminant negative
            {"S": 1},  # S = E G^2 and C = 0: both roots are 0
            {"L1": 0},  # A = 0: no quadratic
        )
    ],
)
def test_no_rate(convention, case):
    assert largest_rate(constants(**case), convention) is None


def test_roots_that_are_negative_are_no_rates():
    """S = 3, C = 3/8 as above, but as printed: 2 eta^2 + 2 eta + 3/8 has the roots -1/4 and -3/4."""
    assert largest_rate(constants(S=3, beta=3, tau=16), "paper") is None


def test_an_unknown_convention_is_refused():
    with pytest.raises(ValueError, match="convention"):
        largest_rate(constants(), "printed")


def test_without_contrast_the_paper_admits_every_rate_up_to_its_largest():
    assert admissible_rates(constants(), "paper") == (0, 2)  # A = 1/2, B = -1, C = 0


def test_the_statement_is_vacuous():
    """200,000 sets of constants: never a derived rate; at the printed one Theorem 1 still allows a rise."""
    rng = np.random.default_rng(0)
    draws = 200_000
    L1, L2, sigma, G, alpha, beta = (column.tolist() for column in 10 ** rng.uniform(-2, 2, (6, draws)))
    E, tau, share = rng.integers(1, 500, draws).tolist(), rng.uniform(0.05, 1, draws).tolist(), rng.uniform(0, 1, draws)
    printed = 0
    for i in range(draws):
        S = float(share[i]) * E[i] * G[i] ** 2
        c = Constants(L1[i], L2[i], sigma[i], G[i], S, E[i], alpha[i], beta[i], tau[i])
        assert largest_rate(c, "derived") is None
        rate = largest_rate(c, "paper")
        if rate is not None:
            printed += 1
            assert theorem1(c, rate) > 0
            assert G[i] >= smallest_gradient_bound(c) / TOLERANCE
    assert printed > 10_000
