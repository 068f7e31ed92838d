"""Accuracy under attackers: the runs and tables of docs/robustness.md, redone by one command.

python scripts/robustness.py                     all of them, on the embedded digits; finished runs are kept
python scripts/robustness.py --algorithms FedAvg --rounds 3 --model CNN

Cells are the accuracy in percent at A after the last round, over the test samples of the clients that do not attack. A
run that ended because its numbers went wrong is "diverged".
"""

import argparse
import sys
from collections.abc import Sequence

from flcore.data.generate import generate
from flcore.experiment import Experiment
from flcore.hyperparams import user_path
from flcore.utils import console
from flcore.utils.errors import DivergedError, report
from flcore.utils.paths import RESULTS

ATTACKS = {
    "signflip": ("mean", "median", "trimmed", "krum"),
    "noise": ("mean", "median"),
    "labelflip": ("mean", "median"),
}
RATES = (0, 10, 20, 30)  # percent


def accuracy(args: argparse.Namespace, algorithm: str, attack: str, rate: int, aggregate: str) -> str:
    """One cell: runs the setting, or takes the finished run of the same settings and code."""
    settings = {"attack": attack, "attack_rate": rate / 100} if rate else {}
    goal = f"{attack}-{rate}-{aggregate}" if rate else f"none-{aggregate}"
    print(algorithm, goal, file=sys.stderr)
    try:
        result = Experiment(
            algorithm=algorithm,
            dataset="Digits",
            model=args.model,
            global_rounds=args.rounds,
            eval_gap=args.rounds,
            local_learning_rate=0.05,
            seed=args.seed,
            aggregate=aggregate,
            executor="loop",
            device="cpu",
            reuse=True,
            data_dir=args.folder / "data",
            results_dir=args.folder,
            goal=goal,
            **settings,
        ).run()
    except DivergedError:
        return "diverged"
    last = result.frame.iloc[-1].dropna()
    return f"{100 * last.get('benign_acc', last['test_acc']):.1f}"


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
    parser.add_argument("--folder", type=user_path, default=RESULTS / "robustness", help="data set and results")
    args = parser.parse_args(argv)
    try:
        generate("Digits", args.folder / "data" / "Digits", alpha=0.5, num_clients=20)
        print(tables(args))
    except Exception as error:
        return report(error)
    return 0


if __name__ == "__main__":
    console.prepare()
    sys.exit(main())
