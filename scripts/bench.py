"""Measures the speed of a round: our executors against each other, against PFLlib's way, and against the machine.

python scripts/bench.py                                     executors and a stand-in for PFLlib's loop, made-up data
python scripts/bench.py -data Cifar100 --pfllib ~/PFLlib    the same on your data, and against a checkout of PFLlib
python scripts/bench.py --overhead --flops --scaling        where the time goes, what FedCPD costs, how cost grows

What is compared runs in turns, A B C A B C ..., so that a busy moment of the machine hits all alike; the first turn
warms up and does not count; numbers are medians over the turns, and ratios are medians of the turns' own ratios. A
round is what `RoundLoop.train` takes for one: select, send, score at A, train, score at B, receive, aggregate.

Overhead is the share of a round of the loop executor that is spent outside forward and backward passes. The passes are
measured by themselves: the same losses, gradients and predictions, on the same batches and weights, gathered
beforehand, with nothing around them (no shuffling, no step, no averaging, no AUC), in turns with whole rounds.

Floating-point operations are counted by torch.utils.flop_counter (matrix products and convolutions), one pass of each
shape, times the number of passes. docs/performance.md explains every line.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

from flcore.data.partition import gather, partition, split_data
from flcore.data.writing import pfllib_settings, write_dataset
from flcore.experiment import EXECUTORS, Experiment
from flcore.trainmodel.build import known_model
from flcore.utils.cli import resolve_device
from flcore.utils.errors import RunError, UsageError
from flcore.utils.mem_utils import peak_memory
from flcore.utils.paths import REPO
from flcore.utils.runs.files import whole_file, write_json
from flcore.utils.runs.provenance import run_info
from flcore.utils.seeds import numpy_generator
from pfllib_loop import PFLlibLoop, can_run

STAND_IN, PFLLIB = "pfllib-loop", "pfllib"  # beside the executors' own names
MADE_UP = "made-up data"
ROUNDS = 200  # of the FedCPD paper's runs, for the projection
WIDTHS = (16, 32, 64)  # of FedCPD's fusion
CLIENTS, EPOCHS = (10, 100, 1000), (1, 2, 4)  # of the scaling tables

Json = dict[str, Any]


# ---- data ------------------------------------------------------------------------------------------------------------


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


# ---- what is measured ------------------------------------------------------------------------------------------------


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


class Ours:
    """A server of the framework with one of its executors, run round by round through its own `RoundLoop.train`."""

    def __init__(self, setting: Setting, algorithm: str, executor: str) -> None:
        self.algorithm, self.executor = algorithm, executor
        experiment = setting.experiment(algorithm, executor)
        torch.set_num_threads(experiment.values["num_threads"])
        self.server = experiment.server()
        self.args = self.server.args
        if self.server.has_own_loop():
            raise UsageError(f"{algorithm} brings its own round loop and cannot be measured")
        runs = self.server.executor
        self.threads = self.args.num_threads * getattr(runs, "num_workers", 1)
        self._train = runs.train
        runs.train = self._timed_train
        self.number = 0
        self.server.progress = tqdm(disable=True)
        self.server.rounds = lambda: [self.number]
        self.server.end_round = self.server.finish = lambda: None  # files and lines for a reader, not part of a round

    def _timed_train(self, clients: Sequence[Any], done: Callable[[], object]) -> None:
        started = synchronized(self.args.device)
        self._train(clients, done)
        self.training += synchronized(self.args.device) - started  # a large round comes in parts

    def round(self) -> Timing:
        torch.set_num_threads(self.args.num_threads)
        self.training = 0.0
        self.server.train()
        self.number += 1
        return Timing(self.server.Budget[-1], self.training)

    @property
    def samples(self) -> int:
        """Training samples of a round's participants."""
        return sum(client.train_samples for client in self.server.selected_clients)


class StandIn:
    """PFLlib's way, see pfllib_loop.py, with torch's own number of threads, which PFLlib leaves as it is."""

    executor = STAND_IN

    def __init__(self, setting: Setting, algorithm: str) -> None:
        self.algorithm, self.threads = algorithm, setting.args.standin_threads
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
        if args.shape not in self.NAMES or known_model(setting.args.model) != "CNN":
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
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
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


