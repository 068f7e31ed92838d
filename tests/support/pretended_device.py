"""A pretended accelerator, so that a machine without one finds tensors which are on the wrong device.

`with pretended_device() as device:` makes `device` one that tensors and modules can be moved to and made on. A tensor
there holds a CPU tensor inside and computes with it, so that results are those of a CPU bit for bit, but it obeys the
rules of a device as PyTorch has them for CUDA:

* an operation on tensors of both devices raises, but for copies, CPU scalars (0-dim) in element-wise arithmetic, and
  CPU indices into a tensor on the device (not the other way round);
* numpy does not take it, and a CPU generator cannot fill it;
* random numbers drawn on it without a generator are not those of the CPU.

Autograd, `torch.func`, modules and optimizers work as ever, since they see a tensor subclass whose operations arrive
in `__torch_dispatch__`; operations that make a tensor on the device arrive in a dispatch mode, active in the body.
Its type is "lazy", one that torch knows, has no library to load for and runs the backward pass of in the same thread.
What it cannot show: memory, speed, and kernels that round otherwise or in no fixed order.

`stalls` counts where a program waits for the device.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

from support import REPO

DEVICE = torch.device("lazy", 0)
SYSTEM = str(REPO / "system") + os.sep
OWN_SEED = 271828  # of the device's own random numbers

aten = torch.ops.aten
COPIES = {aten.copy_, aten._foreach_copy_}
INDEXING = {aten.index, aten._unsafe_index, aten.index_put, aten.index_put_, aten._index_put_impl_}
# element-wise, but PyTorch refuses CPU scalars in them, now or in the oldest version that we take
STRICT = {aten.lerp, aten.lerp_, aten.clamp, aten.clamp_, aten.addcmul, aten.addcmul_, aten.addcdiv, aten.addcdiv_}
READS = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.bincount, aten._unique2}


class OnDevice(torch.Tensor):
    """A tensor on the pretended device; `held` is the CPU tensor inside."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> OnDevice:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})

    def __repr__(self) -> str:
        return f"OnDevice({self.held})"

    def numpy(self, *args, **kwargs):
        raise TypeError(f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu() first.")

    def tolist(self):
        note_stall("tolist")
        return self.held.tolist()

    def new_tensor(self, data, *, dtype=None, device=None, requires_grad=False):
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or DEVICE, requires_grad=requires_grad)

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def __reduce_ex__(self, protocol):  # torch.save: as for a device whose memory a file cannot hold
        rebuild = torch._utils._rebuild_device_tensor_from_cpu_tensor
        return rebuild, (self.held, self.dtype, str(self.device), self.requires_grad)


_watching: list[Counter[str]] = []


@contextmanager
def stalls() -> Iterator[Counter[str]]:
    """Counts what stalls a GPU in the body, by the line of system/ that does it: "file:line operation".

    That is waiting for the device (reading a value, or a size that depends on values) and feeding it from the CPU: on a
    GPU each costs as much as many small kernels.
    """
    counts: Counter[str] = Counter()
    _watching.append(counts)
    try:
        yield counts
    finally:
        _watching.remove(counts)


def note_stall(what: str) -> None:
    if not _watching:
        return
    frame: Any = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(SYSTEM):
        frame = frame.f_back
    place = f"{frame.f_code.co_filename[len(SYSTEM) :]}:{frame.f_lineno}" if frame else "elsewhere"
    for counts in _watching:
        counts[f"{place} {what}"] += 1


