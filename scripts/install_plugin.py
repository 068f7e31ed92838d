"""Install FedCPD into an existing PFLlib checkout, update it there, or take it out again.

    python scripts/install_plugin.py PATH_TO_PFLLIB [--dry-run] [--uninstall]

Copies the portable files into the same places of the checkout and registers FedCPD in its system/main.py: the import,
the flags and a branch of the if-chain over args.algorithm, each between marker comments. main.py is analysed with `ast`
and edited as lines, so every other byte of it stays. All checks come before the first write, and a write that fails is
rolled back. See docs/plugin.md.

Exit status: 0 done (or nothing to do), 1 refused or failed, 2 not a PFLlib checkout.
"""

import sys

from plugin.command import main

if __name__ == "__main__":
    sys.exit(main())
