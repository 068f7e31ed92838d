"""Class prototypes: made of embeddings, put together from many clients, learnt from, and told apart.

Imports torch only, so the file also works inside a PFLlib checkout. Nothing that a rule uses branches on data, so it
runs under `torch.func.vmap` and `torch.func.grad`.

Shapes: B or n samples, C classes, K embedding size, N clients. A prototype is the mean embedding of a class. Absence is
never told by a row of zeros, but by a count of 0 or by ``seen`` (C,) bool.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

COSINE_EPS = 1e-8  # smallest norm a cosine divides by: a dead ReLU embedding has norm 0


def unit(z: Tensor) -> Tensor:
    """The rows of z (n,K) at length 1; a row of zeros stays one."""
    return F.normalize(z, dim=1, eps=COSINE_EPS)


def clip_lengths(z: Tensor, limit: float) -> Tensor:
    """The rows of z (n,K), longer ones shortened to the L2 norm ``limit``; 0: z as it is."""
    return z * (limit / z.norm(dim=1, keepdim=True).clamp_min(limit)) if limit else z


def class_prototypes(z: Tensor, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Mean embedding and number of samples of each class: z (n,K), y (n,) -> (C,K) in at least float32, (C,) int64.

    Labels outside [0,C), such as a padding of -1, are left out. An absent class has count 0 and a row of zeros, which
    is no prototype: look at the count.
    """
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    member = y[:, None] == torch.arange(num_classes, device=y.device)
    counts = member.sum(0)
    used = torch.where(member.any(1)[:, None], z, 0)  # 0 * NaN is NaN: what padding holds must not matter
    return member.to(z.dtype).T @ used / counts.clamp_min(1)[:, None], counts


def aggregate_prototypes(
    prototypes: Tensor,
    counts: Tensor,
    previous: Tensor | None,
    previous_seen: Tensor | None,
    weighting: str = "uniform",
) -> tuple[Tensor, Tensor]:
    """Global prototypes from the clients': (N,C,K) and counts (N,C) -> (C,K), seen (C,) bool.

    A client holds a class if its count is above 0. weighting: "uniform" over the holders (default; the paper uploads no
    counts) or "count", by their samples. A class that nobody holds this time keeps `previous` (C,K) and `previous_seen`
    (C,); both may be None in the first round. Raises ValueError for another weighting.
    """
    if weighting not in ("uniform", "count"):
        raise ValueError(f"weighting must be 'uniform' or 'count', not {weighting!r}")
    holds = counts > 0
    weights = (holds if weighting == "uniform" else counts).to(prototypes.dtype)
    held = holds.any(0)
    sums = (weights[..., None] * torch.where(holds[..., None], prototypes, 0)).sum(0)
    mean = sums / weights.sum(0)[:, None]  # 0 / 0 where nobody holds the class, replaced below
    if previous is None or previous_seen is None:
        previous, previous_seen = torch.zeros_like(mean), torch.zeros_like(held)
    return torch.where(held[:, None], mean, previous), previous_seen | held


def prototype_alignment_loss(z: Tensor, y: Tensor, prototypes: Tensor, seen: Tensor, reduction: str = "mean") -> Tensor:
    """Squared distance of each embedding to its class's prototype, mean over the batch -> scalar.

    z (B,K), y (B,) int64 in [0,C), prototypes (C,K) constant, seen (C,) bool. A sample whose class has no prototype
    adds 0 to the sum and still counts in B. reduction: "mean" over the K elements of a distance (the default; a plain
    sum diverges at the paper's learning rate) or "sum", K times as large. Raises ValueError for another reduction.
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean' or 'sum', not {reduction!r}")
    # Without a prototype, a sample's target is a constant copy of itself: loss and gradient 0, whatever the row holds.
    targets = torch.where(seen[y, None], prototypes[y], z).detach()
    loss = F.mse_loss(z, targets)
    return loss if reduction == "mean" else loss * z.shape[1]


def prototype_contrastive_loss(z: Tensor, y: Tensor, prototypes: Tensor, seen: Tensor, temperature: float) -> Tensor:
    """InfoNCE of cosines: cross-entropy with logits cos(z, P_c) / temperature over the seen classes -> scalar.

    Shapes as in `prototype_alignment_loss`. All seen classes but the sample's own are negatives, also those the client
    lacks; unseen classes are not. Mean over the batch; a sample whose class has no prototype adds 0 and still counts.
    """
    known = torch.where(seen[:, None], prototypes, 0).detach()
    cosines = unit(z) @ unit(known).T
    # With no class seen, mask none: a softmax over nothing but -inf is NaN, and every sample is ignored anyway.
    logits = (cosines / temperature).masked_fill(~seen & seen.any(), -torch.inf)
    ignored = -100  # cross_entropy's label for "leave this sample out"
    return F.cross_entropy(logits, torch.where(seen[y], y, ignored), reduction="sum", ignore_index=ignored) / len(y)


def nearest_prototype(z: Tensor, prototypes: Tensor, seen: Tensor) -> Tensor:
    """Scores (B,C) of embeddings z (B,K): minus the squared distance to each of ``prototypes`` (C,K).

    Classes without a prototype (``seen`` (C,) false) get the lowest finite number: never chosen, and an AUC exists.
    """
    known = torch.where(seen[:, None], prototypes, 0)
    squares = z.square().sum(1, keepdim=True) - 2 * z @ known.T + known.square().sum(1)
    return torch.where(seen, -squares, torch.finfo(z.dtype).min)


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances of all pairs, (n,K) and (m,K) -> (n,m); of equal points exactly 0, and so is the gradient."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


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
