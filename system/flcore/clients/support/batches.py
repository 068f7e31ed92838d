"""Mini-batches of samples that lie in memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from flcore.clients.localrule import Data, Phase


class Batches:
    """Mini-batches of tensors that lie in memory, shuffled anew by every pass.

    As in PFLlib an incomplete last batch is dropped, but a client with fewer samples than a batch trains on all it has.
    """

    def __init__(
        self, data: Data, batch_size: int, generator: torch.Generator | None = None, smallest: int = 1
    ) -> None:
        self.dataset = torch.utils.data.TensorDataset(*data)
        size = len(self.dataset)
        self.batch_size = size if batch_size < 0 else min(batch_size, size)
        self.generator = generator  # None: all samples in their order (evaluation)
        self.smallest = smallest  # samples that a batch needs (BatchNorm cannot train on one)

    def __len__(self) -> int:
        size = len(self.dataset)
        if self.batch_size < self.smallest:
            return 0
        return size // self.batch_size if self.generator else -(-size // self.batch_size)

    def __iter__(self) -> Iterator[Data]:
        x, y = self.dataset.tensors
        if self.generator:
            for chosen in self.order().to(y.device):
                yield x[chosen], y[chosen]
        elif len(self):
            yield from zip(x.split(self.batch_size), y.split(self.batch_size), strict=True)

    def order(self) -> Tensor:
        """The samples of the next shuffled pass: (number of mini-batches, batch size), on the CPU."""
        size, count = len(self.dataset), len(self)
        return torch.randperm(size, generator=self.generator)[: count * self.batch_size].view(count, self.batch_size)

    def over(self, x: Tensor) -> Batches:
        """The same mini-batches in the same order, with other inputs ``x`` (n, ...) for the samples."""
        other = copy.copy(self)
        other.dataset = torch.utils.data.TensorDataset(x, self.dataset.tensors[1])
        return other

    def steps(self, phase: Phase) -> Tensor:
        """The samples of every step of ``phase``: (steps, batch size), on the CPU."""
        rows = list(phase.take(_Orders(self)))
        return torch.stack(rows) if rows else torch.zeros(0, self.batch_size, dtype=torch.int64)


class _Orders:
    """The mini-batches as the indices of their samples."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.batches.order())
