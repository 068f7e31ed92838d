"""Runs one federated algorithm on one data set:  python main.py -algo FedCPD -data Cifar100 -nc 20"""

from __future__ import annotations

import sys
import time

from flcore import registry
from flcore.experiment import Experiment
from flcore.utils import console, interrupt
from flcore.utils.errors import report
from flcore.utils.runs.read import print_best, read_accuracies


def main(argv: list[str] | None = None) -> int:
    """The exit code: 0, 1 for a run that failed, 2 for a mistake of the user, 130 for one that was interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    if "--list" in argv or argv[:2] == ["-algo", "help"]:
        print(registry.table())
        return 0
    started = time.time()
    with console.messages(), interrupt.handled():
        try:
            result = Experiment.from_argv(argv).run()
        except KeyboardInterrupt:
            return 130
        except Exception as error:
            return report(error)
    last = result.repeats[-1]
    if last.path:
        algorithm, dataset, goal = (last.info[name] for name in ("algorithm", "dataset", "goal"))
        print_best(read_accuracies(last.path.parent, dataset, algorithm, goal, last.repeat + 1))
    print(f"total time {time.time() - started:.1f} s")
    return 0


if __name__ == "__main__":
    console.replace_missing_signs()
    sys.exit(main())
