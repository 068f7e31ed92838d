"""The command behind every generate_<Name>.py: PFLlib's `noniid - dir`, and flags for what PFLlib has in its source."""

import argparse
import difflib
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flcore.data.dataset_utils import ALPHA, SEED, TRAIN_RATIO, assign, check, gather, save_file, split_data
from flcore.data.partition import MIN_SAMPLES
from flcore.data.sources import KNOWN, load
from flcore.utils.errors import report
from flcore.utils.paths import DATASET
from flcore.utils.seeds import numpy_generator

NUM_CLIENTS = 20
ALPHAS = {"dir": ALPHA, "exdir": 100.0}  # PFLlib's number for dir and its advice for exdir


def main(name: str, argv: list[str] | None = None) -> None:
    """Runs the command for data set `name`. Exits with 2 after a user's mistake and with 1 after a failed download."""
    args = parse(name, argv)
    try:
        generate(name, args)
        if args.plot:
            from flcore.data.plot_partition import draw

            print(draw(args.out))
    except Exception as error:
        sys.exit(report(error))


def parse(name: str, argv: list[str] | None = None) -> argparse.Namespace:
    """The checked settings; `args.arguments` are those that differ from the defaults, without the number of clients."""
    known = KNOWN[name]
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
    add(
        "-nc",
        "--nc",
        "--num_clients",
        dest="num_clients",
        type=_number(int, 1),
        default=NUM_CLIENTS,
        help="number of clients (%(default)s)",
    )
    defaults = ", ".join(f"{alpha:g} for {kind}" for kind, alpha in ALPHAS.items())
    add("--alpha", type=_number(float, 0, above=True), help=f"of Dirichlet: the smaller, the more unequal ({defaults})")
    add(
        "--classes_per_client",
        type=_number(int, 1, known.num_classes),
        help=f"for pat and exdir ({known.class_per_client})",
    )
    add(
        "--train_ratio",
        type=_number(float, 0, 1, above=True, below=True),
        default=TRAIN_RATIO,
        help="part of each client's images to train on (%(default)s)",
    )
    add("--seed", type=_number(int, 0), default=SEED, help="another seed, another split (%(default)s)")
    add("--fraction", type=_number(float, 0, 1, above=True), default=1.0, help="take a random part of the images (1.0)")
    add(
        "--min_samples",
        type=_number(int, MIN_SAMPLES),
        help="images that each client must get (PFLlib's: 40 or half the mean for dir, 10 for exdir; 2 otherwise)",
    )
    add("--repair", action="store_true", help="reach the minimum by moving images from the largest clients if need be")
    add("--source", type=Path, help="official files, .npz with x and y, or a folder of images (found or fetched)")
    add("--out", type=Path, default=DATASET / name, help="the data set's folder (%(default)s)")
    add("--force", action="store_true", help="make it again even if it is there with the same settings")
    add("--plot", action="store_true", help="draw which client holds what: partition.png in the data set's folder")
    args = parser.parse_intermixed_args(argv)

    args.kind = args.niid if args.niid == "iid" else args.partition or "dir"
    if args.kind == "-":
        parser.error("noniid needs a partition: pat, dir or exdir")
    if args.balance == "balance" and args.kind in ("dir", "exdir"):
        parser.error(f"balance contradicts {args.kind}, which shares by Dirichlet: noniid - {args.kind}")
    if args.source is not None:
        args.source = args.source.expanduser().resolve()
        if not args.source.exists():
            parser.error(f"--source {args.source} is missing")
    if args.niid == "iid":
        _ignored(args.partition not in (None, "-"), f"the partition {args.partition}", "iid")
        args.partition = "-"
    args.partition = args.partition or "dir"
    if args.kind in ("iid", "pat"):
        _ignored(args.alpha is not None, "--alpha", args.kind)
    if args.kind in ("iid", "dir"):
        _ignored(args.classes_per_client is not None, "--classes_per_client", args.kind)
        args.classes_per_client = None
    alpha = ALPHAS.get(args.kind, ALPHA)  # PFLlib's config.json has one for iid and pat too
    args.alpha = args.alpha if args.alpha and args.kind in ALPHAS else alpha
    args.classes_per_client = args.classes_per_client or known.class_per_client

    words = [args.niid, args.balance, args.partition]
    args.arguments = words if words != ["noniid", "-", "dir"] else []
    usual = vars(parser.parse_args([])) | {"alpha": alpha, "classes_per_client": known.class_per_client}
    for flag in ("alpha", "classes_per_client", "train_ratio", "seed", "fraction", "min_samples", "source"):
        if getattr(args, flag) != usual[flag]:
            args.arguments += [f"--{flag}", str(getattr(args, flag))]
    args.arguments += ["--repair"] if args.repair else []
    return args


