"""Finished runs as small files in records/, and the tables of docs/evidence.md, which are made of them alone.

    python experiments/records.py add RESULT.h5 ... --evaluated_on validation
    python experiments/records.py write

A record holds what was given on the command line, commit, seed, digest of the data, and the curves.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from flcore.utils.errors import UsageError, report
from flcore.utils.runs.files import write_text
from flcore.utils.runs.read import read_run

FOLDER = Path(__file__).resolve().parent / "records"
PAGE = FOLDER.parents[1] / "docs" / "evidence.md"
CURVES = {"A": "rs_test_acc", "B": "rs_test_acc_after", "test_std": "rs_test_std", "train_loss": "rs_train_loss"}
NOT_KEPT = ("results_dir", "data_dir", "state_dir", "checkpoint_every", "resume", "overwrite", "reuse")  # of a machine
COMMON = ("algorithm", "dataset", "num_clients", "global_rounds", "eval_gap", "goal", "seed")  # said elsewhere

Record = dict[str, Any]


def record_of(path: Path, evaluated_on: str) -> Record:
    """What is kept of a result file.

    Raises:
        UsageError: the run has not finished, or says nothing of itself.
    """
    run = read_run(path)
    if run.status != "finished":
        raise UsageError(f"{path}: the run is {run.status or 'without a run.json'}; only finished ones are recorded")
    info, values = run.info, {**run.info["arguments"], **run.info["settings"], "goal": run.goal}
    curves = {"round": run.arrays["rs_round"].tolist()}
    curves |= {name: np.round(run.arrays[key], 5).tolist() for name, key in CURVES.items() if key in run.arrays}
    return {
        "name": run.goal,
        "status": run.status,
        "commit": info["commit"],
        "torch": info["versions"]["torch"],
        "seed": info["settings"]["seed"],
        "given": {name: values[name] for name in info["given"] if name in values and name not in NOT_KEPT},
        "data_digest": info["settings"]["data_digest"],
        "evaluated_on": evaluated_on,
        **curves,
    }


def all_records() -> list[Record]:
    return [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]


def setting(record: Record) -> str:
    """The run's method with the flags that are its own."""
    own = {name: value for name, value in record["given"].items() if name not in COMMON}
    flags = " ".join(
        f"--{name} {value:g}" if isinstance(value, float) else f"--{name} {value}" for name, value in own.items()
    )
    return f"{record['given']['algorithm']}{f' `{flags}`' if flags else ''}"


def at(record: Record, curve: str, number: int) -> str:
    """The accuracy in percent of one round; empty where it was not scored."""
    rounds = record["round"]
    place = rounds.index(number) if number in rounds else len(rounds)
    return f"{100 * record[curve][place]:.1f}" if place < len(record[curve]) else ""


def table(records: list[Record]) -> str:
    """One line a run, the best at the end first."""
    last = max(record["round"][-1] for record in records)
    before = max(number for record in records for number in record["round"] if number < last)
    rows = [
        f"| run | A, round 30 | A, round 60 | A, round {last} | B, round {before} | commit |",
        "|---|---|---|---|---|---|",
    ]
    for record in sorted(records, key=lambda one: -one["A"][-1]):
        numbers = [at(record, "A", number) for number in (30, 60, last)] + [at(record, "B", before)]
        link = f"[{setting(record)}](../experiments/records/{record['name']}.json)"
        rows.append(f"| {link} | {' | '.join(numbers)} | {record['commit'][:7]} |")
    return "\n".join(rows)


def filled(page: str, records: list[Record]) -> str:
    """The page with its tables made anew: each stands between ``<!-- records: KIND -->`` and ``<!-- end -->``."""
    parts = page.split("<!-- records: ")
    for number, part in enumerate(parts[1:], 1):
        kind, _, rest = part.partition(" -->")
        _, _, after = rest.partition("<!-- end -->")
        chosen = [record for record in records if record["evaluated_on"] == kind]
        parts[number] = f"{kind} -->\n\n{table(chosen)}\n\n<!-- end -->{after}"
    return "<!-- records: ".join(parts)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add", help="keep finished runs as records")
    add.add_argument("results", type=Path, nargs="+", metavar="RESULT.h5")
    add.add_argument("--evaluated_on", required=True, choices=("validation", "test"))
    commands.add_parser("write", help="make the tables of docs/evidence.md anew")
    args = parser.parse_args(argv)
    try:
        if args.command == "add":
            for path in args.results:
                record = record_of(path, args.evaluated_on)
                write_text(FOLDER / f"{record['name']}.json", json.dumps(record, indent=1) + "\n")
        else:
            write_text(PAGE, filled(PAGE.read_text(), all_records()))
    except UsageError as error:
        return report(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
