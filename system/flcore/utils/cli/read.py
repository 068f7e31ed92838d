"""From what a user gave, as words or as keywords, to checked values and to what they mean for the chosen method."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flcore.hyperparams import Setting
from flcore.utils.cli import ours, pfllib
from flcore.utils.cli.config import read_config
from flcore.utils.cli.parser import COMMON, FlagParser, foreign_settings, make_parser, method_settings
from flcore.utils.errors import UsageError, did_you_mean


@dataclass(frozen=True)
class Arguments:
    """What a user asked for, checked.

    Attributes:
        method: its line of the registry.
        values: every flag of PFLlib and of ours, and every setting of the method, by its long name.
        given: the names that the user gave.
        used: the names that have an effect on this run.
        notes: one line for every given name that has none, or that switches a part of the method off.
    """

    method: Any
    values: Mapping[str, Any]
    given: frozenset[str]
    used: frozenset[str]
    notes: tuple[str, ...]


def chosen_in(argv: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The method that a command line names, and what its --config file says."""
    parser = FlagParser(add_help=False, allow_abbrev=False)
    common = _common()
    for name in ("algorithm", "config"):
        common[name].add_to(parser, default=None)
    typed = parser.parse_known_args(argv)[0]
    config = read_config(typed.config) if typed.config else {}
    return str(typed.algorithm or config.get("algorithm", common["algorithm"].default)), config


def read(
    argv: Sequence[str],
    method: Any,
    methods: Iterable[Any],
    hints: Mapping[str, Iterable[str]] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Arguments:
    """Reads a command line for ``method``.

    Args:
        method, methods: the chosen line of the registry, and all of them.
        hints: names that --help lists for a flag, such as the networks for ``model``.
        config: values by name that hold for what the command line does not say.

    Raises:
        UsageError: an unknown flag, or a value that it does not take.
        SystemExit: --help, once it is printed.
    """
    methods = list(methods)
    named = any(word.split("=")[0] in ("-algo", "--algorithm") for word in argv)
    parser = make_parser(method, methods, hints or {}, all=not named and bool({"-h", "--help"} & set(argv)))
    unknown = parser.parse_known_args(argv)[1]
    if unknown:  # perhaps another method's flags: only now are all methods imported
        foreign = foreign_settings(method, methods)
        parser.add_flags("of other methods", foreign.values(), {})
        unknown = parser.parse_known_args(argv)[1]
    if unknown:
        flags = {**_common(), **method_settings(method), **foreign}.values()
        names = [spelling for flag in flags for spelling in flag.spellings]
        raise UsageError(f"{unknown[0]}: no such flag." + did_you_mean(unknown[0], names))
    typed = vars(parser.parse_args(argv))
    given = _checked(method, config or {}, methods, f"--config {typed.get('config')}: ") | typed
    notes = [
        f"note: {old} is an old spelling of --{name}"
        for old, name in pfllib.OLD_SPELLINGS.items()
        if any(word.split("=")[0] == old for word in argv)
    ]
    return _arguments(method, given, notes)


def settle(method: Any, given: Mapping[str, Any], methods: Iterable[Any]) -> Arguments:
    """As `read`, from values by the flags' long names, such as ``num_clients=20`` and ``cpd_align=5.0``.

    Raises:
        UsageError: an unknown name, with the nearest one, or a value that it does not take.
    """
    return _arguments(method, _checked(method, given, methods), [])


def _checked(method: Any, given: Mapping[str, Any], methods: Iterable[Any], where: str = "") -> dict[str, Any]:
    known = {**_common(), **method_settings(method)}
    if not known.keys() >= given.keys():
        known |= foreign_settings(method, methods)
    checked = {}
    for name, value in given.items():
        if name not in known:
            raise UsageError(f"{where}{name}: no such setting." + did_you_mean(name, known))
        try:
            value = json.dumps(value) if isinstance(value, Mapping) else value  # arguments of a network, say
            checked[name] = known[name].check(value)
        except (ValueError, TypeError) as error:
            raise UsageError(f"{where}{name}: {error}") from None
    return checked


def _common() -> dict[str, Setting]:
    """PFLlib's flags and ours, by name."""
    tables = [flags for _, flags in COMMON] + [ours.PROTOTYPES, pfllib.METHODS, pfllib.IDLE]
    return {flag.name: flag for flags in tables for flag in flags}


def _arguments(method: Any, given: Mapping[str, Any], notes: list[str]) -> Arguments:
    own, common = method_settings(method), _common()
    known = {**common, **own}
    values = {name: flag.default for name, flag in known.items()}
    values |= {name: value for name, value in given.items() if name in known}
    if values["prev"] >= values["times"]:
        raise UsageError(f"-pv/--prev: must be below -t/--times ({values['times']}), not {values['prev']}")

    idle = {name for name, (other, off) in ours.NEEDS.items() if (values[other] or off) == off}
    single = {flag.name for flag in pfllib.METHODS}
    unused = {flag.name for flag in pfllib.IDLE} | set(method.ignores)
    unused |= set() if method.head != "whole" else {"head"}
    if method.settings_class() is None:
        unused |= {"optimizer", "local_momentum", "weight_decay", "eval_clients"}  # it brings its own
    else:
        unused |= single - own.keys()
        unused |= set() if method.prototypes else {flag.name for flag in ours.PROTOTYPES}
    notes += [
        f"note: {one.label} 0 switches a part of {method.name} off"
        for name, one in sorted(own.items())
        if one.type is float and one.default and name in given and values[name] == 0
    ]
    for name in sorted(given.keys() & idle - unused):
        notes.append(f"note: {known[name].label} has no effect without --{ours.NEEDS[name][0]}")
    for name in sorted(given.keys() & unused | given.keys() - known.keys()):
        label = known[name].label if name in known else f"--{name}"
        if any(flag.name == name for flag in pfllib.IDLE):
            notes.append(f"note: {label} is accepted but has no effect yet")
        else:
            notes.append(f"note: {label} has no effect on {method.name}")
    used = known.keys() - unused - idle
    return Arguments(method, values, frozenset(given), frozenset(used), tuple(notes))
