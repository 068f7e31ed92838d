"""Where the samples come from: --source, the official files that are here already, or a download."""

import hashlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flcore.data.image_files import (
    CIFAR10_PARTS,
    CIFAR100_PARTS,
    IDX_PARTS,
    Images,
    read_cifar_folder,
    read_cifar_names,
    read_idx_folder,
)
from flcore.data.image_folders import read_image_folder, read_tiny_imagenet
from flcore.data.reading import sha256
from flcore.data.samples import Samples, check_labels, labelled, moments, resized, standardised
from flcore.data.tables import TABLES, read_npy, read_npz, read_table
from flcore.utils.errors import RunError, UsageError

TINY = "tiny-imagenet-200"
TINY_URL, TINY_MD5 = f"http://cs231n.stanford.edu/{TINY}.zip", "90528d7ca1a48142e341f4ef8d21d0de"


@dataclass(frozen=True)
class Known:
    """What is known of a data set: its number of classes and their names, and its official files."""

    num_classes: int
    torchvision: str = ""  # its name in torchvision.datasets
    files: tuple[str, ...] = ()
    installed: str = ""  # where a Linux distribution puts the files
    class_names: tuple[str, ...] = ()


CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
KNOWN = {
    "Digits": Known(10),
    "MNIST": Known(10, "MNIST", IDX_PARTS),
    "FashionMNIST": Known(10, "FashionMNIST", IDX_PARTS, "/usr/share/datasets/fashion-mnist", CLOTHES),
    "Cifar10": Known(10, "CIFAR10", CIFAR10_PARTS),
    "Cifar100": Known(100, "CIFAR100", CIFAR100_PARTS),
    "TinyImagenet": Known(200, files=(f"{TINY}/",)),
}


@dataclass(frozen=True)
class Reading:
    """How a source is read: the generators' flags of the same names."""

    image_size: tuple[int, int] | None = None  # height and width
    label_column: str | None = None
    user_column: str | None = None
    user_folders: bool = False
    standardise: bool = False


def load(
    name: str, source: Path | None, rawdir: Path, say: Callable[[str], object] = print, how: Reading | None = None
) -> Samples:
    """The samples of data set `name` (a key of KNOWN, or any with a source).

    source: see `read_source`. Without one: scikit-learn for Digits; otherwise the official files in `rawdir`, those
    installed with the system, or a download into `rawdir`. The official training and test images are merged, training
    first, as PFLlib does: each client's own images are split again later.
    Raises UsageError naming the file if one is missing or damaged, RunError if the download fails.
    """
    how = how or Reading()
    if source is not None:
        samples = read_source(source, how)
    elif name == "TinyImagenet":
        samples = _tiny_imagenet(rawdir, how, say)
    else:
        samples = _official(name, rawdir, say)
    x = samples.x
    if how.image_size and x.ndim == 4 and x.shape[2:] != how.image_size:
        parts = [resized(x[start : start + 1000], how.image_size) for start in range(0, len(x), 1000)]
        x = np.concatenate(parts)
    if not how.standardise:
        return replace(samples, x=x)
    by = moments(x)
    return replace(samples, x=standardised(x, by), moments=by)


def read_source(path: Path, how: Reading | None = None) -> Samples:
    """The samples of a file or folder of any kind, told apart by the names in it.

    Raises:
        UsageError: it is no source, or its content contradicts itself or what the user says of it.
    """
    how, suffix = how or Reading(), path.suffix.lower()
    samples = None
    if path.is_file() and suffix in TABLES:
        samples = read_table(path, how.label_column, how.user_column)
    elif path.is_file() and suffix == ".npz":
        samples = read_npz(path, how.label_column, how.user_column)
    else:
        for flag, value in (("label_column", how.label_column), ("user_column", how.user_column)):
            if value:
                raise UsageError(f"--{flag}: {path} is neither a table (CSV, Parquet) nor an .npz")
        if path.is_file() and suffix == ".npy":
            samples = read_npy(path)
        elif path.is_dir():
            samples = _read_folder(path, how)
    if samples is None:
        raise UsageError(
            f"{path} is not a source of images: that is a folder with the official files (idx, also gzipped, or "
            f"CIFAR's python batches, unpacked), an .npz file with x and y, x.npy with y.npy, a CSV or Parquet table, "
            f"or a folder with one sub-folder of images a class"
        )
    if how.user_folders and (samples.users is None or path.is_file()):
        raise UsageError(f"--user_folders: {path} has no folders of users, <user>/<class>/")
    if how.image_size and samples.x.ndim != 4:
        raise UsageError(f"--image_size: {path} holds vectors, not images")
    return samples


def _read_folder(path: Path, how: Reading) -> Samples | None:
    if (path / "x.npy").is_file():
        return read_npy(path / "x.npy")
    if (images := read_idx_folder(path)) is not None:
        y, names = labelled(images[1], len(images[0]), path, "the label")
        return Samples(images[0], y, names)
    if (images := read_cifar_folder(path)) is not None:
        return _cifar(path, images)
    tiny = None if how.user_folders else read_tiny_imagenet(path, how.image_size)
    return tiny or read_image_folder(path, how.image_size, how.user_folders)


