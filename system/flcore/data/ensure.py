"""Making sure that a data set is there before a run."""

from __future__ import annotations

import difflib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from flcore.data.generate import generate
from flcore.data.reading import DataSet
from flcore.data.sources import KNOWN
from flcore.data.writing import making
from flcore.utils.errors import RunError, UsageError
from flcore.utils.paths import DATASET


def ensure_dataset(
    name: str,
    num_clients: int | None = None,
    root: Path | str = DATASET,
    say: Callable[[str], object] = print,
    num_new: int = 0,
) -> DataSet:
    """Makes sure that data set `name` in `root` is complete and for `num_clients` clients (None: as many as it has).

    One that is not there is made: a known one with the generator's defaults, another by running the user's own
    dataset/generate_<Name>.py as `noniid - dir`. What is there is never replaced: if it is damaged or for another
    number of clients, that is a UsageError with the commands to choose from. `num_new`: those of the clients that -nnc
    holds back. Upper and lower case do not matter. Returns the data set with its name as spelled on disk.
    """
    data = DataSet(_known_name(name, Path(root)), root)
    problem = data.problem()
    if problem:  # perhaps since another process is making it
        with making(data.folder, say):
            problem = data.problem()
    if problem and not data.exists():
        if data in KNOWN:
            _generate(data, num_clients, say)
        else:
            _run_generator(data, say)
        problem = data.problem()
    if problem:
        command = data.command(force="") or (_command(data, None, force="") if data in KNOWN else "")
        raise UsageError(f"{problem}: make it again{f': {command}' if command else ' with the tool that it came from'}")
    config = data.config()
    there, natural = config["num_clients"], config.get("partition") == "natural"
    if num_clients in (None, there):
        return data
    asked = f"{num_clients} are asked for" + (f" (-nc {num_clients - num_new} -nnc {num_new})" if num_new else "")
    ways = [f"use {_fitting(num_clients - num_new, num_new, there)}"]
    beside = f"{data}-{num_clients}"
    other = "" if natural else data.command(num_clients=num_clients, name=beside)
    if not other and data in KNOWN:
        other = _command(DataSet(beside, data.root), num_clients, of=data)
    if other:
        ways.append(f"make a partition for {num_clients} beside it, and use -data {shlex.quote(beside)}: {other}")
    elif natural:
        ways.append("make another partition, since natural has one client a user")
    else:
        ways.append("make it again with the tool that it came from")
    raise UsageError(f"data set {data} has {there} clients, {asked}: {' or '.join(ways)}")


def known_datasets(root: Path | str = DATASET) -> list[str]:
    """The data sets that are in `root` and those that can be made."""
    there = {path.parent.name for part in ("config.json", "train") for path in Path(root).glob(f"*/{part}")}
    own = {path.stem.removeprefix("generate_") for path in DATASET.glob("generate_*.py")}
    return sorted(there | own | set(KNOWN))


def _fitting(own: int, new: int, there: int) -> str:
    """What to change of -nc ``own`` -nnc ``new`` so that they are ``there`` clients."""
    if there > new:
        return f"-nc {there - new}"
    if there > own:
        return f"-nnc {there - own}"
    return f"-nc {there - 1} -nnc 1" if there > 1 else "-nc 1 -nnc 0"


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


def _command(data: DataSet, num_clients: int | None, of: str = "", **flags: str) -> str:
    """The generator's command for the known images `of` (by default those of the data set's own name)."""
    words = ["python", os.path.relpath(DATASET / f"generate_{of or data}.py")]
    words += ["--num_clients", str(num_clients)] if num_clients else []
    if data.root.resolve() != DATASET:
        words += ["--out", str(data.folder)]
    elif of:
        words += ["--name", str(data)]
    return shlex.join(words + [f"--{flag}" for flag in flags])


def _generate(data: DataSet, num_clients: int | None, say: Callable[[str], object]) -> None:
    command = _command(data, num_clients)
    say(f"data set {data} is not there: {command}")
    try:
        say(str(generate(data, say=say, num_clients=num_clients)))
    except (UsageError, RunError) as error:
        if not data.problem():
            return  # another process has made it meanwhile, for another number of clients
        raise UsageError(f"making data set {data} failed: {error}\nOnce that is mended: {command}") from None


def _run_generator(data: DataSet, say: Callable[[str], object]) -> None:
    """Runs a generator in PFLlib's style, which makes its data set in the folder where it is started."""
    script = DATASET / f"generate_{data}.py"
    if not script.is_file():  # nothing but an empty folder
        raise UsageError(f"data set {data} is not there: {data.folder} is empty")
    words = [str(script), "noniid", "-", "dir"]
    command = f"cd {shlex.quote(str(data.root))} && {shlex.join(['python', *words])}"
    say(f"data set {data} is not there: {command}")
    with making(data.folder, say):
        if data.exists():
            return
        done = subprocess.run([sys.executable, *words], cwd=data.root, capture_output=True, text=True, errors="replace")
    if done.returncode:
        reason = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), f"code {done.returncode}")
        raise UsageError(f"making data set {data} failed: {reason.strip()}. Once that is mended: {command}")
    if not data.exists():
        raise UsageError(f"{script.name} has run and left no data set in {data.folder}. By hand: {command}")
