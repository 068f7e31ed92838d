"""Writes data sets in PFLlib's files: <folder>/{train,test}/<i>.npz and config.json; `reading` reads them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flcore.data.partition import ALPHA, BATCH_SIZE, Images, Statistic
from flcore.utils.errors import UsageError
from flcore.utils.runs.files import whole_file, write_text
from flcore.utils.safe_load import load_json

Settings = Mapping[str, Any]


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


def is_made(folder: Path, settings: Settings) -> bool:
    """Whether the data set is there, complete, and made with these settings, `num_clients` among them."""
    try:
        config = load_json(folder / "config.json")
    except UsageError:
        return False
    if not isinstance(config, dict) or any(key not in config or config[key] != settings[key] for key in settings):
        return False
    files = [folder / part / f"{i}.npz" for part in ("train", "test") for i in range(settings["num_clients"])]
    return all(file.is_file() and file.stat().st_size for file in files)


def write_dataset(
    folder: Path,
    train: Iterable[Images],
    test: Iterable[Images],
    num_classes: int,
    statistic: Statistic,
    settings: Settings,
) -> dict[str, Any]:
    """Writes train/<i>.npz, test/<i>.npz and config.json: the settings, the classes and their counts, "shape".

    config.json goes first and comes last: a data set without it is not finished. Files of further clients, from an
    earlier data set, are removed. The data may be iterators: one client at a time is in memory.
    """
    config = {**settings, "num_classes": num_classes, "Size of samples for labels in clients": statistic}
    (folder / "config.json").unlink(missing_ok=True)
    for part, clients in (("train", train), ("test", test)):
        for earlier in (folder / part).glob("*.npz*"):
            earlier.unlink()
        for client, content in enumerate(clients):
            with whole_file(folder / part / f"{client}.npz") as temporary, open(temporary, "wb") as file:
                np.savez_compressed(file, data=np.array(content, dtype=object))
            if len(content["x"]):
                config.setdefault("shape", list(np.shape(content["x"])[1:]))
    write_text(folder / "config.json", json.dumps(config))
    return config
