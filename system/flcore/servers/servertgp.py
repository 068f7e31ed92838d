"""FedTGP, server half: global prototypes that are trained to keep a margin (see clients/clienttgp.py).

A small network turns each class into its prototype P^c. On the round's uploads (P, c) it minimises, for ``-se`` passes
of mini-batch SGD (batch ``-lbs``, rate ``-slr``),

    -log( exp(-d(P, P^c) - m) / (exp(-d(P, P^c) - m) + sum over c' != c of exp(-d(P, P^c'))) )

with d the Euclidean distance. The margin m is the largest distance from a class centre of the uploads to its nearest
other one, at most ``--tgp_margin``, and that bound itself if only one class is there. The network lasts the whole run.
Defaults are those of the authors' scripts: 100 passes, rate 0.01, bound 100.

Deviations: distances are taken of differences (the released code expands the square, which goes below 0 by rounding,
and its root is NaN), and a class nobody has ever uploaded is neither pulled to nor predicted, though it has a (random)
prototype.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flcore.clients.clienttgp import clientTGP
from flcore.servers.prototypes import PrototypeServer
from flcore.servers.serverbase import Server
from flcore.servers.support.evaluation import ratio
from flcore.trainmodel.prototypes import aggregate_prototypes, as_samples, distances, shuffled, stack_uploads
from flcore.utils.seeds import numpy_generator, torch_generator


class FedTGP(PrototypeServer, Server):
    rule = clientTGP
    shares = ()
    remembers = ("network",)

    def __init__(self, args: Any, times: int) -> None:
        super().__init__(args, times)
        self.network = self.new_network(self.clients[0].forward.size)

    def aggregate_parameters(self) -> None:
        prototypes, counts = stack_uploads(self.uploaded_models)
        centres, here = aggregate_prototypes(prototypes, counts, None, None)
        loss = self.fit(self.network, *as_samples(prototypes, counts), margin(centres, here, self.hp.tgp_margin))
        self.record(rs_server_loss=loss)
        with torch.no_grad():
            self.prototypes = self.network()
        self.seen = here if self.seen is None else self.seen | here

    def new_network(self, width: int) -> TrainablePrototypes:
        with torch.random.fork_rng(devices=[]):
            draw = numpy_generator(self.args.seed, self.times, "trainable prototypes")
            torch.manual_seed(int(draw.integers(2**31)))
            return TrainablePrototypes(self.num_classes, width).to(self.device)

    def fit(self, network: TrainablePrototypes, prototypes: Tensor, y: Tensor, bound: Tensor) -> float:
        """Trains on ``prototypes`` (n,K) with labels y (n,); returns the last pass's mean loss, nan without one."""
        generator = torch_generator(self.args.seed, self.times, self.current_round, "prototypes")
        optimizer = torch.optim.SGD(network.parameters(), lr=self.hp.server_learning_rate)
        total = torch.full((), torch.nan, device=self.device)
        for _ in range(self.hp.server_epochs):
            total = torch.zeros((), device=self.device)
            for part in shuffled(len(y), self.batch_size, generator, self.device):
                loss = margin_loss(prototypes[part], y[part], network(), bound)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach() * len(part)
        return ratio(total.item(), len(y))


class TrainablePrototypes(nn.Module):
    """One learnt vector a class through two layers -> all prototypes (C,K)."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, width)
        self.middle = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.last = nn.Linear(width, width)

    def forward(self) -> Tensor:
        return self.last(self.middle(self.embedding.weight))


def margin(centres: Tensor, here: Tensor, bound: float) -> Tensor:
    """Largest nearest-neighbour distance of the ``centres`` (C,K) of the classes ``here`` (C,), at most ``bound``."""
    gaps = distances(centres, centres)
    others = here[:, None] & here & ~torch.eye(len(here), dtype=torch.bool, device=here.device)
    nearest = torch.where(others, gaps, torch.inf).amin(1)
    return torch.where(here, nearest, 0).amax().clamp(max=bound)


def margin_loss(prototypes: Tensor, y: Tensor, trained: Tensor, bound: Tensor | float) -> Tensor:
    """Cross-entropy of minus the distances from ``prototypes`` (B,K) to ``trained`` (C,K), the true one made longer."""
    lengthened = bound * F.one_hot(y, len(trained))
    return F.cross_entropy(-(distances(prototypes, trained) + lengthened), y)
