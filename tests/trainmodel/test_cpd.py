"""FedCPD's modules and losses against formulas written a second time, by hand, in double precision."""

import inspect

import numpy as np
import pytest
import torch
import torch.nn.functional as F
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

LEVELS = [(3, 9, 6), (5, 4, 3), (4, 2, 2)]  # channels, height, width; sizes that are not doubled from level to level
CHANNELS = [level[0] for level in LEVELS]


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
    assert [tuple(c.weight.shape) for c in module.cv1] == [(16, 32, 1, 1), (16, 64, 1, 1)]
    assert [tuple(c.weight.shape) for c in module.cv2] == [(32, 16, 3, 3), (64, 16, 3, 3)]
    assert [tuple(c.weight.shape) for c in module.cv3] == [(16, 32, 3, 3)]  # none on the top level


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


# --------------------------------------------------------------------------------------------------------- public names


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
