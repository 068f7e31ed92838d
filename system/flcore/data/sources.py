"""Where the images come from: --source, the official files that are here already, or a download."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flcore.data.image_files import (
    CIFAR10_PARTS,
    CIFAR100_PARTS,
    IDX_PARTS,
    Images,
    read_cifar_folder,
    read_idx_folder,
    read_source,
)
from flcore.utils.errors import RunError, UsageError


@dataclass(frozen=True)
class Known:
    """What is known of a data set: its number of classes, PFLlib's classes per client, and its official files."""

    num_classes: int
    class_per_client: int
    torchvision: str = ""  # its name in torchvision.datasets
    files: tuple[str, ...] = ()
    installed: str = ""  # where a Linux distribution puts the files


KNOWN = {
    "Digits": Known(10, 2),
    "MNIST": Known(10, 2, "MNIST", IDX_PARTS),
    "FashionMNIST": Known(10, 2, "FashionMNIST", IDX_PARTS, "/usr/share/datasets/fashion-mnist"),
    "Cifar10": Known(10, 2, "CIFAR10", CIFAR10_PARTS),
    "Cifar100": Known(100, 10, "CIFAR100", CIFAR100_PARTS),
}


def load(name: str, source: Path | None, rawdir: Path, say: Callable[[str], object] = print) -> Images:
    """The images of data set `name` (a key of KNOWN): x uint8 (N, C, H, W), y int64 (N).

    source: a folder with the official files (idx, also gzipped; CIFAR's python batches), an .npz with x and y, or a
    folder with one sub-folder of images a class. Without one: scikit-learn for Digits; otherwise the official files in
    `rawdir`, those installed with the system, or torchvision's download into `rawdir`. The official training and test
    images are merged, training first, as PFLlib does: each client's own images are split again later.
    Raises UsageError naming the file if one is missing or damaged, RunError if the download fails.
    """
    if source is not None:
        x, y = read_source(source)
    else:
        x, y = _digits() if name == "Digits" else _official(name, rawdir, say)
    origin, num_classes = source or name, KNOWN[name].num_classes
    if not len(y):
        raise UsageError(f"{origin} holds no images")
    wrong = np.flatnonzero((y < 0) | (y >= num_classes))
    if len(wrong):
        raise UsageError(
            f"{origin}: label {y[wrong[0]]} of image {wrong[0]} is outside 0..{num_classes - 1}, the classes of {name}"
        )
    return x, y.astype(np.int64)


def _digits() -> Images:
    """The 1,797 digits inside scikit-learn: 8 x 8 pixels of 0..16, here 28 x 28 (bilinear) of 0..255."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    grey = np.rint(digits.images * 255 / 16).astype(np.uint8)
    large = [Image.fromarray(image).resize((28, 28), Image.Resampling.BILINEAR) for image in grey]
    return np.stack([np.asarray(image) for image in large])[:, None], digits.target


def _official(name: str, rawdir: Path, say: Callable[[str], object]) -> Images:
    """The official files that are here already, or else those that torchvision fetches."""
    known = KNOWN[name]
    read = read_idx_folder if known.files == IDX_PARTS else read_cifar_folder
    for folder in [rawdir, *([Path(known.installed)] if known.installed else [])]:
        try:
            images = read(folder)
        except UsageError as error:
            say(str(error))  # unfinished or damaged: torchvision fetches again what its checksums refuse
            break
        if images is not None:
            return images
    _download(name, rawdir, say)
    images = read(rawdir)
    if images is None:
        raise RunError(f"{rawdir}: the files that torchvision fetched are not {', '.join(known.files)}")
    return images


def _download(name: str, rawdir: Path, say: Callable[[str], object]) -> None:
    from torchvision import datasets

    known = KNOWN[name]
    kind = getattr(datasets, known.torchvision)
    url = kind.url if hasattr(kind, "url") else " or ".join(kind.mirrors)
    say(f"{name}: fetching the official files from {url} into {rawdir}")
    rawdir.mkdir(parents=True, exist_ok=True)
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(20)  # seconds without an answer
    try:
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
