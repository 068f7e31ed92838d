"""Made-up data sets."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flcore.data.partition import gather, partition, split_data
from flcore.data.writing import pfllib_settings, write_dataset
from flcore.utils.seeds import numpy_generator


def make_data(
    folder: Path, clients: int, samples: int, classes: int, shape: Sequence[int], seed: int, equal: bool = False
) -> tuple[Path, str]:
    """Writes ``samples`` images of noise in PFLlib's files; returns the folder of data sets and the name.

    Every class has a mean image; pixels are whole numbers scaled to [-1, 1], as in a photograph. The clients' shares
    are Dirichlet(0.1) of every class, or with ``equal`` the same number for everybody.
    """
    kind = "equal" if equal else "dir"
    name = f"Made-{kind}-{clients}x{samples}"
    if (folder / name / "config.json").exists():  # made for another table
        return folder, name
    draw = numpy_generator(seed, "bench", clients, samples)
    y = draw.integers(classes, size=samples)
    means = draw.integers(64, 192, size=(classes, *shape))
    pixels = (means[y] + draw.normal(0, 32, size=(samples, *shape))).clip(0, 255).astype(np.uint8)
    x = (pixels.astype(np.float32) / 255 - 0.5) / 0.5
    if equal:
        own = np.array_split(np.arange(samples), clients)
    else:
        own, _, _ = partition(y, clients, classes, kind, seed=seed)
    images, labels, statistic = gather(x, y, own)
    train, test = split_data(images, labels, seed=seed)
    settings = pfllib_settings(clients, niid=not equal, balance=True, partition=kind)
    write_dataset(folder / name, train, test, classes, statistic, settings)
    return folder, name
