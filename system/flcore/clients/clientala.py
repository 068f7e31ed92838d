"""FedALA, client half. Zhang, Hua, Wang, Song, Xue, Ma, Guan: "FedALA: Adaptive Local Aggregation for Personalized
Federated Learning", AAAI 2023.

The lower layers are overwritten by the download. The top ones start as  old + (global - old) * W  with one learned
weight in [0, 1] an element; W is fitted by gradient descent on a part of the client's data, with all parameters fixed,
until the loss is still at a client's first adaptation and for one epoch later on (Algorithm 1). Then all parameters
train on cross-entropy.

As in the authors' code and PFLlib: the threshold of 0.1 on the standard deviation of the last 10 losses, so at least 11
epochs; and every client adapts at every download, participant or not, so that point A scores adapted models. ``-p``
counts parameter tensors from the end: 2 is the last layer (the paper's p = 1), 0 means all.

Different here: the data are a random subset, where a contiguous slice is only that if the data lie shuffled; an empty
subset leaves W as it is instead of crashing; the loss compared is an epoch's mean, not its last mini-batch's; the first
adaptation ends after 100 epochs at the latest; the download of round 0, which is every client's own model, is told by
the round instead of by a sum of differences; W is fitted in evaluation mode, so that BatchNorm stays as received.
"""

import statistics
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from flcore.clients.clientbase import Client
from flcore.hyperparams import Settings, setting
from flcore.trainmodel.forward import Forward, Tensors
from flcore.utils.seeds import torch_generator

STILL, WINDOW, MOST_EPOCHS = 0.1, 10, 100


@dataclass(frozen=True)
class ALASettings(Settings):
    eta: float = setting(1.0, "learning rate of the aggregation weights", least=0, source="the authors' code")
    rand_percent: int = setting(
        80, "percent of the samples used for the local aggregation", least=1, most=100, source="the authors' code"
    )
    layer_idx: int = setting(
        2,
        "number of parameter tensors from the end aggregated adaptively; 0: all",
        least=0,
        source="PFLlib: the last layer",
    )


class clientALA(Client):
    settings = ALASettings
    replaced = ()  # the old weights are mixed in

    def __init__(self, args: Any, id: int, train_samples: int, test_samples: int, **kwargs: Any) -> None:
        super().__init__(args, id, train_samples, test_samples, **kwargs)
        top = self.trainable[-self.hp.layer_idx :]  # -0: all
        self.state = {
            "adapted": torch.tensor(False),
            **{f"weights.{name}": torch.ones_like(self.params[name]) for name in top},
        }

    def receive(self, message: Tensors, current_round: int) -> None:
        old = self.params
        super().receive(message, current_round)
        if current_round == 0:
            return
        x, y = self.data
        draw = torch_generator(self.args.seed, self.args.repeat, current_round, self.id, "adaptation")
        chosen = torch.randperm(len(y), generator=draw)[: int(self.hp.rand_percent * len(y) / 100)].to(y.device)
        batch_size = self.batch_size if self.batch_size > 0 else max(len(chosen), 1)
        data = x[chosen], y[chosen]
        self.params, self.state = adapt(self.forward, old, self.params, data, batch_size, self.state, self.hp)


def adapt(
    forward: Forward,
    old: Tensors,
    received: Tensors,
    data: tuple[torch.Tensor, torch.Tensor],
    batch_size: int,
    state: Tensors,
    hp: ALASettings,
) -> tuple[Tensors, Tensors]:
    """Adaptive local aggregation: the client's initial parameters of this round, and the state with the new weights.

    Args:
        old, received: the client's parameters before the download, and the global ones.
        data: the samples (x, y) to fit the weights on; none at all leave them as they are.
        state: ``weights.<name>`` of every adapted parameter, and ``adapted``, whether there was a fit before.
    """
    x, y = data
    weights = {name.removeprefix("weights."): value for name, value in state.items() if name.startswith("weights.")}
    forward.set_training(())
    if all(name.startswith("head.") for name in weights):  # what lies below is fixed, so once is enough
        x = forward.in_batches(received, x) if len(y) else x

        def logits(params: Tensors, x: torch.Tensor) -> torch.Tensor:
            return forward.call("head", params, x)
    else:

        def logits(params: Tensors, x: torch.Tensor) -> torch.Tensor:
            return forward(params, x)[0]

    batches = list(zip(x.split(batch_size), y.split(batch_size), strict=True)) if len(y) else []
    epochs = 1 if state["adapted"] else MOST_EPOCHS
    latest: deque[float] = deque(maxlen=WINDOW)
    for epoch in range(epochs if batches else 0):
        losses = []
        for batch, labels in batches:
            top = {name: mix(old[name], received[name], w).requires_grad_() for name, w in weights.items()}
            loss = F.cross_entropy(logits({**received, **top}, batch), labels)
            found = torch.autograd.grad(loss, list(top.values()), allow_unused=True)
            for (name, w), grad in zip(weights.items(), found, strict=True):
                if grad is not None:
                    weights[name] = (w - hp.eta * grad * (received[name] - old[name])).clamp(0, 1)
            losses.append(loss.detach())
        latest.append(torch.stack(losses).mean().item())
        if epoch >= WINDOW and statistics.pstdev(latest) < STILL:
            break
    top = {name: mix(old[name], received[name], w) for name, w in weights.items()}
    adapted = state["adapted"] | torch.tensor(bool(batches))
    return {**received, **top}, {"adapted": adapted, **{f"weights.{name}": w for name, w in weights.items()}}


def mix(old: torch.Tensor, received: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """old + (received - old) * weight, exactly ``old`` at 0 and exactly ``received`` at 1."""
    return torch.lerp(old, received, weight)
