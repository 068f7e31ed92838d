"""PFLlib's four functions for its generators: check, separate_data, split_data, save_file.

Their positional arguments and their files are PFLlib's, so that a generate_<Name>.py of PFLlib runs in this folder.
What they add is by keyword only: a seed, the mended partitions (see partition.py), and more keys in config.json.
"""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flcore.data.partition import partition as draw_partition
from flcore.utils.errors import UsageError
from flcore.utils.runs.files import whole_file
from flcore.utils.safe_load import load_json
from flcore.utils.seeds import numpy_generator

BATCH_SIZE = 10
TRAIN_RATIO = 0.75  # the part of each client's images to train on
ALPHA = 0.1  # of the Dirichlet distribution; PFLlib advises 100 for exdir, which our generators take
SEED = 1

Statistic = list[list[tuple[int, int]]]  # (label, number of images) for each label of each client


def check(
    config_path: Path | str,
    train_path: Path | str,
    test_path: Path | str,
    num_clients: int,
    niid: bool = False,
    balance: bool = True,
    partition: str | None = None,
    *,
    alpha: float = ALPHA,
    **settings: object,
) -> bool:
    """Whether the data set is there, complete and made with these settings.

    settings: further keys of config.json that must be the same, such as `arguments`.
    """
    asked = dict(_pfllib_keys(num_clients, niid, balance, partition, alpha), **settings)
    try:
        config = load_json(config_path)
        there = isinstance(config, dict) and all(key in config and config[key] == asked[key] for key in asked)
    except UsageError:
        there = False
    files = [Path(folder) / f"{i}.npz" for folder in (train_path, test_path) for i in range(num_clients)]
    if there and all(file.is_file() and file.stat().st_size for file in files):
        print(f"{Path(config_path).parent}: already there with these settings, nothing to do")
        return True
    return False


def least_samples(num_samples: int, num_clients: int, train_ratio: float = TRAIN_RATIO) -> int:
    """PFLlib's minimum for every client of `dir`: room for one test batch, or half the mean if that is less."""
    return int(min(BATCH_SIZE / (1 - train_ratio), num_samples / num_clients / 2))


def separate_data(
    data: tuple[np.ndarray, np.ndarray],
    num_clients: int,
    num_classes: int,
    niid: bool = False,
    balance: bool = False,
    partition: str | None = None,
    class_per_client: int | None = None,
    **settings: Any,
) -> tuple[list[np.ndarray], list[np.ndarray], Statistic]:
    """Splits data = (x, y) among the clients: (x of each client, y of each client, their class counts).

    settings: those of `assign`.
    """
    x, y = np.asarray(data[0]), np.asarray(data[1])
    clients, _, _ = assign(y, num_clients, num_classes, niid, balance, partition, class_per_client, **settings)
    return gather(x, y, clients)


def assign(
    y: np.ndarray,
    num_clients: int,
    num_classes: int,
    niid: bool,
    balance: bool,
    partition: str | None,
    class_per_client: int | None = None,
    *,
    alpha: float = ALPHA,
    train_ratio: float = TRAIN_RATIO,
    seed: int = SEED,
    min_samples: int | None = None,
    repair: bool = False,
) -> tuple[list[np.ndarray], int, int]:
    """Each client's indices into y, the minimum kept, and the images moved: `partition.partition` in PFLlib's terms."""
    kind = partition if niid else "iid"  # PFLlib ignores the partition for iid
    if kind not in ("iid", "pat", "dir", "exdir"):
        raise UsageError(f"the partition of a non-iid data set is pat, dir or exdir, not {partition!r}")
    return draw_partition(
        y,
        num_clients,
        num_classes,
        kind,
        rng=numpy_generator(seed, "partition"),
        balance=balance,
        class_per_client=class_per_client,
        alpha=alpha,
        least=least_samples(len(y), num_clients, train_ratio),
        min_samples=min_samples,
        repair=repair,
    )


def gather(
    x: np.ndarray, y: np.ndarray, clients: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray], Statistic]:
    """The images, the labels and the class counts of clients that hold these indices."""
    labels = [y[indices] for indices in clients]
    counted = [np.unique(own, return_counts=True) for own in labels]
    statistic = [list(zip(values.tolist(), counts.tolist(), strict=True)) for values, counts in counted]
    return [x[indices] for indices in clients], labels, statistic


def split_data(
    X: Sequence[np.ndarray], y: Sequence[np.ndarray], *, train_ratio: float = TRAIN_RATIO, seed: int = SEED
) -> tuple[list[dict[str, np.ndarray]], list[dict[str, np.ndarray]]]:
    """Splits each client's images at random: (train, test), each a list of {"x", "y"} by client.

    floor(train_ratio * n) of n images are for training, but at least one for training and one for testing; a single
    image is for training.
    """
    train, test = [], []
    for client, (images, labels) in enumerate(zip(X, y, strict=True)):
        count = len(labels)
        order = numpy_generator(seed, "split", client).permutation(count)
        cut = max(min(math.floor(train_ratio * count), count - 1), 1)
        train.append({"x": images[order[:cut]], "y": labels[order[:cut]]})
        test.append({"x": images[order[cut:]], "y": labels[order[cut:]]})
    return train, test


def save_file(
    config_path: Path | str,
    train_path: Path | str,
    test_path: Path | str,
    train_data: Iterable[dict[str, np.ndarray]],
    test_data: Iterable[dict[str, np.ndarray]],
    num_clients: int,
    num_classes: int,
    statistic: Statistic,
    niid: bool = False,
    balance: bool = True,
    partition: str | None = None,
    *,
    alpha: float = ALPHA,
    **settings: object,
) -> None:
    """Writes train/<i>.npz, test/<i>.npz and config.json (PFLlib's keys, "shape", and `settings`).

    config.json goes first and comes last: a data set without it is not finished. Files of further clients, from an
    earlier data set, are removed. The data may be iterators: one client at a time is in memory.
    """
    config = _pfllib_keys(num_clients, niid, balance, partition, alpha)
    config |= {"num_classes": num_classes, "Size of samples for labels in clients": statistic, **settings}
    Path(config_path).unlink(missing_ok=True)
    for folder, clients in ((Path(train_path), train_data), (Path(test_path), test_data)):
        for earlier in folder.glob("*.npz*"):
            earlier.unlink()
        for client, content in enumerate(clients):
            with whole_file(folder / f"{client}.npz") as temporary, open(temporary, "wb") as file:
                np.savez_compressed(file, data=np.array(content, dtype=object))
            if len(content["x"]):
                config.setdefault("shape", list(np.shape(content["x"])[1:]))
    with whole_file(Path(config_path)) as temporary:
        temporary.write_text(json.dumps(config))


def _pfllib_keys(num_clients: int, niid: bool, balance: bool, partition: str | None, alpha: float) -> dict[str, object]:
    """The settings that PFLlib compares."""
    return {
        "num_clients": num_clients,
        "non_iid": niid,
        "balance": balance,
        "partition": partition,
        "alpha": alpha,
        "batch_size": BATCH_SIZE,
    }
