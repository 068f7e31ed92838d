"""Files of numpy, plain pickles and JSON."""

import json
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from flcore.utils.safe_load.bounds import RefusedError, guarded, most_unpacked
from flcore.utils.safe_load.pickles import unpickle
from flcore.utils.safe_load.stand_ins import count

DEEPEST = 20  # levels of JSON; ours has five


def load_npz(path: Path | str) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name; object arrays hold plain content only.

    Raises UsageError naming the file if it is missing or damaged, or holds anything but plain numpy content.
    """

    def read() -> dict[str, NDArray[Any]]:
        arrays = {}
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())  # and no member gives more than it says
            if size > most_unpacked(path):
                raise RefusedError(f"it would unpack to {size / 2**20:,.0f} MiB")
            for member in archive.infolist():
                with archive.open(member) as stream:
                    arrays[member.filename.removesuffix(".npy")] = _read_npy(stream)
        return arrays

    return guarded(read, path)


def load_npy(path: Path | str) -> NDArray[Any]:
    """The array of an .npy file; errors as `load_npz`."""

    def read() -> NDArray[Any]:
        with open(path, "rb") as stream:
            return _read_npy(stream)

    return guarded(read, path)


def load_pickle(path: Path | str) -> object:
    """A pickle of plain content, such as a CIFAR batch; strings of Python 2 become bytes. Errors as `load_npz`."""

    def read() -> object:
        return unpickle(Path(path).read_bytes(), encoding="bytes")

    return guarded(read, path)


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

    return guarded(read, path)


def _read_npy(stream: IO[bytes]) -> NDArray[Any]:
    version = np.lib.format.read_magic(stream)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read_header:
        raise ValueError(f"the .npy version {version} is unknown")
    shape, fortran, dtype = read_header[version](stream)
    if dtype == np.dtype(object):
        array = unpickle(stream.read())
        if not isinstance(array, np.ndarray):
            raise ValueError("what follows the header is not one array")
        return array
    if dtype.hasobject:
        raise RefusedError("a structured array type with objects")
    # Whatever the header claims, only the bytes that are there take memory.
    return np.frombuffer(_checked(bytearray(stream.read()), dtype, shape), dtype).reshape(
        shape, order="F" if fortran else "C"
    )


def _checked(raw: bytearray, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> bytearray:
    if len(raw) != count(shape) * dtype.itemsize:
        raise ValueError(f"its header says {shape} of {dtype}, {len(raw)} bytes follow")
    return raw