# ---- passes: what the mathematics asks for ---------------------------------------------------------------------------


class Pass(NamedTuple):
    """One forward (and backward) pass. Those of one kind and shape take the same operations."""

    kind: str  # training or evaluation
    shape: tuple[Any, ...]
    run: Callable[[], object]


def passes(client: Any) -> Iterator[Pass]:
    """All passes of one client's round, on its own batches and its present weights, to be run one by one."""
    hp = client.round_hp()
    params = {name: value.clone() for name, value in client.params.items()}
    x, y = client.data
    batches, draws = client.load_train_data(), client.draws()
    for number, phase in enumerate(client.phases(hp)):
        loss_of = phase.loss or client.local_loss
        moving = {name: params[name].requires_grad_() for name in client.moving(phase)}
        inputs = batches
        if phase.on_features:
            inputs = batches.over(client.forward.in_batches(params, x))
            yield Pass("training", ("features", len(y)), partial(client.forward.in_batches, params, x))
        client.forward.set_training(phase.moves)

        def step(x: torch.Tensor, y: torch.Tensor, state: Any, moving: Any = moving, loss_of: Any = loss_of) -> None:
            loss = loss_of(client.forward, params, x, y, client.shared, state, hp)
            torch.autograd.grad(loss, list(moving.values()), allow_unused=True)

        for x_batch, y_batch in list(client._steps(inputs, phase)):
            drawn = client.local_draw(draws, client.forward, len(y_batch), hp)
            state = client.state | {name: value.to(client.device) for name, value in drawn.items()}
            yield Pass("training", (number, len(y_batch)), partial(step, x_batch, y_batch, state))
        for value in moving.values():
            value.requires_grad_(False)
    end = partial(client.local_end, client.forward, params, client.data, client.shared, client.state, hp)
    yield Pass("training", ("end", len(y)), end)
    for _ in ("A", "B"):
        yield Pass("evaluation", (client.test_samples,), partial(client.scores, is_train=False))


class Bare:
    """Only the passes of a round, in turns with the rounds of ``ours``."""

    executor = "passes alone"

    def __init__(self, ours: Ours) -> None:
        self.ours, self.algorithm = ours, ours.algorithm

    def round(self) -> Timing:
        device, seconds = self.ours.args.device, dict.fromkeys(("training", "evaluation"), 0.0)
        torch.set_num_threads(self.ours.args.num_threads)
        for client in self.ours.server.clients:
            for one in passes(client):
                started = synchronized(device)
                one.run()
                seconds[one.kind] += synchronized(device) - started
        return Timing(sum(seconds.values()), seconds["training"])


def operations(ours: Ours) -> dict[str, int]:
    """Floating-point operations of one round, by the kind of pass, after at least one round was run."""
    known: dict[tuple[Any, ...], int] = {}
    total = Counter[str]()
    for client in ours.server.clients:
        for one in passes(client):
            key = (one.kind, one.shape)
            if key not in known:
                with FlopCounterMode(display=False) as counter:
                    one.run()
                known[key] = counter.get_total_flops()
            total[one.kind] += known[key]
    return dict(total)


def matmul_rate(threads: int, device: torch.device) -> float:
    """The machine's own peak: GFLOP/s of the best of ten products of large float32 matrices."""
    torch.set_num_threads(threads)
    size = 1024 if device.type == "cpu" else 8192
    a, b = torch.rand(2, size, size, device=device)
    best = float("inf")
    for _ in range(10):
        started = synchronized(device)
        torch.mm(a, b)
        best = min(best, synchronized(device) - started)
    return 2 * size**3 / best / 1e9


# ---- turns and what they tell ----------------------------------------------------------------------------------------


@dataclass
class Measured:
    """The counted turns of one contestant."""

    contestant: Any
    timings: list[Timing] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        return [timing.round for timing in self.timings]

    @property
    def training(self) -> list[float]:
        return [timing.training for timing in self.timings]

    def summary(self) -> Json:
        label = {"algorithm": self.contestant.algorithm, "executor": self.contestant.executor}
        return label | {"seconds": self.seconds, "median_seconds": statistics.median(self.seconds)}


