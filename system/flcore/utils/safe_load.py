"""Reads numpy's files, plain pickles and JSON without ever running what a stranger put inside.

A pickle is a program. PFLlib's partition files and the CIFAR batches are pickles all the same, so they are read by an
unpickler that knows only a handful of names (for numpy's arrays, dtypes and scalars, and for bytes), each replaced by a
checked stand-in; any other name ends the reading. What comes out is arrays, numbers, strings, bytes, dicts, lists and
tuples.

Memory and time are bounded by the size of the file, whatever it says of itself: a packed file may unpack to
`most_unpacked`, and a pickle may not make more of its bytes by using them again and again.
"""

import io
import json
import math
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from pathlib import Path
from reprlib import repr as shown  # short, also of what would take years to write out
from typing import IO, Any, ClassVar, TypeVar

import numpy as np

from flcore.utils.errors import UsageError

T = TypeVar("T")

_PLAIN = (str, bytes, bool, int, float, type(None), np.generic)
UNPACKED, RATIO = 2**28, 100  # a file may unpack to 256 MiB, a larger one to 100 times its own size
MOST_AXES = 64  # numpy's own limit
DEEPEST = 20  # levels of JSON; ours has five

_left: ContextVar[int] = ContextVar("_left")  # bytes that the pickle being read may still make into arrays


class _RefusedError(Exception):
    """The file holds something other than plain numpy content."""


def _spend(size: int) -> None:
    """Counts what a pickle makes out of its bytes, since it might use the same ones many times."""
    _left.set(_left.get() - size)
    if _left.get() < 0:
        raise _RefusedError("arrays that are larger than the file")


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
        if not (isinstance(name, str) and name[:1] in tuple("biufcSUO") and name[1:].isdecimal()):
            raise _RefusedError(f"the array type {shown(name)}")
        self.value = np.dtype(name)
        if not self.value.itemsize:
            raise _RefusedError(f"the array type {name!r}")

    def __setstate__(self, state: object) -> None:
        # (version, byte order, subarray, names, fields, item size, alignment, flags)
        if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
            raise _RefusedError("a structured array type")
        order: Any = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if order not in tuple("<>=|"):
            raise _RefusedError(f"the byte order {shown(order)}")
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
                raise _RefusedError(f"an object array whose content does not fit its shape {shown(shape)}")
            _spend(len(raw))
        else:
            raw = _raw(raw, dtype, shape)
        super().__setstate__((1, shape, dtype, bool(fortran), raw))  # type: ignore[arg-type]


def _plain_dtype(dtype: object) -> "np.dtype[Any]":
    if not isinstance(dtype, _DType):
        raise _RefusedError("an array without a type")
    return dtype.value


def _count(shape: object) -> int:
    axes = shape if isinstance(shape, tuple) and len(shape) <= MOST_AXES else (None,)
    if not all(type(size) is int and 0 <= size < 2**63 for size in axes):
        raise _RefusedError(f"an array of shape {shown(shape)}")
    return math.prod(axes)


def _raw(raw: object, dtype: "np.dtype[Any]", shape: object) -> bytes | bytearray:
    """The bytes of an array, if they are as many as its shape says."""
    if not isinstance(raw, bytes | bytearray) or len(raw) != _count(shape) * dtype.itemsize:
        raise _RefusedError(f"an array whose content does not fit its shape {shown(shape)}")
    _spend(len(raw))
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
    _spend(len(text))
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


_PythonUnpickler: Any = pickle._Unpickler  # its methods are not known to type checkers


