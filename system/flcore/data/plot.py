"""Draws which client holds how many images of which class: `python plot_partition.py Cifar100`.

The picture needs config.json alone (and the files, where that has no counts) and no screen, and stays readable with 100
clients and 100 classes.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flcore.data.reading import PARTS, STATISTIC, Config, DataSet, read_partition
from flcore.data.samples import printable
from flcore.hyperparams import user_path
from flcore.utils.errors import UsageError, report
from flcore.utils.paths import DATASET
from flcore.utils.runs.files import whole_file

MOST_CELLS = 10**7  # of clients x classes; nobody could see more
MOST_NAMED = 40  # classes; more names would lie upon each other


def draw(folder: Path) -> Path:
    """Writes partition.png in the data set's folder: a bubble for each client and class, larger and darker with more
    images."""
    from matplotlib.figure import Figure

    folder = folder.resolve()
    data = DataSet(folder.name, folder.parent)
    counts = read_counts(data)
    width, height = size_of(counts)
    figure = Figure(figsize=(width + 1.6, height + 1.0), layout="constrained")
    draw_panel(figure.add_subplot(), counts, data, data.class_names())
    picture = folder / "partition.png"
    with whole_file(picture) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    return picture


def size_of(counts: NDArray[np.int_]) -> tuple[float, float]:
    """Width and height in inches at which every bubble of these images by client and class can be seen."""
    cells = [min(max(8 / size, 0.14), 0.4) for size in counts.shape]
    width, height = (max(cell * size, 2.5) for cell, size in zip(cells, counts.shape, strict=True))
    return width, height


def draw_panel(axes: Any, counts: NDArray[np.int_], name: str, class_names: Sequence[str] = ()) -> None:
    """Draws the images by client and class of the data set `name` into a panel of about `size_of(counts)`."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import MaxNLocator

    largest = max(counts.max(), 2)
    num_clients, num_classes = counts.shape
    clients, classes = np.nonzero(counts)
    shown = counts[clients, classes]
    lengths = zip(size_of(counts), counts.shape, strict=True)
    diameter = 72 * min(length / number for length, number in lengths)  # points: the largest bubble fills its cell
    area = diameter**2 * np.maximum(shown / largest, 0.06)
    bubbles = axes.scatter(clients, classes, area, shown, cmap="viridis_r", norm=LogNorm(1, largest), linewidths=0)
    axes.figure.colorbar(bubbles, ax=axes, label="images", aspect=30, format="{x:,.0f}")

    axes.set(xlim=(-0.7, num_clients - 0.3), ylim=(-0.7, num_classes - 0.3), xlabel="client", ylabel="class")
    axes.set_title(f"{name}: {counts.sum():,} images, {num_clients} clients, {num_classes} classes", parse_math=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=20, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    if (
        num_classes <= MOST_NAMED
        and list(class_names) != [str(label) for label in range(num_classes)][: len(class_names)]
    ):
        axes.set_yticks(range(num_classes), [printable(name, 20) for name in class_names], parse_math=False)
    axes.grid(alpha=0.3, linewidth=0.4)
    axes.set_axisbelow(True)


def read_counts(data: DataSet) -> NDArray[np.int_]:
    """The images by client and class, from config.json, or counted where it does not tell them."""
    config, path = data.config(), data.folder / "config.json"
    num_clients, num_classes = config["num_clients"], config["num_classes"]
    try:
        statistic = config[STATISTIC] if STATISTIC in config else _counted(data, config)
        if len(statistic) != num_clients or not 1 <= num_clients * num_classes <= MOST_CELLS:
            raise ValueError(f"{len(statistic)} clients are listed, it should be {num_clients}")
        counts = np.zeros((num_clients, num_classes), int)
        for client, labels in enumerate(statistic):
            for label, count in labels:
                if not (0 <= label < num_classes and 0 <= count < 2**53):
                    raise ValueError(f"{count} images of class {label}")
                counts[client, label] = count
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UsageError(f"{path} is damaged ({error!r}): make the data set again") from None
    return counts


def _counted(data: DataSet, config: Config) -> list[list[tuple[int, int]]]:
    counted = []
    for client in range(config["num_clients"]):
        labels = np.concatenate([read_partition(data.folder / part / f"{client}.npz")[1] for part in PARTS])
        values, counts = np.unique(labels.astype(int), return_counts=True)
        counted.append(list(zip(values.tolist(), counts.tolist(), strict=True)))
    return counted


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", type=user_path, help="a data set in this folder, or the path of one")
    name = parser.parse_args(argv).name
    try:
        print(draw(name if (name / "config.json").is_file() else DATASET / name))
    except Exception as error:
        return report(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
