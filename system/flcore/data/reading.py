"""Reads data sets in PFLlib's files: <root>/<Name>/{train,test}/<i>.npz and config.json; `writing` writes them."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flcore.data.samples import check_channels, check_labels, describe, is_pixels, limits_of, scaled, unusual
from flcore.utils.errors import UsageError
from flcore.utils.paths import DATASET
from flcore.utils.safe_load import load_json, load_npz

if TYPE_CHECKING:
    import torch

Config = dict[str, Any]

MOST_CLASSES = 1_000_000  # more is a slip, and a last layer that fits into no memory
STATISTIC = "Size of samples for labels in clients"  # PFLlib's key: [[label, count], ...] of each client
PARTS = ("train", "test")
UNFINISHED = ".unfinished"  # the folder of files while a data set is made


class DataSet(str):
    """The name of a data set, which knows the folder that it lies in.

    It is a string, since PFLlib's pairs pass the name (`args.dataset`) around and read a client's data by it.

    Args:
        name: the folder's name; a `DataSet` keeps its root unless another is given.
        root: the folder of the data sets; by default dataset/ of this checkout.

    Attributes:
        validation: this share of every client's training part is read in place of its test part, and what is left of
            the training part; 0: all of both.
    """

    root: Path
    validation: float

    def __new__(cls, name: str, root: Path | str | None = None) -> DataSet:
        self = super().__new__(cls, name)
        self.root = Path(getattr(name, "root", DATASET) if root is None else root)
        self.validation = getattr(name, "validation", 0.0)
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

    def exists(self) -> bool:
        """Whether there is anything of it, a config.json or a client's file, which is not left from making it."""
        if (self.folder / "config.json").exists():
            return True
        files = any(next((self.folder / part).glob("*.npz"), None) for part in PARTS)
        return files and not (self.folder / UNFINISHED).exists()

    def problem(self) -> str:
        """What keeps the data set from being used, as far as names and sizes of files tell; empty if nothing does."""
        if not self.exists():
            return f"data set {self} is not there"
        try:
            config = self.config()
        except UsageError as error:
            return str(error)
        recorded = config.get("files", {})
        for part, idx in ((part, idx) for part in reversed(PARTS) for idx in range(config["num_clients"])):
            file, name = self.folder / part / f"{idx}.npz", f"{part}/{idx}.npz"
            size = file.stat().st_size if file.is_file() else 0
            if not size:
                return f"{file} is missing or empty"
            if size != recorded.get(name, [size])[0]:
                return f"{file} has {size:,} bytes, it was made with {recorded[name][0]:,}: it is damaged or another's"
        return ""

    def made_with(self, settings: Mapping[str, Any]) -> bool:
        """Whether the data set is there with these settings in its config.json, and all files are as they were made."""
        if self.problem():
            return False
        config = self.config()
        try:
            self.digest()
        except UsageError:
            return False
        return all(key in config and config[key] == settings[key] for key in settings)

    def command(self, **changed: str | int) -> str:
        """The generator's command that made it; empty if another tool did. `changed`: flags by name, such as name=."""
        try:
            config = self.config()
        except UsageError:
            return ""
        generator = config.get("generator")
        if generator is None:
            return ""
        words = ["python", os.path.relpath(DATASET / generator), *config["arguments"]]
        given = {} if config["partition"] == "natural" else {"num_clients": config["num_clients"]}
        name = str(changed.pop("name", self))
        if self.root.resolve() != DATASET:
            given["out"] = str(self.root / name)
        elif f"generate_{name}.py" != generator:
            given["name"] = name
        for flag, value in (given | changed).items():
            words += [f"--{flag}", str(value)] if value != "" else [f"--{flag}"]
        return shlex.join(words)

    def shape(self) -> tuple[int, ...]:
        """The shape of one image (C, H, W): from config.json, or from the first file with images (PFLlib's own)."""
        config = self.config()
        if "shape" in config:
            return tuple(config["shape"])
        shape, _, _, path = self._first()
        check_channels(shape, str(path))
        return shape

    def class_names(self) -> tuple[str, ...]:
        """The names of the classes by label; the labels themselves where config.json has no names."""
        config = self.config()
        return tuple(config.get("class_names") or map(str, range(config["num_classes"])))

    def describe(self) -> tuple[str, list[str]]:
        """What the data set is taken for, in one line, and warnings about what looks like a mistake.

        The range of the values is that of all files where config.json has it, else of the first file with images.
        """
        config = self.config()
        limits, count, notes = config.get("range"), _count(config.get(STATISTIC)), ""
        if limits is None:
            _, pixels, limits, file = self._first()
            notes = ", scaled from whole numbers" * pixels + f" in {file.parent.name}/{file.name}"
        text = describe(count or 0, self.shape(), self.class_names(), limits)
        text = text if count else text.partition(" ")[2]
        warnings = [unusual(limits), self._twins(), self._unseen(), self._beyond()]
        clients = f"{config['num_clients']} client{'s' * (config['num_clients'] != 1)}"
        return f"{self}: {clients}, {text}{notes}", [warning for warning in warnings if warning]

    def _twins(self) -> str:
        """A sentence about files with one content: nobody's data are another's, nor test data training data."""
        same, recorded = dict[int, list[Path]](), self.config().get("files", {})
        for path in [path for part in PARTS for path in sorted((self.folder / part).glob("*.npz"))]:
            same.setdefault(path.stat().st_size, []).extend([path] * path.is_file())
        seen = dict[str, Path]()
        for path in [path for paths in same.values() if len(paths) > 1 for path in paths]:
            name = f"{path.parent.name}/{path.name}"
            twin = seen.setdefault(recorded[name][1] if name in recorded else sha256(path), path)
            if twin != path and len(read_partition(path)[1]):
                names = (f"{file.parent.name}/{file.name}" for file in (twin, path))
                return f"{' and '.join(names)} hold the same samples"
        return ""

    def _unseen(self) -> str:
        """A sentence about classes of which no client has a sample; empty where config.json has no counts."""
        config = self.config()
        try:
            seen = {label for own in config[STATISTIC] for label, count in own if count}
        except (KeyError, TypeError, ValueError):
            return ""
        unseen = config["num_classes"] - len(seen)
        return f"{unseen} of the {config['num_classes']} classes have no sample" if unseen > 0 else ""

    def _beyond(self) -> str:
        """A sentence about files of more clients than config.json says."""
        names = [path.stem for path in (self.folder / "train").glob("*.npz")]
        there, told = sum(name.isdecimal() for name in names), self.config()["num_clients"]
        return f"train/ has the files of {there} clients, config.json says {told}" if there > told else ""

    def digest(self) -> str:
        """SHA-256 over the names and contents of all partition files: the same data, the same digest.

        Raises:
            UsageError: a file is not the one that config.json names, as far as it names any.
        """
        recorded, digest = self.config().get("files", {}), hashlib.sha256()
        for path in [path for part in reversed(PARTS) for path in sorted((self.folder / part).glob("*.npz"))]:
            if not path.is_file():
                raise UsageError(f"{path} is not a file; remove it")
            name, own = f"{path.parent.name}/{path.name}", sha256(path)
            if recorded and recorded.get(name, [0, ""])[1] != own:
                again = self.command()
                raise UsageError(
                    f"{path} is not the file that was made: it is damaged, or another's. Make the data set again"
                    + (f": {again}" if again else "")
                )
            digest.update(f"{name} {own}\n".encode())
        return digest.hexdigest()

    def _first(self) -> tuple[tuple[int, ...], bool, tuple[float, float], Path]:
        """`_stored` of the first file with images, and the file."""
        for idx, part in ((idx, part) for idx in range(self.config()["num_clients"]) for part in PARTS):
            path = self.folder / part / f"{idx}.npz"
            if path.is_file() and (found := _stored(path, path.stat().st_mtime_ns)):
                return *found, path
        raise UsageError(f"data set {self} in {self.root} has no image at all; make it again")

    def read(self, idx: int, is_train: bool = True) -> dict[str, NDArray[Any]]:
        """Client `idx`'s training or test images: {"x": float32 (n, *shape), "y": int64 (n)}.

        Images of type uint8 or uint16 are scaled to [-1, 1], as the generators do. What `validation` takes away is
        drawn by the client's number alone.

        Raises UsageError naming the file if it is missing, damaged, or holds what cannot be trained on.
        """
        path, config = self.file(idx, is_train or self.validation > 0), self.config()
        x, y = read_partition(path)
        if self.validation:
            order = np.random.default_rng([0, idx]).permutation(len(y))
            kept = int((1 - self.validation) * len(y) + 1e-9)
            x, y = (values[order[:kept] if is_train else order[kept:]] for values in (x, y))
        shape = self.shape()
        if not len(x):
            x = x.reshape(0, *shape)  # other tools write (0,) for a client without images
        if x.shape[1:] != shape:
            source = "config.json says" if "shape" in config else "the first client's have"
            raise UsageError(
                f"{path}: its images have the shape {x.shape[1:]}, {source} {shape}; make the data set again"
            )
        if "files" not in config and len(x) and is_pixels(x) is not self._first()[1]:
            raise UsageError(
                f"{path}: its images are {x.dtype}, those of {self._first()[3]} are "
                f"{'not ' * is_pixels(x)}whole numbers with a known range: all must be of one kind"
            )
        x = scaled(x)
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
        import torch  # takes its time, and is not needed to describe a data set

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
    labels = data["y"]
    if isinstance(labels, list) and all(isinstance(label, int | float | np.number) for label in labels):
        labels = np.array(labels)  # PFLlib reads a list likewise
    if not all(isinstance(values, np.ndarray | np.generic) for values in (data["x"], labels)):
        raise UsageError(f"{path} is not PFLlib's: its x and y must be arrays")
    x, y = np.asarray(data["x"]), np.asarray(labels)
    if x.dtype.kind not in "biuf":
        raise UsageError(
            f"{path}: x is {x.dtype}, not numbers; only images are supported so far, not text with lengths"
        )
    if not x.ndim:
        raise UsageError(f"{path}: x is a single number, it must have as many samples as labels")
    check_labels(y, len(x), str(path))
    return x, y


