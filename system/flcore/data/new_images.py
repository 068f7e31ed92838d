"""Reads images that a trained model is asked about, as they were read when its data set was made."""

from pathlib import Path

import numpy as np

from flcore.data.image_folders import PICTURES, pictures_below, read_images
from flcore.data.reading import DataSet, read_partition
from flcore.data.samples import Array, Moments, as_pixels, check_labels, scaled, standardised
from flcore.utils.errors import UsageError
from flcore.utils.safe_load import load_npy, load_npz

Shape = tuple[int, ...]
Names = tuple[str, ...]

# the weights of red, green and blue in a grey value, as Pillow has them, in 65536ths
GREY = np.array([19595, 38470, 7471])


def read_new(path: Path, shape: Shape, class_names: Names, data: DataSet) -> tuple[list[str], Array, Array | None]:
    """Names of the new samples, the samples (n, *shape) as float32 in the scale of the training data, and their labels
    (n), -1 where there is none; None where there is none at all.

    Args:
        path: an image, or a folder of images, which are resized, and whose folders may be named as classes; or a
            client's file of a data set; or an .npz with x and maybe y, or .npy, as a source of a data set holds them.
        data: the data set that the model was trained on, which need not be there any more.

    Raises:
        UsageError: it is nothing of these, or holds samples of another shape.
    """
    suffix, content = path.suffix.lower(), dict[str, Array]()
    if not path.exists():
        raise UsageError(f"there is no {path}")
    if suffix == ".npz":
        content = load_npz(path)
    by = data.config().get("standardised") if (data.folder / "config.json").is_file() else None
    y: Array | None = None
    if path.is_dir() or suffix in PICTURES:
        names, x, y = _pictures(path, shape, class_names)
        return names, _like_training(x, by), y
    if suffix == ".npz":
        if "data" in content:
            x, y = read_partition(path)
        elif "x" in content:
            x = as_pixels(content["x"], path)
            y = _numbers(content["y"], len(x), class_names, path) if "y" in content else None
        else:
            raise UsageError(f"{path} holds no x, but {', '.join(content) or 'nothing'}")
    elif suffix == ".npy":
        x = as_pixels(load_npy(path), path)
    else:
        raise UsageError(f"{path} is neither an image ({', '.join(sorted(PICTURES))}), a folder, an .npz nor an .npy")
    if x.shape[1:] != shape:
        raise UsageError(f"{path}: samples of shape {x.shape[1:]}, the model takes {shape}")
    ready = "data" in content  # a client's own file
    return [f"{path.name}:{i}" for i in range(len(x))], _like_training(x, None if ready else by), y


def _like_training(x: Array, by: Moments | None) -> Array:
    """Raw samples in the scale of the data set: standardised by its moments, if it is."""
    if by and len(by[0]) != x.shape[1]:
        raise UsageError(
            f"samples of {x.shape[1]} columns or channels, the data set was standardised with {len(by[0])}"
        )
    return standardised(x, by) if by else scaled(x)


def _pictures(path: Path, shape: Shape, class_names: Names) -> tuple[list[str], Array, Array | None]:
    files = pictures_below(path)[0] if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path} holds no images ({', '.join(sorted(PICTURES))})")
    if len(shape) != 3:
        raise UsageError(f"{path}: the model takes samples of shape {shape}, which are no images")
    pixels, _ = read_images(files, (shape[1], shape[2]))
    if shape[0] == 1 and pixels.shape[1] == 3:
        grey = np.tensordot(pixels.astype(np.int64), GREY, axes=(1, 0)) + 2**15 >> 16
        pixels = grey[:, None].astype(pixels.dtype)
    if shape[0] == 3 and pixels.shape[1] == 1:
        pixels = pixels.repeat(3, axis=1)
    if pixels.shape[1] != shape[0]:
        raise UsageError(f"{path}: images of {pixels.shape[1]} channels, the model takes {shape[0]}")
    place = {name: label for label, name in enumerate(class_names)}
    inside = [file.relative_to(path).parts[:-1] if path.is_dir() else () for file in files]
    y = np.array([next((place[part] for part in reversed(parts) if part in place), -1) for parts in inside], np.int64)
    names = [str(file.relative_to(path)) if path.is_dir() else file.name for file in files]
    return names, pixels, y if (y >= 0).any() else None


def _numbers(labels: Array, count: int, class_names: Names, path: Path) -> Array:
    """Labels as a source tells them, numbers or names, as numbers of the classes."""
    check_labels(labels, count, str(path))
    place = {name: label for label, name in enumerate(class_names)}
    names = [str(label) if labels.dtype.kind in "UO" else f"{label:g}" for label in labels]
    if unknown := [name for name in names if name not in place]:
        raise UsageError(f"{path}: {unknown[0]!r} is none of the classes {', '.join(class_names[:10])}")
    return np.array([place[name] for name in names], np.int64)
