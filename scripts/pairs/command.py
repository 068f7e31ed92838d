"""The command line, and the folders that it makes and removes."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from flcore import registry
from flcore.hyperparams import user_path
from flcore.utils import console
from flcore.utils.errors import RunError, UsageError, did_you_mean, report
from flcore.utils.runs.files import whole_folder
from pairs.checkout import Choice, Pair, choices, read_pair
from plugin.checkout import NotACheckoutError, digest, find_system

CARD = "card.json"


def folder_of(name: str) -> Path:
    """Where a method of PFLlib's comes to lie: a package, so its name is one for Python."""
    return registry.IMPORTED / re.sub(r"\W", "_", name)


def name_here(name: str) -> str:
    """What -algo calls it: PFLlib's name, marked where a method of ours has it."""
    ours = {method.name.lower() for method in registry.OURS}
    return f"PFLlib-{name}" if name.lower() in ours else name


def contents(name: str, choice: Choice, pair: Pair) -> dict[str, str]:
    """The files of a method's folder by name: its modules and its card."""
    files = {f"{module.rpartition('.')[2]}.py": text for module, text in pair.sources.items()}
    card = {
        "method": {
            "name": name_here(name),
            "server": f"flcore.imported.{folder_of(name).name}.{choice.module.rpartition('.')[2]}:{choice.name}",
            "paper": "from a PFLlib checkout",
            "head": choice.head,
        },
        "files": {file: digest(text.encode()) for file, text in files.items()},
    }
    return {**files, CARD: json.dumps(card, indent=1) + "\n"}


def edited(folder: Path) -> list[Path]:
    """The files in a method's folder that are not as they were copied.

    Raises:
        RunError: its card cannot be read.
    """
    try:
        known = json.loads((folder / CARD).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        raise RunError(f"{folder} has no readable {CARD}; look into it and remove it yourself") from None
    files = [path for path in folder.iterdir() if path.name not in (CARD, "__pycache__")]
    return sorted(path for path in files if path.is_dir() or known.get(path.name) != digest(path.read_bytes()))


def check_unedited(folder: Path) -> None:
    """
    Raises:
        RunError: a file of the folder is the user's own work, which nothing here removes.
    """
    if changed := edited(folder):
        names = ", ".join(path.name for path in changed)
        raise RunError(f"{folder}: {names} was edited or added; nothing was changed. Keep it elsewhere, then again")


def write(folder: Path, files: dict[str, str]) -> None:
    """Puts the files in place together, for those of an earlier import."""
    with whole_folder(folder) as new:
        for name, text in files.items():
            (new / name).write_text(text, encoding="utf-8", newline="")


def bring_in(system: Path, names: Sequence[str], dry_run: bool) -> None:
    """Copies methods from a checkout; all are read before the first is written.

    Raises:
        UsageError: there is no such method, or it cannot be read.
        RunError: what lies there already was edited.
    """
    known = choices(system)
    for name in names:
        if name not in known:
            raise UsageError(
                f"{name}: {system / 'main.py'} has no such method.{did_you_mean(name, known)} "
                f"It has: {', '.join(known)}"
            )
    planned = {}
    for name in names or known:
        folder = folder_of(name)
        pair = read_pair(system, known[name], f"flcore.imported.{folder.name}")
        if folder.exists():
            check_unedited(folder)
        planned[name] = folder, pair, contents(name, known[name], pair)
    for name, (folder, pair, files) in planned.items():
        if not dry_run:
            write(folder, files)
        verb, head = "would import" if dry_run else "imported", known[name].head
        print(f"{verb} {name} as -algo {name_here(name)} (network: {head})")
        for module in pair.sources:
            print(f"    {module} -> {folder / module.rpartition('.')[2]}.py")
        if pair.missing:
            print(f"    needs what is not installed: {', '.join(sorted(pair.missing))}")


def take_out(names: Sequence[str], dry_run: bool) -> None:
    """Removes what was imported.

    Raises:
        UsageError: such a method was not imported.
        RunError: a file was edited; nothing is removed.
    """
    for name in names:
        if not folder_of(name).is_dir():
            there = [json.loads(path.read_text())["method"]["name"] for path in registry.IMPORTED.glob(f"*/{CARD}")]
            raise UsageError(f"{name}: it is not imported. There are: {', '.join(sorted(there)) or 'none'}")
        check_unedited(folder_of(name))
    for name in names:
        if not dry_run:
            shutil.rmtree(folder_of(name))
        print(f"{'would remove' if dry_run else 'removed'} {folder_of(name)}")
    if not dry_run and not any(path.name != "__pycache__" for path in registry.IMPORTED.iterdir()):
        shutil.rmtree(registry.IMPORTED)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        description="Bring methods of a PFLlib checkout into this framework (docs/plugin.md).",
        usage="%(prog)s [--dry-run] (PATH_TO_PFLLIB METHOD ... | PATH_TO_PFLLIB --all | --remove METHOD ...)",
    )
    parser.add_argument("names", nargs="+", metavar="METHOD", help="as the checkout's main.py calls it in -algo")
    parser.add_argument("--all", action="store_true", help="all methods of the checkout's main.py")
    parser.add_argument("--remove", action="store_true", help="take the methods out again")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done; write nothing")
    options = parser.parse_args(argv)
    console.prepare()
    names = list(dict.fromkeys(options.names))
    try:
        if options.remove:
            take_out(names, options.dry_run)
            return 0
        path, *names = names
        if bool(names) == options.all:
            raise UsageError("name the methods to import after the checkout's path, or give --all")
        bring_in(find_system(user_path(path)), names, options.dry_run)
    except NotACheckoutError as error:
        print(error, file=sys.stderr)
        return 2
    except (UsageError, RunError, OSError) as error:
        return report(error)
    return 0
