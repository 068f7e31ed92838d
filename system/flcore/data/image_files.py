"""Reads images and labels from files of each kind, checking everything that may be wrong with a stranger's file.

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
from flcore.utils.safe_load import load_npz, load_pickle, most_unpacked

Images = tuple[np.ndarray, np.ndarray]

IDX_PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR10_PARTS = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CIFAR100_PARTS = ("train", "test")
MOST_PIXELS = 2**24  # of one image in a folder
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # whatever the name says: others may start programs
_PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


def read_source(path: Path) -> Images:
    """The images of a file or folder of any kind, told apart by the names in it."""
    if path.is_file() and path.suffix == ".npz":
        return read_npz(path)
    if path.is_dir():
        for read in (read_idx_folder, read_cifar_folder, read_image_folder):
            images = read(path)
            if images is not None:
                return images
    raise UsageError(
        f"{path} is not a source of images: that is a folder with the official files (idx, also gzipped, or CIFAR's "
        f"python batches, unpacked), an .npz file with x and y, or a folder with one sub-folder of images a class"
    )


def read_npz(path: Path) -> Images:
    """An .npz with x uint8 (N, C, H, W) or (N, H, W), and y (N)."""
    content = load_npz(path)
    if not {"x", "y"} <= set(content):
        raise UsageError(
            f"{path} holds {', '.join(sorted(content)) or 'nothing'}: it must hold x (images) and y (labels)"
        )
    x, y = content["x"], content["y"]
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        raise UsageError(f"{path}: x must be uint8 of shape (N, C, H, W) or (N, H, W), it is {x.dtype} {x.shape}")
    if x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        raise UsageError(f"{path}: x {x.shape} has its channels last, it must be (N, C, H, W): x.transpose(0, 3, 1, 2)")
    if y.dtype.kind not in "iu":
        raise UsageError(f"{path}: y must be integers, it is {y.dtype}")
    return _images(x if x.ndim == 4 else x[:, None], y, path)


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
    content = load_pickle(path)
    batch = (
        {k.decode() if isinstance(k, bytes) else k: v for k, v in content.items()} if isinstance(content, dict) else {}
    )
    x, labels = batch.get("data"), batch.get("fine_labels", batch.get("labels"))
    flat = isinstance(labels, np.ndarray) or (isinstance(labels, list) and {type(label) for label in labels} <= {int})
    y = np.asarray(labels if flat else None)
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3 * 32 * 32:
        raise UsageError(f"{path} is not a CIFAR batch: it has no data of type uint8 and shape (N, 3072)")
    if y.dtype.kind not in "iu":
        raise UsageError(f"{path} is not a CIFAR batch: it has no whole numbers as labels or fine_labels")
    return _images(x.reshape(-1, 3, 32, 32), y, path)


def read_image_folder(folder: Path) -> Images | None:
    """One sub-folder of images a class, classes in the order of their names. Grey if all images are, otherwise RGB."""
    from PIL import Image

    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    files = [(c, file) for c, entry in enumerate(classes) for file in _files(entry) if file.suffix.lower() in _PICTURES]
    if not files:
        return None

    images: list[Image.Image] = []
    for _, file in files:
        try:
            image = Image.open(file, formats=_FORMATS)
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"it has {image.width} x {image.height} pixels")
            image.load()
        except Exception as error:  # a damaged image can make any operation fail in any way
            raise UsageError(f"{file} is not an image that can be read: {error}") from None
        if images and image.size != images[0].size:
            raise UsageError(
                f"{file} is {image.size[0]} x {image.size[1]} pixels, the images before it are {images[0].size[0]} x "
                f"{images[0].size[1]}: all must have one size"
            )
        images.append(image)
    mode = "L" if all(image.mode in ("1", "L") for image in images) else "RGB"
    x = np.stack([np.asarray(image.convert(mode)) for image in images])
    x = x[:, None] if mode == "L" else x.transpose(0, 3, 1, 2)
    return x, np.array([c for c, _ in files])


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
