"""Reads folders of images: one folder a class, also inside train/, val/ and test/, or inside one folder a user.

What an image file may be, and what becomes of it:

* grey, colour, palette, CMYK with 8 bits: as seen on a screen; grey where all files are grey, otherwise RGB
* grey with 16 bits: uint16, whose range is 0..65535 (files with 8 bits among them are brought to that range)
* transparent: shown over white
* turned by a camera: upright, as its EXIF data say
* several frames: the first one
* pixels of 32 bits (int32 and float TIFF): refused, since their type does not tell what is white
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from flcore.data.samples import Array, Samples, numbered, printable, resized
from flcore.utils.errors import UsageError

MOST_PIXELS = 2**24  # of one image
SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # whatever the name says: others may start programs
PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


@dataclass
class _Found:
    """Image files with their class and their user, which is "" where there are none."""

    files: list[Path] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_image_folder(folder: Path, size: tuple[int, int] | None = None, user_folders: bool = False) -> Samples | None:
    """The images below a folder, or None if none lie in sub-folders of it.

    size: the height and width to which all are brought. user_folders: <user>/<class>/ in place of <class>/.

    Raises:
        UsageError: a file is no image, sizes differ, or the folders contradict each other.
    """
    found = _found(folder, user_folders)
    if not found.files:
        return None
    x, notes = read_images(found.files, size)
    class_names, user_names = numbered(found.classes), numbered(found.users)
    if len(class_names) == 1:
        raise UsageError(
            f"{folder}: all images are of one class ({printable(class_names[0])}), there is nothing to learn"
        )
    users = [user_names.index(user) for user in found.users] if user_folders else None
    place = {name: label for label, name in enumerate(class_names)}
    y = np.array([place[name] for name in found.classes], np.int64)
    return Samples(
        x,
        y,
        tuple(class_names),
        None if users is None else np.array(users, np.int64),
        tuple(user_names) if user_folders else (),
        (*found.notes, *notes),
    )


def read_tiny_imagenet(folder: Path, size: tuple[int, int] | None = None) -> Samples | None:
    """Tiny ImageNet in its official layout, in `folder` or one below: train/<wnid>/images/*.JPEG, wnids.txt, words.txt.

    As in PFLlib the images of train/ alone, and classes in the order of their WordNet ids. None for other folders.
    """
    roots = [list_.parent for list_ in (folder / "wnids.txt", *sorted(folder.glob("*/wnids.txt"))) if list_.is_file()]
    if not roots:
        return None
    root = roots[0]
    ids = sorted(root.joinpath("wnids.txt").read_text(encoding="utf-8", errors="replace").split())
    words: dict[str, str] = {}
    if (root / "words.txt").is_file():
        for line in (root / "words.txt").read_text(encoding="utf-8", errors="replace").splitlines():
            number, _, name = line.partition("\t")
            words[number] = name.partition(",")[0]
    files = [(label, file) for label, own in enumerate(ids) for file in pictures_below(root / "train" / own)[0]]
    lacking = set(range(len(ids))) - {label for label, _ in files}
    if lacking:
        raise UsageError(f"{root} lacks the images of train/{ids[min(lacking)]}: unpack the official file again")
    x, notes = read_images([file for _, file in files], size)
    names = tuple(f"{own} {words.get(own, '')}".strip() for own in ids)
    y = np.array([label for label, _ in files], np.int64)
    return Samples(x, y, names, notes=(*notes, "the images of train/ alone, as in PFLlib"))


def read_images(files: Sequence[Path], size: tuple[int, int] | None = None) -> tuple[Array, list[str]]:
    """The images of these files, (N, C, H, W) with 1 or 3 channels of uint8 or uint16, and what was done to some."""
    done: Counter[str] = Counter()
    arrays: list[Array] = []
    shape: tuple[int, ...] = ()
    for file in files:
        try:
            image = _decoded(file, done)  # (C, H, W)
        except Exception as error:  # a damaged image can make any operation fail in any way
            reason = " ".join(str(error).split())
            raise UsageError(f"{file} is not an image that can be read: {reason}") from None
        if size:
            image = resized(image, size)
        shape = shape or image.shape[1:]
        if image.shape[1:] != shape:
            raise UsageError(
                f"{file} is {image.shape[1]} x {image.shape[2]} pixels (height x width), the images before it are "
                f"{shape[0]} x {shape[1]}: all must have one size; --image_size {shape[0]}x{shape[1]}, or another "
                f"height and width, resizes them"
            )
        arrays.append(image)
    channels = max(image.shape[0] for image in arrays)
    deep = any(image.dtype == np.uint16 for image in arrays)
    x = np.empty((len(arrays), channels, *shape), np.uint16 if deep else np.uint8)
    for i in reversed(range(len(arrays))):
        image = arrays.pop()  # so that only one copy is in memory
        x[i] = image.astype(np.uint16) * 257 if deep and image.dtype == np.uint8 else image  # 255 * 257 = 65535
    return x, [f"{count:,} images {what}" for what, count in done.items() if count]


