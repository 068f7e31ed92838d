"""The command behind every generate_<Name>.py, and generate.py for a source of one's own: PFLlib's `noniid - dir`, and
flags for what PFLlib has in its source."""

import argparse
import difflib
import re
import sys
from collections.abc import Callable
from pathlib import Path

from flcore.data.generate import Recipe, make
from flcore.hyperparams import user_path
from flcore.utils import console, interrupt
from flcore.utils.errors import UsageError, report
from flcore.utils.paths import DATASET


def main(name: str | None = None, argv: list[str] | None = None) -> None:
    """Runs the command for the images `name`; None: for those that --source names. Exits with 2 after a user's mistake
    with 1 after a failed download, and with 130 if somebody ends it."""
    if argv is None:
        console.prepare()
    recipe, args = parse(name, argv)
    with interrupt.handled():
        try:
            print(make(recipe, args.out, args.force))
            if args.plot:
                from flcore.data.plot import draw

                print(draw(args.out))
        except KeyboardInterrupt as end:
            sys.exit(interrupt.report(end))
        except Exception as error:
            sys.exit(report(error))


def parse(name: str | None = None, argv: list[str] | None = None) -> tuple[Recipe, argparse.Namespace]:
    """The checked settings, and what else the command line says (out, force, plot)."""
    parser = make_parser(name)
    args = parser.parse_intermixed_args(argv)
    given = args.partition if args.partition != "-" else None
    if given and args.kind not in (None, given):
        parser.error(f"--partition {args.kind} contradicts {given}")
    kind = "iid" if args.niid == "iid" else args.kind or args.partition or "dir"
    if kind == "-":
        parser.error("noniid needs a partition: pat, dir or exdir")
    if kind == "iid" and (given or args.kind) not in (None, "iid"):
        print(f"note: the partition {given or args.kind} is ignored for iid")
    if args.name and args.out:
        parser.error("--name is a folder beside the other data sets, --out any folder: give one of them")
    if name is None and not (args.source and (args.name or args.out)):
        parser.error("--name NAME and --source PATH are needed")
    args.out = args.out or DATASET / (args.name or name or "")
    values = {each: getattr(args, each) for each in Recipe.declared()}
    try:
        recipe = Recipe(
            name or args.out.resolve().name, **values | {"partition": kind, "balance": args.balance == "balance"}
        )
    except UsageError as error:
        parser.error(str(error))
    for unused in recipe.unused():
        print(f"note: --{unused} is ignored for {kind}")
    return recipe, args


def make_parser(name: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"generate_{name}.py" if name else "generate.py",
        description=f"Splits {name or 'a source of your own'} among clients, in PFLlib's files (docs/data.md).",
        epilog="PFLlib's spelling: noniid - dir | noniid - pat | noniid balance pat | noniid - exdir | iid - - | "
        "iid balance -",
    )
    add = parser.add_argument
    for position, choices, default, text in (
        ("niid", ("iid", "noniid"), "noniid", "do clients differ? (noniid)"),
        ("balance", ("balance", "-"), "-", "equal shares of a class, for iid and pat (-)"),
        (
            "partition",
            ("pat", "dir", "exdir", "natural", "-"),
            None,
            "for noniid: pat, few classes a client; dir, Dirichlet shares (default); exdir, Dirichlet shares of few "
            "classes; natural, one client a user",
        ),
    ):
        shown = f"{{{','.join(choices)}}}"
        add(position, nargs="?", type=_word(*choices), default=default, metavar=shown, help=text)
    for setting, one in Recipe.declared().items():
        if setting == "partition":
            one.add_to(parser, dest="kind", default=None, help="the same as a flag, such as --partition natural")
        elif setting != "balance" and one.type is bool:
            # without a True behind it, since a positional word may come next
            add(f"--{setting}", action="store_true", help=one.help)
        elif setting != "balance":
            one.add_to(parser, **({"metavar": "HxW"} if setting == "image_size" else {}))
    add("--nc", dest="num_clients", type=int, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add("--name", type=_name, help=f"the data set's name, its folder in dataset/ ({name or 'needed'})")
    add("--out", type=user_path, help="the data set's folder, if it shall be elsewhere")
    add("--force", action="store_true", help="replace what is there")
    add("--plot", action="store_true", help="draw which client holds what: partition.png in the data set's folder")
    return parser


def _name(text: str) -> str:
    """An argparse type: the name of a folder that is in view."""
    if text != Path(text).name or text.startswith(".") or not text.isprintable() or not text.strip():
        raise argparse.ArgumentTypeError(f"must be a plain name, not {text!r}")
    return text


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