def sha256(path: Path) -> str:
    """The digest of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    if not _is_list(arguments, str):
        raise UsageError(f"{path} is damaged: arguments must be a list of words")
    shape = config.get("shape", [1])
    if not isinstance(shape, list) or not shape or any(type(size) is not int or size < 1 for size in shape):
        raise UsageError(
            f"{path} is damaged: shape must be whole numbers above 0, such as [3, 32, 32], not {shown(shape)}"
        )
    names = config.get("class_names", [""] * config["num_classes"])
    if not _is_list(names, str) or len(names) != config["num_classes"]:
        raise UsageError(f"{path} is damaged: class_names must be {config['num_classes']} names")
    limits = config.get("range", [0.0, 1.0])
    if not isinstance(limits, list) or len(limits) != 2 or not {type(limit) for limit in limits} <= {int, float}:
        raise UsageError(f"{path} is damaged: range must be the smallest and the largest value, not {shown(limits)}")
    by = config.get("standardised", [[], []])
    if not _is_list(by, list) or [{type(value) for value in values} - {float} for values in by] != [set()] * 2:
        raise UsageError(f"{path} is damaged: standardised must be means and deviations")
    files = config.get("files", {})
    if not isinstance(files, dict) or any(
        not isinstance(of, list) or [type(each) for each in of] != [int, str] for of in files.values()
    ):
        raise UsageError(f"{path} is damaged: files must be the size and the digest of every client's file")
    generator = config.get("generator")
    known = type(generator) is str and re.fullmatch(r"generate(_\w+)?\.py", generator)
    if generator is not None and not (known and {"arguments", "partition"} <= set(config)):
        raise UsageError(f"{path} is damaged: generator must be a generate_<Name>.py, beside arguments and partition")
    return config


def _is_list(content: Any, kind: type) -> bool:
    return isinstance(content, list) and all(type(each) is kind for each in content)


def _count(statistic: Any) -> int | None:
    """All samples in PFLlib's statistic; None where it tells no numbers."""
    try:
        return sum(int(count) for own in statistic for _, count in own)
    except (TypeError, ValueError):
        return None


@functools.lru_cache(maxsize=64)  # asked for with every client's file
def _stored(path: Path, _mtime: int) -> tuple[tuple[int, ...], bool, tuple[float, float]] | None:
    """Of a file: the shape of one image, whether it is of pixels to be scaled, and the range of what is read then;
    None of no image."""
    x, _ = read_partition(path)
    limits = limits_of(x)
    return (x.shape[1:], is_pixels(x), limits) if limits else None
