"""What clients train with: torch.optim's SGD, Adam and AdamW, on dicts of tensors. Portable: it imports torch only.

Element by element and in place, so that the tensors of several clients, stacked along a first axis, move as each one's
own would. The order of operations is torch.optim's, for a step-by-step comparison.
"""

from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # of Adam and AdamW: torch's defaults


class LocalOptimizer:
    """Of one phase of one client's round, or of those of several clients at once: it begins without a memory.

    Args:
        hp: ``optimizer`` (sgd, adam, adamw), ``lr``, ``weight_decay`` and, for sgd, ``local_momentum``.
    """

    def __init__(self, hp: Any) -> None:
        self.kind, self.lr, self.weight_decay, self.momentum = hp.optimizer, hp.lr, hp.weight_decay, hp.local_momentum
        self.steps = 0
        self._kept: dict[tuple[str, str], Tensor] = {}

    @property
    def kept_per_parameter(self) -> int:
        """Numbers that it remembers for each one that moves."""
        return int(self.momentum > 0) if self.kind == "sgd" else 2

    def step(self, moving: Tensors, grads: Tensors) -> None:
        """Moves the tensors ``moving``, in place, under `torch.no_grad`. Of stacked clients the first ones may go on
        without the others."""
        self.steps += 1
        for name, grad in grads.items():
            value = moving[name]
            if self.weight_decay and self.kind == "adamw":
                value.mul_(1 - self.lr * self.weight_decay)
            elif self.weight_decay:
                grad = grad.add(value, alpha=self.weight_decay)
            if self.kind == "sgd":
                step = (
                    self._remembered("momentum", name, value).mul_(self.momentum).add_(grad) if self.momentum else grad
                )
                value.sub_(step, alpha=self.lr)
            else:
                self._adam(name, value, grad)

    def _adam(self, name: str, value: Tensor, grad: Tensor) -> None:
        mean = self._remembered("mean", name, value).lerp_(grad, 1 - BETA1)
        square = self._remembered("square", name, value).mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
        unbiased = (1 - BETA2**self.steps) ** 0.5
        value.addcdiv_(mean, (square.sqrt() / unbiased).add_(EPS), value=-self.lr / (1 - BETA1**self.steps))

    def _remembered(self, what: str, name: str, like: Tensor) -> Tensor:
        kept = self._kept.get((what, name))
        if kept is None:
            kept = torch.zeros_like(like)
        elif kept.shape != like.shape:  # clients that have no steps left
            kept = kept[: len(like)]
        self._kept[what, name] = kept
        return kept