class _Unpickler(_PythonUnpickler):  # type: ignore[misc]
    """Python's unpickler with only the names above.

    The one written in Python, not in C: its memo is a dict, so that a forged memo index cannot reserve gigabytes. It
    is as fast here, since an array's content is a single instruction.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(_PythonUnpickler.dispatch)

    def find_class(self, module: str, name: str) -> object:
        try:
            return _NAMES[module, name]
        except KeyError:
            raise _RefusedError(f"it asks for {module[:80]}.{name[:80]}") from None

    def get_extension(self, code: int) -> None:
        raise _RefusedError(f"it asks for the registered extension {code}")

    def load_bytearray8(self) -> None:
        (size,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(size)))  # no more than there is; the original allocates `size` first

    # Tuples of tuples take for ever to hash, and so do a million numbers made to collide.
    def load_setitem(self) -> None:
        _check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        _check_keys(self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        _check_keys(self.stack[::2])
        super().load_dict()

    def load_set(self) -> None:
        raise _RefusedError("something of type set")

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.DICT[0]] = load_dict
    for _code in (pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET):
        dispatch[_code[0]] = load_set


def _check_keys(keys: Iterable[object]) -> None:
    for key in keys:
        if type(key) not in (str, bytes):
            raise _RefusedError(f"a dict with a key of type {type(key).__name__}")


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
        plain = {key: _plain(item, done) for key, item in value.items()}
    elif type(value) is list:
        plain = [_plain(item, done) for item in value]
    elif type(value) is tuple:
        plain = tuple(_plain(item, done) for item in value)
    else:
        raise _RefusedError(f"something of type {type(value).__name__}")
    done[id(value)] = plain
    return plain


def _unpickle(content: bytes, encoding: str = "ASCII") -> object:
    _left.set(2 * len(content))  # twice: text that becomes bytes, which become an array (Python 3, protocol 2)
    try:
        return _plain(_Unpickler(io.BytesIO(content), encoding=encoding).load(), {})
    except (_RefusedError, MemoryError, EOFError):
        raise
    except Exception as error:
        raise ValueError(f"it is not a complete pickle ({error})") from None


# --- files ------------------------------------------------------------------------------------------------------------


def most_unpacked(path: Path | str) -> int:
    """The bytes that a packed file may become in memory: plenty for any data, too little for a bomb."""
    return max(UNPACKED, RATIO * Path(path).stat().st_size)


def load_npz(path: Path | str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name; object arrays hold plain content only.

    Raises UsageError naming the file if it is missing or damaged, or holds anything but plain numpy content.
    """

    def read() -> dict[str, np.ndarray]:
        arrays = {}
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())  # and no member gives more than it says
            if size > most_unpacked(path):
                raise _RefusedError(f"it would unpack to {size / 2**20:,.0f} MiB")
            for member in archive.infolist():
                with archive.open(member) as stream:
                    arrays[member.filename.removesuffix(".npy")] = _read_npy(stream)
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
        return _unpickle(Path(path).read_bytes(), encoding="bytes")

    return _guarded(read, path)


def load_json(path: Path | str) -> Any:
    """The content of a JSON file, not nested deeper than DEEPEST; errors as `load_npz`."""

    def read() -> object:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        level = [content]
        for _ in range(DEEPEST):
            level = [
                inner
                for item in level
                if isinstance(item, dict | list)
                for inner in (item.values() if isinstance(item, dict) else item)
            ]
        if level:
            raise ValueError("it is nested too deeply")
        return content

    return _guarded(read, path)


def _read_npy(stream: IO[bytes]) -> np.ndarray:
    version = np.lib.format.read_magic(stream)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read_header:
        raise ValueError(f"the .npy version {version} is unknown")
    shape, fortran, dtype = read_header[version](stream)
    if dtype == np.dtype(object):
        array = _unpickle(stream.read())
        if not isinstance(array, np.ndarray):
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
        reason = str(error) if isinstance(error, _RefusedError) else "it needs more memory than there is"
        raise UsageError(
            f"{path} is refused, none of it was run: {reason}. Only numpy arrays, dicts, lists, strings and numbers "
            f"are read; make the file again with plain numpy content"
        ) from None
    except Exception as error:  # damaged and crafted content can make any operation fail in any way
        reason = " ".join(str(error).split())[:300] or "it ends too early"
        raise UsageError(f"{path} is damaged or of another kind: {reason}; make or fetch it again") from None
