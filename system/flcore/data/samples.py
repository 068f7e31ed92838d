"""What a source of data holds, in one form for all kinds of files, and how it is described in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flcore.utils.errors import UsageError

Array = NDArray[Any]
Moments = tuple[
    list[float], list[float]
]  # mean and standard deviation of each number of a vector, or channel of images

WHITE = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535}  # the brightest pixel, by type
USUAL = 20.0  # larger numbers than networks are made for; a standardised column seldom has one
NARROW = 0.1  # between the smallest and the largest value: too little for a network to see
NAMES_SHOWN = 10


@dataclass(frozen=True)
class Samples:
    """Samples with labels.

    Args:
        x: images (N, C, H, W), or vectors (N, F). Pixels of type uint8 or uint16 have the type's range; other types are
            numbers to be taken as they are.
        y: int64 (N), whole numbers from 0 on.
        class_names: by label; their number is the number of classes.
        users: int64 (N), indices of `user_names`; None where the source tells no users.
        notes: sentences about what was done beside reading, such as files that were passed over.
        moments: by which they were standardised; None if they were not.
    """

    x: Array
    y: Array
    class_names: tuple[str, ...]
    users: Array | None = None
    user_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    moments: Moments | None = None

    def take(self, chosen: Array) -> Samples:
        """The samples with these indices; all classes and users keep their numbers."""
        return replace(
            self, x=self.x[chosen], y=self.y[chosen], users=None if self.users is None else self.users[chosen]
        )

    def __str__(self) -> str:
        scaled = ", scaled to -1..1" if is_pixels(self.x) else ""
        users = f", {len(self.user_names)} users" if self.users is not None else ""
        what = describe(len(self.y), self.x.shape[1:], self.class_names, (self.x.min(), self.x.max()))
        return f"{what}{scaled}{users}"


def describe(
    count: int, shape: Sequence[int], class_names: Sequence[str], limits: tuple[float, float] | None = None
) -> str:
    """For example "60 images of 3 channels, 9 x 8 pixels (height x width), 2 classes (0: cat, 1: dog)".."""
    if len(shape) == 3:
        channels = f"{shape[0]} channel{'s' * (shape[0] != 1)}"
        what = f"{count:,} images of {channels}, {shape[1]} x {shape[2]} pixels (height x width)"
    elif len(shape) == 1:
        what = f"{count:,} vectors of {shape[0]} numbers"
    else:
        what = f"{count:,} samples of shape {tuple(shape)}"
    values = f", values {limits[0]:.5g} to {limits[1]:.5g}" if limits else ""
    return f"{what}, {shown_classes(class_names)}{values}"


def shown_classes(names: Sequence[str]) -> str:
    """The number of classes and the first of their names, if they are more than numbers."""
    if list(names) == [str(label) for label in range(len(names))]:
        return f"{len(names)} classes"
    first = [f"{label}: {printable(name)}" for label, name in enumerate(names[:NAMES_SHOWN])]
    return f"{len(names)} classes ({', '.join(first)}{', ...' * (len(names) > NAMES_SHOWN)})"


def printable(name: str, most: int = 30) -> str:
    """A name as it may be shown: no sign that a terminal obeys, and not endless."""
    name = "".join(sign if sign.isprintable() else "?" for sign in name)
    return name if len(name) <= most else f"{name[: most - 1]}…"


def unusual(limits: tuple[float, float] | None) -> str:
    """A sentence about values that are unusual for a network's input; empty if they are not."""
    low, high = limits or (0.0, 0.0)
    if 0 < high - low < NARROW:
        return f"values from {low:.4g} to {high:.4g} hardly differ: are they scaled as they should be?"
    if max(abs(low), abs(high)) <= USUAL:
        return ""
    return f"values from {low:.4g} to {high:.4g} are taken as they are, and networks learn best from about -1 to 1."


def is_pixels(x: Array) -> bool:
    """Whether these are images whose type tells the range of their values."""
    return x.ndim == 4 and x.dtype in WHITE


