"""Many runs from one TOML file: every combination of the values in lists, each in a process of its own.

    dataset = "Digits"                      # one value: the same in every run
    seed = [0, 1, 2]                        # a list: each of them

    [[runs]]                                # if there are tables, each is so many runs, with what stands above
    algorithm = ["FedAvg", "FedRep"]

    [[runs]]
    algorithm = "FedCPD"
    cpd_align = [1.0, 5.0]

What is finished with the same settings and code is kept, so that a sweep goes on where it was ended.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tqdm import tqdm

from flcore.executors.ray_connection import connect, first_line
from flcore.experiment import Experiment
from flcore.observers import Observer
from flcore.utils import interrupt
from flcore.utils.cli import read_toml
from flcore.utils.errors import RunError, UsageError
from flcore.utils.machine import usable_cores
from flcore.utils.records import shown

Settings = dict[str, Any]
MOST = 10_000  # runs; more is a slip

log = logging.getLogger(__name__)


@dataclass
class Cell:
    """One run of a sweep.

    words: the settings in which it differs from others.
    """

    settings: Settings
    words: str
    rounds: int = 0
    done: int = 0  # of them
    line: str = ""  # what came of it
    failed: bool = False
    kept: bool = False  # it was finished before
    process: Any = field(default=None, repr=False)


def read_sweep(path: Path) -> list[Settings]:
    """The settings of every run that a file means, in its order.

    Raises:
        UsageError: there is no such file, it is not TOML, or holds a table that means nothing.
    """
    return runs_in(read_toml(path), path)


def runs_in(content: Settings, path: Path) -> list[Settings]:
    """The settings of every run that the content of the file `path` means, in its order.

    Raises:
        UsageError: it holds a table that means nothing, or an empty list.
    """
    above = {name: value for name, value in content.items() if name != "runs"}
    tables = content.get("runs", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{path}: runs are tables, each under [[runs]]")
    for name, value in (item for table in (above, *tables) for item in table.items()):
        if isinstance(value, dict) and name != "model_args":
            raise UsageError(f"{path}: [{name}] means nothing here; runs are tables, each under [[runs]]")
        if value == []:
            raise UsageError(f"{path}: {name} is an empty list, which leaves no run")
    found: list[Settings] = []
    for table in tables or [{}]:
        for settings in combinations({**above, **table}):
            if settings not in found:
                found.append(settings)
            if len(found) > MOST:
                raise UsageError(f"{path}: these are more than {MOST:,} runs")
    return found


def combinations(values: Mapping[str, Any]) -> Iterator[Settings]:
    """Every choice of one value from each list, the last list's changing fastest.

    {"a": [1, 2], "b": 3, "c": [4, 5]} -> a 1, b 3, c 4; a 1, b 3, c 5; a 2, b 3, c 4; a 2, b 3, c 5
    """
    choices = [value if isinstance(value, list) else [value] for value in values.values()]
    for chosen in itertools.product(*choices):
        yield dict(zip(values, chosen, strict=True))


def cells_of(runs: Sequence[Settings]) -> list[Cell]:
    """The runs, checked, each with the settings that tell it from the others in words.

    Raises:
        UsageError: a setting is not known or has a wrong value, in any of them.
    """
    names = dict.fromkeys(name for run in runs for name in run)
    varied = [name for name in names if any(run.get(name) != runs[0].get(name) for run in runs)]
    found = []
    for run in runs:
        settings = {**run, "reuse": True}
        words = " ".join(f"{name}={run[name]}" for name in varied if name in run) or str(run.get("algorithm", "FedAvg"))
        try:
            values = Experiment(**settings).values
        except UsageError as error:
            raise UsageError(f"{words}: {error}") from None
        if values["checkpoint_every"] and not values["overwrite"]:
            settings["resume"] = True
        repeats = values["times"] - values["prev"]
        found.append(Cell(settings, words, rounds=values["global_rounds"] * repeats))
    return found


def processes_for(cells: int) -> int:
    """How many at the same time: one a processor core; with a GPU, which one run fills, one."""
    return max(1, min(cells, 1 if torch.cuda.is_available() else usable_cores()))


def run_sweep(cells: Sequence[Cell], processes: int | None = None) -> Sequence[Cell]:
    """Runs the cells in so many processes, with one bar over the rounds of all; each cell then has its `line`.

    Raises:
        KeyboardInterrupt: somebody ended it; what is unfinished runs when the sweep is started again.
    """
    most = processes or processes_for(len(cells))
    context: Any = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
    if hasattr(os, "fork"):
        context.set_forkserver_preload(["flcore.experiment"])  # torch is imported once
    waiting, running = list(reversed(cells)), dict[Any, Cell]()
    # one run alone may use the whole machine
    executor = {} if most == 1 or torch.cuda.is_available() else {"executor": "loop"}
    bar = tqdm(total=sum(cell.rounds for cell in cells), unit="round", disable=None, dynamic_ncols=True, smoothing=0.05)
    number = 0
    try:
        while running or (waiting and not interrupt.asked()):
            while waiting and len(running) < most and not interrupt.asked():
                cell = waiting.pop()
                receiver, sender = context.Pipe(duplex=False)
                cell.process = context.Process(target=_work, args=(executor | cell.settings, sender))
                cell.process.start()
                sender.close()
                running[receiver] = cell
            bar.set_postfix_str(", ".join(cell.words for cell in running.values())[:60])
            for receiver in wait(list(running), timeout=0.3):
                cell = running[receiver]
                if not _hear(cell, receiver, bar):
                    cell.process.join()
                    del running[receiver]
                    number += 1
                    tqdm.write(f"[{number}/{len(cells)}] {cell.words}: {cell.line}")
            if interrupt.asked():
                for cell in running.values():
                    _ask_to_end(cell)
    finally:
        for cell in running.values():
            cell.process.kill()
        bar.close()
    interrupt.check(f"{number} of {len(cells)} runs have ended; the same command goes on with the rest")
    return cells


def _ask_to_end(cell: Cell) -> None:
    """Once: Ctrl-C reaches the processes by itself, and a second signal would end them at once."""
    if not cell.line:
        cell.line = "interrupted"
        if cell.process.is_alive():
            os.kill(cell.process.pid, signal.SIGTERM)


def _hear(cell: Cell, receiver: Any, bar: Any) -> bool:
    """Takes in what a process says; False when it has ended."""
    try:
        kind, value = receiver.recv()
    except EOFError:  # without a last word
        cell.process.join()
        code = cell.process.exitcode
        if not cell.line:
            reason = signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
            cell.line, cell.failed = f"failed: its process ended with {reason}", True
        bar.update(cell.rounds - cell.done)
        return False
    _take(cell, kind, value, bar)
    return True


def _take(cell: Cell, kind: str, value: Any, bar: Any) -> None:
    """Takes in one thing that a run says of itself."""
    if kind == "round":
        bar.update(value - cell.done)
        cell.done = value
    elif kind == "kept":
        cell.kept = True
    else:
        cell.failed = kind == "failed"
        cell.line = f"failed: {value}" if cell.failed else value


def run_on_ray(
    cells: Sequence[Cell], address: str | None = None, cores: float = 1.0, gpus: float = 0.0
) -> Sequence[Cell]:
    """Runs every cell as a task of a Ray cluster that takes so many cores and GPUs; otherwise as `run_sweep`.

    A task whose machine is lost is started again by Ray elsewhere, and goes on from its checkpoint if it has one there.

    Raises:
        UsageError: there is no Ray, no such cluster, or none of its machines has so much.
        KeyboardInterrupt: somebody ended it.
    """
    ray, mine = connect(address, "--ray")
    waiting: dict[Any, Cell] = {}
    bar = tqdm(total=sum(cell.rounds for cell in cells), unit="round", disable=None, dynamic_ncols=True, smoothing=0.05)
    number = 0
    try:
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(one.get("CPU", 0) >= cores and one.get("GPU", 0) >= gpus for one in machines):
            raise UsageError(f"--ray: no machine of the cluster has {cores:g} cores and {gpus:g} GPUs for a run")
        task = ray.remote(_work_there).options(num_cpus=cores, num_gpus=gpus)
        executor = {} if gpus else {"executor": "loop"}
        waiting = {task.remote(executor | cell.settings, os.getcwd()): cell for cell in cells}
        while waiting and not interrupt.asked():
            for reference in ray.wait(list(waiting), timeout=0.3)[0]:
                cell = waiting.pop(reference)
                try:
                    said = ray.get(reference)
                except ray.exceptions.RayError as error:
                    said = [("failed", first_line(error))]
                for kind, value in said:
                    _take(cell, kind, value, bar)
                bar.update(cell.rounds - cell.done)
                number += 1
                tqdm.write(f"[{number}/{len(cells)}] {cell.words}: {cell.line}")
    finally:
        for reference in waiting:
            ray.cancel(reference)
        bar.close()
        if mine:
            ray.shutdown()
    interrupt.check(f"{number} of {len(cells)} runs have ended; the same command goes on with the rest")
    return cells


def _work_there(settings: Settings, folder: str) -> list[tuple[str, Any]]:
    """One run, in a process of Ray's; what it says of itself, all at its end."""
    os.chdir(folder)
    said: list[tuple[str, Any]] = []
    _work(settings, SimpleNamespace(send=said.append))
    return said


