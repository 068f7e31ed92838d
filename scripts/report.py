"""Compares runs: a table with mean and spread over seeds, figures, one HTML page, and in what they differ.

python scripts/report.py results                            all .h5 files in the folder and its sub-folders
python scripts/report.py results --format latex --columns "last A,margin" > table.tex
python scripts/report.py results/*.h5 --out curves.pdf --figure curves,clients
python scripts/report.py results --html report.html

Point A is after the download, point B after local training. Runs whose settings are equal but for the seed (or the
repeat, or the goal) are one row. Best A is selected on the test set, so it flatters; last A does not.
"""

import argparse
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from flcore.hyperparams import user_path
from flcore.reporting import provenance, read_results, tables
from flcore.utils import console
from flcore.utils.errors import RunError, UsageError

FIGURES = ("curves", "clients", "forgetting", "traffic", "seconds", "partition")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code: 2 also where one of several files could not be used."""
    args = _parser().parse_args(argv)
    try:
        return _report(args)
    except (UsageError, RunError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return getattr(error, "exit_code", RunError.exit_code)


def _report(args: argparse.Namespace) -> int:
    columns = tables.chosen_columns(args.columns) if args.columns else tables.NAMES
    pictures = _pictures(args.out, args.figure)
    if args.differences and args.format == "csv":
        raise UsageError("--differences is a second table, which CSV has no place for")

    results, problems = read_results(args.files)
    for problem in problems:
        print(f"report: {problem}", file=sys.stderr)
    if not len(results.runs):
        return UsageError.exit_code
    table = tables.summary_table(results, columns)
    _show(tables.by_data_set(table) if args.by_data_set else table, args.format)
    _say(tables.notes(results), args.format)
    if args.differences:
        differing, lines = provenance.differences(results)
        print()
        if differing:
            _show(differing, args.format)
        _say(lines, args.format)

    to = sys.stdout if args.format == "text" else sys.stderr  # what is piped into a file is the table
    for name, path in pictures.items():
        from flcore.reporting import figures  # matplotlib takes its time

        try:
            figures.write(results, name, path)
        except UsageError as error:
            if args.figure != "all":
                raise
            print(f"{name}: left out, {error}", file=to)
        else:
            print(f"{name}: {path}", file=to)
    if args.html:
        from flcore.reporting import page

        page.write(results, args.html)
        print(f"page: {args.html}", file=to)
    return UsageError.exit_code if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=user_path, metavar="FILE.h5", help="result files, or folders of them")
    parser.add_argument("--format", choices=tables.FORMATS, default="text", help="of the table (default: text)")
    parser.add_argument(
        "--columns", metavar="NAMES", help=f"which numbers, of: {', '.join(tables.NAMES)}".replace("%", "%%")
    )
    parser.add_argument(
        "--by_data_set", action="store_true", help="one row a method, the numbers once for each data set"
    )
    parser.add_argument("--out", type=user_path, metavar="FILE", help="write a figure here: .png, .pdf or .svg")
    parser.add_argument(
        "--figure",
        default="curves",
        metavar="NAMES",
        help=f"what to draw, of: {', '.join(FIGURES)}; or all. Of several, each file has the figure's name added",
    )
    parser.add_argument("--html", type=user_path, metavar="FILE.html", help="a page with everything, for a browser")
    parser.add_argument("--differences", action="store_true", help="name the settings in which the runs differ")
    return parser


def _pictures(out: Path | None, figure: str) -> dict[str, Path]:
    """The files to be written, by the names of their figures."""
    names = list(FIGURES) if figure == "all" else [name.strip() for name in figure.split(",")]
    if unknown := [name for name in names if name not in FIGURES]:
        raise UsageError(f"--figure {unknown[0]}: there are {', '.join(FIGURES)}, and all")
    if out is None:
        if figure != "curves":
            raise UsageError(f"--figure {figure}: --out FILE says where to write it")
        return {}
    from flcore.reporting.figures import check_suffix

    check_suffix(out)
    several = len(names) > 1
    return {name: out.with_name(f"{out.stem}-{name}{out.suffix}") if several else out for name in names}


def _show(table: tables.Table, kind: str) -> None:
    if kind == "text" and sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        print(tables.as_text(table, bold=True, width=shutil.get_terminal_size().columns))
    else:
        print(tables.FORMATS[kind](table))


def _say(paragraphs: Sequence[str], kind: str) -> None:
    """Prints what is no table, so that the output stays of one format; CSV has no place for it."""
    width = min(118, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 118
    lines = [line for text in paragraphs for line in textwrap.wrap(text, width, break_on_hyphens=False)]
    if lines and kind == "latex":
        print("\n".join(f"% {line}" for line in lines))
    elif lines and kind in ("text", "markdown"):
        print("\n" * (kind == "markdown") + "\n".join(lines))


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `report.py ... | head` ends without a word
    console.prepare()
    sys.exit(main())
