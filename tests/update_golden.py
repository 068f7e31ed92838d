"""Rewrites golden curves (tests/golden/<algorithm>.txt), with a line in the CHANGELOG that says why.

python tests/update_golden.py FedCPD --because "prototypes are averaged by counts"
"""

import argparse
import sys

from flcore.registry import find
from flcore.utils.errors import UsageError
from flcore.utils.runs.files import write_text
from support import REPO
from support.golden import curve, golden_file, written

HEADING = "## Unreleased\n\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="+", help="names as for -algo")
    parser.add_argument("--because", required=True, help="what changed the curves, for the CHANGELOG")
    args = parser.parse_args()
    try:
        names = [find(name).name for name in args.algorithms]
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    changed = []
    for name in names:
        text, path = written(curve(name)), golden_file(name)
        if not path.exists() or path.read_text() != text:
            write_text(path, text)
            changed.append(name)
    if changed:
        changelog = REPO / "CHANGELOG.md"
        line = f"* Golden curves of {', '.join(changed)}: {args.because}\n"
        write_text(changelog, changelog.read_text(encoding="utf-8").replace(HEADING, HEADING + line, 1))
    print(f"changed: {', '.join(changed) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
