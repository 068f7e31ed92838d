"""Writes data sets in PFLlib's files: <folder>/{train,test}/<i>.npz and config.json; `reading` reads them.

A federated data set that is split among its clients already needs two functions (docs/data.md has the file format):

    for i, (train, test) in enumerate(clients):
        write_client("dataset/Mine", i, train, test)  # each a pair (x, y)
    finish("dataset/Mine", class_names=["cat", "dog"])
"""

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flcore.data.reading import PARTS, STATISTIC, UNFINISHED, read_partition, sha256
from flcore.data.samples import check_channels, check_labels, limits_of, scaled
from flcore.utils import interrupt
from flcore.utils.errors import RunError, UsageError
from flcore.utils.locks import locked
from flcore.utils.runs.files import whole_file, write_text

Images = dict[str, NDArray[Any]]  # "x" images and "y" labels
Statistic = list[list[tuple[int, int]]]  # (label, number of images) for each label of each client
Settings = Mapping[str, Any]

ALPHA = 0.1  # of the Dirichlet distribution
BATCH_SIZE = 10


def pfllib_settings(
    num_clients: int,
    niid: bool,
    balance: bool,
    partition: str | None,
    alpha: float = ALPHA,
    batch_size: int = BATCH_SIZE,
) -> dict[str, Any]:
    """The settings in config.json by which PFLlib tells whether a data set is the one that is asked for."""
    return {
        "num_clients": num_clients,
        "non_iid": niid,
        "balance": balance,
        "partition": partition,
        "alpha": alpha,
        "batch_size": batch_size,
    }


