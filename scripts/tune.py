"""Chooses settings by validation accuracy, with Optuna:  python scripts/tune.py FILE.toml --trials 30

    algorithm = "FedCPD"
    dataset = "Digits"
    validation = 0.2                        # of every client's training part; the test data are not touched

    [tune]
    cpd_align = { low = 0.1, high = 10.0, log = true }
    local_learning_rate = [0.005, 0.01, 0.05]

Other names are those of main.py's long flags. The study is on disk, so that the same command goes on.
"""

import argparse
import logging
import sys
from collections.abc import Sequence

from flcore import tuning
from flcore.hyperparams import user_path
from flcore.utils import console, interrupt
from flcore.utils.errors import UsageError, report


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=user_path, metavar="FILE.toml", help="the settings, and what is to be chosen")
    parser.add_argument("--trials", type=int, default=30, metavar="N", help="in all, with earlier ones (default: 30)")
    parser.add_argument(
        "--study", type=user_path, metavar="FILE.db", help="the study (default: FILE.db beside FILE.toml)"
    )
    args = parser.parse_args(argv)
    with console.messages() as shown, interrupt.handled():
        shown.choose(logging.WARNING, None)
        try:
            if args.trials < 1:
                raise UsageError(f"--trials {args.trials}: at least 1")
            plan = tuning.read_plan(args.file)
            study = tuning.study_of(plan, args.study or args.file.with_suffix(".db"))
            tuning.tune(plan, study, args.trials)
            command = tuning.best_command(plan, study)
        except KeyboardInterrupt as end:
            return interrupt.report(end)
        except Exception as error:
            return report(error)
    print(
        f"best of {args.trials}: validation accuracy {study.best_value:.4f}. Its test accuracy, in system/:\n{command}"
    )
    return 0


if __name__ == "__main__":
    console.prepare()
    sys.exit(main())
