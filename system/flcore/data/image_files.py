"""Reads the official files of MNIST and CIFAR and their relatives, checking everything that may be wrong with them.

Every reader gives x uint8 (N, C, H, W) and y (N, whole numbers), and raises UsageError naming the file that is missing,
damaged or unlike what it should be. The readers of folders give None for a folder of another kind.
"""

import gzip
import io
import math
import re
import zlib
from pathlib import Path

import numpy as np

from flcore.utils.errors import UsageError
from flcore.utils.safe_load import load_pickle, most_unpacked

Images = tuple[np.ndarray, np.ndarray]

IDX_PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR10_PARTS = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CIFAR100_PARTS = ("train", "test")


def read_idx_folder(folder: Path) -> Images | None:
    """The four files of MNIST and its relatives, plain or gzipped, in `folder` or below."""
    # train-images-idx3-ubyte, train-images.idx3-ubyte, with or without .gz
    found = {re.sub(r"\.gz$", "", file.name).replace(".idx", "-idx"): file for file in _files(folder)}
    if not any(part in found for part in IDX_PARTS):
        return None
    files = _all_of(IDX_PARTS, found, folder)
    images = [_images(read_idx(files[i], 3)[:, None], read_idx(files[i + 1], 1), files[i]) for i in (0, 2)]
    return _merged(images, files[::2])


def read_idx(path: Path, num_axes: int) -> np.ndarray:
    """One idx file of bytes: the magic number 0 0 8 D, D sizes (big-endian, 4 bytes each), then the bytes."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(most_unpacked(path) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is damaged ({error}): delete it and fetch it again") from None
    if len(content) > most_unpacked(path):
        raise UsageError(f"{path} would unpack to more than {most_unpacked(path) / 2**20:,.0f} MiB: it is no idx file")
    start = 4 + 4 * num_axes
    if content[:4] != bytes([0, 0, 8, num_axes]) or len(content) < start:
        raise UsageError(f"{path} is not an idx file of bytes with {num_axes} axes: delete it and fetch it again")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", num_axes, offset=4))
    pixels = np.frombuffer(content, np.uint8, offset=start)
    if len(pixels) != math.prod(shape):
        raise UsageError(
            f"{path} is damaged: its header says {shape}, {len(pixels)} bytes follow; delete it and fetch it again"
        )
    return pixels.reshape(shape)


def read_cifar_folder(folder: Path) -> Images | None:
    """The python batches of CIFAR-10 or CIFAR-100 (fine labels), in `folder` or below."""
    found = {file.name: file for file in _files(folder)}
    for parts in (CIFAR10_PARTS, CIFAR100_PARTS):
        if any(part in found for part in parts):
            files = _all_of(parts, found, folder)
            return _merged([read_cifar_batch(file) for file in files], files)
    return None


def read_cifar_batch(path: Path) -> Images:
    """One batch: a pickled dict with data uint8 (N, 3 * 32 * 32) and labels or fine_labels."""
    batch = _load_dict(path)
    x, labels = batch.get("data"), batch.get("fine_labels", batch.get("labels"))
    flat = isinstance(labels, np.ndarray) or (isinstance(labels, list) and {type(label) for label in labels} <= {int})
    y = np.asarray(labels if flat else None)
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3 * 32 * 32:
        raise UsageError(f"{path} is not a CIFAR batch: it has no data of type uint8 and shape (N, 3072)")
    if y.dtype.kind not in "iu":
        raise UsageError(f"{path} is not a CIFAR batch: it has no whole numbers as labels or fine_labels")
    return _images(x.reshape(-1, 3, 32, 32), y, path)


def read_cifar_names(folder: Path, num_classes: int) -> tuple[str, ...]:
    """The names of CIFAR's classes, from the file of names beside the batches; their numbers where it is missing."""
    names: object = None
    for file in _files(folder):
        if file.name in ("batches.meta", "meta"):
            found = _load_dict(file)
            names = found.get("label_names", found.get("fine_label_names"))
    if not isinstance(names, list) or len(names) != num_classes:
        return tuple(map(str, range(num_classes)))
    return tuple(name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in names)


def _load_dict(path: Path) -> dict[object, object]:
    content = load_pickle(path)
    if not isinstance(content, dict):
        return {}
    return {key.decode(errors="replace") if isinstance(key, bytes) else key: value for key, value in content.items()}


def _files(folder: Path) -> list[Path]:
    """The files in `folder` and below in a fixed order; of two with one name the one nearer the top comes last."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return sorted(files, key=lambda file: (-len(file.parts), file))


def _all_of(parts: tuple[str, ...], found: dict[str, Path], folder: Path) -> list[Path]:
    missing = [part for part in parts if part not in found]
    if missing:
        raise UsageError(f"{folder} lacks {', '.join(missing)}: fetch the missing official files too")
    return [found[part] for part in parts]


def _images(x: np.ndarray, y: np.ndarray, path: Path) -> Images:
    if y.shape != (len(x),):
        raise UsageError(f"{path}: {len(x)} images need as many labels, there are labels of shape {y.shape}")
    if not all(x.shape[1:]):
        raise UsageError(f"{path}: images of shape {x.shape[1:]} have no pixels")
    return x, y


def _merged(images: list[Images], files: list[Path]) -> Images:
    for (x, _), file in zip(images, files, strict=True):
        if x.shape[1:] != images[0][0].shape[1:]:
            raise UsageError(f"{file}: images of shape {x.shape[1:]}, those of {files[0]} are {images[0][0].shape[1:]}")
    return np.concatenate([x for x, _ in images]), np.concatenate([y for _, y in images])
