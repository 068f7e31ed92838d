"""Runs one federated algorithm on one data set:  python main.py -algo FedCPD -data Cifar100 -nc 20"""

import logging
import sys

from flcore import registry
from flcore.experiment import Experiment
from flcore.observers import Terminal
from flcore.utils import console, interrupt
from flcore.utils.errors import report


def main(argv: list[str] | None = None) -> int:
    """The exit code: 0, 1 for a run that failed, 2 for a mistake of the user, 130 for one that was interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    if "--list" in argv or argv[:2] == ["-algo", "help"]:
        print(registry.table())
        return 0
    with console.messages() as logger, interrupt.handled():
        try:
            experiment = Experiment.from_argv(argv)
            quiet, verbose = (experiment.values[name] for name in ("quiet", "verbose"))
            logger.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
            experiment.run([Terminal(quiet)])
        except KeyboardInterrupt:
            return 130
        except Exception as error:
            return report(error)
    return 0


if __name__ == "__main__":
    console.replace_missing_signs()
    sys.exit(main())
