"""For servers that work with class prototypes: keeping the global ones, and training on the uploaded ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from flcore.servers.serverbase import Server
from flcore.trainmodel.cpd import aggregate_prototypes


class PrototypeServer(Server):
    """Sends global class prototypes beside the shared weights, as ``prototypes`` (C, ...) and ``seen`` (C,) bool.

    Clients upload ``prototypes`` (C, ...) and ``counts`` (C,). A class that nobody uploads keeps its last prototype, so
    none vanishes with the participants of a round; nothing is sent before some class has one.
    """

    uploads_prototypes = True
    remembers: tuple[str, ...] = ("prototypes", "seen")
    means_only = ("",)
    weighting = "uniform"  # over the clients that hold a class; or "count", by their samples of it
    prototypes: Tensor | None = None
    seen: Tensor | None = None

    def send_models(self) -> None:
        message = self.shared_weights()
        if self.prototypes is not None and self.seen is not None and self.seen.any():
            message |= {"prototypes": self.prototypes, "seen": self.seen}
        self.broadcast(message)

    def aggregate_parameters(self) -> None:
        self.average_shared()
        prototypes, counts = stack_uploads(self.uploaded_models)
        self.prototypes, self.seen = aggregate_prototypes(
            *self.filter_prototypes(prototypes, counts), self.prototypes, self.seen, self.weighting
        )


def stack_uploads(uploads: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """All clients' prototypes (N, C, ...) and counts (N, C)."""
    prototypes, counts = (torch.stack([upload[name] for upload in uploads]) for name in ("prototypes", "counts"))
    return prototypes, counts


def as_samples(prototypes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The (client, class) pairs that exist, as a data set: prototypes (N,C,K), counts (N,C) -> (n,K), labels (n,)."""
    held = counts > 0
    return prototypes[held], held.nonzero()[:, 1]


def shuffled(size: int, batch_size: int, generator: torch.Generator, device: Any = "cpu") -> Iterator[Tensor]:
    """Indices of one pass's mini-batches on ``device``; the incomplete last one is kept. -1: one batch of all."""
    if size:
        order = torch.randperm(size, generator=generator).to(device)
        yield from order.split(batch_size if batch_size > 0 else size)
