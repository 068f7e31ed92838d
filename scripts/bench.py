"""Measures the speed of a round: our executors against each other, against PFLlib's way, and against the machine.

python scripts/bench.py                                     executors and a stand-in for PFLlib's loop, made-up data
python scripts/bench.py -data Cifar100 --pfllib ~/PFLlib    the same on your data, and against a checkout of PFLlib
python scripts/bench.py --overhead --flops --scaling        where the time goes, what FedCPD costs, how cost grows

docs/performance.md explains what is measured, how, and every line that is printed.
"""

import sys

from benchmark.command import main
from flcore.utils import console

if __name__ == "__main__":
    console.prepare()
    sys.exit(main(description=__doc__))