class _Told(Observer):
    """Tells the parent how many rounds are done."""

    def __init__(self, parent: Any) -> None:
        self.parent, self.ended, self.done = parent, 0, 0
        self.started = False

    def on_start(self, context: Any) -> None:
        self.started = True
        self.rounds = context.global_rounds

    def on_round(self, record: dict[str, Any]) -> None:
        self.parent.send(("round", self.ended + record["round"] + 1))

    def on_end(self, repeat: Any) -> None:
        self.ended += self.rounds


def _work(settings: Settings, parent: Any) -> None:
    """One run, in a process of its own."""
    logging.getLogger("flcore").setLevel(logging.ERROR)
    told = _Told(parent)
    try:
        with interrupt.handled():
            result = Experiment(**settings).run([told])
        if not told.started:
            parent.send(("kept", True))
        name = result.repeats[0].path
        parent.send(("done", f"A {shown(result.accuracy)}{'' if told.started else ', was there'} ({name})"))
    except KeyboardInterrupt:
        parent.send(("ended", "interrupted"))
    except (UsageError, RunError, OSError, MemoryError) as error:
        parent.send(("failed", " ".join(str(error).split()) or type(error).__name__))
    except Exception as error:  # a defect; the others go on
        parent.send(("failed", f"{type(error).__name__}: {' '.join(str(error).split())}"))


def summary(cells: Sequence[Cell], seconds: float) -> list[str]:
    """What came of a sweep, the failed runs by name."""
    failed = [cell for cell in cells if cell.failed]
    kept = sum(cell.kept for cell in cells)
    lines = [
        f"{len(cells) - len(failed)} of {len(cells)} runs are finished ({kept} were before), {len(failed)} failed, "
        f"{time.strftime('%H:%M:%S', time.gmtime(seconds))}"
    ]
    return lines + [f"failed: {cell.words}: {cell.line.removeprefix('failed: ')}" for cell in failed]
