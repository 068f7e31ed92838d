"""Draws which client holds how many images of which class: `python plot_partition.py Cifar100`."""

import sys

from flcore.data.plot import main
from flcore.utils import console

if __name__ == "__main__":
    console.prepare()
    sys.exit(main())
