"""PFLlib's four functions, for a generate_<Name>.py in PFLlib's style; the code is in `flcore.data`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flcore.data import partition as parts
from flcore.data.reading import DataSet
from flcore.data.writing import ALPHA, BATCH_SIZE, Images, Statistic, pfllib_settings, write_dataset
from flcore.utils.errors import UsageError

# As in PFLlib to be changed here; alpha is advised to be 100 for exdir.
batch_size, train_ratio, alpha = BATCH_SIZE, parts.TRAIN_RATIO, ALPHA


def check(
    config_path: str,
    train_path: str,
    test_path: str,
    num_clients: int,
    niid: bool = False,
    balance: bool = True,
    partition: str | None = None,
) -> bool:
    """Whether the data set is there, complete and made with these settings."""
    folder = _folder(config_path, train_path, test_path)
    settings = pfllib_settings(num_clients, niid, balance, partition, alpha, batch_size)
    made = DataSet(folder.name, folder.parent).made_with(settings)
    if made:
        print(f"{folder}: already there with these settings, nothing to do")
    return made


def separate_data(
    data: tuple[NDArray[Any], NDArray[Any]],
    num_clients: int,
    num_classes: int,
    niid: bool = False,
    balance: bool = False,
    partition: str | None = None,
    class_per_client: int | None = None,
) -> tuple[list[NDArray[Any]], list[NDArray[Any]], Statistic]:
    """Splits data = (x, y) among the clients: (x of each client, y of each client, their class counts)."""
    kind = partition or "" if niid else "iid"  # the partition does not matter for iid
    x, y = np.asarray(data[0]), np.asarray(data[1])
    clients, minimum, moved = parts.partition(
        y,
        num_clients,
        num_classes,
        kind,
        balance=balance,
        class_per_client=class_per_client,
        alpha=alpha,
        train_ratio=train_ratio,
    )
    if moved:
        print(f"{moved} images were moved to clients with fewer than {minimum}")
    return parts.gather(x, y, clients)


def split_data(X: Sequence[NDArray[Any]], y: Sequence[NDArray[Any]]) -> tuple[list[Images], list[Images]]:  # noqa: N803
    """Splits each client's images at random: (train, test), each a list of {"x", "y"} by client."""
    return parts.split_data(X, y, train_ratio=train_ratio)


def save_file(
    config_path: str,
    train_path: str,
    test_path: str,
    train_data: Iterable[Images],
    test_data: Iterable[Images],
    num_clients: int,
    num_classes: int,
    statistic: Statistic,
    niid: bool = False,
    balance: bool = True,
    partition: str | None = None,
) -> None:
    """Writes train/<i>.npz, test/<i>.npz and config.json, which is the last."""
    folder = _folder(config_path, train_path, test_path)
    settings = pfllib_settings(num_clients, niid, balance, partition, alpha, batch_size)
    write_dataset(folder, train_data, test_data, num_classes, statistic, settings)


def _folder(config_path: str, train_path: str, test_path: str) -> Path:
    """The data set's folder, from the three paths that PFLlib's generators give."""
    given = [Path(config_path), Path(train_path), Path(test_path)]
    folder = given[0].parent
    if given != [folder / "config.json", folder / "train", folder / "test"]:
        raise UsageError(f"{', '.join(map(str, given))} must be config.json, train/ and test/ of one folder")
    return folder
