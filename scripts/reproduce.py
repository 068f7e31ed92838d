"""Runs what the paper's tables and figures need, and prints them beside the paper's margins.

    python scripts/reproduce.py table1                            at the size quick, hours on a laptop
    python scripts/reproduce.py all --preset smoke                minutes: does everything run?
    python scripts/reproduce.py table3 --preset paper             the paper's protocol, for a GPU
    python scripts/reproduce.py keep results/reproduction/quick   finished runs as records in experiments/records
    python scripts/reproduce.py page                              docs/results.md and its figures, made of the records

What is run stands in experiments/<name>.toml, how large in experiments/presets.toml. Runs that several tables need are
made once, and the same command goes on where it was ended.
"""

import argparse
import logging
import re
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

from flcore import sweep
from flcore.data.reading import DataSet
from flcore.experiment import Experiment
from flcore.hyperparams import user_path
from flcore.reporting.tables import as_markdown, as_text
from flcore.utils import console, interrupt
from flcore.utils.errors import RunError, UsageError, report
from flcore.utils.paths import DATASET, REPO, RESULTS
from flcore.utils.runs.files import write_text
from reproduction import records
from reproduction.plan import NAMES, PRESETS, Cell, make_data, read_plan
from reproduction.tables import figure, of_runs, tables

