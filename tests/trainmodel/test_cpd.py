"""FedCPD's modules and losses against formulas written a second time, by hand, in double precision."""

import ast
import inspect
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call, grad, stack_module_state, vmap

from flcore.trainmodel.cpd import (
    CBAM,
    CrossLayerFusion,
    HierarchicalDistiller,
    aggregate_prototypes,
    class_prototypes,
    prototype_alignment_loss,
    prototype_contrastive_loss,
)
from support import REPO

LEVELS = [(3, 9, 6), (5, 4, 3), (4, 2, 2)]  # channels, height, width; sizes that are not doubled from level to level
CHANNELS = [level[0] for level in LEVELS]
SEEN = torch.tensor([True, False, True, True])
Y = torch.tensor([0, 1, 2, 3, 0])  # class 1 has no prototype


def doubles(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def feature_maps(batch=2, seed=0):
    return [doubles(batch, *level, seed=seed + i) for i, level in enumerate(LEVELS)]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# ---------------------------------------------------------------------------------------------------------- attention


def cbam_by_hand(module, x):
    """One sample (C,H,W) in numpy, from the published formulas, pixel by pixel."""
    w = {name: p.detach().numpy() for name, p in module.named_parameters()}

    def mlp(v):
        return w["mlp.2.weight"] @ np.maximum(w["mlp.0.weight"] @ v + w["mlp.0.bias"], 0) + w["mlp.2.bias"]

    channels, height, width = x.shape
    flat = x.reshape(channels, -1)
    x = sigmoid(mlp(flat.mean(1)) + mlp(flat.max(1)))[:, None, None] * x
    padded = np.pad(np.stack([x.mean(0), x.max(0)]), ((0, 0), (3, 3), (3, 3)))
    gate = np.empty((height, width))
    for i, j in np.ndindex(height, width):
        gate[i, j] = (w["spatial.weight"][0] * padded[:, i : i + 7, j : j + 7]).sum() + w["spatial.bias"][0]
    return sigmoid(gate) * x


@pytest.mark.parametrize(("channels", "reduction", "hidden"), [(32, 16, 2), (64, 16, 4), (8, 16, 1), (6, 2, 3)])
def test_cbam_equals_the_formula(channels, reduction, hidden):
    torch.manual_seed(channels)
    module, x = CBAM(channels, reduction).double(), doubles(2, channels, 5, 4)
    assert module.mlp[0].weight.shape == (hidden, channels)
    expected = np.stack([cbam_by_hand(module, sample.numpy()) for sample in x])
    np.testing.assert_allclose(module(x).detach().numpy(), expected, atol=1e-12)


def test_cbam_with_zero_weights_is_a_quarter():
    module = CBAM(4)
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    x = torch.randn(2, 4, 3, 3)
    torch.testing.assert_close(module(x), x / 4)  # both gates are sigmoid(0)


def test_cbam_size():
    # 32 channels, hidden 2: 32*2+2 + 2*32+32 in the MLP, 2*49+1 in the spatial convolution
    assert sum(p.numel() for p in CBAM(32).parameters()) == 66 + 96 + 99


def test_cbam_gradient():
    torch.manual_seed(0)
    module = CBAM(4, 2).double()
    assert torch.autograd.gradcheck(module, doubles(1, 4, 3, 3).requires_grad_())


# ------------------------------------------------------------------------------------------------------------- fusion


def bilinear_by_hand(x, height, width):
    """Bilinear interpolation with pixel centres at half-integers (align_corners=False)."""

    def weights(new, old):
        matrix = torch.zeros(new, old, dtype=x.dtype)
        for i in range(new):
            position = min(max((i + 0.5) * old / new - 0.5, 0), old - 1)
            low = min(int(position), old - 1)
            matrix[i, low] += 1 - (position - low)
            matrix[i, min(low + 1, old - 1)] += position - low
        return matrix

    return weights(height, x.shape[2]) @ x @ weights(width, x.shape[3]).T


def fusion_by_hand(module, maps):
    def conv(kind, level, x):
        layer = getattr(module, kind)[level]
        return F.conv2d(x, layer.weight, layer.bias, padding=layer.weight.shape[-1] // 2)

    x1, x2, x3 = maps
    m3 = conv("cv1", 2, x3)
    m2 = bilinear_by_hand(m3, *x2.shape[2:]) + conv("cv1", 1, x2) + conv("cv3", 1, x2)
    m1 = bilinear_by_hand(m2, *x1.shape[2:]) + conv("cv1", 0, x1) + conv("cv3", 0, x1)
    return [conv("cv2", 0, m1), conv("cv2", 1, m2), conv("cv2", 2, m3)]


def test_fusion_equals_the_recursion():
    torch.manual_seed(1)
    module, maps = CrossLayerFusion(CHANNELS, width=6).double(), feature_maps()
    fused = module(maps)
    assert [f.shape for f in fused] == [m.shape for m in maps]
    for got, expected in zip(fused, fusion_by_hand(module, maps), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_fusion_kernels_and_default_width():
    module = CrossLayerFusion([32, 64])
    assert [tuple(c.weight.shape) for c in module.cv1] == [(64, 32, 1, 1), (64, 64, 1, 1)]
    assert [tuple(c.weight.shape) for c in module.cv2] == [(32, 64, 3, 3), (64, 64, 3, 3)]
    assert [tuple(c.weight.shape) for c in module.cv3] == [(64, 32, 3, 3)]  # none on the top level


def test_fusion_flows_from_deep_to_shallow_only():
    module, maps = CrossLayerFusion(CHANNELS, 6).double(), feature_maps()
    before = module(maps)
    deep_changed = module([*maps[:2], maps[2] + 1])
    shallow_changed = module([maps[0] + 1, *maps[1:]])
    assert not any(torch.equal(a, b) for a, b in zip(before, deep_changed, strict=True))
    assert [torch.equal(a, b) for a, b in zip(before, shallow_changed, strict=True)] == [False, True, True]


def test_fusion_of_one_level_and_of_a_wrong_number():
    module, x = CrossLayerFusion([3], 6), torch.randn(2, 3, 4, 4)
    assert torch.equal(module([x])[0], module.cv2[0](module.cv1[0](x)))
    with pytest.raises(ValueError, match="expected 1 feature maps, got 2"):
        module([x, x])


# ------------------------------------------------------------------------------------------------------- distillation


def distiller(seed=2):
    torch.manual_seed(seed)
    return HierarchicalDistiller(CHANNELS, width=6, reduction=2).double()


def test_distillation_loss_equals_the_formula():
    module, student, teacher, attention = distiller(), feature_maps(), feature_maps(seed=10), feature_maps(seed=20)
    attended = [
        torch.tensor(np.stack([cbam_by_hand(cbam, sample.numpy()) for sample in x]))
        for cbam, x in zip(module.attention, student, strict=True)
    ]
    expected = 0.0
    for fused, targets in (
        (fusion_by_hand(module.attention_fusion, attended), attention),
        (fusion_by_hand(module.feature_fusion, student), teacher),
    ):
        for got, target in zip(fused, targets, strict=True):
            difference = (got - target).detach().numpy()
            expected += (difference**2).sum() / difference.size
    assert module.loss(student, teacher, attention).item() == pytest.approx(expected, rel=1e-12)
    assert torch.equal(module(student, teacher, attention), module.loss(student, teacher, attention))


def test_distillation_loss_is_zero_against_its_own_fusion_and_adds_up_by_hand():
    module, student = distiller(), feature_maps()
    attention = module.attention_fusion(module.attention(student))
    features = module.feature_fusion(student)
    assert module.loss(student, features, attention).item() == 0
    moved = [f + shift for f, shift in zip(features, (1, 2, 3), strict=True)]
    assert module.loss(student, moved, attention).item() == pytest.approx(1 + 4 + 9)  # element means, summed up
    assert module.loss(student, moved, [a + 0.5 for a in attention]).item() == pytest.approx(14.75)


def test_distillation_moves_the_student_and_the_modules_but_not_the_teacher():
    module = distiller()
    maps = [[m.requires_grad_() for m in feature_maps(seed=seed)] for seed in (0, 10, 20)]
    module.loss(*maps).backward()
    assert all(m.grad is not None and m.grad.abs().sum() > 0 for m in maps[0])
    assert all(m.grad is None for m in maps[1] + maps[2])
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())


def test_distillation_gradient():
    module, teacher, attention = distiller(), feature_maps(1, seed=10), feature_maps(1, seed=20)
    inputs = tuple(m.requires_grad_() for m in feature_maps(1))
    assert torch.autograd.gradcheck(lambda *student: module.loss(student, teacher, attention), inputs)


def test_attention_runs_alone_on_its_own_parameters():
    module, other, maps = distiller(), distiller(seed=3), feature_maps()
    frozen = {name: p.detach() for name, p in other.attention.named_parameters()}
    got = functional_call(module.attention, frozen, (maps,))
    assert [a.shape for a in got] == [m.shape for m in maps]
    for a, expected, x in zip(got, other.attention(maps), maps, strict=True):
        assert torch.equal(a, expected) and not torch.equal(a, x)


def test_a_missing_level_is_refused():
    with pytest.raises(ValueError):
        distiller().loss(feature_maps(), feature_maps()[:2], feature_maps()[:2])


@pytest.mark.filterwarnings("error")  # a missing batching rule would only warn
def test_distillation_under_vmap_equals_a_loop():
    modules = [distiller(seed) for seed in range(3)]
    parameters, _ = stack_module_state(modules)
    parameters = {name: p.detach() for name, p in parameters.items()}
    clients = [tuple(feature_maps(seed=100 * i + 10 * j) for j in range(3)) for i in range(3)]
    stacked = tuple([torch.stack(level) for level in zip(*kind, strict=True)] for kind in zip(*clients, strict=True))

    def loss(p, student, teacher, attention):
        return functional_call(modules[0], p, (student, teacher, attention))

    gradients = vmap(grad(loss, argnums=(0, 1)))(parameters, *stacked)
    values = vmap(loss)(parameters, *stacked)
    for i, (module, maps) in enumerate(zip(modules, clients, strict=True)):
        for m in maps[0]:
            m.requires_grad_()
        value = module.loss(*maps)
        value.backward()
        torch.testing.assert_close(values[i], value.detach(), rtol=0, atol=1e-9)
        for name, p in module.named_parameters():
            torch.testing.assert_close(gradients[0][name][i], p.grad, rtol=0, atol=1e-9)
        for level, m in enumerate(maps[0]):
            torch.testing.assert_close(gradients[1][level][i], m.grad, rtol=0, atol=1e-9)


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


# ------------------------------------------------------------------------------------------------------------ portable


def test_module_imports_torch_only():
    tree = ast.parse((REPO / "system" / "flcore" / "trainmodel" / "cpd.py").read_text())
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[0] for name in names} == {"torch", "collections"}


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (CBAM, "channels reduction"),
        (CrossLayerFusion, "channels width"),
        (HierarchicalDistiller, "channels width reduction"),
        (HierarchicalDistiller.loss, "self student_maps teacher_maps teacher_attention"),
        (prototype_alignment_loss, "z y prototypes seen reduction"),
        (prototype_contrastive_loss, "z y prototypes seen temperature"),
        (class_prototypes, "z y num_classes"),
        (aggregate_prototypes, "prototypes counts previous previous_seen weighting"),
    ],
)
def test_public_argument_names(function, arguments):
    assert list(inspect.signature(function).parameters) == arguments.split()
