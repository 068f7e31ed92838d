"""What is measured, a round at a time: our executors, a stand-in for PFLlib's loop, a checkout of PFLlib."""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from benchmark.pfllib_loop import PFLlibLoop
from flcore.experiment import Experiment
from flcore.utils.errors import RunError, UsageError

STAND_IN, PFLLIB = "pfllib-loop", "pfllib"  # beside the executors' own names


class Timing(NamedTuple):
    """Seconds of one round, and of its training alone (nan where that cannot be told apart)."""

    round: float
    training: float = float("nan")


class Contestant(Protocol):
    algorithm: str
    executor: str

    def round(self) -> Timing: ...


def synchronized(device: torch.device) -> float:
    """The time, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Setting(NamedTuple):
    """What all contestants of one comparison share: the bench's arguments and a data set."""

    args: argparse.Namespace
    data_dir: Path
    dataset: str

    def experiment(self, algorithm: str, executor: str) -> Experiment:
        """Runs of ``algorithm`` ("FedCPD --cpd_fd 0"), which all start from the same weights."""
        bench = self.args
        shared = f"-m {bench.model} -lbs {bench.batch_size} -lr {bench.lr} -sd {bench.seed} -dev {bench.device}"
        shared += f" -gr 1000000 -ex {executor} --num_threads {bench.num_threads}"
        words = [*shared.split(), "-data", self.dataset, "--data_dir", str(self.data_dir)]
        made = Experiment.from_argv([*words, "-algo", *shlex.split(algorithm)])
        if made.values["join_ratio"] < 1:
            raise UsageError("the benchmark trains all clients in every round: leave -jr out")
        return made


class TimedTraining:
    """An executor that adds up the seconds of its training; a large round trains in parts.

    On one thread of a CPU they are the processor's for this process, so that what else the machine does is not counted.
    """

    def __init__(self, executor: Any, device: torch.device, threads: int) -> None:
        self.executor, self.seconds = executor, 0.0
        one_thread = device.type == "cpu" and threads == 1
        self.clock = time.process_time if one_thread else partial(synchronized, device)

    def train(self, clients: Sequence[Any], done: Callable[[], object]) -> None:
        started = self.clock()
        self.executor.train(clients, done)
        self.seconds += self.clock() - started

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executor, name)


class Ours:
    """A server of the framework with one of its executors, run round by round."""

    def __init__(self, setting: Setting, algorithm: str, executor: str) -> None:
        self.algorithm, self.executor = algorithm, executor
        experiment = setting.experiment(algorithm, executor)
        torch.set_num_threads(setting.args.num_threads)
        self.server = experiment.server()
        if self.server.own_loop:
            raise UsageError(f"{algorithm} brings its own round loop and cannot be measured")
        self.device, self.num_threads = self.server.device, setting.args.num_threads
        self.threads = self.num_threads * getattr(self.server.executor, "num_workers", 1)
        self.timed = self.server.executor = TimedTraining(self.server.executor, self.device, self.threads)
        self.rounds = self.server.each_round()

    def round(self) -> Timing:
        torch.set_num_threads(self.num_threads)
        before = self.timed.seconds
        next(self.rounds)
        return Timing(self.server.Budget[-1], self.timed.seconds - before)

    @property
    def samples(self) -> int:
        """Training samples of a round's participants."""
        return sum(client.train_samples for client in self.server.selected_clients)


class StandIn:
    """PFLlib's way, see pfllib_loop.py, with torch's own number of threads, which PFLlib leaves as it is."""

    executor = STAND_IN

    def __init__(self, setting: Setting, algorithm: str) -> None:
        self.algorithm, self.threads = algorithm, setting.args.torch_threads
        args = setting.experiment(algorithm, "loop").context()
        self.device, self.loop = args.device, PFLlibLoop(args)

    def round(self) -> Timing:
        torch.set_num_threads(self.threads)
        started = synchronized(self.device)
        self.loop.round()
        return Timing(synchronized(self.device) - started)


class Checkout:
    """A checkout of PFLlib, started anew for every turn: two rounds, of which its second counts.

    It is run from a temporary folder beside which it finds the data set and leaves its results, so that nothing in
    the checkout changes. Its networks are chosen by the name of the data set, which is therefore replaced.
    """

    executor = PFLLIB
    NAMES = {(1, 28, 28): "MNIST", (3, 32, 32): "Cifar10"}

    def __init__(self, setting: Setting, algorithm: str, folder: Path) -> None:
        self.algorithm, self.folder = algorithm, folder
        args = setting.experiment(algorithm, "loop").context()
        self.program = setting.args.pfllib / "system" / "main.py"
        if args.shape not in self.NAMES or args.model_name != "CNN":
            raise UsageError(
                f"--pfllib: PFLlib's CNN takes images of {' or '.join(map(str, self.NAMES))}, so only -m CNN and such "
                f"a data set can be compared; {setting.dataset} has {args.shape}"
            )
        name = f"{self.NAMES[args.shape]}-bench"
        (folder / "system").mkdir(parents=True, exist_ok=True)
        if not (folder / "dataset" / name).exists():
            (folder / "dataset").mkdir()
            found = (setting.data_dir / setting.dataset).resolve()
            try:
                (folder / "dataset" / name).symlink_to(found)
            except OSError:  # Windows lets few users make links
                shutil.copytree(found, folder / "dataset" / name)
        flags = f"-data {name} -m CNN -lbs {args.batch_size} -lr {args.local_learning_rate} -ls {args.local_epochs}"
        flags += f" -gr 1 -nc {args.num_clients} -ncl {args.num_classes} -jr 1.0 -dev {args.device.type}"
        self.command = [sys.executable, str(self.program), "-algo", *shlex.split(algorithm), *flags.split()]

    def round(self) -> Timing:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # its own flcore
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        done = subprocess.run(
            self.command, cwd=self.folder / "system", env=environment, capture_output=True, text=True, errors="replace"
        )
        shown = shlex.join(self.command[1:])
        if done.returncode:
            reason = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["it said nothing"]
            raise RunError(f"--pfllib: {shown} failed: {reason[0]}")
        return Timing(round_seconds(done.stdout, shown))


def round_seconds(output: str, command: str = "PFLlib") -> float:
    """Seconds of a round by what PFLlib printed: its last "time cost" line, else its average over all but the first."""
    costs = re.findall(r"time cost\s*-*\s*(\d+(?:\.\d*)?(?:e-?\d+)?)", output)
    average = re.findall(r"Average time cost per round\.\s*(\d+(?:\.\d*)?(?:e-?\d+)?)", output)
    if len(costs) > 1 or average:
        return float(costs[-1] if len(costs) > 1 else average[-1])
    raise RunError(f"--pfllib: {command} ended without a line 'time cost' or 'Average time cost per round.'")
