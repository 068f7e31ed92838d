"""What FedCPD's convergence statement says of a run: its constants estimated, its bounds beside what happened.

python scripts/convergence.py -data Digits -algo FedCPD -nc 20 -gr 10 --out convergence.csv

All flags of system/main.py set the run, which writes no result files. Constants: the largest among the clients
watched; bounds and measured changes of the loss: their mean. How to read it: docs/convergence.md
"""

import argparse
import csv
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flcore.convergence.estimates import Watch
from flcore.convergence.findings import Row, findings, row, table
from flcore.experiment import Experiment
from flcore.hyperparams import user_path
from flcore.observers import Terminal
from flcore.reporting.tables import as_text
from flcore.utils import console, interrupt
from flcore.utils.errors import UsageError, report
from flcore.utils.runs.files import whole_file, write_json
from flcore.utils.runs.provenance import run_info


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 for a run that failed, 2 for a mistake of the user, 130 for one that was interrupted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--watch", type=int, default=4, metavar="N", help="clients watched, the first ones (4)")
    parser.add_argument("--points", type=int, default=4, metavar="N", help="steps a round that are looked at (4)")
    parser.add_argument(
        "--power", type=int, default=3, metavar="N", help="steps of the power method for L1; 0: only secants (3)"
    )
    parser.add_argument("--out", type=user_path, metavar="FILE", help="one row a client and round: .csv, or .json")
    args, flags = parser.parse_known_args(argv)
    with console.messages(), interrupt.handled():
        try:
            run(args, flags)
        except KeyboardInterrupt as end:
            return interrupt.report(end)
        except Exception as error:
            return report(error)
    return 0


def run(args: argparse.Namespace, flags: Sequence[str]) -> None:
    if args.watch < 1 or args.points < 1 or args.power < 0:
        raise UsageError("--watch and --points must be at least 1, --power at least 0")
    if args.out and args.out.suffix not in (".csv", ".json"):
        raise UsageError(f"--out {args.out}: the name must end in .csv or .json")
    experiment = Experiment.from_argv(flags, writes=False)
    if experiment.method.name != "FedCPD":
        raise UsageError(f"the statement is FedCPD's: -algo FedCPD, not {experiment.method.name}")
    watch = Watch(range(args.watch), args.points, args.power)
    result = experiment.run([Terminal(), watch])
    if not watch.estimates:
        raise UsageError("nothing was seen: it takes a second round (-gr 2) and a client that trains in it")
    rows, words = [row(found) for found in watch.estimates], findings(watch.estimates)
    print(f"\n{as_text(table(rows))}\n")
    for paragraph in words:
        print(textwrap.fill(paragraph, 120, subsequent_indent="  "))
    if args.out:
        write(args.out, rows, words, result.settings)
        print(f"\nrows: {args.out}")


def write(path: Path, rows: Sequence[Row], words: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Rows as CSV, or as JSON together with the findings, the run's settings, versions and commit."""
    if path.suffix == ".json":
        write_json(path, run_info({"settings": settings, "findings": words, "rows": rows}))
        return
    with whole_file(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    console.prepare()
    sys.exit(main())
