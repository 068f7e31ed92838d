"""Aggregation that a minority of wrong uploads cannot steer (``--aggregate``), in place of the weighted mean.

* ``median``: the median of each coordinate (of an even number: mean of the two in the middle); ``trimmed``: the mean of
  each coordinate without the ``--trim`` share of the largest and of the smallest. Yin, Chen, Ramchandran, Bartlett,
  ICML 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates".
* ``krum``: multi-Krum. Blanchard, El Mhamdi, Guerraoui, Stainer, NeurIPS 2017, "Machine Learning with Adversaries:
  Byzantine Tolerant Gradient Descent". An upload's score is the sum of its squared distances to its n - f - 2 nearest
  others; the result is the mean of the n - f uploads of the lowest score. f is the ``--trim`` share of the n uploads,
  but at most (n - 3) / 2, as the method demands 2f + 2 < n.

None of them weighs by samples: a number that a client states of itself would be one more way in.
"""

import torch
from torch import Tensor

from flcore.trainmodel.forward import Tensors
from flcore.trainmodel.prototypes import distances


def robust_mean(stacks: Tensors, how: str, trim: float) -> Tensors:
    """One value for each tensor, of the n that the uploads hold: (n, ...) -> (...).

    Whole numbers (BatchNorm's counters) take the lower median of those kept.

    Args:
        stacks: the uploads' tensors under their names, each (n, ...); Krum's distances are over all of them together.
        how: "median", "trimmed" or "krum".
        trim: share of the uploads to be wrong, below 0.5.
    """
    number = len(next(iter(stacks.values()), ()))
    wrong = int(trim * number + 1e-9)
    cut = (number - 1) // 2 if how == "median" else wrong
    if how == "krum":
        floats = [stack for stack in stacks.values() if stack.is_floating_point()]
        kept = krum(squared_distances(floats, number), min(wrong, max((number - 3) // 2, 0)))
        stacks, cut = {name: stack[kept] for name, stack in stacks.items()}, 0
    return {
        name: trimmed_mean(stack, cut) if stack.is_floating_point() else stack.median(0).values
        for name, stack in stacks.items()
    }


def trimmed_mean(stack: Tensor, cut: int) -> Tensor:
    """Mean over the first axis (n, ...) -> (...), of each coordinate without its ``cut`` smallest and largest."""
    return stack.sort(0).values[cut : len(stack) - cut].mean(0) if cut else stack.mean(0)


def squared_distances(stacks: list[Tensor], number: int) -> Tensor:
    """Squared Euclidean distances between the ``number`` n uploads whose tensors are ``stacks`` (n, ...) -> (n, n)."""
    total = torch.zeros(number, number)
    for stack in stacks:
        rows = stack.flatten(1)
        total = total.to(stack.device) + distances(rows, rows).square()
    return total


def krum(squares: Tensor, wrong: int) -> Tensor:
    """Indices, in their order, of the n - f uploads of the lowest Krum score, from ``squares`` (n, n) and f = wrong."""
    number = len(squares)
    neighbours = max(number - wrong - 2, 1)
    others = squares.clone().fill_diagonal_(torch.inf).sort(1).values[:, : min(neighbours, number - 1)]
    return others.sum(1).argsort(stable=True)[: number - wrong].sort().values


def robust_prototypes(prototypes: Tensor, counts: Tensor, how: str, trim: float) -> tuple[Tensor, Tensor]:
    """Class by class over the clients that hold the class: (N, C, ...) and counts (N, C) -> those of one client.

    That is (1, C, ...) and (1, C), 1 for a class that somebody holds: ready for `aggregate_prototypes`.
    """
    held = counts > 0
    rows = torch.zeros_like(prototypes[:1])
    for c in held.any(0).nonzero().flatten().tolist():
        rows[0, c] = robust_mean({"prototype": prototypes[held[:, c], c]}, how, trim)["prototype"]
    return rows, held.any(0, keepdim=True).to(counts.dtype)
