"""The parts of the benchmark, each with its table: rounds, overhead, cost of FedCPD, scaling."""

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmark.contestants import STAND_IN, Checkout, Ours, Setting, StandIn
from benchmark.data import make_data
from benchmark.passes import Bare, matmul_rate, operations
from benchmark.pfllib_loop import can_run
from benchmark.turns import Json, ratio, take_turns

ROUNDS = 200  # of the FedCPD paper's runs, for the projection
WIDTHS = (16, 32, 64)  # of FedCPD's fusion
CLIENTS, EPOCHS = (10, 100, 1000), (1, 2, 4)  # of the scaling tables

Columns = Mapping[str, str | Callable[[Json], Any]]  # of a table: what each shows, or what gives it


def print_table(found: Sequence[Json], columns: Columns) -> None:
    """A Markdown table, to be pasted into docs/performance.md: a row for each of ``found``.

    columns: by their titles the name of what they show, or a function of the row; empty where there is none.
    """
    print("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for line in found:
        values = [line.get(what, "") if isinstance(what, str) else what(line) for what in columns.values()]
        print("| " + " | ".join(value if isinstance(value, str) else short(value) for value in values) + " |")
    print(flush=True)


def short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def rounds(setting: Setting, scratch: Path) -> Json:
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
    rates: dict[int, list[float]] = {contestant.threads: [] for contestant in ours}

    def between() -> None:
        for threads in rates:
            rates[threads].append(matmul_rate(threads, ours[0].device))

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
    names = dict.fromkeys(line["executor"] for line in found)
    columns: Columns = {
        **{"algorithm": "algorithm", "executor": "executor", "s / round": "median_seconds"},
        "lowest - highest": lambda line: f"{short(min(line['seconds']))} - {short(max(line['seconds']))}",
        f"{ROUNDS} rounds": lambda line: f"{short(line['projected_hours'])} h",
        "samples / s": "samples_per_second",
    }
    print_table(found, {**columns, **{f"x {name}": partial(_faster_than, name) for name in names}})
    for line in found:
        if "share_of_peak" in line:
            peak = statistics.median(line["peak_gflop_per_second"])
            print(
                f"roofline: {line['algorithm']}, {line['executor']}: {short(line['training_gflop'])} GFLOP of training "
                f"at {short(line['gflop_per_second'])} GFLOP/s, {line['share_of_peak']:.0%} of what a matrix product "
                f"reaches with {line['threads']} thread(s), {short(peak)} GFLOP/s"
            )
    return {"rounds": found}


def _faster_than(name: str, line: Json) -> Any:
    return line["times_faster_than"].get(name, "")


def overhead(setting: Setting) -> Json:
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


def flops(setting: Setting) -> Json:
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
    columns: Columns = {
        **{"algorithm": "algorithm", "GFLOP of training": "training_gflop"},
        "predicted x FedRep": lambda line: f"{line['predicted']:.2f}",
        "measured x FedRep": lambda line: f"{line['measured']:.2f}",
        "measured / predicted": lambda line: f"{line['measured'] / line['predicted']:.2f}",
    }
    print_table(found, columns)
    return {"flops": found}


def scaling(args: argparse.Namespace, scratch: Path) -> Json:
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
        columns: Columns = {
            **{title: lambda line: str(line["value"]), "algorithm": "algorithm", "executor": "executor"},
            **{"s / round": "median_seconds", "x first row": lambda line: f"{line['times_first']:.2f}"},
        }
        print_table(found[title], columns)
    return {"scaling": found}
