"""Reads data sets in PFLlib's files: <root>/<Name>/{train,test}/<i>.npz and config.json; `writing` writes them."""

from __future__ import annotations

import functools
import hashlib
import itertools
from pathlib import Path
from reprlib import repr as shown
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flcore.utils.errors import UsageError
from flcore.utils.paths import DATASET
from flcore.utils.safe_load import load_json, load_npz

Config = dict[str, Any]

MOST_CLASSES = 1_000_000  # more is a slip, and a last layer that fits into no memory


class DataSet(str):
    """The name of a data set, which knows the folder that it lies in.

    It is a string, since PFLlib's pairs pass the name (`args.dataset`) around and read a client's data by it.

    Args:
        name: the folder's name; a `DataSet` keeps its root unless another is given.
        root: the folder of the data sets; by default dataset/ of this checkout.
    """

    root: Path

    def __new__(cls, name: str, root: Path | str | None = None) -> DataSet:
        self = super().__new__(cls, name)
        self.root = Path(getattr(name, "root", DATASET) if root is None else root)
        return self

    @property
    def folder(self) -> Path:
        return self.root / self

    def file(self, idx: int, is_train: bool) -> Path:
        """The file with client `idx`'s training or test images."""
        return self.folder / ("train" if is_train else "test") / f"{idx}.npz"

    def config(self) -> Config:
        """config.json with num_clients and num_classes checked; UsageError with the reason if that fails."""
        path = self.folder / "config.json"
        try:
            stat = path.stat()
        except OSError:
            raise UsageError(f"{path} is missing: the data set is not finished") from None
        return dict(_parsed(path, stat.st_mtime_ns, stat.st_size))

    def shape(self) -> tuple[int, ...]:
        """The shape of one image (C, H, W): from config.json, or from the first file with images (PFLlib's own)."""
        config = self.config()
        if "shape" in config:
            return tuple(config["shape"])
        for idx, is_train in itertools.product(range(config["num_clients"]), (True, False)):
            path = self.file(idx, is_train)
            if path.is_file() and (shape := _stored_shape(path, path.stat().st_mtime_ns)):
                return shape
        raise UsageError(f"data set {self} in {self.root} has no image at all; make it again")

    def digest(self) -> str:
        """SHA-256 over the names and contents of all partition files: the same data, the same digest."""
        digest = hashlib.sha256()
        for path in [path for part in ("test", "train") for path in sorted((self.folder / part).glob("*.npz"))]:
            if not path.is_file():
                raise UsageError(f"{path} is not a file; remove it")
            digest.update(f"{path.parent.name}/{path.name} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def read(self, idx: int, is_train: bool = True) -> dict[str, NDArray[Any]]:
        """Client `idx`'s training or test images: {"x": float32 (n, *shape), "y": int64 (n)}.

        Raises UsageError naming the file if it is missing, damaged, or holds what cannot be trained on.
        """
        path, config = self.file(idx, is_train), self.config()
        x, y = read_partition(path)
        shape = self.shape()
        if not len(x):
            x = x.reshape(0, *shape)  # other tools write (0,) for a client without images
        if x.shape[1:] != shape:
            source = "config.json says" if "shape" in config else "the first client's have"
            raise UsageError(
                f"{path}: its images have the shape {x.shape[1:]}, {source} {shape}; make the data set again"
            )
        with np.errstate(over="ignore"):  # what is beyond float32 becomes infinite, and is refused
            x = x.astype(np.float32, copy=False)
        if not np.isfinite(x).all():
            raise UsageError(
                f"{path}: x holds NaN, infinite values or numbers too large for float32; make the data set again"
            )
        num_classes = config["num_classes"]
        with np.errstate(invalid="ignore"):  # NaN is no whole number, and is refused
            whole = y.dtype.kind in "biuf" and not ((y < 0) | (y >= num_classes) | (y != y.astype(np.int64))).any()
        if not whole:
            raise UsageError(f"{path}: labels must be whole numbers in 0..{num_classes - 1}, as config.json says")
        return {"x": x, "y": y.astype(np.int64, copy=False)}

    def tensors(self, idx: int, is_train: bool = True, few_shot: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Client `idx`'s data as x float32 (n, ...) and y int64 (n).

        few_shot: of the training data only the first `few_shot` samples of each class; 0 for all.
        """
        data = self.read(idx, is_train)
        x, y = data["x"], data["y"]
        if is_train and few_shot > 0:
            firsts = [index for label in np.unique(y) for index in np.flatnonzero(y == label)[:few_shot]]
            x, y = x[sorted(firsts)], y[sorted(firsts)]
        return torch.from_numpy(x), torch.from_numpy(y)


def read_partition(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """The x and y of a file as they are stored: numbers and labels, one for one."""
    content = load_npz(path)
    data = content["data"].item() if "data" in content and content["data"].shape == () else content
    if not isinstance(data, dict) or not {"x", "y"} <= set(data):
        raise UsageError(f"{path} is not PFLlib's: it needs an array `data` with a dict of x and y")
    if not all(isinstance(data[key], np.ndarray | np.generic) for key in ("x", "y")):
        raise UsageError(f"{path} is not PFLlib's: its x and y must be arrays")
    x, y = np.asarray(data["x"]), np.asarray(data["y"])
    if x.dtype.kind not in "biuf":
        raise UsageError(
            f"{path}: x is {x.dtype}, not numbers; only images are supported so far, not text with lengths"
        )
    if not x.ndim or y.shape != x.shape[:1]:
        raise UsageError(f"{path}: x {x.shape} and y {y.shape} must have as many samples as labels")
    return x, y


@functools.lru_cache(maxsize=4)  # asked for with every client's file
def _parsed(path: Path, _mtime: int, _size: int) -> Config:
    content = load_json(path)
    config: Config = content if isinstance(content, dict) else {}
    for key in ("num_clients", "num_classes"):
        if type(config.get(key)) is not int or config[key] < 1:
            raise UsageError(f"{path} is damaged: {key} must be a whole number above 0")
    if config["num_classes"] > MOST_CLASSES:
        raise UsageError(f"{path} is damaged: num_classes is {config['num_classes']}, more than {MOST_CLASSES}")
    arguments = config.get("arguments") or []
    if not isinstance(arguments, list) or any(type(word) is not str for word in arguments):
        raise UsageError(f"{path} is damaged: arguments must be a list of words")
    shape = config.get("shape", [1])
    if not isinstance(shape, list) or not shape or any(type(size) is not int or size < 1 for size in shape):
        raise UsageError(
            f"{path} is damaged: shape must be whole numbers above 0, such as [3, 32, 32], not {shown(shape)}"
        )
    return config


@functools.lru_cache(maxsize=64)  # asked for with every client's file
def _stored_shape(path: Path, _mtime: int) -> tuple[int, ...]:
    x, _ = read_partition(path)
    return x.shape[1:] if len(x) else ()