def source_digest(path: Path) -> str:
    """Changes when the source does: SHA-256 of a file's content, or of the names, sizes and times of change of all
    files in a folder (reading them would take as long as making the data set)."""
    if path.is_file():
        return sha256(path)
    digest = hashlib.sha256()
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        stat = file.stat()
        digest.update(
            f"{file.relative_to(path)}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape")
        )
    return digest.hexdigest()


def _cifar(path: Path, images: Images) -> Samples:
    """CIFAR's labels are numbers of its 10 or 100 classes, whichever of them occur."""
    y = images[1]
    num_classes = 10 if any(file.name in CIFAR10_PARTS for file in path.rglob("*")) else 100
    check_labels(y, len(y), str(path))
    if len(wrong := np.flatnonzero((y < 0) | (y >= num_classes))):
        raise UsageError(f"{path}: label {y[wrong[0]]} of image {wrong[0]} is outside 0..{num_classes - 1}")
    return Samples(images[0], y.astype(np.int64), read_cifar_names(path, num_classes))


def _digits() -> Images:
    """The 1,797 digits inside scikit-learn: 8 x 8 pixels of 0..16, here 28 x 28 (bilinear) of 0..255."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    grey = np.rint(digits.images * 255 / 16).astype(np.uint8)
    large = [Image.fromarray(image).resize((28, 28), Image.Resampling.BILINEAR) for image in grey]
    return np.stack([np.asarray(image) for image in large])[:, None], digits.target


def _official(name: str, rawdir: Path, say: Callable[[str], object]) -> Samples:
    """The images of a known data set, whose labels are numbers of its classes."""
    known = KNOWN[name]
    (x, y), folder = (_digits(), rawdir) if name == "Digits" else _official_files(name, rawdir, say)
    if known.files in (CIFAR10_PARTS, CIFAR100_PARTS):
        return _cifar(folder, (x, y))
    if len(wrong := np.flatnonzero(y >= known.num_classes)):
        raise UsageError(f"{folder}: label {y[wrong[0]]} of image {wrong[0]} is none of {name}'s {known.num_classes}")
    return Samples(x, y.astype(np.int64), known.class_names or tuple(map(str, range(known.num_classes))))


def _official_files(name: str, rawdir: Path, say: Callable[[str], object]) -> tuple[Images, Path]:
    """The official files that are here already, or else those that torchvision fetches; and where they are."""
    known = KNOWN[name]
    read = read_idx_folder if known.files == IDX_PARTS else read_cifar_folder
    for folder in [rawdir, *([Path(known.installed)] if known.installed else [])]:
        try:
            images = read(folder)
        except UsageError as error:
            say(str(error))  # unfinished or damaged: torchvision fetches again what its checksums refuse
            break
        if images is not None:
            return images, folder
    _download(name, rawdir, say)
    images = read(rawdir)
    if images is None:
        raise RunError(f"{rawdir}: the files that torchvision fetched are not {', '.join(known.files)}")
    return images, rawdir


def _tiny_imagenet(rawdir: Path, how: Reading, say: Callable[[str], object]) -> Samples:
    samples = read_tiny_imagenet(rawdir, how.image_size) if rawdir.is_dir() else None
    if samples is None:
        _download("TinyImagenet", rawdir, say)
        samples = read_tiny_imagenet(rawdir, how.image_size)
    if samples is None:
        raise RunError(f"{rawdir}: what was fetched holds no {TINY}/wnids.txt")
    return samples


def _download(name: str, rawdir: Path, say: Callable[[str], object]) -> None:
    from torchvision import datasets

    known = KNOWN[name]
    kind = getattr(datasets, known.torchvision) if known.torchvision else None
    url = TINY_URL if kind is None else kind.url if hasattr(kind, "url") else " or ".join(kind.mirrors)
    say(f"{name}: fetching the official files from {url} into {rawdir}")
    rawdir.mkdir(parents=True, exist_ok=True)
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(20)  # seconds without an answer
    try:
        if kind is None:
            datasets.utils.download_and_extract_archive(TINY_URL, str(rawdir), md5=TINY_MD5, remove_finished=True)
        else:
            kind(rawdir, download=True)
    except (OSError, RuntimeError, EOFError) as error:
        ways = [
            "behind a proxy: export https_proxy=http://HOST:PORT, then the same command",
            f"put the official files ({', '.join(known.files)}) into {rawdir}, then the same command",
            f"python generate_{name}.py noniid - dir --source FOLDER_OR_NPZ",
            "python generate_Digits.py noniid - dir, which needs no download",
        ]
        if known.installed:
            ways.insert(0, "on Debian: apt-get install dataset-fashion-mnist, then the same command")
        reason = " ".join(str(error).split())
        raise RunError("\n  - ".join([f"{name} could not be fetched from {url}: {reason}. Instead:", *ways])) from None
    finally:
        socket.setdefaulttimeout(patience)
        _remove_empty(rawdir)


def _remove_empty(rawdir: Path) -> None:
    """Removes `rawdir`, the folders below and the one above as far as they are empty: a failure leaves nothing."""
    below = sorted((path for path in rawdir.rglob("*") if path.is_dir()), reverse=True)
    for folder in [*below, rawdir, rawdir.parent]:
        if not any(folder.iterdir()):
            folder.rmdir()
