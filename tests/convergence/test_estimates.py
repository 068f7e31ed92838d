"""The estimates on a problem whose constants are known, and on FedCPD, which must not notice them."""

import argparse
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from flcore.clients.clientcpd import CPDSettings
from flcore.clients.localrule import LocalRule, Phase, head_loss
from flcore.clients.support.batches import Batches
from flcore.convergence.bounds import largest_rate, lemma1, theorem1
from flcore.convergence.estimates import Objective, Watch, estimate, walk
from flcore.executors.loop import LoopExecutor
from flcore.trainmodel.models import BaseHeadSplit
from support import same_tensors

X = torch.tensor([3.0, 4.0], dtype=torch.float64)  # |X| = 5


@dataclass(frozen=True)
class ToySettings(CPDSettings):
    lr: float = 0.01
    cpd_align: float = 4.0
    cpd_contrast: float = 0.0
    cpd_tau: float = 0.5


class Toy(LocalRule):
    """f(x) = W x with L(W) = mean of |W x|^2 / 2: for one x, gradient W x x' and curvature |x|^2."""

    def __init__(self, x, batch_size=2, epochs=2):
        self.id, self.device, self.batch_size = 0, torch.device("cpu"), batch_size
        self.args = argparse.Namespace(seed=0, repeat=0)
        self._data = x, torch.zeros(len(x), dtype=torch.long)
        self.model = BaseHeadSplit(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2))
        self.model.base.weight.data = torch.tensor([[1.0, 0.0], [0.0, 0.5]])
        self.model.double()
        self.epochs = epochs
        self.setup_rule(None)

    def hyperparameters(self, args):
        return ToySettings(local_epochs=self.epochs)

    def load_train_data(self):
        return Batches(self.data, self.batch_size, torch.Generator().manual_seed(0))

    @staticmethod
    def local_plan(hp):
        return [Phase(1, ("head.",), loss=head_loss, on_features=True), Phase(hp.local_epochs, ("base.",))]

    @staticmethod
    def local_loss(forward, params, x, y, shared, state, hp):
        return forward.features(params, x)[0].square().sum(1).mean() / 2


def test_a_problem_whose_constants_are_known():
    """W x = (3, 2) at the start, and three quarters of it after each step: 1 - rate |x|^2 = 0.75. No noise."""
    found = estimate(Toy(X.repeat(6, 1)), points=6, iterations=2)
    c = found.constants
    squares = [13 * 25 * 0.75 ** (2 * step) for step in range(6)]  # |W x x'|^2 = |W x|^2 |x|^2
    assert (found.samples, c.E, c.alpha, c.beta, c.tau) == (6, 6, 4 / 2, 0, 0.5)
    assert pytest.approx((25, 5, math.sqrt(325), sum(squares)), rel=1e-5) == (c.L1, c.L2, c.G, c.S)
    assert c.sigma == pytest.approx(0, abs=1e-3)
    losses = (found.loss_received, found.loss_before, found.loss_after)
    assert losses == pytest.approx((6.5, 6.5, 6.5 * 0.75**12), rel=1e-5)
    # the same curvature everywhere, and all steps along it: Lemma 1 is an equality
    assert lemma1(c, found.rate) == pytest.approx(found.loss_after - found.loss_before, rel=1e-4)


def test_the_estimates_look_at_some_iterates_only_and_extend_the_sum_to_all():
    """Two of six: the first and the last, whose squares stand for all."""
    c = estimate(Toy(X.repeat(6, 1)), points=2, iterations=0).constants
    assert c.E == 6
    assert pytest.approx(6 * 325 * (1 + 0.75**10) / 2, rel=1e-5) == c.S
    assert pytest.approx(25, rel=1e-5) == c.L1


@pytest.mark.parametrize("iterations", [1, 2, 8, 40])
def test_the_curvature_never_exceeds_the_largest_eigenvalue_and_comes_near(iterations):
    x = torch.tensor([[3.0, 0.0], [0.0, 1.0]], dtype=torch.float64)  # Hessian: diag(9, 1) / 2, twice
    objective = Objective(Toy(x))
    params = objective.client.params
    for gradient in (objective.gradients(params).mean, torch.zeros(4, dtype=torch.float64)):
        found = objective.curvature(params, iterations, gradient)
        assert found <= 4.5 * (1 + 1e-6)
        assert found >= (4.4 if iterations > 2 else 0.5)


def test_gradient_and_variance_of_mini_batches():
    """Seven samples in mini-batches of 3, 3 and 1, against each gradient by itself; the mean is over all seven."""
    x = torch.randn(7, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    toy = Toy(x, batch_size=3)
    w = toy.model.base.weight.detach()
    single = torch.stack([torch.outer(w @ row, row).flatten() for row in x])
    mean = single.mean(0)
    spread = float((single - mean).square().sum(1).mean())
    variances = []
    for toy.round in range(400):  # another order each time
        found = Objective(toy).gradients(toy.params)
        assert torch.allclose(found.mean, mean)
        assert found.loss == pytest.approx(float((x @ w.T).square().sum(1).mean() / 2))
        variances.append(found.variance)
    # the variance of a mean of B out of n, drawn without putting back: spread / B * (n - B) / (n - 1)
    assert np.mean(variances) == pytest.approx(spread / 3 * 4 / 6, rel=0.06)
    assert np.std(variances) > 0


def test_a_client_without_a_step_shows_nothing():
    assert estimate(Toy(X.repeat(6, 1), epochs=0)) is None


def watching(server, *clients, **settings):
    server.observers.append(watch := Watch(clients, **settings))
    return watch


def test_fedcpd_does_not_notice(make_server):
    plain, watched = (make_server("FedCPD", "-gr", "4") for _ in range(2))
    watch = watching(watched, 0, 3, points=2, iterations=1)
    plain.train()
    watched.train()
    assert watched.rs_test_acc == plain.rs_test_acc
    assert same_tensors(watched.global_params, plain.global_params)
    # nothing before the first prototypes
    assert [(found.round, found.client) for found in watch.estimates] == [(r, c) for r in (1, 2, 3) for c in (0, 3)]


def test_the_way_is_the_one_that_training_takes(make_server):
    compared = []

    class Executor(LoopExecutor):
        def train(self, clients, done):
            before = [client.params for client in clients]
            ways = [walk(client, Objective(client), points=3) for client in clients]
            super().train(clients, done)
            for client, received, (iterates, steps) in zip(clients, before, ways, strict=True):
                compared.append(same_tensors(iterates[-1], client.params))
                assert len(iterates) == min(3, steps) + 1
                assert not same_tensors(iterates[-1], received)

    server = make_server("FedCPD", "-gr", "2", "-ls", "2", executor=Executor())
    server.train()
    assert compared == [True] * 8  # two rounds of four clients


def test_on_fedcpd(make_server):
    server = make_server("FedCPD", "-gr", "3", "--cpd_tau", "0.5", "--cpd_contrast", "2", "--cpd_align", "3")
    watch = watching(server, 0, 3, points=3, iterations=2)
    server.train()
    watch.on_end(None)
    for found in watch.estimates:
        c = found.constants
        assert (c.alpha, c.beta, c.tau) == (3 / 512, 2, 0.5)
        assert c.S <= c.E * c.G**2
        assert c.sigma > 0
        assert largest_rate(c, "derived") is None
        assert found.loss_next - found.loss_received <= theorem1(c, found.rate)
    # what the client is left with at the end is what the next message is added to
    first, second = (watch.estimates[number] for number in (0, 2))
    assert first.loss_next == second.loss_received
