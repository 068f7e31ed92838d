"""Tensors in files: safetensors, never pickles."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from flcore.utils.runs.files import write_bytes


def identity(tensor: Tensor) -> tuple[Any, ...]:
    """Equal for two tensors that are the same values in the same memory; holds as long as one of them lives."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def pack(tensor: Tensor) -> tuple[Tensor, list[int] | None]:
    """``tensor`` for a file: contiguous, on the CPU, in memory of its own; and the order of its axes in memory.

    The order is None for the usual one. It is kept since the last bit of a sum may depend on it.
    """
    stored, order = tensor.detach(), None
    if not tensor.is_contiguous():
        strides = tensor.stride()
        by_stride = sorted(range(tensor.dim()), key=lambda axis: -strides[axis])
        if stored.permute(by_stride).is_contiguous():  # otherwise it has gaps or repetitions
            stored, order = stored.permute(by_stride), by_stride
    stored = stored.cpu().contiguous()
    return (stored.clone() if stored.untyped_storage().nbytes() != stored.nbytes else stored), order


def unpack(stored: Tensor, order: list[int] | None) -> Tensor:
    """The opposite of `pack`, but for the device."""
    return stored if order is None else stored.permute([order.index(axis) for axis in range(len(order))])


def write_tensors(path: Path, tensors: Mapping[str, Tensor], sync: bool = False) -> str:
    """Writes tensors as `pack` gives them; returns the file's sha256. `sync`: they shall survive a power failure."""
    content = safetensors.torch.save(dict(tensors))
    write_bytes(path, content, sync)
    return hashlib.sha256(content).hexdigest()


def read_tensors(content: bytes) -> dict[str, Tensor]:
    """The tensors in a file's bytes, in memory as torch allocates it: the last bit of a product may depend on that."""
    return {name: value.clone() for name, value in safetensors.torch.load(content).items()}
