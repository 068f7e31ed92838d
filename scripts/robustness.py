"""Accuracy under attackers: the runs and tables of docs/robustness.md, redone by one command.

python scripts/robustness.py                     all of them, on the embedded digits; finished runs are kept
python scripts/robustness.py --algorithms FedAvg --rounds 3 --model CNN

Cells are the accuracy in percent at A after the last round, over the test samples of the clients that do not attack. A
run that ended because its numbers went wrong is "diverged".
"""

import argparse
import contextlib
import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import main as command
from flcore.data.generate import generate
from flcore.utils.errors import RunError, UsageError
from flcore.utils.runs.read import read_run

RESULTS = Path(__file__).resolve().parents[1] / "results" / "robustness"
ATTACKS = {
    "signflip": ("mean", "median", "trimmed", "krum"),
    "noise": ("mean", "median"),
    "labelflip": ("mean", "median"),
}
RATES = (0, 10, 20, 30)  # percent


def accuracy(args: argparse.Namespace, algorithm: str, attack: str, rate: int, aggregate: str) -> str:
    """One cell: runs the setting, or takes the finished run of the same settings and code."""
    flags = ["-algo", algorithm, "-data", "Digits", "-m", args.model, "-gr", str(args.rounds), "-eg", str(args.rounds)]
    flags += ["-lr", "0.05", "-sd", str(args.seed), "--aggregate", aggregate, "-ex", "loop", "-dev", "cpu", "--reuse"]
    flags += ["--data_dir", str(args.folder / "data"), "--results_dir", str(args.folder)]
    if rate:
        flags += ["--attack", attack, "--attack_rate", str(rate / 100)]
    goal = f"{attack}-{rate}-{aggregate}" if rate else f"none-{aggregate}"
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = command.main([*flags, "-go", goal])
    print(f"{algorithm} {goal}: exit code {code}", file=sys.stderr)
    if code == RunError.exit_code and "diverged" in output.getvalue():
        return "diverged"
    if code:
        raise UsageError(output.getvalue())
    path = re.findall(r"^results: (.+?\.h5)(?: is finished.*)?$", output.getvalue(), re.MULTILINE)[-1]
    arrays = read_run(path).arrays
    return f"{100 * arrays.get('rs_benign_acc', arrays['rs_test_acc'])[-1]:.1f}"


def tables(args: argparse.Namespace) -> str:
    """A Markdown table for each attack."""
    cells: dict[tuple[str, ...], str] = {}  # without attackers the attack does not matter
    lines = []
    for attack, aggregates in ATTACKS.items():
        lines += ["", f"| {attack} | aggregate | {' | '.join(f'{rate} %' for rate in RATES)} |"]
        lines += ["|---" * (2 + len(RATES)) + "|"]
        for algorithm in args.algorithms:
            for aggregate in aggregates:
                row = []
                for rate in RATES:
                    key = (algorithm, aggregate, attack, str(rate)) if rate else (algorithm, aggregate)
                    if key not in cells:
                        cells[key] = accuracy(args, algorithm, attack, rate, aggregate)
                    row.append(cells[key])
                lines.append(f"| {algorithm} | {aggregate} | {' | '.join(row)} |")
    return "\n".join(lines[1:])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", default=["FedAvg", "FedRep", "FedCPD"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="DNN", help="network (default: DNN, which takes minutes in all; CNN: hours)")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="data set and results")
    args = parser.parse_args(argv)
    if not (args.folder / "data" / "Digits" / "config.json").exists():
        print(generate("Digits", args.folder / "data" / "Digits", alpha=0.5, num_clients=20))
    print(tables(args))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UsageError as error:
        print(f"robustness: {error}", file=sys.stderr)
        sys.exit(UsageError.exit_code)
