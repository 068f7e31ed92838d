"""Reads numpy's files and plain pickles without ever running what a stranger put inside.

A pickle is a program. PFLlib's partition files and the CIFAR batches are pickles all the same, so they are read by an
unpickler that knows only a handful of names (for numpy's arrays, dtypes and scalars, and for bytes), each replaced by a
checked stand-in; any other name ends the reading. What comes out is arrays, numbers, strings, bytes, dicts, lists and
tuples.
"""

import math
import pickle
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from utils.errors import UsageError

T = TypeVar("T")

_PLAIN = (str, bytes, bool, int, float, type(None), np.generic)
# What the standard library and numpy raise on damaged input. RuntimeError: an encrypted zip.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError)


class _RefusedError(Exception):
    """The file holds something other than plain numpy content."""


# --- stand-ins for the names a pickle may ask for ---------------------------------------------------------------------


class _Callable:
    """A name that a pickle may call. Not the function itself, whose attributes a pickle could rewrite."""

    __slots__ = ("_make",)
    _make: Callable[..., object]

    def __init__(self, make: Callable[..., object]) -> None:
        object.__setattr__(self, "_make", make)

    def __call__(self, *args: object) -> object:
        return self._make(*args)

    def __setattr__(self, name: str, value: object) -> None:
        raise _RefusedError(f"it tries to set {name!r} on one of numpy's functions")


class _DType:
    """A numpy dtype by its short name ("f4"); the byte order follows as the pickle's state."""

    def __init__(self, name: object = None, *_flags: object) -> None:
        name = name.decode("latin1") if isinstance(name, bytes) else name
        if not (isinstance(name, str) and name[:1] in tuple("biufcSUO") and (name[1:] or "0").isdigit()):
            raise _RefusedError(f"the array type {name!r}")
        self.value = np.dtype(name)

    def __setstate__(self, state: object) -> None:
        # (version, byte order, subarray, names, fields, item size, alignment, flags)
        if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
            raise _RefusedError("a structured array type")
        order: Any = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if order not in tuple("<>=|"):
            raise _RefusedError(f"the byte order {order!r}")
        self.value = self.value.newbyteorder(order)


class _Array(np.ndarray):
    """An array whose pickled state is checked before numpy sees it: a false size would make numpy read beyond it."""

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise _RefusedError("an array of unknown form")
        _, shape, dtype, fortran, raw = state
        dtype = _plain_dtype(dtype)
        if dtype.hasobject:
            if type(raw) is not list or len(raw) != _count(shape):
                raise _RefusedError(f"an object array whose content does not fit its shape {shape!r}")
        else:
            raw = _raw(raw, dtype, shape)
        super().__setstate__((1, shape, dtype, bool(fortran), raw))  # type: ignore[arg-type]


def _plain_dtype(dtype: object) -> "np.dtype[Any]":
    if not isinstance(dtype, _DType):
        raise _RefusedError("an array without a type")
    return dtype.value


def _count(shape: object) -> int:
    if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
        raise _RefusedError(f"an array of shape {shape!r}")
    return math.prod(shape)


def _raw(raw: object, dtype: "np.dtype[Any]", shape: object) -> bytes | bytearray:
    """The bytes of an array, if they are as many as its shape says."""
    if not isinstance(raw, bytes | bytearray) or len(raw) != _count(shape) * dtype.itemsize:
        raise _RefusedError(f"an array whose content does not fit its shape {shape!r}")
    return raw


def _reconstruct(subtype: object, _shape: object, _typecode: object) -> _Array:
    # The shape given here is only a placeholder; the real one comes with the state and is compared with the content.
    if subtype is not _NDARRAY:
        raise _RefusedError("an array that is not numpy's own kind")
    return np.empty(0, np.uint8).view(_Array)


def _scalar(dtype: object, raw: object) -> Any:
    plain = _plain_dtype(dtype)
    if plain.hasobject:
        raise _RefusedError("a scalar that is an object")
    return np.frombuffer(_raw(raw, plain, ()), plain)[0]


def _frombuffer(raw: object, dtype: object, shape: object, order: object, axes: object = None) -> np.ndarray:
    """What protocol 5 uses for arrays without objects; order "K" (numpy 2.3) is "C" with the axes put in order."""
    plain = _plain_dtype(dtype)
    if plain.hasobject or order not in ("C", "F", "K"):
        raise _RefusedError("an array of unknown form")
    array: Any = np.frombuffer(bytearray(_raw(raw, plain, shape)), plain)
    array = array.reshape(shape, order="F" if order == "F" else "C")
    return (array.transpose(axes) if order == "K" and axes else array).view(_Array)  # type: ignore[no-any-return]


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """How Python 3 writes bytes with the old protocols: as text in latin1."""
    if not isinstance(text, str) or encoding != "latin1":
        raise _RefusedError("bytes of unknown form")
    return text.encode("latin1")


