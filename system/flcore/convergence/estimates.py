"""Estimates of the bounds' constants along a run of FedCPD: docs/convergence.md.

A copy of a client's weights takes the very steps that the client is about to take; at some of its iterates, and at the
end, the gradient of the client's loss over all its samples and over mini-batches is computed. The run itself does not
notice. The weights are those that move in the extractor's phase: extractor, attention and fusion modules.

L1, L2, sigma and G are suprema over all weights. What is found here are the largest values among those looked at, so
each is at most the true constant, and a bound made of them at most the bound that the theory gives.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flcore.convergence.bounds import Constants
from flcore.observers import Observer
from flcore.result import Repeat
from flcore.trainmodel.draws import drawing
from flcore.trainmodel.forward import Tensors
from flcore.utils.seeds import torch_generator


@dataclass(frozen=True)
class Estimate:
    """What one client's round shows. Losses are the client's own, over all its training samples."""

    round: int
    client: int
    samples: int
    classes: int  # that have a prototype
    rate: float
    constants: Constants
    loss_received: float  # after the download
    loss_before: float  # after the head's phase, before the extractor's
    loss_after: float  # after the extractor's phase
    loss_next: float = math.nan  # after the next round's download; NaN until that has been seen


class Gradients(NamedTuple):
    """Of one client's loss at one point, with P moving parameters."""

    loss: float
    mean: Tensor  # (P,) over all samples
    variance: float  # E|g - mean|^2 of a mini-batch's gradient g

    @property
    def square(self) -> float:
        """Of the mean's norm."""
        return float(self.mean @ self.mean)


class Objective:
    """A client's loss in the present round, as a function of the parameters that its extractor's phase moves.

    Args:
        client: has got this round's message and has not trained yet.
    """

    def __init__(self, client: Any) -> None:
        self.client, self.hp = client, client.round_hp()
        phases = client.phases(self.hp)
        number = next(i for i, phase in enumerate(phases) if any(n.startswith("base.") for n in client.moving(phase)))
        self.before, self.phase = phases[:number], phases[number]
        self.moves = client.moving(self.phase)
        size = client.load_train_data().batch_size
        draw = torch_generator(client.args.seed, client.args.repeat, client.round, client.id, "convergence")
        x, y = client.data
        order = torch.randperm(len(y), generator=draw).to(y.device)
        self.batches = [(x[chosen], y[chosen]) for chosen in torch.split(order, size)]
        self.complete = len(y) // size  # mini-batches; what is left over is the last one
        self.draw = draw

    def losses(self, params: Tensors) -> Iterator[tuple[Tensor, float]]:
        """The loss on each mini-batch, with its share of the samples."""
        client = self.client
        client.forward.set_training(self.phase.moves)
        for x, y in self.batches:
            with drawing(client.forward, [self.draw]):
                loss = client.local_loss(client.forward, params, x, y, client.shared, client.state, self.hp)
            yield loss, len(y) / len(client.data[1])

    def loss(self, params: Tensors) -> float:
        with torch.no_grad():
            return sum(float(loss) * share for loss, share in self.losses(params))

    def gradients(self, params: Tensors) -> Gradients:
        """Loss, gradient and the variance of a mini-batch's, from one pass over the samples in mini-batches.

        The variance is the mean of |g - mean|^2 over the complete mini-batches, which is right on average.
        """
        params, moving = self._moving(params)
        size = sum(value.numel() for value in moving)
        mean, of_complete = torch.zeros(2, size, dtype=torch.float64, device=moving[0].device)
        total = squares = 0.0
        for number, (loss, share) in enumerate(self.losses(params)):
            gradient = flat(torch.autograd.grad(loss, moving, materialize_grads=True))
            total += float(loss.detach()) * share
            mean += share * gradient
            if number < self.complete:
                squares += float(gradient @ gradient) / self.complete
                of_complete += gradient / self.complete
        # the mean of |g - mean|^2 = |g|^2 - 2 g mean + |mean|^2, without a second pass
        return Gradients(total, mean, max(squares - float((2 * of_complete - mean) @ mean), 0.0))

    def curvature(self, params: Tensors, iterations: int, gradient: Tensor) -> float:
        """|H v| for a unit vector v, after so many steps of the power method on the Hessian H.

        At most the largest absolute eigenvalue, and so at most L1. From the gradient's direction, which lies near that
        eigenvalue's, three steps come as near as ten from a random one; something random is added lest it be at right
        angles.
        """
        params, moving = self._moving(params)
        random = torch.randn(len(gradient), generator=self.draw, dtype=torch.float64).to(gradient.device)
        direction = gradient / gradient.norm().clamp_min(1e-30) + random / random.norm()
        length = 0.0
        for _ in range(iterations):
            direction = direction / direction.norm()
            product = torch.zeros_like(direction)
            for loss, share in self.losses(params):
                along = flat(torch.autograd.grad(loss, moving, create_graph=True, materialize_grads=True)) @ direction
                product += share * flat(torch.autograd.grad(along, moving, materialize_grads=True))
            direction, length = product, float(product.norm())
            if length == 0:
                break
        return length

    def _moving(self, params: Tensors) -> tuple[Tensors, list[Tensor]]:
        moving = {name: params[name].detach().requires_grad_() for name in self.moves}
        return params | moving, list(moving.values())


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """One vector in double precision."""
    return torch.cat([value.flatten().double() for value in tensors])


