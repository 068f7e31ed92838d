"""What server and clients send each other: its names, its bytes, its averages, and what is wrong with a reply.

A message is a dict of tensors. Weights go under their parameter names, the shared ones down and the client's version of
them up. What a method sends besides has names of its own:

    prototypes (C, ...)  down: the global class prototypes; up: those of the client
    seen (C,) bool       down, with the prototypes: which classes have one
    counts (C,)          up, with the prototypes: the samples behind each one, or 1; 0 for a class that is not held

This file is portable: it is also copied into PFLlib checkouts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flcore.trainmodel.forward import Tensors

Layout = Mapping[str, tuple[torch.Size, torch.dtype]]  # the shape and the type of every tensor of a message

CLASS_MEANS = ("prototypes", "counts")  # of an upload
NOT_FINITE = "with values that are not finite"


def message_bytes(message: Tensors) -> int:
    """Bytes of a message. Of tensors ``prototypes...`` (C, ...) beside ``counts`` (C,) only the classes held go out."""
    total = 0
    for name, value in message.items():
        sent = value
        if name.startswith("prototypes") and "counts" in message:
            sent = value[message["counts"] > 0]
        total += sent.numel() * sent.element_size()
    return total


# ---- averages --------------------------------------------------------------------------------------------------------


def weighted_mean(names: list[str], messages: list[Tensors], weights: list[float]) -> Tensors:
    """Weighted mean of the named tensors over messages; the weights sum to 1."""
    mean: Tensors = {}
    for message, weight in zip(messages, weights, strict=True):
        add_weighted(mean, names, message, weight)
    return mean


def add_weighted(total: Tensors, names: list[str], message: Tensors, weight: float) -> None:
    """Adds ``weight`` times the named tensors to ``total``; whole numbers (BatchNorm's counters) take the maximum."""
    for name in names:
        value = message[name]
        if not value.is_floating_point():
            total[name] = torch.maximum(total.get(name, value), value)
        elif name in total:
            total[name].add_(value, alpha=weight)
        else:
            total[name] = value * weight


# ---- replies before they are used ------------------------------------------------------------------------------------


def is_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no tensor holds NaN or an infinite value."""
    numbers = [tensor for tensor in tensors if tensor.is_floating_point()]
    if not numbers:
        return True
    # A sum is finite only if all its terms are, and costs a thirtieth of looking at each; but it can overflow.
    sums = torch.stack([tensor.sum().float() for tensor in numbers])
    return bool(sums.isfinite().all()) or all(bool(tensor.isfinite().all()) for tensor in numbers)


def layout(message: Any) -> Layout:
    """Of every tensor of the message its shape and type; what is no tensor is left out."""
    items = message.items() if isinstance(message, Mapping) else ()
    return {name: (value.shape, value.dtype) for name, value in items if isinstance(value, Tensor)}


def expected_layout(
    weights: Tensors, replies: Sequence[Any], extras: tuple[str, ...] = (), needs: tuple[str, ...] = ()
) -> Layout:
    """What a reply of this round must look like.

    Args:
        weights: those that come back, as the server has them: each reply holds them all, in these shapes and types.
        replies: of the clients. What they hold besides is known to them alone, so most of them decide; the first one
            does among equally many.
        extras: prefixes of the names that they may hold besides.
        needs: those of these names that each must hold: a reply without them has no vote.
    """
    known = layout(weights)
    votes = Counter(
        tuple((name, kind) for name, kind in layout(reply).items() if name not in known and name.startswith(extras))
        for reply in replies
        if isinstance(reply, Mapping)
        and len({name in reply for name in CLASS_MEANS}) == 1  # both or none
        and all(name in reply for name in needs)
    )
    most = votes.most_common(1)  # of equally many, the one that was met first
    return {**known, **(dict(most[0][0]) if most else {})}


def defect(reply: Any, expected: Layout) -> str:
    """What is wrong with a client's reply, in words that follow "its reply"; empty if it can be used."""
    if not isinstance(reply, Mapping):
        return f"is no dict of tensors but {type(reply).__name__}"
    for name, (shape, dtype) in expected.items():
        value = reply.get(name)
        if name not in reply:
            return f"lacks {name}"
        if not isinstance(value, Tensor):
            return f"holds {name} that is no tensor but {type(value).__name__}"
        if value.shape != shape:
            return f"holds {name} of shape {tuple(value.shape)} instead of {tuple(shape)}"
        if value.dtype != dtype:
            return f"holds {name} of type {value.dtype} instead of {dtype}"
    if unknown := [str(name) for name in reply if name not in expected]:
        return f"holds {', '.join(unknown)}, which the method's card does not declare (its `extras`)"
    if not is_finite(reply.values()):
        broken = [name for name, value in reply.items() if not is_finite([value])]
        return f"holds {', '.join(broken)} {NOT_FINITE}"
    return ""