def take_turns(
    contestants: Sequence[Contestant], repetitions: int, between: Callable[[], object] = lambda: None
) -> list[Measured]:
    """Runs one round of each contestant in turn, ``repetitions`` times after a first turn that does not count."""
    measured = [Measured(contestant) for contestant in contestants]
    for turn in range(repetitions + 1):
        for one in measured:
            timing = one.contestant.round()
            if turn:
                one.timings.append(timing)
            name = f"{one.contestant.algorithm}, {one.contestant.executor}"
            print(f"  {f'turn {turn}/{repetitions}' if turn else 'warm-up'}  {name}: {timing.round:.3f} s", flush=True)
        if turn:
            between()
    return measured


def ratio(first: Sequence[float], second: Sequence[float]) -> float:
    """The median of first / second, turn by turn."""
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A Markdown table, to be pasted into docs/performance.md."""
    print("\n| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def bench_rounds(setting: Setting, scratch: Path) -> Json:
    """Seconds a round of each pair of algorithm and executor, ratios, and the roofline."""
    args = setting.args
    contestants: list[Any] = []
    for algorithm in args.algorithms:
        for executor in args.executors:
            if executor != STAND_IN:
                contestants.append(Ours(setting, algorithm, executor))
            elif can_run(setting.experiment(algorithm, "loop").values):
                contestants.append(StandIn(setting, algorithm))
            else:
                print(f"note: the stand-in for PFLlib's loop does not know {algorithm}")
        if args.pfllib:
            contestants.append(Checkout(setting, algorithm, scratch / "pfllib"))
    ours = [contestant for contestant in contestants if isinstance(contestant, Ours)]
    device = resolve_device(args, say=lambda text: None)
    rates: dict[int, list[float]] = {contestant.threads: [] for contestant in ours}

    def between() -> None:
        for threads in rates:
            rates[threads].append(matmul_rate(threads, device))

    measured = take_turns(contestants, args.repetitions, between)
    found: list[Json] = []
    counted = {one.algorithm: operations(one) for one in {one.algorithm: one for one in ours}.values()}
    samples = {one.contestant.algorithm: one.contestant.samples for one in measured if isinstance(one.contestant, Ours)}
    for one in measured:
        others = [other for other in measured if other.contestant.algorithm == one.contestant.algorithm]
        line = one.summary()
        line["times_faster_than"] = {
            other.contestant.executor: ratio(other.seconds, one.seconds) for other in others if other is not one
        }
        line["projected_hours"] = ROUNDS * line["median_seconds"] / 3600
        if one.contestant.algorithm in samples:
            line["samples_per_second"] = samples[one.contestant.algorithm] / line["median_seconds"]
        if isinstance(one.contestant, Ours):
            gflop = counted[one.contestant.algorithm]["training"] / 1e9
            peaks = rates[one.contestant.threads]
            line["threads"], line["training_seconds"] = one.contestant.threads, one.training
            line["training_gflop"], line["peak_gflop_per_second"] = gflop, peaks
            line["gflop_per_second"] = gflop / statistics.median(one.training)
            line["share_of_peak"] = statistics.median(
                gflop / seconds / peak for seconds, peak in zip(one.training, peaks, strict=True)
            )
        found.append(line)
    names = list(dict.fromkeys(line["executor"] for line in found))
    titles = ["algorithm", "executor", "s / round", "lowest - highest", f"{ROUNDS} rounds", "samples / s"]
    print_table(
        [*titles, *(f"x {name}" for name in names)],
        [
            [
                line["algorithm"],
                line["executor"],
                short(line["median_seconds"]),
                f"{short(min(line['seconds']))} - {short(max(line['seconds']))}",
                f"{short(line['projected_hours'])} h",
                short(line["samples_per_second"]) if "samples_per_second" in line else "",
                *(short(line["times_faster_than"][n]) if n in line["times_faster_than"] else "" for n in names),
            ]
            for line in found
        ],
    )
    for line in found:
        if "share_of_peak" in line:
            peak = statistics.median(line["peak_gflop_per_second"])
            print(
                f"roofline: {line['algorithm']}, {line['executor']}: {short(line['training_gflop'])} GFLOP of training "
                f"at {short(line['gflop_per_second'])} GFLOP/s, {line['share_of_peak']:.0%} of what a matrix product "
                f"reaches with {line['threads']} thread(s), {short(peak)} GFLOP/s"
            )
    return {"rounds": found}


def bench_overhead(setting: Setting) -> Json:
    """Share of a round outside forward and backward passes, loop executor."""
    found = []
    for algorithm in setting.args.algorithms:
        ours = Ours(setting, algorithm, "loop")
        whole, bare = take_turns([ours, Bare(ours)], setting.args.repetitions)
        share = 1 - ratio(bare.seconds, whole.seconds)
        training = 1 - ratio(bare.training, whole.training)
        found.append(whole.summary() | {"passes_seconds": bare.seconds, "overhead": share, "in_training": training})
        print(
            f"overhead: {algorithm}: {share:.1%} of a round ({short(statistics.median(whole.seconds))} s) are outside "
            f"forward and backward passes; of the training alone {training:.1%}"
        )
    return {"overhead": found}


def bench_flops(setting: Setting) -> Json:
    """What FedCPD's training costs over FedRep's: by counted operations and as measured, for each fusion width."""
    algorithms = ["FedRep", "FedCPD --cpd_fd 0", *(f"FedCPD --cpd_width {width}" for width in WIDTHS)]
    executor = next((name for name in setting.args.executors if name != STAND_IN), "loop")
    measured = take_turns([Ours(setting, name, executor) for name in algorithms], setting.args.repetitions)
    counted = [operations(one.contestant)["training"] for one in measured]
    found = [
        one.summary()
        | {
            "training_gflop": count / 1e9,
            "predicted": count / counted[0],
            "measured": ratio(one.training, measured[0].training),
        }
        for one, count in zip(measured, counted, strict=True)
    ]
    print_table(
        ["algorithm", "GFLOP of training", "predicted x FedRep", "measured x FedRep", "measured / predicted"],
        [
            [
                line["algorithm"],
                short(line["training_gflop"]),
                *(f"{value:.2f}" for value in (line["predicted"], line["measured"])),
                f"{line['measured'] / line['predicted']:.2f}",
            ]
            for line in found
        ],
    )
    return {"flops": found}


def bench_scaling(args: argparse.Namespace, scratch: Path) -> Json:
    """Seconds a round over the number of clients, samples and local epochs; in each table all else is fixed."""
    few = args.samples // 4
    tables = {
        "clients": [(count, count, args.samples, "") for count in CLIENTS],
        "samples": [(count, args.clients, count, "") for count in (few, 2 * few, 4 * few)],
        "local epochs": [(count, args.clients, few, f" -ls {count}") for count in EPOCHS],
    }
    pairs = [(algorithm, name) for algorithm in args.algorithms for name in args.executors if name != STAND_IN]
    found: Json = {}
    for title, rows in tables.items():
        contestants = []
        for _, clients, samples, flags in rows:
            data = make_data(scratch, clients, samples, args.classes, args.shape, args.seed, equal=True)
            contestants += [Ours(Setting(args, *data), algorithm + flags, name) for algorithm, name in pairs]
        measured = take_turns(contestants, args.repetitions)
        found[title] = []
        for index, one in enumerate(measured):
            value, base = rows[index // len(pairs)][0], measured[index % len(pairs)]
            line = one.summary() | {"value": value, "times_first": ratio(one.seconds, base.seconds)}
            line["algorithm"], line["executor"] = pairs[index % len(pairs)]
            found[title].append(line)
        print_table(
            [title, "algorithm", "executor", "s / round", "x first row"],
            [
                [
                    str(line["value"]),
                    line["algorithm"],
                    line["executor"],
                    short(line["median_seconds"]),
                    f"{line['times_first']:.2f}",
                ]
                for line in found[title]
            ],
        )
    return {"scaling": found}


# ---- results ---------------------------------------------------------------------------------------------------------


def processor() -> str:
    """The name of the processor, as far as the system tells."""
    try:
        names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def draw(result: Mapping[str, Any], out: Path) -> None:
    """Writes a PNG: bars of seconds a round, predicted against measured cost, and the scaling curves."""
    import matplotlib

    matplotlib.use("Agg")  # a file only, so no display is needed
    import matplotlib.pyplot as plt

    scaling = result.get("scaling", {})
    shown = [key for key in ("rounds", "flops") if key in result] + list(scaling)
    if not shown:
        return
    figure, panels = plt.subplots(1, len(shown), figsize=(5.5 * len(shown), 4.2), squeeze=False, layout="constrained")
    for panel, key in zip(panels[0], shown, strict=True):
        if key == "rounds":
            lines = result["rounds"]
            panel.barh([f"{line['algorithm']}, {line['executor']}" for line in lines], _medians(lines), color="#0072B2")
            panel.invert_yaxis()
            panel.set_xlabel("seconds a round (median)")
        elif key == "flops":
            for name, colour, shift in (("predicted", "#56B4E9", -0.2), ("measured", "#0072B2", 0.2)):
                places = np.arange(len(result["flops"])) + shift
                panel.barh(places, [line[name] for line in result["flops"]], 0.4, color=colour, label=name)
            panel.set_yticks(range(len(result["flops"])), [line["algorithm"] for line in result["flops"]])
            panel.invert_yaxis()
            panel.set_xlabel("cost of training, times FedRep's")
            panel.legend(frameon=False)
        else:
            for pair in dict.fromkeys((line["algorithm"], line["executor"]) for line in scaling[key]):
                lines = [line for line in scaling[key] if (line["algorithm"], line["executor"]) == pair]
                panel.plot([line["value"] for line in lines], _medians(lines), marker="o", label=", ".join(pair))
            panel.set_xlabel(key)
            panel.set_ylabel("seconds a round (median)")
            values = list(dict.fromkeys(line["value"] for line in scaling[key]))
            panel.set_xscale("log" if key == "clients" else "linear")
            panel.set_xticks(values, map(str, values))
            panel.minorticks_off()
            panel.set_ylim(bottom=0)
            panel.legend(frameon=False)
        panel.spines[["top", "right"]].set_visible(False)
    with whole_file(out) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
    plt.close(figure)


def _medians(lines: Sequence[Mapping[str, Any]]) -> list[float]:
    return [line["median_seconds"] for line in lines]


# ---- the command -----------------------------------------------------------------------------------------------------


def at_least_1(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")
    return value


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    executors = [*EXECUTORS, STAND_IN]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    what = parser.add_argument_group("what to measure (without any of these: --rounds)")
    what.add_argument("--rounds", action="store_true", help="seconds a round, ratios, roofline")
    what.add_argument("--overhead", action="store_true", help="share of a round outside forward and backward")
    what.add_argument("--flops", action="store_true", help="FedCPD's cost over FedRep's, counted and measured")
    what.add_argument("--scaling", action="store_true", help="over clients, samples and local epochs, on made-up data")
    add(
        "--algorithms",
        nargs="+",
        default=["FedAvg", "FedRep", "FedCPD --cpd_fd 0"],
        metavar="NAME",
        help="algorithms, with flags of their own in quotation marks (FedAvg FedRep 'FedCPD --cpd_fd 0')",
    )
    add("--executors", nargs="+", choices=executors, default=executors, help="what runs them (all)")
    add("--repetitions", type=at_least_1, default=5, help="turns that count (5)")
    add("--pfllib", type=Path, metavar="DIR", help="a checkout of PFLlib to compare with")
    add("-data", "--dataset", help="a data set; without it, images are made up")
    add("--data_dir", type=Path, default=REPO / "dataset", help="folder of the data sets")
    add("--clients", type=at_least_1, default=20, help="clients of the made-up data (20)")
    add("--samples", type=at_least_1, default=12_000, help="images of the made-up data (12000)")
    add("--classes", type=at_least_1, default=100, help="classes of the made-up data (100)")
    add("--shape", type=at_least_1, nargs="+", default=[3, 32, 32], help="an image of the made-up data (3 32 32)")
    add("-m", "--model", default="CNN", help="model (CNN)")
    add("-lbs", "--batch_size", type=at_least_1, default=10, help="samples in a batch (10)")
    add("-lr", "--lr", type=float, default=0.01, help="learning rate (0.01)")
    add("-sd", "--seed", type=int, default=0, help="seed of data, weights and batches (0)")
    add("-dev", "--device", default="auto", help="auto, cpu, cuda, cuda:N (auto)")
    add("--num_threads", type=at_least_1, default=1, help="threads inside one operation of ours (1)")
    threads = torch.get_num_threads()
    add("--standin_threads", type=at_least_1, default=threads, help=f"and of {STAND_IN} (torch's own, here {threads})")
    add(
        "--out",
        type=Path,
        default=REPO / "results" / "bench.json",
        metavar="FILE.json",
        help="results; a .png beside it",
    )
    args = parser.parse_args(argv)
    args.device_id, args.given = "0", frozenset()
    args.rounds = args.rounds or not (args.overhead or args.flops or args.scaling)
    if args.pfllib and not (args.pfllib / "system" / "main.py").is_file():
        parser.error(f"argument --pfllib: there is no system/main.py in {args.pfllib}; name the folder of a checkout")
    for algorithm in args.algorithms:
        try:
            if not shlex.split(algorithm):
                parser.error("argument --algorithms: one of the names is empty")
        except ValueError as error:
            parser.error(f"argument --algorithms: {algorithm}: {error}")
    if args.out.suffix != ".json":
        parser.error(f"argument --out: must end in .json, not {args.out.name}")
    if args.clients * 8 > args.samples and not args.dataset:
        parser.error(f"argument --samples: {args.samples} are too few for {args.clients} clients")
    if args.scaling and args.samples < 8 * max(CLIENTS):
        parser.error(f"argument --samples: --scaling needs at least {8 * max(CLIENTS)} for {max(CLIENTS)} clients")
    args.pfllib = args.pfllib and args.pfllib.resolve()
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = read_arguments(argv)
    words = sys.argv[1:] if argv is None else argv
    try:
        with tempfile.TemporaryDirectory(prefix="bench") as folder:
            run(args, f"python scripts/bench.py {shlex.join(words)}".strip(), Path(folder))
    except (UsageError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: {error.filename or ''}: {error.strerror}", file=sys.stderr)
        return UsageError.exit_code
    except KeyboardInterrupt:
        print("interrupted; what was finished is in the result file", file=sys.stderr)
        return 130
    return 0


def run(args: argparse.Namespace, command: str, scratch: Path) -> None:
    """All parts that are asked for; the file is written after each."""
    if args.dataset:
        setting = Setting(args, args.data_dir, args.dataset)
    else:
        print(f"data: {args.samples} images, {args.clients} clients, made up", flush=True)
        setting = Setting(args, *make_data(scratch, args.clients, args.samples, args.classes, args.shape, args.seed))
    for algorithm in args.algorithms:  # a mistake is refused before anything is measured
        checked = setting.experiment(algorithm, "loop").context()
    data = {name: getattr(checked, name) for name in ("num_clients", "num_classes", "shape", "data_digest")}
    about = {"command": command, "arguments": vars(args), "seed": args.seed}
    result = run_info(about | {"data": {"name": args.dataset or MADE_UP} | data})
    result |= {"processor": processor(), "cores": os.cpu_count(), "device": str(checked.device)}
    write_json(args.out, result)
    parts: dict[str, Callable[[], Json]] = {
        "rounds": lambda: bench_rounds(setting, scratch),
        "overhead": lambda: bench_overhead(setting),
        "flops": lambda: bench_flops(setting),
        "scaling": lambda: bench_scaling(args, scratch),
    }
    for name, part in parts.items():
        if getattr(args, name):
            print(f"== {name}", flush=True)
            result |= part() | {"peak_memory_bytes": peak_memory()}
            write_json(args.out, result)
    draw(result, args.out.with_suffix(".png"))
    print(f"results: {args.out}")


if __name__ == "__main__":
    sys.exit(main())
