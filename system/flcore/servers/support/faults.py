"""What goes wrong with participants: values that are not finite, slow clients, wrong labels, attacks. Pure functions;
`Server` says when. docs/robustness.md describes what is simulated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from flcore.servers.messages import is_finite
from flcore.trainmodel.forward import Tensors
from flcore.trainmodel.weights import Weights
from flcore.utils.errors import DivergedError

# A nominal device, so that simulated time depends on the settings alone and not on the machine.
SAMPLES_PER_SECOND = 1000.0  # trained; each epoch of each phase counts
BYTES_PER_SECOND = 1.25e6  # down and up: 10 Mbit/s
SLOWDOWN = 5.0  # times as long, for slow training and for slow sending
ON_UPLOADS = ("signflip", "noise")  # of the attacks; the other one is on labels


# ---- values that are not finite --------------------------------------------------------------------------------------


class Snapshot(NamedTuple):
    """What a round of training changes at a client."""

    params: Tensors
    state: Tensors
    upload: Tensors

    @classmethod
    def of(cls, client: Any) -> Snapshot:
        """The client as it is now. Rules never change a tensor in place, so nothing is copied for them."""
        return cls(client.weights.snapshot(), client.state, client.upload)

    def restore(self, client: Any) -> None:
        """Takes the last training back; it weighs nothing in the round's mean loss."""
        client.params, client.state, client.upload = self
        client.train_loss = (0.0, 0)


def is_sound(client: Any) -> bool:
    """Whether the loss of a client's last training and all that came out of it is finite."""
    own = (*client.params.values(), *client.state.values(), *client.upload.values())
    return bool(np.isfinite(client.train_loss[0])) and is_finite(own)


def not_finite(server: Any) -> list[str]:
    """Names of the server's own tensors, modules and dicts of tensors that hold values which are not finite."""
    names = []
    for name, value in vars(server).items():
        found: Iterable[Any] = ()
        if isinstance(value, Weights):
            found = value.tensors.values()
        elif isinstance(value, nn.Module):
            found = value.state_dict().values()
        elif isinstance(value, dict):
            found = value.values()
        elif isinstance(value, Tensor):
            found = [value]
        if not is_finite(item for item in found if isinstance(item, Tensor)):
            names.append(name)
    return names


def divergence(server: Any, reason: str) -> DivergedError:
    """The error that ends a run whose numbers went wrong."""
    out = sorted(server.round_uploads.left_out)
    left_out = f"Left out in this round: clients {out}. " if out else ""
    latest = server.checkpoints.latest if server.checkpoints else None
    checkpoint = "" if latest is None else f"The last checkpoint holds {latest} rounds (--resume). "
    return DivergedError(
        f"training diverged in round {server.current_round}: {reason}. {left_out}{checkpoint}"
        f"Try a smaller -lr than {server.learning_rate:g}. What was recorded before is in the result file"
    )


# ---- who, and how slow -----------------------------------------------------------------------------------------------


def chosen(number: int, rate: float, draw: np.random.Generator) -> list[bool]:
    """Which of ``number`` clients: exactly the share ``rate`` of them, rounded down."""
    picked = draw.permutation(number)[: int(rate * number + 1e-9)]
    return np.isin(np.arange(number), picked).tolist()


def training_samples(client: Any) -> int:
    """Samples that a round of training takes: those of all epochs of all phases."""
    batch = min(client.batch_size, client.train_samples) if client.batch_size > 0 else client.train_samples
    plan = client.local_plan(client.hp)
    return sum(phase.epochs * client.train_samples if phase.steps is None else phase.steps * batch for phase in plan)


def simulated_seconds(client: Any, traffic: int) -> float:
    """A client's round in simulated seconds: training, and ``traffic`` bytes down and up."""
    training, sending = training_samples(client) / SAMPLES_PER_SECOND, traffic / BYTES_PER_SECOND
    return training * (SLOWDOWN if client.train_slow else 1) + sending * (SLOWDOWN if client.send_slow else 1)


# ---- wrong labels ----------------------------------------------------------------------------------------------------


def noisy_labels(y: Tensor, rate: float, num_classes: int, draw: np.random.Generator) -> Tensor:
    """Labels y (n) of which exactly the share ``rate``, rounded down, became another class, each equally likely."""
    wrong = torch.tensor(chosen(len(y), rate if num_classes > 1 else 0, draw), dtype=torch.bool)
    shift = torch.from_numpy(draw.integers(1, max(num_classes, 2), len(y)))
    return torch.where(wrong, (y + shift) % num_classes, y)


def flipped_labels(y: Tensor, num_classes: int) -> Tensor:
    """Every class c as C - 1 - c."""
    return num_classes - 1 - y


# ---- attacks on the upload -------------------------------------------------------------------------------------------


def attacked(message: Tensors, received: Tensors, kind: str, scale: float, draw: torch.Generator) -> Tensors:
    """What an attacker sends in place of ``message``, having received ``received``; whole numbers stay.

    With u, the update, a tensor minus what was received under its name:

    * signflip: received - scale * u;
    * noise: the tensor plus Gaussian noise with standard deviation scale * |u| / sqrt(elements), so that the noise is
      about ``scale`` times as long as the update.

    Class prototypes (C, ...) are measured from the global prototype of their class; whatever was not received, such as
    the prototype of a class that has none yet, from 0.
    """
    sent = dict(message)
    for name, value in message.items():
        if not value.is_floating_point():
            continue
        start = received.get(name, torch.zeros_like(value))
        if name == "prototypes":
            if name in received:
                start = torch.where(received["seen"][:, None], start, 0)
            start = torch.where((message["counts"] > 0)[:, None], start, value)  # no update of a class not held
        update = value - start
        if kind == "signflip":
            sent[name] = start - scale * update
        else:
            spread = scale * update.square().mean().sqrt()
            sent[name] = value + spread * torch.randn(value.shape, generator=draw).to(value)
    return sent
