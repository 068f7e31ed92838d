"""Reads data sets in PFLlib's files: ROOT/<Name>/{train,test}/<i>.npz and config.json. dataset/ writes them."""

import difflib
import functools
import hashlib
import itertools
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from reprlib import repr as shown
from typing import Any

import numpy as np
import torch

from flcore.utils.errors import UsageError
from flcore.utils.paths import DATASET
from flcore.utils.safe_load import load_json, load_npz

GENERATORS = DATASET
ROOT = GENERATORS

Config = dict[str, Any]

MOST_CLASSES = 1_000_000  # more is a slip, and a last layer that fits into no memory


# --- reading ----------------------------------------------------------------------------------------------------------


def read_data(dataset: str, idx: int, is_train: bool = True) -> dict[str, np.ndarray]:
    """Client `idx`'s training or test images: {"x": float32 (n, *dataset_shape), "y": int64 (n)}.

    Raises UsageError naming the file if it is missing, damaged, or holds what cannot be trained on.
    """
    path, config = _file(dataset, idx, is_train), read_config(dataset)
    x, y = _load(path)
    shape = dataset_shape(config, dataset)
    if not len(x):
        x = x.reshape(0, *shape)  # other tools write (0,) for a client without images
    if x.shape[1:] != shape:
        source = "config.json says" if "shape" in config else "the first client's have"
        raise UsageError(f"{path}: its images have the shape {x.shape[1:]}, {source} {shape}; make the data set again")
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


def _file(dataset: str, idx: int, is_train: bool) -> Path:
    return ROOT / dataset / ("train" if is_train else "test") / f"{idx}.npz"


def _load(path: Path) -> tuple[np.ndarray, np.ndarray]:
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