class _MakesTensors(TorchDispatchMode):
    """Sees the operations that no tensor on the device takes part in: copies to it, and tensors made on it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


class _Program:
    """A TorchScript module on the device, which PyTorch itself only loads to the kinds that it knows."""

    def __init__(self, held: Any) -> None:
        self._held = held

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._held, name)
        return _Program(value) if callable(value) else value

    def eval(self) -> _Program:
        return _Program(self._held.eval())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, OnDevice):
            raise RuntimeError(f"Expected all tensors to be on the same device, but found {DEVICE} and cpu! (input)")
        return OnDevice(self._held(x.held).detach())


def _through_cpu(make: Callable[..., Any], place: str, move: Callable[[Any], Any]) -> Callable[..., Any]:
    """`make`, which cannot make things on the device: made on the CPU and moved where the argument `place` says so."""

    def on_device(*args: Any, **kwargs: Any) -> Any:
        wanted = kwargs.get(place)
        if wanted is None or torch.device(wanted).type != DEVICE.type:
            return make(*args, **kwargs)
        return move(make(*args, **{**kwargs, place: "cpu"}))

    return on_device


@contextmanager
def pretended_device() -> Iterator[torch.device]:
    def move(value: Any) -> Any:
        return tree_map(lambda item: item.to(DEVICE) if isinstance(item, torch.Tensor) else item, value)

    with ExitStack() as stack:
        for owner, name, place, moved in (
            (torch, "tensor", "device", move),
            (torch, "as_tensor", "device", move),
            (torch, "load", "map_location", move),
            (torch.jit, "load", "map_location", _Program),
        ):
            stack.enter_context(mock.patch.object(owner, name, _through_cpu(getattr(owner, name), place, moved)))
        stack.enter_context(_MakesTensors())
        yield DEVICE


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Runs one operation on the CPU tensors inside, if a device would run it."""
    inputs = tree_flatten((args, kwargs))[0]
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    ours = [value for value in tensors if isinstance(value, OnDevice)]
    named = kwargs.get("device")
    there = bool(ours) if named is None else torch.device(named).type == DEVICE.type
    if not (ours or there):
        return func(*args, **kwargs)
    if ours and len(ours) < len(tensors):
        _check_devices(func, args, tensors)
    _note(func, args, there, len(ours) < len(tensors))
    if named is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    held_args, held_kwargs = tree_map(_held, (args, kwargs))
    with _own_random_numbers(func, inputs, there):
        result = func(*held_args, **held_kwargs)
    if not there:
        return result
    same = {id(value.held): value for value in ours}  # an operation in place returns its argument

    def wrapped(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return same[id(value)] if id(value) in same else OnDevice(value)

    result = tree_map(wrapped, result)
    if torch.Tag.inplace_view in func.tags:  # such as squeeze_: the shape that torch sees must follow
        return return_and_correct_aliasing(func, args, kwargs, result)
    return result


def _held(value: Any) -> Any:
    return value.held if isinstance(value, OnDevice) else value


def _check_devices(func: Any, args: Any, tensors: list[torch.Tensor]) -> None:
    """Raises what CUDA would for an operation on tensors here and tensors on the CPU."""
    packet, allowed = func.overloadpacket, False
    strangers = [value for value in tensors if not isinstance(value, OnDevice)]
    if packet in COPIES:
        return
    if packet in INDEXING:
        if not isinstance(args[0], OnDevice):
            raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor ({func})")
        allowed = all(isinstance(value, OnDevice) or value.dim() == 0 for value in args[2:3])
    elif torch.Tag.pointwise in func.tags and packet not in STRICT:
        changed = func._schema.is_mutable and not isinstance(args[0], OnDevice)
        allowed = not changed and all(value.dim() == 0 for value in strangers)
    if not allowed:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {DEVICE} and cpu! ({func})")


def _note(func: Any, args: Any, there: bool, mixed: bool) -> None:
    """Notes an operation that waits for the device or feeds it; ``there``: its result lies on the device."""
    packet = func.overloadpacket
    stall = packet in READS
    if packet in INDEXING:
        masks = (value is not None and value.dtype in (torch.bool, torch.uint8) for value in args[1])
        stall = mixed or any(masks)
    elif packet in {aten._to_copy, aten.copy_}:
        stall = mixed or not (there and isinstance(args[0], OnDevice))
    if stall:
        note_stall(func._schema.name.removeprefix("aten::"))


@contextmanager
def _own_random_numbers(func: Any, inputs: list[Any], there: bool) -> Iterator[None]:
    if any(isinstance(value, torch.Generator) and there for value in inputs):
        raise RuntimeError(f"Expected a '{DEVICE.type}' device type for generator but found 'cpu' ({func})")
    if not there or torch.Tag.nondeterministic_seeded not in func.tags:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(OWN_SEED)
        yield
