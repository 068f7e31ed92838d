"""Class prototypes and what is learnt from them, against formulas written by hand, in double precision."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, vmap

from flcore.trainmodel.prototypes import (
    aggregate_prototypes,
    class_prototypes,
    nearest_prototype,
    prototype_alignment_loss,
    prototype_contrastive_loss,
)

SEEN = torch.tensor([True, False, True, True])
Y = torch.tensor([0, 1, 2, 3, 0])  # class 1 has no prototype


def doubles(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# --------------------------------------------------------------------------------------------------- prototype losses


def alignment_by_hand(z, y, prototypes, seen, reduction):
    total = 0.0
    for embedding, label in zip(z.tolist(), y.tolist(), strict=True):
        if seen[label]:
            squares = [(a - b) ** 2 for a, b in zip(embedding, prototypes[label].tolist(), strict=True)]
            total += sum(squares) / (len(squares) if reduction == "mean" else 1)
    return total / len(y)


def cosine(u, v):
    dot = sum(a * b for a, b in zip(u, v, strict=True))
    return dot / (max(math.hypot(*u), 1e-8) * max(math.hypot(*v), 1e-8))


def contrast_by_hand(z, y, prototypes, seen, tau):
    total = 0.0
    for embedding, label in zip(z.tolist(), y.tolist(), strict=True):
        if seen[label]:
            terms = {c: math.exp(cosine(embedding, prototypes[c].tolist()) / tau) for c in range(len(seen)) if seen[c]}
            total -= math.log(terms[label] / sum(terms.values()))
    return total / len(y)


def test_alignment_small_numbers():
    z, prototypes = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [3.0, 5.0]])
    y, seen = torch.tensor([0, 1]), torch.tensor([True, True])
    assert prototype_alignment_loss(z, y, prototypes, seen).item() == (4 / 2 + 34 / 2) / 2
    assert prototype_alignment_loss(z, y, prototypes, seen, reduction="sum").item() == (4 + 34) / 2
    seen[1] = False
    assert prototype_alignment_loss(z, y, prototypes, seen).item() == 4 / 2 / 2  # the other sample still counts
    with pytest.raises(ValueError, match="'median'"):
        prototype_alignment_loss(z, y, prototypes, seen, "median")


def test_contrast_small_numbers():
    z, prototypes = torch.tensor([[2.0, 0.0]]), torch.tensor([[5.0, 0.0], [0.0, 3.0]])
    y, seen = torch.tensor([0]), torch.tensor([True, True])
    # cosines 1 and 0: -log(e^2 / (e^2 + 1)) at temperature 1/2
    assert prototype_contrastive_loss(z, y, prototypes, seen, 0.5).item() == pytest.approx(math.log(1 + math.exp(-2)))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_alignment_equals_the_formula(reduction):
    z, prototypes = doubles(5, 7), doubles(4, 7, seed=1)
    loss = prototype_alignment_loss(z, Y, prototypes, SEEN, reduction).item()
    assert loss == pytest.approx(alignment_by_hand(z, Y, prototypes, SEEN, reduction), rel=1e-12)


@pytest.mark.parametrize("tau", [0.05, 0.1, 0.5, 2.0])
def test_contrast_equals_the_formula(tau):
    z, prototypes = doubles(5, 7), doubles(4, 7, seed=1)
    loss = prototype_contrastive_loss(z, Y, prototypes, SEEN, tau).item()
    assert loss == pytest.approx(contrast_by_hand(z, Y, prototypes, SEEN, tau), rel=1e-12)


LOSSES = {
    "mean": lambda z, y, p, seen: prototype_alignment_loss(z, y, p, seen),
    "sum": lambda z, y, p, seen: prototype_alignment_loss(z, y, p, seen, "sum"),
    "contrast": lambda z, y, p, seen: prototype_contrastive_loss(z, y, p, seen, 0.1),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


@every_loss
def test_loss_gradient(loss):
    assert torch.autograd.gradcheck(lambda z: loss(z, Y, doubles(4, 7, seed=1), SEEN), doubles(5, 7).requires_grad_())


@every_loss
def test_prototypes_are_constants(loss):
    z, prototypes = doubles(5, 7).requires_grad_(), doubles(4, 7, seed=1).requires_grad_()
    loss(z, Y, prototypes, SEEN).backward()
    assert prototypes.grad is None and z.grad is not None


@every_loss
@pytest.mark.parametrize("hole", [0.0, math.nan, math.inf])
def test_an_unseen_class_adds_nothing_whatever_its_row_holds(loss, hole):
    z, prototypes = doubles(5, 7).requires_grad_(), doubles(4, 7, seed=1)
    clean = loss(z, Y, prototypes, SEEN)
    prototypes = prototypes.clone()
    prototypes[1] = hole
    value = loss(z, Y, prototypes, SEEN)
    value.backward()
    assert torch.equal(value, clean)
    assert torch.isfinite(z.grad).all()
    assert torch.equal(z.grad[1], torch.zeros(7, dtype=torch.float64))
    assert (z.grad[[0, 2, 3, 4]].abs().sum(1) > 0).all()
    rest = [0, 2, 3, 4]
    torch.testing.assert_close(value, loss(z[rest], Y[rest], prototypes, SEEN) * 4 / 5)


@every_loss
@pytest.mark.parametrize(
    ("seen", "y"),
    [([False] * 4, [0, 1, 2, 3, 0]), ([True, False, True, True], [1] * 5)],
    ids=["none seen", "batch of unseen classes"],
)
def test_nothing_to_compare_is_exactly_zero(loss, seen, y):
    z, prototypes = doubles(5, 7).requires_grad_(), torch.full((4, 7), math.nan, dtype=torch.float64)
    prototypes[torch.tensor(seen)] = 1.0
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
        value = loss(z, torch.tensor(y), prototypes, torch.tensor(seen))
        value.backward()
    assert value.item() == 0
    assert torch.equal(z.grad, torch.zeros_like(z))


def test_contrast_with_one_seen_class_is_zero():
    z, seen = doubles(5, 7).requires_grad_(), torch.tensor([False, False, True, False])
    value = prototype_contrastive_loss(z, Y, doubles(4, 7, seed=1), seen, 0.1)
    value.backward()
    assert value.item() == 0
    assert torch.equal(z.grad, torch.zeros_like(z))


@pytest.mark.parametrize("norm", [1e-6, 1e-9])
def test_cosine_divides_by_at_least_eps(norm):
    z, prototypes = doubles(5, 7), doubles(4, 7, seed=1)
    z = z / z.norm(dim=1, keepdim=True) * norm
    loss = prototype_contrastive_loss(z, Y, prototypes, SEEN, 0.1).item()
    assert loss == pytest.approx(contrast_by_hand(z, Y, prototypes, SEEN, 0.1), rel=1e-9)
    whole = prototype_contrastive_loss(z / norm, Y, prototypes, SEEN, 0.1).item()
    assert (loss == pytest.approx(whole, rel=1e-9)) == (norm > 1e-8)


@every_loss
def test_a_dead_embedding_and_a_zero_prototype_give_finite_gradients(loss):
    z, prototypes = doubles(5, 7), doubles(4, 7, seed=1)
    z[0] = 0
    prototypes[3] = 0
    z.requires_grad_()
    value = loss(z, Y, prototypes, SEEN)
    value.backward()
    assert torch.isfinite(value) and torch.isfinite(z.grad).all()


def test_contrast_of_a_dead_embedding_is_log_of_the_seen_classes():
    z, prototypes = torch.zeros(1, 7), doubles(4, 7, seed=1).float()
    value = prototype_contrastive_loss(z, torch.tensor([0]), prototypes, SEEN, 0.1)
    assert value.item() == pytest.approx(math.log(3))


def test_alignment_identities():
    z, prototypes = doubles(5, 7), doubles(4, 7, seed=1)
    assert prototype_alignment_loss(prototypes[Y], Y, prototypes, SEEN).item() == 0
    mean, total = (prototype_alignment_loss(z, Y, prototypes, SEEN, r) for r in ("mean", "sum"))
    torch.testing.assert_close(total, 7 * mean)


def test_contrast_ignores_the_length_of_embeddings_and_prototypes():
    z, prototypes = doubles(5, 7), doubles(4, 7, seed=1)
    value = prototype_contrastive_loss(z, Y, prototypes, SEEN, 0.1)
    torch.testing.assert_close(prototype_contrastive_loss(30 * z, Y, prototypes / 9, SEEN, 0.1), value)


@every_loss
@pytest.mark.filterwarnings("error")
def test_losses_under_vmap_equal_a_loop(loss):
    """Four clients, one of which has seen nothing; prototypes shared by all, or one set each."""
    z, y, own = doubles(4, 5, 7), torch.stack([Y, Y.flip(0), Y, Y]), doubles(4, 4, 7, seed=1)
    seen = torch.stack([SEEN, ~SEEN, torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool)])
    shared = vmap(grad(loss), in_dims=(0, 0, None, None))(z, y, own[0], SEEN)
    values, gradients = vmap(loss)(z, y, own, seen), vmap(grad(loss))(z, y, own, seen)
    for i in range(4):
        for got, prototypes, mask in ((gradients[i], own[i], seen[i]), (shared[i], own[0], SEEN)):
            leaf = z[i].clone().requires_grad_()
            value = loss(leaf, y[i], prototypes, mask)
            torch.testing.assert_close(got, torch.autograd.grad(value, leaf)[0], rtol=0, atol=1e-9)
        torch.testing.assert_close(values[i], loss(z[i], y[i], own[i], seen[i]), rtol=0, atol=1e-9)


# ---------------------------------------------------------------------------------------- range of the contrastive loss


def contrast_range(tau, classes):
    """Least and greatest loss over all cosines in [-1,1]: it is monotone in each cosine, so a corner has it."""
    corners = []
    for own, *others in itertools.product((-1.0, 1.0), repeat=classes):
        corners.append(math.log(1 + sum(math.exp((other - own) / tau) for other in others)))
    return min(corners), max(corners)


@settings(deadline=None, max_examples=60)
@given(tau=st.floats(0.05, 2), classes=st.integers(2, 7), seed=st.integers(0, 10**6), size=st.integers(1, 4))
def test_contrast_stays_in_its_range(tau, classes, seed, size):
    low, high = contrast_range(tau, classes)
    y = torch.arange(classes)
    loss = prototype_contrastive_loss(
        doubles(classes, size, seed=seed), y, doubles(classes, size, seed=seed + 1), y >= 0, tau
    ).item()
    assert low * (1 - 1e-9) - 1e-12 <= loss <= high * (1 + 1e-9)
    # Both ends are reached, and their distance is R(tau, C), at most 2 / tau + log(C - 1).
    z, others = torch.ones(1, 1, dtype=torch.float64), torch.ones(classes, 1, dtype=torch.float64)
    others[0] = -1
    for prototypes, end in ((others, high), (-others, low)):
        reached = prototype_contrastive_loss(z, y[:1], prototypes, y >= 0, tau).item()
        assert reached == pytest.approx(end, rel=1e-9, abs=1e-12)
    exact = math.log((1 + (classes - 1) * math.exp(2 / tau)) / (1 + (classes - 1) * math.exp(-2 / tau)))
    assert high - low == pytest.approx(exact, rel=1e-9)
    assert exact <= 2 / tau + math.log(classes - 1) + 1e-9


# --------------------------------------------------------------------------------------------------------- prototypes


def test_class_prototypes_small_numbers():
    z, y = torch.tensor([[1.0, 0.0], [3.0, 2.0], [5.0, 5.0]]), torch.tensor([2, 2, 0])
    prototypes, counts = class_prototypes(z, y, 4)
    assert prototypes.tolist() == [[5, 5], [0, 0], [2, 1], [0, 0]]
    assert counts.tolist() == [1, 0, 2, 0] and counts.dtype == torch.int64


def test_class_prototypes_equal_a_loop():
    z, y = doubles(200, 9), torch.randint(0, 6, (200,), generator=torch.Generator().manual_seed(0))
    prototypes, counts = class_prototypes(z, y, 8)
    for c in range(8):
        rows = [row for row, label in zip(z.numpy(), y.tolist(), strict=True) if label == c]
        assert counts[c] == len(rows)
        np.testing.assert_allclose(prototypes[c], np.mean(rows, 0) if rows else np.zeros(9), atol=1e-14)


@pytest.mark.parametrize("padding", [0.0, math.nan, math.inf])
def test_labels_outside_the_classes_are_left_out(padding):
    z, y = doubles(4, 3), torch.tensor([0, 1, 1, 0])
    padded = torch.cat([z, torch.full((2, 3), padding, dtype=torch.float64)])
    got, expected = class_prototypes(padded, torch.cat([y, torch.tensor([-1, 2])]), 2), class_prototypes(z, y, 2)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_class_prototypes_of_no_samples_and_of_half_precision():
    prototypes, counts = class_prototypes(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 2)
    assert prototypes.tolist() == [[0, 0, 0]] * 2 and counts.tolist() == [0, 0]
    # 4096 half-precision ones and a half: summed in half precision they would stop at 2048.
    prototypes, _ = class_prototypes(torch.ones(4097, 1, dtype=torch.float16), torch.zeros(4097, dtype=torch.int64), 1)
    assert prototypes.dtype == torch.float32 and prototypes.item() == 1


LOCAL = torch.tensor([[[1.0, 1.0], [9.0, 9.0], [0.0, 0.0]], [[4.0, 7.0], [0.0, 0.0], [0.0, 0.0]]])
COUNTS = torch.tensor([[1, 5, 0], [2, 0, 0]])
PREVIOUS = torch.tensor([[-1.0, -1.0], [-2.0, -2.0], [-3.0, -3.0]])


@pytest.mark.parametrize(("weighting", "first"), [("uniform", [2.5, 4.0]), ("count", [3.0, 5.0])])
def test_aggregation_by_hand(weighting, first):
    seen = torch.tensor([True, False, True])
    got, now = aggregate_prototypes(LOCAL, COUNTS, PREVIOUS, seen, weighting)
    assert got.tolist() == [first, [9.0, 9.0], [-3.0, -3.0]]  # nobody holds class 2: the last known one stays
    assert now.tolist() == [True, True, True] and now.dtype == torch.bool
    _, now = aggregate_prototypes(LOCAL, COUNTS, PREVIOUS, torch.zeros(3, dtype=torch.bool), weighting)
    assert now.tolist() == [True, True, False]  # and a class never seen stays unseen


def test_aggregation_in_the_first_round_and_without_clients():
    got, seen = aggregate_prototypes(LOCAL, COUNTS, None, None)
    assert got.tolist() == [[2.5, 4.0], [9.0, 9.0], [0.0, 0.0]] and seen.tolist() == [True, True, False]
    again, still = aggregate_prototypes(LOCAL[:0], COUNTS[:0], got, seen)
    assert torch.equal(again, got) and torch.equal(still, seen)


def test_aggregation_does_not_touch_its_inputs_and_defaults_to_uniform():
    inputs = [LOCAL.clone(), COUNTS.clone(), PREVIOUS.clone(), torch.tensor([True, False, False])]
    copies = [x.clone() for x in inputs]
    got, _ = aggregate_prototypes(*inputs)
    assert got[0].tolist() == [2.5, 4.0]
    assert all(torch.equal(a, b) for a, b in zip(inputs, copies, strict=True))


@pytest.mark.parametrize("weighting", ["uniform", "count"])
def test_absent_rows_never_leak(weighting):
    local = LOCAL.masked_fill((COUNTS == 0)[..., None], math.nan)
    seen = torch.zeros(3, dtype=torch.bool)
    for a, b in zip(
        aggregate_prototypes(local, COUNTS, PREVIOUS, seen, weighting),
        aggregate_prototypes(LOCAL, COUNTS, PREVIOUS, seen, weighting),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_unknown_weighting():
    with pytest.raises(ValueError, match="'size'"):
        aggregate_prototypes(LOCAL, COUNTS, None, None, "size")


def test_count_weighting_of_local_means_is_the_mean_over_all_samples():
    z, y = doubles(60, 5), torch.randint(0, 4, (60,), generator=torch.Generator().manual_seed(1))
    parts = [class_prototypes(z[part], y[part], 5) for part in (slice(0, 7), slice(7, 30), slice(30, 60))]
    prototypes, counts = (torch.stack(column) for column in zip(*parts, strict=True))
    got, seen = aggregate_prototypes(prototypes, counts, None, None, "count")
    whole, total = class_prototypes(z, y, 5)
    torch.testing.assert_close(got, whole)
    assert torch.equal(seen, total > 0)


@pytest.mark.filterwarnings("error")
def test_prototypes_under_vmap_equal_a_loop():
    z, y = doubles(3, 20, 5), torch.randint(-1, 4, (3, 20), generator=torch.Generator().manual_seed(1))
    prototypes, counts = vmap(lambda z, y: class_prototypes(z, y, 4))(z, y)
    for i in range(3):
        one, many = class_prototypes(z[i], y[i], 4)
        torch.testing.assert_close(prototypes[i], one)
        assert torch.equal(counts[i], many)
    sets, set_counts = torch.stack([prototypes, -prototypes]), torch.stack([counts, 2 * counts])
    merged, seen = vmap(lambda p, n: aggregate_prototypes(p, n, None, None, "count"))(sets, set_counts)
    for i in range(2):
        one, mask = aggregate_prototypes(sets[i], set_counts[i], None, None, "count")
        torch.testing.assert_close(merged[i], one)
        assert torch.equal(seen[i], mask)


# ---------------------------------------------------------------------------------------------------- nearest prototype


def test_nearest_prototype_by_hand():
    """(1, 1) is at squared distances 1 of (1, 0) and 2 of (0, 0); class 1 would be nearest but has no prototype."""
    prototypes = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    scores = nearest_prototype(torch.tensor([[1.0, 1.0]]), prototypes, torch.tensor([True, False, True]))
    assert scores[0, 0] == -1 and scores[0, 2] == -2 and scores.argmax() == 0
    assert scores.isfinite().all()
    garbage = torch.where(torch.tensor([[False], [True], [False]]), torch.nan, prototypes)
    assert torch.equal(nearest_prototype(torch.ones(1, 2), garbage, torch.tensor([True, False, True])), scores)


def test_nearest_prototype_is_that_of_the_distances():
    generator = torch.Generator().manual_seed(0)
    z, prototypes = (torch.randn(n, 7, generator=generator) for n in (20, 5))
    squares = torch.stack([((z - p) ** 2).sum(1) for p in prototypes], 1)
    assert torch.allclose(nearest_prototype(z, prototypes, torch.ones(5, dtype=torch.bool)), -squares, atol=1e-5)