def _decoded(file: Path, done: "Counter[str]") -> Array:
    """One image as (C, H, W), C = 1 or 3, of uint8 or uint16; `done` counts what was done to it."""
    from PIL import Image, ImageOps

    with Image.open(file, formats=_FORMATS) as opened:
        if opened.width * opened.height > MOST_PIXELS:
            raise ValueError(f"it has {opened.width} x {opened.height} pixels")
        done["have several frames, of which the first is taken"] += getattr(opened, "is_animated", False)
        kind = opened.format
        image = ImageOps.exif_transpose(opened)
    mode = image.mode
    transparent = mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info
    if mode.startswith("I;16") or (mode == "I" and kind in ("PNG", "PPM")):  # older Pillow: I for 16 bits
        return np.asarray(image).astype(np.uint16)[None]
    if mode.startswith(("I", "F")):
        kind = "float32" if mode.startswith("F") else "int32"
        raise ValueError(f"its pixels are {kind}, of which nobody knows what is white; save it with 8 or 16 bits")
    grey = mode in ("1", "L", "LA", "La")
    if transparent:
        image = image.convert("RGBA")
        done["have transparent parts, shown over white"] += np.asarray(image)[..., 3].min() < 255
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    pixels = np.asarray(image.convert("L" if grey else "RGB"))
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


def _found(folder: Path, user_folders: bool) -> _Found:
    """All images by class, with the folders of splits merged."""
    found = _Found()
    top = folder
    while not user_folders and len(inside := _folders(top)) == 1 and _folders(inside[0]) and not _own_pictures(top):
        top = inside[0]  # an archive unpacked into a folder of its own
    inside = _folders(top)
    splits = [entry for entry in inside if entry.name.lower() in SPLITS and _folders(entry)]
    splits.sort(key=lambda entry: not entry.name.lower().startswith("train"))  # training first, as PFLlib merges
    if not splits and len(inside) > 1 and {entry.name.lower() for entry in inside} <= SPLITS:
        raise UsageError(f"{top}: {', '.join(entry.name for entry in inside)} hold no folders of classes")
    others = [entry for entry in inside if splits and entry not in splits and pictures_below(entry)[0]]
    unlabelled = [entry for entry in others if entry.name.lower() in SPLITS]
    if splits and len(others) > len(unlabelled):
        names = ", ".join(printable(entry.name) for entry in others if entry not in unlabelled)
        raise UsageError(
            f"{top} holds {', '.join(entry.name for entry in splits)}, which look like parts of a data set, beside "
            f"{names}, which look like classes: move them apart, or name the folder that is meant"
        )
    passed, empty, held = Counter[str](), list[str](), dict[str, set[str]]()
    if splits:
        found.notes += [f"{entry.name}/ has no folders of classes and is passed over" for entry in unlabelled]
        found.notes.append(f"{', '.join(entry.name for entry in splits)} are merged")
    for root in splits or [top]:
        if _own_pictures(root):
            found.notes.append(f"images in {root} itself, outside any class, are passed over")
        for user in _folders(root) if user_folders else [root]:
            for entry in _folders(user):
                pictures, other = pictures_below(entry)
                passed.update(file.suffix.lower() or "without suffix" for file in other)
                empty += [str(entry.relative_to(top))] * (not pictures)
                held.setdefault(root.name, set()).update([entry.name] * bool(pictures))
                found.files += pictures
                found.classes += [entry.name] * len(pictures)
                found.users += [user.name if user_folders else ""] * len(pictures)
    if not found.files:
        return found
    for name, classes in held.items():
        first = next(iter(held.values()))
        if classes and not classes & first:
            raise UsageError(
                f"{top}: {name}/ has the classes {_some(classes)}, the first part {_some(first)}: none in common"
            )
    if lacking := sorted({name for name in found.classes for own in held.values() if name not in own}):
        found.notes.append(f"not in every part: {_some(lacking)}")
    if empty:
        found.notes.append(f"without images and left out: {_some(empty)}")
    if passed:
        found.notes.append(f"{passed.total():,} files that are no images are passed over ({_some(passed)})")
    below = Counter(inner.name for entry in _folders((splits or [top])[0]) for inner in _folders(entry))
    shared = {name for name, count in below.items() if count > 1 and count >= len(set(found.classes)) / 2}
    if not user_folders and len(shared) > 1:
        found.notes.append(f"classes have the same folders inside ({_some(shared)}); if they are users: --user_folders")
    return found


def _some(names: "Sequence[str] | set[str] | Counter[str]") -> str:
    shown = [printable(name) for name in sorted(names)]
    return ", ".join(shown[:5]) + ", ..." * (len(shown) > 5)


def _folders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith((".", "__")))


def _own_pictures(folder: Path) -> bool:
    return any(entry.suffix.lower() in PICTURES and entry.is_file() for entry in folder.iterdir())


def pictures_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """The image files in a folder and below, in a fixed order, and the other files; hidden ones are neither."""
    if not folder.is_dir():
        return [], []
    files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))
    return [f for f in files if f.suffix.lower() in PICTURES], [f for f in files if f.suffix.lower() not in PICTURES]
