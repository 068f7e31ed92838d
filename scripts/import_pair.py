"""Bring methods of a PFLlib checkout into this framework, or take them out again.

    python scripts/import_pair.py PATH_TO_PFLLIB FedMTL SCAFFOLD      (--all: every method of its main.py)
    python scripts/import_pair.py --remove FedMTL

A method's server, its client and the helpers that they import are copied into a folder of their own,
system/flcore/imported/<method>/, with their imports of each other adapted and nothing else changed; the folder's
card.json is what `main.py -algo` and `--list` know it by. See docs/plugin.md.

Exit status: 0 done (or nothing to do), 1 refused or failed, 2 not a PFLlib checkout or no such method.
"""

import sys

from flcore.utils import console
from pairs.command import main

if __name__ == "__main__":
    console.prepare()
    sys.exit(main())
