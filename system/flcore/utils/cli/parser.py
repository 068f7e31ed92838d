"""The parser of a method's command line, and its --help: what the method uses first, PFLlib's other flags last."""

import argparse
from argparse import SUPPRESS
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from flcore.hyperparams import Setting
from flcore.utils.cli import ours, pfllib
from flcore.utils.errors import UsageError

COMMON = (
    ("general", (*pfllib.GENERAL, *ours.GENERAL)),
    ("network and local optimiser", ours.NETWORK),
    ("participation", pfllib.PARTICIPATION),
    ("faults, attacks and defences", ours.FAULTS),
    ("results", (*pfllib.RESULTS, *ours.RESULTS)),
)


class FlagParser(argparse.ArgumentParser):
    """Raises UsageError where argparse would end the program. Its result holds only what was typed."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "))

    def add_flags(self, title: str, flags: Iterable[Setting], hints: Mapping[str, Iterable[str]]) -> None:
        """Adds ``flags`` under the heading ``title``; ``hints``: names that their help lists."""
        group = self.add_argument_group(title)
        for flag in flags:
            if names := ", ".join(hints.get(flag.name, ())):
                flag = replace(flag, help=f"{flag.help}: {names}")
            flag.add_to(group, default=SUPPRESS)
            if flag.type is bool:
                negative = f"--no-{flag.name}"
                group.add_argument(negative, dest=flag.name, action="store_false", default=SUPPRESS, help=SUPPRESS)
            for old in (old for old, name in pfllib.OLD_SPELLINGS.items() if name == flag.name):
                group.add_argument(old, dest=flag.name, type=flag.read, default=SUPPRESS, help=SUPPRESS)


def method_settings(method: Any) -> dict[str, Setting]:
    """The settings of a method by name, with PFLlib's short flag where PFLlib has the flag."""
    short = {flag.name: flag.short for flag in pfllib.METHODS}
    return {name: replace(one, short=short.get(name, "")) for name, one in method.settings().items()}


def foreign_settings(method: Any, methods: Iterable[Any]) -> dict[str, Setting]:
    """The settings of all other methods that can be imported, without those that ``method`` or PFLlib has, too."""
    known = {flag.name for flag in pfllib.METHODS} | method_settings(method).keys()
    usable = [other for other in methods if other.problem() is None]
    return {name: one for other in usable for name, one in method_settings(other).items() if name not in known}


def make_parser(method: Any, methods: Sequence[Any], hints: Mapping[str, Iterable[str]], all: bool) -> FlagParser:
    """A parser of all flags of PFLlib, of ours and of one method.

    Args:
        method, methods: the chosen line of the registry, and all of them.
        hints: names that --help lists for a flag, such as the networks for ``model``.
        all: whether --help shall tell of all methods' settings instead of the one's.
    """
    parser = FlagParser(
        prog="main.py",
        usage="python main.py -algo ALGORITHM -data DATASET [flags]        (-algo ALGORITHM --help: its flags)",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=44, width=132),
        allow_abbrev=False,  # a slip such as --local_ep must not become another flag
        epilog="Booleans: -ld, -ld True, -ld False; also 1/0, yes/no and --no-learning_rate_decay. --list shows all "
        "methods with their papers, what they send and what clients keep.",
    )
    pair, heeds = method.settings_class() is None, all or method.prototypes
    own = _every_setting(methods) if all else method_settings(method)
    rest = [flag for flag in pfllib.METHODS if flag.name not in own]
    idle = [*([] if pair else rest), *pfllib.IDLE, *([] if heeds else ours.PROTOTYPES)]
    if all:
        groups = [
            *COMMON,
            ("settings of single methods (-algo ALGORITHM --help: those of one)", own.values()),
            ("class prototypes, for methods that upload them", ours.PROTOTYPES),
            ("PFLlib's flags that serve no method here", idle),
        ]
    else:
        groups = [
            (f"settings of {method.name}", own.values()),
            (f"PFLlib's flags for single methods, of which {method.name} may read some", rest if pair else ()),
            ("class prototypes that it uploads", ours.PROTOTYPES if heeds else ()),
            *COMMON,
            (f"PFLlib's flags without effect on {method.name}", idle),
        ]
    for title, flags in groups:
        parser.add_flags(title, flags, {"algorithm": [each.name for each in methods], **hints})
    return parser


def _every_setting(methods: Iterable[Any]) -> dict[str, Setting]:
    """The settings of all methods that can be imported, by name; the help says which method means what by them."""
    meanings: dict[str, dict[tuple[str, Any], list[str]]] = {}
    found: dict[str, Setting] = {}
    for method in methods:
        for name, one in method_settings(method).items() if method.problem() is None else ():
            found.setdefault(name, one)
            meanings.setdefault(name, {}).setdefault((one.help, one.default), []).append(method.name)
    for name, by_meaning in meanings.items():
        parts = [
            f"{', '.join(names)}: {help}" + ("" if default is None else f" (default: {default})")
            for (help, default), names in by_meaning.items()
        ]
        found[name] = replace(found[name], help="; ".join(parts), default=None)
    return found