def write_dataset(
    folder: Path,
    train: Iterable[Images],
    test: Iterable[Images],
    num_classes: int,
    statistic: Statistic,
    settings: Settings,
) -> dict[str, Any]:
    """Writes train/<i>.npz, test/<i>.npz and config.json: the settings, the classes and their counts, the shape, the
    range of the values, and the size and digest of every file.

    All files are made beside those of an earlier data set, which is replaced at the end; a data set without config.json
    is not finished. The data may be iterators: one client at a time is in memory.
    """
    unfinished = folder / UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)  # of a killed process
    files = {}
    try:
        for part, clients in zip(PARTS, (train, test), strict=True):
            for client, content in enumerate(clients):
                interrupt.check(f"{folder} is as it was before")
                files[f"{part}/{client}.npz"] = _save(unfinished / part / f"{client}.npz", content)
        config = _config(settings, num_classes, statistic, files)
        (folder / "config.json").unlink(missing_ok=True)
        for part in PARTS:
            (folder / part).mkdir(exist_ok=True)
            for earlier in (folder / part).glob("*.npz*"):
                earlier.unlink()
        for name in files:
            os.replace(unfinished / name, folder / name)
    except OSError as error:
        raise RunError(f"{folder} cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    _write_config(folder, config)
    return config


@contextmanager
def making(folder: Path, say: Callable[[str], object]) -> Iterator[None]:
    """In the body no other process makes the data set of a folder; waits for one that does."""
    lock = folder.parent / f".{folder.name}.lock"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    except OSError:  # nobody makes anything in a folder that cannot be written to
        yield
        return
    with locked(lock, f"{folder}: another process is making it, waiting", say):
        yield


def write_client(
    folder: Path | str, client: int, train: tuple[ArrayLike, ArrayLike], test: tuple[ArrayLike, ArrayLike]
) -> None:
    """Writes the files of one client of a data set that is split already; `finish` completes the data set.

    train, test: the client's own samples (x, y). x: images (n, C, H, W), grey ones also (n, H, W), or vectors (n, F);
    floats as they are, or uint8 and uint16 pixels, which are scaled to [-1, 1]. y: (n), whole numbers from 0 on.

    Raises:
        UsageError: x and y are not that, or the data set is finished: another one never replaces it.
    """
    folder = Path(folder)
    if (folder / "config.json").exists():
        raise UsageError(f"{folder} holds a data set that is finished: take another folder, or remove that one first")
    if client < 0:
        raise UsageError(f"clients are numbered from 0 on, not {client}")
    for part, (x, y) in zip(PARTS, (train, test), strict=True):
        where, images, labels = f"client {client}, {part}", np.asarray(x), np.asarray(y)
        if images.dtype.kind not in "biuf" or not images.ndim or not np.isfinite(images).all():
            raise UsageError(
                f"{where}: x must be finite numbers, one row a sample, it is {images.dtype} {images.shape}"
            )
        images = images[:, None] if images.ndim == 3 else images
        check_labels(labels, len(images), where)
        if len(labels) and (labels.dtype.kind not in "biuf" or (labels < 0).any() or (labels != np.rint(labels)).any()):
            raise UsageError(f"{where}: y must be whole numbers from 0 on")
        _save(folder / part / f"{client}.npz", {"x": scaled(images), "y": labels.astype(np.int64)})


def finish(
    folder: Path | str,
    class_names: Sequence[str] | None = None,
    num_classes: int | None = None,
    partition: str = "natural",
    **more: Any,
) -> dict[str, Any]:
    """Completes a data set of `write_client`'s files: checks that they belong together, and writes config.json.

    class_names: by label. num_classes: without names; by default the largest label + 1. `more`: what config.json shall
    say beside it. Returns config.json's content.

    Raises:
        UsageError: there is no client, one lacks a file, or shapes or labels do not fit together.
    """
    folder = Path(folder)
    numbers = {int(path.stem) for part in PARTS for path in (folder / part).glob("*.npz") if path.stem.isdigit()}
    if not numbers:
        raise UsageError(f"{folder}: there is no client yet, write_client writes one")
    statistic, files, shapes, largest = list[list[tuple[int, int]]](), {}, dict[tuple[int, ...], str](), 0
    for client in range(max(numbers) + 1):
        labels = []
        for part in PARTS:
            path = folder / part / f"{client}.npz"
            x, y = read_partition(path)
            if len(x):
                shapes.setdefault(x.shape[1:], f"{part}/{client}.npz")
                largest = max(largest, int(y.max()))
            files[f"{part}/{client}.npz"] = _entry(path, x)
            labels.append(y)
        values, counts = np.unique(np.concatenate(labels), return_counts=True)
        statistic.append(list(zip(values.astype(int).tolist(), counts.tolist(), strict=True)))
    if len(shapes) > 1:
        told = ", ".join(f"{shape} ({name})" for shape, name in itertools.islice(shapes.items(), 3))
        raise UsageError(f"{folder}: all samples must have one shape, there are {told}")
    num_classes = len(class_names) if class_names else num_classes or largest + 1
    if largest >= num_classes:
        raise UsageError(f"{folder}: label {largest} is outside 0..{num_classes - 1}, the classes that are named")
    settings = {**pfllib_settings(max(numbers) + 1, True, False, partition), **more}
    if class_names:
        settings["class_names"] = [str(name) for name in class_names]
    config = _config(settings, num_classes, statistic, files)
    _write_config(folder, config)
    return config


# A file's entry while a data set is made: what config.json holds of it, and the shape and the range of its samples.
Entry = tuple[list[Any], tuple[int, ...], tuple[float, float] | None]


def _save(path: Path, content: Mapping[str, Any]) -> Entry:
    x = np.asarray(content["x"])
    check_channels(x.shape[1:], str(path))
    with whole_file(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, data=np.array(dict(content), dtype=object))
    return _entry(path, x)


def _entry(path: Path, x: NDArray[Any]) -> Entry:
    return [path.stat().st_size, sha256(path)], x.shape[1:], limits_of(x)


def _config(settings: Settings, num_classes: int, statistic: Statistic, files: Mapping[str, Entry]) -> dict[str, Any]:
    config = {**settings, "num_classes": num_classes, STATISTIC: statistic}
    some = [(shape, *limits) for _, shape, limits in files.values() if limits]
    if some:
        shapes, lows, highs = zip(*some, strict=True)
        config |= {"shape": list(shapes[0]), "range": [min(lows), max(highs)]}
    return config | {"files": {name: recorded for name, (recorded, _, _) in files.items()}}


def _write_config(folder: Path, config: Mapping[str, Any]) -> None:
    write_text(folder / "config.json", json.dumps(config))
