"""The command behind every generate_<Name>.py: PFLlib's `noniid - dir`, and flags for what PFLlib has in its source."""

import argparse
import difflib
import re
import sys
from collections.abc import Callable

from flcore.data.generate import Recipe, make
from flcore.hyperparams import user_path
from flcore.utils.errors import UsageError, report
from flcore.utils.paths import DATASET


def main(name: str, argv: list[str] | None = None) -> None:
    """Runs the command for data set `name`. Exits with 2 after a user's mistake and with 1 after a failed download."""
    recipe, args = parse(name, argv)
    try:
        print(make(recipe, args.out, args.force))
        if args.plot:
            from flcore.data.plot import draw

            print(draw(args.out))
    except Exception as error:
        sys.exit(report(error))


def parse(name: str, argv: list[str] | None = None) -> tuple[Recipe, argparse.Namespace]:
    """The checked settings, and what else the command line says (out, force, plot)."""
    parser = make_parser(name)
    args = parser.parse_intermixed_args(argv)
    kind = "iid" if args.niid == "iid" else args.partition or "dir"
    if kind == "-":
        parser.error("noniid needs a partition: pat, dir or exdir")
    if kind == "iid" and args.partition not in (None, "-"):
        print(f"note: the partition {args.partition} is ignored for iid")
    values = {each: getattr(args, each) for each in Recipe.declared()}
    try:
        recipe = Recipe(name, **values | {"partition": kind, "balance": args.balance == "balance"})
    except UsageError as error:
        parser.error(str(error))
    for unused in recipe.unused():
        print(f"note: --{unused} is ignored for {kind}")
    return recipe, args


def make_parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"generate_{name}.py",
        description=f"Splits {name} among clients, in PFLlib's files.",
        epilog="PFLlib's spelling: noniid - dir | noniid - pat | noniid balance pat | noniid - exdir | iid - - | "
        "iid balance -",
    )
    add = parser.add_argument
    for position, choices, default, text in (
        ("niid", ("iid", "noniid"), "noniid", "do clients differ? (noniid)"),
        ("balance", ("balance", "-"), "-", "equal shares of a class, for iid and pat (-)"),
        (
            "partition",
            ("pat", "dir", "exdir", "-"),
            None,
            "for noniid: pat, few classes a client; dir, Dirichlet shares (default); exdir, Dirichlet shares of few "
            "classes",
        ),
    ):
        shown = f"{{{','.join(choices)}}}"
        add(position, nargs="?", type=_word(*choices), default=default, metavar=shown, help=text)
    for setting, one in Recipe.declared().items():
        if setting == "repair":
            add("--repair", action="store_true", help=one.help)  # not followed by True: a positional word may come next
        elif setting not in ("partition", "balance"):  # three words of PFLlib's
            one.add_to(parser)
    add("--nc", dest="num_clients", type=int, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add("--out", type=user_path, default=DATASET / name, help="the data set's folder (%(default)s)")
    add("--force", action="store_true", help="make it again even if it is there with the same settings")
    add("--plot", action="store_true", help="draw which client holds what: partition.png in the data set's folder")
    return parser


def _word(*words: str) -> Callable[[str], str]:
    """An argparse type: one of the words; the error for another one names the nearest."""

    def word(text: str) -> str:
        if text in words:
            return text
        letters = re.sub(r"[^a-z]", "", text.lower())
        if letters.startswith(("un", "im")):  # unbalanced, imbalanced
            letters = "-" * ("balance" in letters)
        near = [known for known in words if letters.startswith(known)] or difflib.get_close_matches(letters, words, 1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise argparse.ArgumentTypeError(f"must be {' or '.join(words)}, not {text!r}{hint} In full: noniid - dir")

    return word
