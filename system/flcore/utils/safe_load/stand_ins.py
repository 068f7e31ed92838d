"""Stand-ins for the names that a pickle of numpy arrays asks for, each of which checks what it is given."""

import math
from collections.abc import Callable
from reprlib import repr as shown  # short, also of what would take years to write out
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flcore.utils.safe_load.bounds import RefusedError, spend

MOST_AXES = 64  # numpy's own limit


class Callee:
    """A name that a pickle may call. Not the function itself, whose attributes a pickle could rewrite."""

    __slots__ = ("_make",)
    _make: Callable[..., object]

    def __init__(self, make: Callable[..., object]) -> None:
        object.__setattr__(self, "_make", make)

    def __call__(self, *args: object) -> object:
        return self._make(*args)

    def __setattr__(self, name: str, value: object) -> None:
        raise RefusedError(f"it tries to set {name!r} on one of numpy's functions")


class DType:
    """A numpy dtype by its short name ("f4"); the byte order follows as the pickle's state."""

    def __init__(self, name: object = None, *_flags: object) -> None:
        name = name.decode("latin1") if isinstance(name, bytes) else name
        if not (isinstance(name, str) and name[:1] in tuple("biufcSUO") and name[1:].isdecimal()):
            raise RefusedError(f"the array type {shown(name)}")
        self.value = np.dtype(name)
        if not self.value.itemsize:
            raise RefusedError(f"the array type {name!r}")

    def __setstate__(self, state: object) -> None:
        # (version, byte order, subarray, names, fields, item size, alignment, flags)
        if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
            raise RefusedError("a structured array type")
        order: Any = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if order not in tuple("<>=|"):
            raise RefusedError(f"the byte order {shown(order)}")
        self.value = self.value.newbyteorder(order)


class Array(np.ndarray[Any, np.dtype[Any]]):
    """An array whose pickled state is checked before numpy sees it: a false size would make numpy read beyond it."""

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise RefusedError("an array of unknown form")
        _, shape, dtype, fortran, raw = state
        dtype = _plain_dtype(dtype)
        if dtype.hasobject:
            if type(raw) is not list or len(raw) != count(shape):
                raise RefusedError(f"an object array whose content does not fit its shape {shown(shape)}")
            spend(len(raw))
        else:
            raw = _raw(raw, dtype, shape)
        super().__setstate__((1, shape, dtype, bool(fortran), raw))  # type: ignore[arg-type]


def _plain_dtype(dtype: object) -> "np.dtype[Any]":
    if not isinstance(dtype, DType):
        raise RefusedError("an array without a type")
    return dtype.value


def count(shape: object) -> int:
    axes = shape if isinstance(shape, tuple) and len(shape) <= MOST_AXES else (None,)
    if not all(type(size) is int and 0 <= size < 2**63 for size in axes):
        raise RefusedError(f"an array of shape {shown(shape)}")
    return math.prod(axes)


def _raw(raw: object, dtype: "np.dtype[Any]", shape: object) -> bytes | bytearray:
    """The bytes of an array, if they are as many as its shape says."""
    if not isinstance(raw, bytes | bytearray) or len(raw) != count(shape) * dtype.itemsize:
        raise RefusedError(f"an array whose content does not fit its shape {shown(shape)}")
    spend(len(raw))
    return raw


def _reconstruct(subtype: object, _shape: object, _typecode: object) -> Array:
    # The shape given here is only a placeholder; the real one comes with the state and is compared with the content.
    if subtype is not _NDARRAY:
        raise RefusedError("an array that is not numpy's own kind")
    return np.empty(0, np.uint8).view(Array)


def _scalar(dtype: object, raw: object) -> Any:
    plain = _plain_dtype(dtype)
    if plain.hasobject:
        raise RefusedError("a scalar that is an object")
    return np.frombuffer(_raw(raw, plain, ()), plain)[0]


def _frombuffer(raw: object, dtype: object, shape: object, order: object, axes: object = None) -> NDArray[Any]:
    """What protocol 5 uses for arrays without objects; order "K" (numpy 2.3) is "C" with the axes put in order."""
    plain = _plain_dtype(dtype)
    if plain.hasobject or order not in ("C", "F", "K"):
        raise RefusedError("an array of unknown form")
    array: Any = np.frombuffer(bytearray(_raw(raw, plain, shape)), plain)
    array = array.reshape(shape, order="F" if order == "F" else "C")
    return (array.transpose(axes) if order == "K" and axes else array).view(Array)  # type: ignore[no-any-return]


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """How Python 3 writes bytes with the old protocols: as text in latin1."""
    if not isinstance(text, str) or encoding != "latin1":
        raise RefusedError("bytes of unknown form")
    spend(len(text))
    return text.encode("latin1")


_NDARRAY = object()  # named by every pickled array, and never to be called: numpy.ndarray(shape) would allocate
NAMES: dict[tuple[str, str], object] = {("numpy", "ndarray"): _NDARRAY, ("numpy", "dtype"): Callee(DType)}
NAMES["_codecs", "encode"] = Callee(_encode)
NAMES["__builtin__", "bytes"] = Callee(lambda: b"")  # protocol 2 writes empty bytes as a call
for _core in ("numpy.core", "numpy._core"):  # numpy 1 and numpy 2
    NAMES[f"{_core}.multiarray", "_reconstruct"] = Callee(_reconstruct)
    NAMES[f"{_core}.multiarray", "scalar"] = Callee(_scalar)
    NAMES[f"{_core}.numeric", "_frombuffer"] = Callee(_frombuffer)