PAGE = REPO / "docs" / "results.md"
FIGURES = PAGE.parent / "figures"
PLACE = re.compile(r"<!-- (table|runs): (.+?) -->\n.*?<!-- end -->", re.DOTALL)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code: 1 where a run failed, 130 where somebody ended it."""
    args = _parser().parse_args(argv)
    with console.messages() as shown, interrupt.handled():
        shown.choose(logging.ERROR, None)  # the cells' own notes, many times the same
        try:
            if args.name == "page":
                write_text(PAGE, filled(PAGE.read_text(encoding="utf-8"), draw=True))
                return 0
            if args.name == "keep":
                found = [
                    path for each in args.results for path in (sorted(each.glob("*.h5")) if each.is_dir() else [each])
                ]
                print("\n".join(map(str, records.keep(found))))
                return 0
            return _reproduce(args)
        except KeyboardInterrupt as end:
            return interrupt.report(end)
        except Exception as error:
            return report(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name in (*NAMES, "all"):
        one = names.add_parser(name, help="every one of them" if name == "all" else read_plan(name, "paper").about)
        one.add_argument("--preset", choices=PRESETS, default="quick", help="the size (default: quick)")
        one.add_argument("--processes", type=int, metavar="N", help="runs at a time (default: one a core)")
        one.add_argument("--list", action="store_true", help="print the runs and the tables so far, and run none")
        one.add_argument("--data_dir", type=user_path, default=DATASET, help="where the data sets are made")
        one.add_argument("--results_dir", type=user_path, help="(default: results/reproduction/<preset>)")
        one.add_argument(
            "--source", action="append", default=[], metavar="NAME=PATH", help="images: Cifar100=~/cifar100.npz"
        )
    keep = names.add_parser("keep", help="keep finished runs as records in experiments/records")
    keep.add_argument("results", type=user_path, nargs="+", metavar="RESULT.h5", help="result files, or folders")
    names.add_parser("page", help="make docs/results.md and its figures of the records")
    return parser


def _reproduce(args: argparse.Namespace) -> int:
    started = time.time()
    if args.processes is not None and args.processes < 1:
        raise UsageError(f"--processes {args.processes}: at least 1")
    plans = [read_plan(name, args.preset) for name in (NAMES if args.name == "all" else [args.name])]
    folder = args.results_dir or RESULTS / "reproduction" / args.preset
    cells = list({str(cell.settings): cell for plan in plans for cell in plan.cells}.values())
    cells.sort(key=lambda cell: cell.settings["seed"])
    if args.list:
        print("\n".join(_words(cell) for cell in cells))
    else:
        make_data(cells, args.data_dir, _sources(args.source))
        places = {"data_dir": str(args.data_dir), "results_dir": str(folder)}
        runs = sweep.cells_of([cell.settings | places for cell in cells])
        processes = args.processes or sweep.processes_for(len(runs))
        there = records.found(cells, records.finished_runs(folder))
        print(estimate([cell for cell, run in zip(cells, there, strict=True) if not run], args.data_dir, processes))
        sweep.run_sweep(runs, processes)
        print("\n".join(sweep.summary(runs, time.time() - started)))
    for plan in plans:
        found = records.found(plan.cells, records.finished_runs(folder))
        print(f"\n{plan.name}, {plan.preset}: {plan.about}\n")
        print("\n\n".join(map(as_text, tables(plan, found))))
        if plan.figure and any(found):
            figure(plan, found, path := folder / f"{plan.name}.svg")
            print(f"\n{plan.figure}: {path}")
    return RunError.exit_code if not args.list and any(run.failed for run in runs) else 0


def _sources(words: Sequence[str]) -> dict[str, Path]:
    pairs = [word.partition("=") for word in words]
    for word, (_, sign, path) in zip(words, pairs, strict=True):
        if not sign or not user_path(path).exists():
            raise UsageError(f"--source {word}: NAME=PATH names the images and the file or folder that holds them")
    return {name: user_path(path) for name, _, path in pairs}


def _words(cell: Cell) -> str:
    return " ".join(f"{name}={value}" for name, value in cell.settings.items() if name not in ("goal", "eval_gap"))


def estimate(cells: Sequence[Cell], data_dir: Path, processes: int) -> str:
    """What the training of these cells will take, in words.

    Measured: one client of every method and data set trains for two rounds, and a cell takes as long as its images do.
    """
    a_sample, total = dict[str, float](), 0.0
    for cell in cells:
        settings = cell.settings
        sizes = [len(DataSet(settings["dataset"], data_dir).read(i)["y"]) for i in range(settings["num_clients"])]
        method = settings["algorithm"]
        if method not in a_sample:
            short = {
                "global_rounds": 2,
                "eval_gap": 2,
                "eval_clients": 1,
                "join_ratio": 1 / len(sizes),
                "results_dir": None,
            }
            kept = {name: value for name, value in settings.items() if name not in ("checkpoint_every", "goal")}
            arrays = Experiment(**kept | short, data_dir=str(data_dir), executor="loop").run().repeats[0].arrays
            ((_, joined),) = arrays["rs_joined_clients"][1:]
            a_sample[method] = arrays["rs_seconds"][1] / sizes[joined]
        total += a_sample[method] * sum(sizes) * settings["global_rounds"] * settings.get("join_ratio", 1.0)
    hours, minutes = divmod(round(total / processes / 60), 60)
    return (
        f"{len(cells)} runs to be made: their training takes about {hours} h {minutes:02} min in {processes} processes"
    )


def filled(page: str, draw: bool = False) -> str:
    """The page with what stands between ``<!-- table: NAME PRESET -->`` or ``<!-- runs: DATASET -->`` and
    ``<!-- end -->`` made anew of the records.

    draw: the tables' figures too, as docs/figures/<name>.svg.
    """
    kept = records.kept_runs()

    def made(place: re.Match[str]) -> str:
        kind, words = place.groups()
        if kind == "runs":
            text = as_markdown(of_runs([run for run in kept if run.dataset == words]))
        else:
            plan = read_plan(*words.split())
            found = records.found(plan.cells, kept)
            text = "\n\n".join([textwrap.fill(f"{plan.about}.", 100), *map(as_markdown, tables(plan, found))])
            if plan.figure:
                text += f"\n\n![{plan.name}](figures/{plan.name}.svg)"
                if draw:
                    figure(plan, found, FIGURES / f"{plan.name}.svg")
        return f"<!-- {kind}: {words} -->\n\n{text}\n\n<!-- end -->"

    return PLACE.sub(made, page)


if __name__ == "__main__":
    console.prepare()
    sys.exit(main())
