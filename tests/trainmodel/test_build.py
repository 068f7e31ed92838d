"""From -m and the shape of the data to a network; the head split."""

import pytest
import torch
from torch import nn

from flcore.trainmodel.build import build_model, split_head
from flcore.trainmodel.models import DNN, BaseHeadSplit, FedAvgCNN, FedAvgMLP, Mclr_Logistic
from flcore.utils.errors import UsageError


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("CNN", FedAvgCNN),
        ("cnn", FedAvgCNN),
        ("FedAvgCNN", FedAvgCNN),
        ("dnn", DNN),
        ("MLR", Mclr_Logistic),
        ("mclr_logistic", Mclr_Logistic),
        ("fedavgmlp", FedAvgMLP),
    ],
)
def test_names_in_any_case(name, kind):
    assert type(build_model(name, (1, 28, 28), 10)) is kind


@pytest.mark.parametrize(("given", "near"), [("CNNN", "CNN"), ("resnet-18", "ResNet18"), ("logistic", "Mclr_Logistic")])
def test_unknown_name_gives_nearest_and_list(given, near):
    with pytest.raises(UsageError, match=f"did you mean {near}") as error:
        build_model(given, (1, 28, 28), 10)
    assert all(name in str(error.value) for name in (given, "CNN", "DNN", "MLR", "ResNet18"))


def test_unknown_name_that_resembles_nothing_gives_the_list_only():
    with pytest.raises(UsageError, match="no such model; Choose one of CNN, DNN, MLR"):
        build_model("qqq", (1, 28, 28), 10)


@pytest.mark.parametrize("name", ["CNN", "DNN", "MLR", "FedAvgMLP", "ResNet18"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 64, 64), (2, 17, 41)])
def test_every_network_takes_every_image(name, shape):
    model = build_model(name, shape, 7).eval()
    with torch.no_grad():
        assert model(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(("shape", "flat"), [((1, 28, 28), 1024), ((3, 32, 32), 1600), ((3, 64, 64), 10816)])
def test_cnn_flattened_size(shape, flat):
    model = build_model("CNN", shape, 10)
    assert model.fc1[0].in_features == flat
    assert model.conv1[0].in_channels == shape[0]


@pytest.mark.parametrize("name", ["DNN", "MLR", "FedAvgMLP"])
def test_vectors(name):
    assert build_model(name, (60,), 3)(torch.zeros(2, 60)).shape == (2, 3)


@pytest.mark.parametrize("name", ["CNN", "ResNet18"])
def test_image_networks_refuse_vectors(name):
    with pytest.raises(UsageError, match=rf"{name}.*\(60,\)"):
        build_model(name, (60,), 3)


def test_smallest_image_of_the_cnn():
    assert build_model("CNN", (1, 16, 16), 2)(torch.zeros(1, 1, 16, 16)).shape == (1, 2)
    for shape in [(1, 15, 16), (1, 16, 15), (3, 8, 8), (3, 1, 1)]:
        with pytest.raises(UsageError, match=f"CNN.*16x16.*{shape[1]}, {shape[2]}"):
            build_model("CNN", shape, 2)


def test_resnet18_keeps_torchvisions_parameters():
    grey, colour = build_model("ResNet18", (1, 28, 28), 10), build_model("ResNet18", (3, 32, 32), 10)
    assert colour.conv1.weight.shape == (64, 3, 7, 7) and grey.conv1.weight.shape == (64, 1, 7, 7)
    assert sum(p.numel() for p in colour.parameters()) == 11_689_512 - 513_000 + 5_130  # 1000 classes -> 10
    # Same initialisation law as torchvision's: standard deviation sqrt(2 / (64 * 7 * 7)).
    assert grey.conv1.weight.std().item() == pytest.approx((2 / 3136) ** 0.5, rel=0.05)


@pytest.mark.parametrize(
    ("name", "width"), [("CNN", 512), ("DNN", 100), ("MLR", 3072), ("FedAvgMLP", 200), ("ResNet18", 512)]
)
def test_split_takes_fc_off_and_computes_the_same(name, width):
    torch.manual_seed(0)
    model, x = build_model(name, (3, 32, 32), 10).eval(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        whole, fc = model(x), model.fc
        split = split_head(model)
        assert isinstance(split, BaseHeadSplit) and isinstance(split.base.fc, nn.Identity) and split.head is fc
        assert split.base(x).shape == (2, width)
        assert torch.equal(split(x), whole)
    assert not any(key.startswith("base.fc.") for key in split.state_dict())


def test_split_parameter_order_of_the_cnn():
    keys = list(split_head(build_model("CNN", (1, 28, 28), 10)).state_dict())
    assert keys[::2] == ["base.conv1.0.weight", "base.conv2.0.weight", "base.fc1.0.weight", "head.weight"]


def test_split_needs_fc():
    with pytest.raises(UsageError, match="Sequential.*`fc`"):
        split_head(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(UsageError, match="BaseHeadSplit"):
        split_head(split_head(DNN()))
