"""Making sure that a data set is there before a run."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Callable
from pathlib import Path

from flcore.data.generate import Recipe, generate
from flcore.data.reading import Config, DataSet
from flcore.data.sources import KNOWN
from flcore.utils.errors import RunError, UsageError
from flcore.utils.paths import DATASET


def ensure_dataset(
    name: str, num_clients: int | None = None, root: Path | str = DATASET, say: Callable[[str], object] = print
) -> DataSet:
    """Makes sure that data set `name` in `root` is complete and for `num_clients` clients (None: as many as it has).

    Makes it with the generator's defaults where it is missing or unfinished, or where it has those defaults but another
    number of clients, and says so. A data set with settings of its own is never replaced: that is a UsageError with the
    command to run. Upper and lower case do not matter. Returns the data set with its name as spelled on disk.
    """
    data = DataSet(_known_name(name, Path(root)), root)
    config, broken = _state(data)
    problem = broken
    if not broken:
        if num_clients in (None, config["num_clients"]):
            return data
        problem = f"data set {data} has {config['num_clients']} clients, {num_clients} are asked for"
    if data not in KNOWN:
        way = "" if broken else f"use -nc {config['num_clients']} or "
        raise UsageError(f"{problem}: {way}make it again with the tool that it came from")

    # The settings other than the defaults, as our generators note them.
    arguments = config.get("arguments") or []
    num_clients = num_clients or config.get("num_clients") or Recipe.num_clients
    generator = os.path.relpath(DATASET / f"generate_{data}.py")
    command = ["python", generator, *arguments, "--num_clients", str(num_clients)]
    command += ["--out", str(data.folder)] if data.root.resolve() != DATASET else []
    shown = shlex.join(command)
    if config and "arguments" not in config:
        raise UsageError(f"{problem}: it was made by another tool, so choose its settings yourself: {shown}")
    if arguments and (len(arguments) != 2 or arguments[0] != "--source"):
        raise UsageError(f"{problem}: it has settings of its own, so make it again yourself: {shown}")
    say(f"{problem}: {shown}")
    try:
        say(str(generate(data, say=say, num_clients=num_clients, source=arguments[1] if arguments else None)))
    except (UsageError, RunError) as error:
        raise UsageError(f"{problem}, and making it failed: {error}\nOnce that is mended: {shown}") from None
    return data


def known_datasets(root: Path | str = DATASET) -> list[str]:
    """The data sets that are in `root` and those that can be made."""
    there = {path.parent.name for part in ("config.json", "train") for path in Path(root).glob(f"*/{part}")}
    return sorted(there | set(KNOWN))


def _known_name(name: str, root: Path) -> str:
    """`name` as it is spelled on disk, among the known data sets."""
    known = known_datasets(root)
    if name in known:
        return name
    spelled = {entry.lower(): entry for entry in sorted(known)}
    if name.lower() in spelled:
        return spelled[name.lower()]
    near = difflib.get_close_matches(name.lower(), spelled, 1, 0.5)
    hint = f"did you mean {spelled[near[0]]}? " if near else ""
    raise UsageError(f"there is no data set {name!r}: {hint}Known are {', '.join(known)}, in {root}")


def _state(data: DataSet) -> tuple[Config, str]:
    """The data set's config (empty without a sound one), and what keeps it from being used (empty if nothing does)."""
    if not data.folder.is_dir():
        return {}, f"data set {data} is not there"
    try:
        config = data.config()
    except UsageError as error:
        return {}, str(error)
    for file in (data.file(i, is_train) for is_train in (True, False) for i in range(config["num_clients"])):
        if not file.is_file() or not file.stat().st_size:
            return config, f"{file} is missing or empty"
    return config, ""