def scaled(x: Array) -> Array:
    """As float32; pixels of a type with a range come to [-1, 1], by PFLlib's transform."""
    with np.errstate(over="ignore"):  # what is beyond float32 becomes infinite
        numbers: Array = x.astype(np.float32)
    return (numbers / WHITE[x.dtype] - 0.5) / 0.5 if is_pixels(x) else numbers


def moments(x: Array, batch: int = 1000) -> Moments:
    """Of the `scaled` samples."""
    axes = (0, *range(2, x.ndim))
    parts = [slice(start, start + batch) for start in range(0, len(x), batch)]
    count = x.size / x.shape[1]
    mean = np.sum([scaled(x[part]).sum(axes, dtype=np.float64, keepdims=True) for part in parts], 0) / count
    squares = np.sum([np.square(scaled(x[part]) - mean).sum(axes, keepdims=True) for part in parts], 0)
    deviation = np.sqrt(squares / count)
    deviation[deviation <= 1e-6 * np.maximum(np.abs(mean), 1)] = 0  # no more than rounding
    return mean.ravel().tolist(), deviation.ravel().tolist()


def standardised(x: Array, by: Moments) -> Array:
    """The `scaled` samples as float32 with these moments' mean subtracted, and divided by their deviation; what did not
    vary becomes 0."""
    shape = (1, -1, *[1] * (x.ndim - 2))
    mean, deviation = (np.reshape(values, shape) for values in by)
    factor = np.divide(1, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    parts = [scaled(x[start : start + 1000]) for start in range(0, len(x), 1000)]
    return np.concatenate([((part - mean) * factor).astype(np.float32) for part in parts])


def as_pixels(x: Array, path: Path) -> Array:
    """Arrays as sources give them: images (N, C, H, W), (N, H, W) or vectors (N, F) of numbers.

    Images of whole numbers 0..255, such as many programs store as float or int64, become uint8, and so do those of 0
    and 1, where 1 is white.

    Raises:
        UsageError: it is no array of samples, its channels come last, or the range of its whole numbers is unknown.
    """
    if x.dtype.kind not in "biuf" or x.ndim not in (2, 3, 4):
        raise UsageError(
            f"{path}: x must be numbers of shape (N, C, H, W), (N, H, W) or (N, F), it is {x.dtype} {x.shape}"
        )
    if not all(x.shape[1:]):
        raise UsageError(f"{path}: images of shape {x.shape[1:]} have no pixels")
    if not len(x):
        raise UsageError(f"{path} holds no images")
    x = x[:, None] if x.ndim == 3 else x
    check_channels(x.shape[1:], str(path))
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise UsageError(f"{path}: x holds NaN or infinite values")
    if x.ndim == 2 or (x.dtype == np.uint8 and x.max() > 1):
        return x
    low, high = int(np.floor(x.min())), int(np.ceil(x.max()))
    if x.dtype.kind != "f" and 0 <= low <= high <= 1:
        return x.astype(np.uint8) * 255
    if low >= 0 and 1 < high <= 255 and (x.dtype.kind != "f" or (x == np.rint(x)).all()):
        return x.astype(np.uint8)
    if x.dtype.kind == "f" or x.dtype in WHITE:
        return x
    raise UsageError(
        f"{path}: images of type {x.dtype} with values {low} to {high}, of which nobody knows what is black and "
        f"what is white: save them as uint8 (0..255), uint16 (0..65535) or as float, scaled by yourself"
    )


def check_channels(shape: Sequence[int], where: str) -> None:
    """Refuses the shape of one image (C, H, W) that looks like (H, W, C), as other programs have it."""
    if len(shape) != 3:
        return
    first, second, last = shape
    coloured = last in (3, 4) and first > 4 and second > 4
    if coloured or (last == 1 and first == second > 4):
        raise UsageError(
            f"{where}: images of shape {tuple(shape)}, that would be {first} channels of {second} x {last} pixels. Are "
            f"the channels last? They must come first: x.transpose(0, 3, 1, 2)"
        )


def numbered(names: Sequence[str]) -> list[str]:
    """Distinct names in the order in which they get their numbers: by value if all are whole numbers, else by name."""
    distinct = sorted(set(names))
    if all(name.isascii() and name.isdigit() and len(name) < 19 for name in distinct):
        distinct.sort(key=lambda name: (int(name), name))
    return distinct


def labelled(labels: Array, count: int, path: Path, what: str = "y") -> tuple[Array, tuple[str, ...]]:
    """Labels as sources give them, numbers or texts, one a sample: int64 from 0 on, and the names of the classes.

    Raises:
        UsageError: they are not one a sample, not whole numbers from 0 on or names, or no classes at all.
    """
    check_labels(labels, count, f"{path}", what)
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise UsageError(f"{path}: {what} of sample {int(np.argmax(np.isnan(labels)))} is missing")
    if labels.dtype.kind == "f" and np.isfinite(labels).all() and (labels == np.rint(labels)).all():
        labels = labels.astype(np.int64)
    if labels.dtype.kind == "S":
        labels = np.char.decode(labels, "utf-8", "replace")
    if labels.dtype.kind in "UO":
        if missing := [index for index, label in enumerate(labels) if not isinstance(label, str) or not label.strip()]:
            raise UsageError(f"{path}: {what} of sample {missing[0]} is {labels[missing[0]]!r}, no name of a class")
        names = numbered([str(label) for label in labels])
        if len({name.strip() for name in names}) < len(names):
            raise UsageError(f"{path}: names of classes differ in spaces alone: {', '.join(map(repr, names))[:300]}")
        place = {name: number for number, name in enumerate(names)}
        y = np.array([place[label] for label in labels], np.int64)
    elif labels.dtype.kind in "biu":
        if labels.min() < 0:
            first = int(np.argmax(labels < 0))
            raise UsageError(f"{path}: {what} of sample {first} is {labels[first]}, labels must be 0 or more")
        values, y = np.unique(labels, return_inverse=True)
        names = [str(int(value)) for value in values]
    else:
        raise UsageError(f"{path}: {what} must be integers or names of classes, it is {labels.dtype}")
    if len(names) == 1:
        raise UsageError(f"{path}: all samples are of one class ({printable(names[0])}), there is nothing to learn")
    if len(names) == count > 2:
        raise UsageError(f"{path}: each of the {count} samples has a label of its own: is {what} the label?")
    return y.astype(np.int64), tuple(names)


def check_labels(labels: Array, count: int, where: str, what: str = "y") -> None:
    """Refuses labels that are not one a sample, and says what they look like instead."""
    if labels.shape == (count,):
        return
    hint = ""
    if labels.ndim == 2 and len(labels) == count:
        hint = f"; take {what}.ravel()"
        if labels.shape[1] > 1:
            hint = ", which looks one-hot" * _one_hot(labels) + f"; take {what}.argmax(1)"
    raise UsageError(f"{where}: {count} samples need as many labels, {what} has the shape {labels.shape}{hint}")


def _one_hot(labels: Array) -> bool:
    return labels.dtype.kind in "biuf" and bool(((labels == 0) | (labels == 1)).all() and (labels.sum(1) == 1).all())


def limits_of(x: Array) -> tuple[float, float] | None:
    """The smallest and the largest value as they are read (`scaled`); None of nothing."""
    if not x.size:
        return None
    low, high = (float(scaled(value).item()) for value in (x.min(keepdims=True), x.max(keepdims=True)))
    return low, high


def resized(x: Array, size: tuple[int, int]) -> Array:
    """Images (..., H, W) at another height and width, bilinear with antialiasing; the type stays."""
    if x.shape[-2:] == size:
        return x
    import torch
    from torchvision.transforms.v2 import functional

    made: Array = functional.resize(torch.from_numpy(x.astype(np.float32)), list(size), antialias=True).numpy()
    return np.rint(made).clip(0, WHITE[x.dtype]).astype(x.dtype) if x.dtype in WHITE else made
