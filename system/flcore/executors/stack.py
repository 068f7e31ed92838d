"""Many clients' tensors as one, with the clients as the first axis. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flcore.clients.localrule import Tensors


def stack(clients: Sequence[Tensors]) -> Tensors:
    """One dict of tensors (N, ...) from those of N clients, which have the same names and shapes."""
    return {name: torch.stack([tensors[name] for tensors in clients]) for name in clients[0]}


def unstack(stacked: Tensors, index: int) -> Tensors:
    """One client's tensors: copies, so that nobody keeps the whole stack alive."""
    return {name: value[index].clone() for name, value in stacked.items()}


def schedule(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Stretches (steps, live clients) for clients of ``lengths`` steps, longest first: the live ones are a prefix.

    [5, 3, 3, 0] -> [(3, 3), (2, 1)]: three steps of the first three clients, then two of the first alone.
    """
    stretches, done = [], 0
    for live in range(len(lengths), 0, -1):
        if lengths[live - 1] > done:
            stretches.append((lengths[live - 1] - done, live))
            done = lengths[live - 1]
    return stretches
