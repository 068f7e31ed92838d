"""Measures the speed of a round: our executors against each other, against PFLlib's way, and against the machine.

python scripts/bench.py                                     executors and a stand-in for PFLlib's loop, made-up data
python scripts/bench.py -data Cifar100 --pfllib ~/PFLlib    the same on your data, and against a checkout of PFLlib
python scripts/bench.py --overhead --flops --scaling        where the time goes, what FedCPD costs, how cost grows

What is compared runs in turns, A B C A B C ..., so that a busy moment of the machine hits all alike; the first turn
warms up and does not count; numbers are medians over the turns, and ratios are medians of the turns' own ratios. A
round is what `RoundLoop.train` takes for one: select, send, score at A, train, score at B, receive, aggregate.

Overhead is the share of a round of the loop executor that is spent outside forward and backward passes. The passes are
measured by themselves: the same losses, gradients and predictions, on the same batches and weights, gathered
beforehand, with nothing around them (no shuffling, no step, no averaging, no AUC), in turns with whole rounds.

Floating-point operations are counted by torch.utils.flop_counter (matrix products and convolutions), one pass of each
shape, times the number of passes. docs/performance.md explains every line.
"""

import sys

from benchmark.command import main

if __name__ == "__main__":
    sys.exit(main(description=__doc__))