def generate(name: str, args: argparse.Namespace) -> None:
    """Loads, splits and writes the data set, unless it is there with the same settings."""
    out, num_classes = args.out, KNOWN[name].num_classes
    paths = out / "config.json", out / "train", out / "test"
    terms = args.niid == "noniid", args.balance == "balance", None if args.partition == "-" else args.partition
    if not args.force and check(*paths, args.num_clients, *terms, alpha=args.alpha, arguments=args.arguments):
        return
    if paths[0].exists():
        print(f"{out}: making it again" + ("" if args.force else ", since it is damaged or has other settings"))

    x, y = load(name, args.source, DATASET / name / "rawdata")
    if args.fraction < 1:
        count = max(round(args.fraction * len(y)), 1)
        chosen = np.sort(numpy_generator(args.seed, "fraction").choice(len(y), count, replace=False))
        x, y = x[chosen], y[chosen]
    clients, minimum, moved = assign(
        y,
        args.num_clients,
        num_classes,
        *terms,
        args.classes_per_client,
        alpha=args.alpha,
        train_ratio=args.train_ratio,
        seed=args.seed,
        min_samples=args.min_samples,
        repair=args.repair,
    )
    images, labels, statistic = gather(x, y, clients)
    train, test = split_data(images, labels, train_ratio=args.train_ratio, seed=args.seed)
    save_file(
        *paths,
        map(_normalised, train),
        map(_normalised, test),
        args.num_clients,
        num_classes,
        statistic,
        *terms,
        alpha=args.alpha,
        class_per_client=args.classes_per_client if args.kind in ("pat", "exdir") else None,
        train_ratio=args.train_ratio,
        seed=args.seed,
        fraction=args.fraction,
        source=None if args.source is None else str(args.source),
        min_samples=minimum,
        repaired=moved,
        arguments=args.arguments,
    )
    sizes, held = [len(own) for own in clients], [len(own) for own in statistic]
    absent = num_classes - len(np.unique(y))
    print(
        f"{out}: {len(y)} images in {args.num_clients} clients ({args.kind}); a client has {min(sizes)} to "
        f"{max(sizes)} images of {min(held)} to {max(held)} classes"
        + (f"; {moved} images were moved to clients with fewer than {minimum}" if moved else "")
        + (f"; {absent} of the {num_classes} classes have no image" if absent else "")
    )


def _normalised(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """PFLlib's transform: pixels 0..255 to float32 in [-1, 1]."""
    return {"x": (data["x"].astype(np.float32) / 255 - 0.5) / 0.5, "y": data["y"]}


def _ignored(given: bool, what: str, kind: str) -> None:
    if given:
        print(f"note: {what} is ignored for {kind}")


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


def _number(
    kind: type, low: float, high: float = math.inf, *, above: bool = False, below: bool = False
) -> Callable[[str], Any]:
    """An argparse type: a finite number from `low` to `high`, without the ends if `above` or `below`."""

    def number(text: str) -> Any:
        value = kind(text)
        inside = (low < value if above else low <= value) and (value < high if below else value <= high)
        if not inside or not math.isfinite(value):
            raise argparse.ArgumentTypeError(
                f"{text} is not {'above' if above else 'at least'} {low}"
                + (f" and {'below' if below else 'at most'} {high}" if high < math.inf else "")
            )
        return value

    return number