_UNFINISHED = object()
_NDARRAY = object()  # named by every pickled array, and never to be called: numpy.ndarray(shape) would allocate
_NAMES: dict[tuple[str, str], object] = {("numpy", "ndarray"): _NDARRAY, ("numpy", "dtype"): _Callable(_DType)}
_NAMES["_codecs", "encode"] = _Callable(_encode)
_NAMES["__builtin__", "bytes"] = _Callable(lambda: b"")  # protocol 2 writes empty bytes as a call
for _core in ("numpy.core", "numpy._core"):  # numpy 1 and numpy 2
    _NAMES[f"{_core}.multiarray", "_reconstruct"] = _Callable(_reconstruct)
    _NAMES[f"{_core}.multiarray", "scalar"] = _Callable(_scalar)
    _NAMES[f"{_core}.numeric", "_frombuffer"] = _Callable(_frombuffer)


class _Unpickler(pickle._Unpickler):
    """Python's unpickler with only the names above.

    The one written in Python, not in C: its memo is a dict, so that a forged memo index cannot reserve gigabytes. It
    is as fast here, since an array's content is a single instruction.
    """

    def find_class(self, module: str, name: str) -> object:
        try:
            return _NAMES[module, name]
        except KeyError:
            raise _RefusedError(f"it asks for {module}.{name}") from None

    def get_extension(self, code: int) -> None:
        raise _RefusedError(f"it asks for the registered extension {code}")


def _plain(value: object, done: dict[int, object]) -> object:
    """A copy of `value` with numpy's own arrays; raises on anything but plain content. `done` maps id to copy."""
    if isinstance(value, _PLAIN):
        return value
    if id(value) in done:
        if done[id(value)] is _UNFINISHED:
            raise _RefusedError("something that contains itself")
        return done[id(value)]
    done[id(value)] = _UNFINISHED
    plain: Any
    if isinstance(value, np.ndarray):
        plain = value.view(np.ndarray)
        if plain.dtype.hasobject:
            flat = np.empty(value.size, object)
            for index, item in enumerate(plain.ravel()):
                flat[index] = _plain(item, done)
            plain = flat.reshape(value.shape)
    elif type(value) is dict:
        plain = {_plain(key, done): _plain(item, done) for key, item in value.items()}
    elif type(value) is list:
        plain = [_plain(item, done) for item in value]
    elif type(value) is tuple:
        plain = tuple(_plain(item, done) for item in value)
    else:
        raise _RefusedError(f"something of type {type(value).__name__}")
    done[id(value)] = plain
    return plain


def _unpickle(stream: IO[bytes], encoding: str = "ASCII") -> object:
    try:
        return _plain(_Unpickler(stream, encoding=encoding).load(), {})
    except (_RefusedError, MemoryError, *_DAMAGED):
        raise
    except Exception as error:  # a damaged or crafted pickle can make any operation fail in any way
        raise ValueError(f"it is not a complete pickle ({error})") from None


# --- files ------------------------------------------------------------------------------------------------------------


def load_npz(path: Path | str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name; object arrays hold plain content only.

    Raises UsageError naming the file if it is missing or damaged, or holds anything but plain numpy content.
    """

    def read() -> dict[str, np.ndarray]:
        arrays = {}
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                with archive.open(member) as stream:
                    arrays[member.removesuffix(".npy")] = _read_npy(stream)
        return arrays

    return _guarded(read, path)


def load_npy(path: Path | str) -> np.ndarray:
    """The array of an .npy file; errors as `load_npz`."""

    def read() -> np.ndarray:
        with open(path, "rb") as stream:
            return _read_npy(stream)

    return _guarded(read, path)


def load_pickle(path: Path | str) -> object:
    """A pickle of plain content, such as a CIFAR batch; strings of Python 2 become bytes. Errors as `load_npz`."""

    def read() -> object:
        with open(path, "rb") as stream:
            return _unpickle(stream, encoding="bytes")

    return _guarded(read, path)


def _read_npy(stream: IO[bytes]) -> np.ndarray:
    version = np.lib.format.read_magic(stream)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read_header:
        raise ValueError(f"the .npy version {version} is unknown")
    shape, fortran, dtype = read_header[version](stream)
    if dtype == np.dtype(object):
        array = _unpickle(stream)
        if not isinstance(array, np.ndarray) or stream.read():
            raise ValueError("what follows the header is not one array")
        return array
    if dtype.hasobject:
        raise _RefusedError("a structured array type with objects")
    # Whatever the header claims, only the bytes that are there take memory.
    return np.frombuffer(_checked(bytearray(stream.read()), dtype, shape), dtype).reshape(
        shape, order="F" if fortran else "C"
    )


def _checked(raw: bytearray, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> bytearray:
    if len(raw) != _count(shape) * dtype.itemsize:
        raise ValueError(f"its header says {shape} of {dtype}, {len(raw)} bytes follow")
    return raw


def _guarded(read: Callable[[], T], path: Path | str) -> T:
    try:
        return read()
    except FileNotFoundError:
        raise UsageError(f"{path} is missing") from None
    except (_RefusedError, MemoryError) as error:
        reason = str(error) or "more than fits into memory"
        raise UsageError(
            f"{path} is refused, none of it was run: {reason}. Only numpy arrays, dicts, lists, strings and numbers "
            f"are read; make the file again with plain numpy content"
        ) from None
    except _DAMAGED as error:
        reason = str(error) or "it ends too early"
        raise UsageError(f"{path} is damaged or of another kind: {reason}; make or fetch it again") from None
