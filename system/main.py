"""Runs one federated algorithm on one data set:  python main.py -algo FedCPD -data Cifar100 -nc 20"""

import logging
import sys

from flcore import registry
from flcore.data.ensure import known_datasets
from flcore.experiment import Experiment
from flcore.observers import Terminal
from flcore.utils import console, interrupt
from flcore.utils.errors import UsageError, report

# what a bare `python main.py` says
FIRST_STEPS = """What to type:
  python main.py -algo FedCPD -data Digits -gr 20     FedCPD on the embedded digits, in about a minute
  python main.py -algo FedAvg -data Digits -gr 20     a baseline; python ../scripts/report.py ../results compares
  python main.py -algo FedCPD --help                  FedCPD's settings, then all other flags
  python main.py --list                               all methods
Methods: {methods}
Data sets: {datasets}"""


def main(argv: list[str] | None = None) -> int:
    """The exit code: 0, 1 for a run that failed, 2 for a mistake of the user, 130 for one that was interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    if "--list" in argv or argv[:2] == ["-algo", "help"]:
        print(registry.table())
        return 0
    if not argv:
        methods = ", ".join(method.name for method in registry.METHODS)
        print(FIRST_STEPS.format(methods=methods, datasets=", ".join(known_datasets())))
        return UsageError.exit_code
    with console.messages() as shown, interrupt.handled():
        try:
            experiment = Experiment.from_argv(argv)
            quiet, verbose, log = (experiment.values[name] for name in ("quiet", "verbose", "log"))
            shown.choose(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO, log)
            experiment.run([Terminal(quiet)])
        except KeyboardInterrupt as end:
            return interrupt.report(end)
        except Exception as error:
            return report(error)
    return 0


if __name__ == "__main__":
    console.prepare()
    sys.exit(main())