def read_client_tensors(
    dataset: str, idx: int, is_train: bool = True, few_shot: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Client `idx`'s data as x float32 (n, ...) and y int64 (n).

    few_shot: of the training data only the first `few_shot` samples of each class; 0 for all.
    """
    data = read_data(dataset, idx, is_train)
    x, y = data["x"], data["y"]
    if is_train and few_shot > 0:
        firsts = [index for label in np.unique(y) for index in np.flatnonzero(y == label)[:few_shot]]
        x, y = x[sorted(firsts)], y[sorted(firsts)]
    return torch.from_numpy(x), torch.from_numpy(y)


def read_client_data(
    dataset: str, idx: int, is_train: bool = True, few_shot: int = 0
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """PFLlib's form of `read_client_tensors`: a list of (image, label)."""
    return list(zip(*read_client_tensors(dataset, idx, is_train, few_shot), strict=True))


def read_config(dataset: str) -> Config:
    """The data set's config.json with num_clients and num_classes checked; UsageError with the reason if that fails."""
    path = ROOT / dataset / "config.json"
    try:
        stat = path.stat()
    except OSError:
        raise UsageError(f"{path} is missing: the data set is not finished") from None
    return dict(_parsed(path, stat.st_mtime_ns, stat.st_size))


@functools.lru_cache(maxsize=4)  # asked for with every client's file
def _parsed(path: Path, _mtime: int, _size: int) -> Config:
    config = load_json(path)
    for key in ("num_clients", "num_classes"):
        if not isinstance(config, dict) or type(config.get(key)) is not int or config[key] < 1:
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


def dataset_shape(config: Config, dataset: str) -> tuple[int, ...]:
    """The shape of one image (C, H, W): from the config, or from the first file with images where PFLlib wrote it."""
    if "shape" in config:
        return tuple(config["shape"])
    for idx, is_train in itertools.product(range(config["num_clients"]), (True, False)):
        path = _file(dataset, idx, is_train)
        if path.is_file() and (shape := _stored_shape(path, path.stat().st_mtime_ns)):
            return shape
    raise UsageError(f"data set {dataset} in {ROOT} has no image at all; make it again")


@functools.lru_cache(maxsize=64)  # asked for with every client's file
def _stored_shape(path: Path, _mtime: int) -> tuple[int, ...]:
    x, _ = _load(path)
    return x.shape[1:] if len(x) else ()


def dataset_digest(dataset: str) -> str:
    """SHA-256 over the names and contents of all partition files: the same data, the same digest."""
    digest = hashlib.sha256()
    for path in [path for part in ("test", "train") for path in sorted((ROOT / dataset / part).glob("*.npz"))]:
        if not path.is_file():
            raise UsageError(f"{path} is not a file; remove it")
        digest.update(f"{path.parent.name}/{path.name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


# --- making sure that it is there -------------------------------------------------------------------------------------


def ensure_dataset(name: str, num_clients: int | None, say: Callable[[str], object] = print) -> tuple[str, Config]:
    """Makes sure that data set `name` is complete and for `num_clients` clients (None: as many as it has).

    Makes it with the generator's defaults where it is missing or unfinished, or where it has those defaults but another
    number of clients, and says so. A data set with settings of its own is never replaced: that is a UsageError with the
    command to run. Upper and lower case do not matter. Returns the name as spelled on disk, and the config.
    """
    name = _known_name(name)
    config, broken = _state(name)
    problem = broken
    if not broken:
        if num_clients in (None, config["num_clients"]):
            return name, config
        problem = f"data set {name} has {config['num_clients']} clients, {num_clients} are asked for"
    generator = GENERATORS / f"generate_{name}.py"
    if not generator.is_file():
        way = "" if broken else f"use -nc {config['num_clients']} or "
        raise UsageError(f"{problem}: {way}make it again with the tool that it came from")

    # The settings other than the defaults, as our generators note them.
    arguments = config.get("arguments") or []
    num_clients = num_clients or config.get("num_clients")
    command = [*arguments, *(["--num_clients", str(num_clients)] if num_clients else [])]
    command += ["--out", str(ROOT / name)] if ROOT.resolve() != GENERATORS else []
    shown = shlex.join(["python", os.path.relpath(generator), *command])
    if config and "arguments" not in config:
        raise UsageError(f"{problem}: it was made by another tool, so choose its settings yourself: {shown}")
    if arguments and (len(arguments) != 2 or arguments[0] != "--source"):
        raise UsageError(f"{problem}: it has settings of its own, so make it again yourself: {shown}")
    say(f"{problem}: {shown}")
    made = subprocess.run([sys.executable, str(generator), *command], capture_output=True, text=True)
    if made.returncode:
        reason = made.stderr.partition("error: ")[2] or made.stderr[-1000:]
        raise UsageError(f"{problem}, and making it failed: {reason.strip()}\nOnce that is mended: {shown}")
    say(made.stdout.strip().splitlines()[-1])
    return name, read_config(name)


def _known_name(name: str) -> str:
    """`name` as it is spelled on disk, among the data sets that are there and those that can be made."""
    there = {path.parent.name for part in ("config.json", "train") for path in ROOT.glob(f"*/{part}")}
    known = there | {path.stem.removeprefix("generate_") for path in GENERATORS.glob("generate_*.py")}
    if name in known:
        return name
    spelled = {entry.lower(): entry for entry in sorted(known)}
    if name.lower() in spelled:
        return spelled[name.lower()]
    near = difflib.get_close_matches(name.lower(), spelled, 1, 0.5)
    hint = f"did you mean {spelled[near[0]]}? " if near else ""
    raise UsageError(f"there is no data set {name!r}: {hint}Known are {', '.join(sorted(known))}, in {ROOT}")


def _state(name: str) -> tuple[Config, str]:
    """The data set's config (empty without a sound one), and what keeps it from being used (empty if nothing does)."""
    folder = ROOT / name
    if not folder.is_dir():
        return {}, f"data set {name} is not there"
    try:
        config = read_config(name)
    except UsageError as error:
        return {}, str(error)
    for file in (folder / part / f"{i}.npz" for part in ("train", "test") for i in range(config["num_clients"])):
        if not file.is_file() or not file.stat().st_size:
            return config, f"{file} is missing or empty"
    return config, ""
