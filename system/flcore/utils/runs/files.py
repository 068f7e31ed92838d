"""Files that are written whole or not at all: under another name first, then renamed."""

import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from flcore.utils.errors import RunError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name in the folder of `path`, renamed to `path` if the body succeeds and removed if it does not.

    A reader never sees half a file. A killed process leaves the temporary file: `.<name>.<its number>`.

    Raises:
        RunError: the disk is full, or the folder cannot be written to; `path` is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror or error}); what was there is kept") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """As `whole_file` a new, empty folder that takes the place of `path`, whatever that was.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        shutil.rmtree(path, ignore_errors=True)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_bytes(path: Path, content: bytes, sync: bool = False) -> None:
    """Writes a file directly, for a folder that is renamed as a whole; `sync`: it shall survive a power failure."""
    with open(path, "wb") as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder survive a power failure, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Writes `text` whole, in UTF-8."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path | str, content: Any) -> None:
    """Writes `content` whole as indented JSON, and so that it survives a power failure."""
    with whole_file(Path(path)) as temporary:
        write_bytes(temporary, (json.dumps(content, indent=1) + "\n").encode(), sync=True)


def as_arrays(lists: Mapping[str, ArrayLike]) -> dict[str, NDArray[Any]]:
    """Each as an array: float64, unless it holds integers."""
    arrays = {name: np.asarray(values) for name, values in lists.items()}
    return {name: array if array.dtype.kind in "iu" else array.astype(np.float64) for name, array in arrays.items()}


def write_h5(path: Path | str, arrays: Mapping[str, ArrayLike]) -> None:
    """Writes one data set per entry whole, see `as_arrays`.

    Models saved beside it (.pt, .models/) belong to the arrays that are replaced, and go with them.
    """
    content = io.BytesIO()  # HDF5 has no OSError for a disk that is full when the file is closed
    with h5py.File(content, "w") as file:
        for name, array in as_arrays(arrays).items():
            file.create_dataset(name, data=array)
    with whole_file(Path(path)) as temporary:
        temporary.write_bytes(content.getbuffer())
    Path(path).with_suffix(".pt").unlink(missing_ok=True)
    shutil.rmtree(models_folder(Path(path)), ignore_errors=True)


def models_folder(h5: Path) -> Path:
    """Where the clients' trained models lie (servers/support/predictors.py)."""
    return h5.with_suffix(".models")
