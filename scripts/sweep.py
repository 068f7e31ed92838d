"""Runs every combination of the settings in a TOML file, in several processes:  python scripts/sweep.py FILE.toml

    dataset = "Digits"                      # one value: the same in every run
    seed = [0, 1, 2]                        # a list: each of them

    [[runs]]                                # tables, if there are any: the runs, each with what stands above
    algorithm = ["FedAvg", "FedRep"]

    [[runs]]
    algorithm = "FedCPD"
    cpd_align = [1.0, 5.0]

Names are those of main.py's long flags. Finished runs are kept: started again, a sweep goes on.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence

from flcore import sweep
from flcore.hyperparams import user_path
from flcore.utils import console, interrupt
from flcore.utils.errors import RunError, UsageError, report
from flcore.utils.paths import RESULTS


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code: 1 where a run failed, 130 where somebody ended it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=user_path, metavar="FILE.toml", help="the settings")
    parser.add_argument(
        "--processes", type=int, metavar="N", help="runs at a time (default: one a core, or one on a GPU)"
    )
    parser.add_argument("--ray", action="store_true", help="as tasks of a Ray cluster, on all its machines")
    parser.add_argument("--ray_address", metavar="HOST:PORT", help="of the cluster, or auto (default: this machine)")
    parser.add_argument("--cores", type=float, default=1.0, metavar="N", help="with --ray: of a run (default: 1)")
    parser.add_argument("--gpus", type=float, default=0.0, metavar="N", help="with --ray: of a run, such as 0.5")
    parser.add_argument("--list", action="store_true", help="print the runs, and run none")
    args = parser.parse_args(argv)
    started = time.time()
    with console.messages(), interrupt.handled():
        try:
            if args.processes is not None and args.processes < 1:
                raise UsageError(f"--processes {args.processes}: at least 1")
            if args.ray and (args.processes or args.cores <= 0 or args.gpus < 0):
                raise UsageError("--ray: --cores above 0 and --gpus say how many run at a time, not --processes")
            if not args.ray and (args.ray_address or args.gpus or args.cores != 1):
                raise UsageError("--ray_address, --cores and --gpus are for --ray")
            cells = sweep.cells_of(sweep.read_sweep(args.file))
            if args.list:
                print("\n".join(cell.words for cell in cells))
                return 0
            if args.ray:
                sweep.run_on_ray(cells, args.ray_address, args.cores, args.gpus)
            else:
                sweep.run_sweep(cells, args.processes)
        except KeyboardInterrupt as end:
            return interrupt.report(end)
        except Exception as error:
            return report(error)
    print("\n".join(sweep.summary(cells, time.time() - started)))
    folder = os.path.relpath(cells[0].settings.get("results_dir", RESULTS))
    print(f"compare them: python scripts/report.py {folder}")
    return RunError.exit_code if any(cell.failed for cell in cells) else 0


if __name__ == "__main__":
    console.prepare()
    sys.exit(main())
