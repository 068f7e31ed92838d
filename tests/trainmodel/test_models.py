"""The networks: sizes, names and outputs under PFLlib's interface."""

import inspect
import json

import pytest
import torch
from torch import nn

from flcore.trainmodel import models
from flcore.trainmodel.models import DNN, BaseHeadSplit, FedAvgCNN, FedAvgMLP, Mclr_Logistic
from support import REPO


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("channels", "dim", "side", "total", "base"), [(1, 1024, 28, 582_026, 576_896), (3, 1600, 32, 878_538, 873_408)]
)
def test_cnn_has_the_published_size(channels, dim, side, total, base):
    model = FedAvgCNN(in_features=channels, num_classes=10, dim=dim)
    assert count(model) == total
    assert count(model) - count(model.fc) == base
    assert model(torch.zeros(2, channels, side, side)).shape == (2, 10)


def test_cnn_parameter_names_and_order():
    layers = ["conv1.0", "conv2.0", "fc1.0", "fc"]
    assert [name for name, _ in FedAvgCNN().named_parameters()] == [
        f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")
    ]


def test_cnn_is_conv_relu_pool_twice_then_two_linear_layers():
    torch.manual_seed(0)
    model, x = FedAvgCNN().double(), torch.randn(3, 1, 28, 28, dtype=torch.float64)
    p, hidden = dict(model.named_parameters()), x
    for stage in ("conv1.0", "conv2.0"):
        windows = hidden.unfold(2, 5, 1).unfold(3, 5, 1)
        maps = torch.einsum("nchwij,ocij->nohw", windows, p[f"{stage}.weight"]) + p[f"{stage}.bias"][:, None, None]
        quarters = [maps[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)]
        hidden = torch.stack(quarters).max(0).values.clamp(min=0)
    assert hidden.shape == (3, 64, 4, 4)
    z = (hidden.reshape(3, 1024) @ p["fc1.0.weight"].T + p["fc1.0.bias"]).clamp(min=0)
    torch.testing.assert_close(model(x), z @ p["fc.weight"].T + p["fc.bias"])


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (DNN(60, num_classes=4), 60 * 100 + 100 + 100 * 4 + 4),
        (DNN(60, 20, 4), 60 * 20 + 20 + 20 * 4 + 4),
        (FedAvgMLP(60, 4), 60 * 200 + 200 + 200 * 4 + 4),
        (Mclr_Logistic(60, 4), 60 * 4 + 4),
    ],
)
def test_flat_networks_take_vectors_and_images(model, size):
    assert count(model) == size
    assert isinstance(model.fc, nn.Linear)
    x = torch.randn(5, 60)
    assert model(x).shape == (5, 4)
    assert torch.equal(model(x.reshape(5, 3, 4, 5)), model(x))


def test_hidden_layer_is_relu_and_outputs_are_raw_logits():
    model = DNN(1, 2, 1)
    with torch.no_grad():
        model.fc1.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        model.fc1.bias.copy_(torch.tensor([0.0, 0.5]))
        model.fc.weight.copy_(torch.tensor([[10.0, 100.0]]))
        model.fc.bias.fill_(7)
    # 3: units 3 and 0 -> 30 + 7;  -2: units 0 and 2.5 -> 250 + 7
    assert model(torch.tensor([[3.0], [-2.0]])).flatten().tolist() == [37.0, 257.0]


def test_split_is_head_after_base_under_pfllib_names():
    split = BaseHeadSplit(nn.Linear(3, 2), nn.Linear(2, 5))
    x = torch.randn(4, 3)
    assert torch.equal(split(x), split.head(split.base(x)))
    assert sorted(split.state_dict()) == ["base.bias", "base.weight", "head.bias", "head.weight"]


def test_constructor_arguments_are_pfllibs():
    surface = REPO.parent / "shared" / "spec" / "pfllib-surface.json"
    if not surface.exists():
        pytest.skip("PFLlib's interface list is not beside this checkout")
    listed = json.loads(surface.read_text())["models"]
    for name in ("BaseHeadSplit", "FedAvgCNN", "FedAvgMLP", "DNN", "Mclr_Logistic"):
        assert list(inspect.signature(getattr(models, name).__init__).parameters) == listed[name]