def walk(client: Any, objective: Objective, points: int) -> tuple[list[Tensors], int]:
    """Takes the steps of the client's next `train` on copies of its weights.

    Returns the weights before ``points`` of the extractor's steps, from the first one, and at the end; and the number
    of these steps.
    """
    params = {name: value.clone() for name, value in client.params.items()}
    batches, draws = client.load_train_data(), client.draws()
    for phase in objective.before:
        client.run_phase(phase, params, batches, draws, objective.hp)
    steps = list(objective.phase.take(batches))
    wanted = sorted({round(step) for step in np.linspace(0, len(steps) - 1, min(points, len(steps))).tolist()})
    kept: list[Tensors] = []

    def keep() -> None:
        kept.append(params | {name: params[name].clone() for name in objective.moves})

    stretch = objective.phase._replace(epochs=1, steps=None)
    for start, end in itertools.pairwise([*wanted, len(steps)]):
        keep()
        client.run_phase(stretch, params, steps[start:end], draws, objective.hp)
    keep()
    return kept, len(steps)


def estimate(client: Any, points: int = 4, iterations: int = 3) -> Estimate | None:
    """What ``client``'s round will show; None if it takes no step.

    Args:
        client: of FedCPD; has got this round's message and has not trained yet. It is left as it was.
        points: iterates looked at among the round's steps, the first and the last among them; the end comes on top.
        iterations: of the power method, at the first iterate; 0: L1 comes from differences of gradients alone.
    """
    objective = Objective(client)
    hp = objective.hp
    kept, steps = walk(client, objective, points)
    if steps == 0:
        return None
    found = [objective.gradients(point) for point in kept]
    z = [client.forward.in_batches(point, client.data[0]) for point in kept]
    bases = [flat(value for name, value in point.items() if name.startswith("base.")) for point in kept]
    ways = [flat(point[name] for name in objective.moves) for point in kept]
    pairs = list(itertools.combinations(range(len(kept)), 2))
    bends = [ratio((found[b].mean - found[a].mean).norm(), (ways[b] - ways[a]).norm()) for a, b in pairs]
    shifts = [ratio((z[b] - z[a]).norm(dim=1).max(), (bases[b] - bases[a]).norm()) for a, b in pairs]
    if iterations:
        bends.append(objective.curvature(kept[0], iterations, found[0].mean))
    seen = client.shared.get("seen")
    constants = Constants(
        L1=max(bends),
        L2=max(shifts),
        sigma=max(math.sqrt(point.variance) for point in found),
        G=max(math.sqrt(point.square + point.variance) for point in found),
        S=steps * float(np.mean([point.square for point in found[:-1]])),
        E=steps,
        alpha=hp.cpd_align / z[0].shape[1],  # the rule's alignment is a mean over the K elements
        beta=hp.cpd_contrast,
        tau=hp.cpd_tau,
    )
    return Estimate(
        round=client.round,
        client=client.id,
        samples=len(client.data[1]),
        classes=0 if seen is None else int(seen.sum()),
        rate=hp.lr,
        constants=constants,
        loss_received=objective.loss(client.params),
        loss_before=found[0].loss,
        loss_after=found[-1].loss,
    )


def ratio(change: Tensor, way: Tensor) -> float:
    return float(change / way) if way > 0 else 0.0


class Watch(Observer):
    """Estimates for some clients in every round, before they train.

    Nothing is estimated before there are prototypes: the bounds say how the loss changes when these move.

    Args:
        clients: ids of those under observation.
        points, iterations: see `estimate`.
    """

    def __init__(self, clients: Collection[int], points: int = 4, iterations: int = 3) -> None:
        self.ids, self.points, self.iterations = frozenset(clients), points, iterations
        self.estimates: list[Estimate] = []
        self.clients: dict[int, Any] = {}  # those that were estimated for

    def on_training(self, clients: list[Any]) -> None:
        for client in clients:
            if client.id in self.ids and ready(client):
                self.look_again(client)
                if found := estimate(client, self.points, self.iterations):
                    self.clients[client.id] = client
                    self.estimates.append(found)

    def on_end(self, repeat: Repeat) -> None:
        for client in self.clients.values():
            self.look_again(client)

    def look_again(self, client: Any) -> None:
        """Completes the client's estimate of the round before, now that it has got the next message."""
        for number, found in enumerate(self.estimates):
            if (found.client, found.round + 1) == (client.id, client.round):
                self.estimates[number] = replace(found, loss_next=Objective(client).loss(client.params))


def ready(client: Any) -> bool:
    weights = client.round_hp()
    return "prototypes" in client.shared or not (weights.cpd_align or weights.cpd_contrast)
