"""Weights from a file into a network (--pretrained): tensors alone, nothing in the file is run."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from flcore.trainmodel.forward import Tensors, load_tensors, tensors_of
from flcore.utils.errors import UsageError

NESTED = ("state_dict", "model")  # under which training programs put the weights beside other things
PREFIX = "module."  # of what DataParallel has saved


def digest_of(path: Path) -> str:
    """Hex digest of a file of weights; UsageError if there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"--pretrained {path}: {error.strerror}") from None


def read_weights(path: Path) -> Tensors:
    """The tensors of a .safetensors file, or of a state_dict that torch.save has written.

    Raises:
        UsageError: the file is missing, damaged, or holds anything else, such as a whole pickled model.
    """
    try:
        if path.suffix == ".safetensors":
            content: Any = safetensors.torch.load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UsageError(f"--pretrained {path}: {error.strerror or error}") from None
    except Exception as error:
        reason = "it holds more than tensors" if "weights_only" in str(error) else " ".join(str(error).split())[:200]
        raise UsageError(
            f"--pretrained {path} is refused, none of it was run: {reason}; save the weights alone, as "
            "torch.save(model.state_dict(), FILE) or as .safetensors"
        ) from None
    for name in NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UsageError(f"--pretrained {path}: holds no state_dict, which is a dict of tensors by name")
    prefix = PREFIX if content and all(str(name).startswith(PREFIX) for name in content) else ""
    return {str(name).removeprefix(prefix): value for name, value in content.items()}


def load_pretrained(model: nn.Module, path: Path, head: str | None) -> str:
    """Copies the weights of a file into ``model``, which is not split yet; returns one line that says what was done.

    A head of another shape (other classes) keeps its fresh weights. The model file of a run will do, too.

    Args:
        head: the name of the model's head, if it has one.

    Raises:
        UsageError: the file does not fit; nothing has changed then.
    """
    found, own = read_weights(path), tensors_of(model)
    if head is not None and all(name.startswith(("base.", "head.")) for name in found):
        found = {
            f"{head}{name.removeprefix('head')}" if name.startswith("head.") else name.removeprefix("base."): value
            for name, value in found.items()
        }
    in_head = {name for name in own if head is not None and name.startswith(f"{head}.")}
    fits = {name: value for name, value in found.items() if name in own and value.shape == own[name].shape}
    wrong = [name for name in own if name not in fits and name not in in_head]
    if wrong:
        name = wrong[0]
        what = f"{name} has the shape {tuple(found[name].shape)} there" if name in found else f"{name} is not in it"
        raise UsageError(
            f"--pretrained {path} does not fit this network: {what} and {tuple(own[name].shape)} here; "
            f"{len(wrong)} of {len(own)} tensors do not fit"
        )
    if broken := [name for name, value in fits.items() if value.is_floating_point() and not value.isfinite().all()]:
        raise UsageError(f"--pretrained {path}: {broken[0]} has values that are not finite")
    fresh = sorted(in_head - fits.keys())
    fits = {name: value for name, value in fits.items() if name not in in_head} if fresh else fits
    load_tensors(model, {**own, **fits})
    line = f"pretrained: {len(fits)} tensors from {path}"
    line += f"; the head ({head}) starts afresh" if fresh else ""
    unused = len(found.keys() - own.keys())
    return line + (f"; {unused} others in the file are not used" if unused else "")
