"""The command line."""

from __future__ import annotations

import argparse
import difflib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from plugin.changes import Change, apply, plan_install, plan_uninstall
from plugin.checkout import NotACheckoutError, RefusedError, find_system


def user_path(text: str) -> Path:
    return Path(os.path.expanduser(text))


def describe(change: Change, dry_run: bool) -> str:
    """One line for a file; for main.py in a dry run, the unified diff."""
    if change.path.name == "main.py" and dry_run:
        old, new = ((c or b"").decode("utf-8", "replace").splitlines() for c in (change.old, change.new))
        return "\n".join(difflib.unified_diff(old, new, str(change.path), str(change.path), lineterm=""))
    verb = "remove" if change.new is None else "copy to" if change.old is None else "update"
    return f"{'would ' if dry_run else ''}{verb} {change.path}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(description="Install FedCPD into a PFLlib checkout (docs/plugin.md).")
    parser.add_argument("path", type=user_path, metavar="PATH_TO_PFLLIB", help="folder of the checkout, or its system/")
    parser.add_argument("--dry-run", action="store_true", help="print what would change; write nothing")
    parser.add_argument("--uninstall", action="store_true", help="take FedCPD out again; the tree is as it was before")
    options = parser.parse_args(argv)
    for stream in (sys.stdout, sys.stderr):  # what the terminal cannot show must not stop the work
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        system = find_system(options.path)
        changes, remarks = (plan_uninstall if options.uninstall else plan_install)(system)
        if not options.dry_run:
            apply(system, changes)
    except NotACheckoutError as error:
        print(error, file=sys.stderr)
        return 2
    except (RefusedError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for change in changes:
        print(describe(change, options.dry_run))
    if not changes:
        print(f"FedCPD is {'not installed' if options.uninstall else 'installed and up to date'}: nothing to do.")
    if options.uninstall:
        for path in remarks:
            print(f"{path} was edited after it was copied, so it is kept; FedCPD is otherwise out.", file=sys.stderr)
        return 1 if remarks else 0
    if changes and not options.dry_run:
        print(*remarks, sep="\n")
        print(f"Try it: cd {system}; python main.py -algo FedCPD -data Cifar100 -ncl 100 -nc 20")
    return 0
