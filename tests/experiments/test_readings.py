"""The readings of the distillation in experiments/ compute what their names say."""

import importlib

import pytest
import torch

from flcore import registry
from flcore.experiment import Experiment
from support import REPO, same_tensors


@pytest.fixture
def readings(monkeypatch):
    monkeypatch.syspath_prepend(REPO / "experiments")
    monkeypatch.setattr(registry, "METHODS", list(registry.METHODS))
    module = importlib.import_module("readings")
    module.register()
    return module


@pytest.fixture
def trained(data_root):
    def train(algorithm, rounds=2, executor="loop", **settings):
        server = Experiment(
            algorithm=algorithm,
            dataset="Tiny",
            data_dir=str(data_root),
            results_dir=None,
            global_rounds=rounds,
            executor=executor,
            device="cpu",
            cpd_width=4,
            **settings,
        ).server()
        server.train()
        return server

    return train


def test_distances_by_hand(readings):
    student = torch.tensor([[[[3.0]], [[4.0]]]])  # one sample, two channels, one pixel
    teacher = torch.tensor([[[[0.0]], [[2.0]]]])
    assert readings.mean_square(student, teacher) == (9 + 4) / 2
    assert readings.squared_norm(student, teacher) == 9 + 4
    # (0.6, 0.8) against (0, 1)
    torch.testing.assert_close(readings.normalised(student, teacher), torch.tensor(0.36 + 0.04))
    # one pixel: any two maps point the same way
    assert readings.attention_transfer(student, teacher) == 0


NAMES = ["direct", "samelayer", "transfer", "normalised", "squared", "bothfused", "shared", "embedding", "inpath"]


@pytest.mark.parametrize("reading", NAMES)
def test_a_reading_trains_and_distils(readings, trained, reading):
    with_it, without = (trained(f"FedCPD-{reading}", cpd_fd=fd) for fd in (1.0, 0.0))
    assert torch.isfinite(torch.cat([value.flatten() for value in with_it.shared_weights().values()])).all()
    base = [
        {k: v for k, v in server.shared_weights().items() if k.startswith("base.")} for server in (with_it, without)
    ]
    assert not same_tensors(*base), "the distillation moves nothing"
    if reading != "inpath":  # its network is another one
        assert same_tensors(base[1], trained("FedCPD", cpd_fd=0.0).shared_weights())


def test_default_options_are_the_product(readings):
    torch.manual_seed(0)
    ours = readings.Distiller([3, 5], 4, 2)
    torch.manual_seed(0)
    product = readings.HierarchicalDistiller([3, 5], 4, 2)
    student, teacher = ([torch.rand(2, 3, 4, 4), torch.rand(2, 5, 2, 2)] for _ in range(2))
    attention = product.attention(teacher)
    torch.testing.assert_close(ours(student, teacher, attention), product(student, teacher, attention))


def test_every_reading_is_tested(readings):
    assert list(readings.READINGS) == NAMES


def test_attention_and_fusion_travel(readings, trained):
    server = trained("FedCPD-shared", rounds=1)
    assert any(name.startswith("distiller.") for name in server.shared_weights())
