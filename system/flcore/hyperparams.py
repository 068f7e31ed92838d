"""Settings, each declared once: a frozen dataclass beside the rule that uses them.

    @dataclass(frozen=True)
    class ProxSettings(Settings):
        mu: float = setting(0.1, "weight of the proximal term", least=0, source="the paper's grid")

From the field follow the flag ``--mu``, its line in --help and in docs/algorithms.md, the check of its values, and the
typed ``hp.mu`` that the rule's hooks read. A method inherits the settings of the method that it extends.

This file imports the standard library only: it is also copied into PFLlib checkouts.
"""

from __future__ import annotations

import argparse
import math
import numbers
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

BOOLEANS = dict.fromkeys(("true", "1", "yes", "y", "on"), True) | dict.fromkeys(("false", "0", "no", "n", "off"), False)
KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text", Path: "a path"}
PATH = (str, os.PathLike)
ACCEPTED: dict[type, Any] = {bool: bool, int: numbers.Integral, float: numbers.Real, str: PATH, Path: PATH}
METAVARS = {bool: "BOOL", int: "N", float: "X", str: "NAME", Path: "PATH"}


class NoPathError(argparse.ArgumentTypeError, ValueError):
    """So that argparse shows the message."""


def user_path(text: str | os.PathLike[str]) -> Path:
    """A path as a user writes it, with ``~`` for a home: the argparse type of every path.

    Raises:
        NoPathError: it is empty, or ``~name`` names nobody.
    """
    path = os.path.expanduser(text)
    if not path or path.startswith("~") and not os.path.lexists(path):
        raise NoPathError(f"must be a path, not {os.fspath(text)!r}")
    return Path(path)


MAKERS: dict[type, Callable[[Any], Any]] = {bool: bool, int: int, float: float, str: str, Path: user_path}


@dataclass(frozen=True)
class Setting:
    """One value that a user can set: its name, which is the long flag and the keyword, and what values it takes.

    Args:
        type: bool, int, float, str or Path.
        default: of that type, or None for what is not set.
        help: one line, without the default.
        above, least, below, most: the range of a number, without (above, below) or with its end.
        choices: all values of a text, if there are few.
        also: single values beside the range, such as -1 for "all" or "auto".
        pattern: a regular expression that a text matches as a whole.
        words: what is allowed, where the words made of the above do not say it well.
        source: where the default comes from, such as a section of the paper.
        short: PFLlib's short flag, or empty.
    """

    name: str
    type: type
    default: Any
    help: str
    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    also: tuple[Any, ...] = ()
    pattern: str = ""
    words: str = ""
    source: str = ""
    short: str = ""

    @property
    def spellings(self) -> list[str]:
        return [self.short, f"--{self.name}"] if self.short else [f"--{self.name}"]

    @property
    def label(self) -> str:
        return "/".join(self.spellings)

    def allowed(self) -> str:
        """What values are allowed, in words; empty if all of the type are."""
        low = f"above {self.above:g}" if self.above is not None else ""
        low = f"at least {self.least:g}" if self.least is not None else low
        high = f"below {self.below:g}" if self.below is not None else ""
        high = f"at most {self.most:g}" if self.most is not None else high
        words = " and ".join(part for part in (low, high) if part)
        if self.least is not None and self.most is not None:
            words = f"from {self.least:g} to {self.most:g}"
        elif self.least is not None and not high:
            words = f"{self.least:g} or more"
        one_of = f"one of {', '.join(self.choices)}" if self.choices else ""
        words = " or ".join(part for part in (words or one_of, *map(str, self.also)) if part)
        return self.words or words

    def problem(self, value: Any) -> str:
        """What is wrong with a value of the right type; empty if it is allowed."""
        if value in self.also:
            return ""
        if self.type is float and not math.isfinite(value):
            return "must be a finite number"
        if self.type is str:
            fits = value in self.choices if self.choices else re.fullmatch(self.pattern or ".*", value, re.DOTALL)
        else:
            fits = (
                (self.above is None or value > self.above)
                and (self.least is None or value >= self.least)
                and (self.below is None or value < self.below)
                and (self.most is None or value <= self.most)
            )
        return "" if fits else f"must be {self.allowed()}"

    def check(self, value: Any) -> Any:
        """``value`` from a program, in the setting's type; a number without fraction will do for a float.

        Raises:
            ValueError: it is of another type or out of range; the message begins with "must be".
        """
        flag = isinstance(value, bool)
        if (value is None and self.default is None) or (not flag and value in self.also):
            return value
        if flag is not (self.type is bool) or not isinstance(value, ACCEPTED[self.type]):
            raise ValueError(f"must be {self.allowed() if self.also else KINDS[self.type]}, not {value!r}")
        value = MAKERS[self.type](value)
        if problem := self.problem(value):
            raise ValueError(f"{problem}, not {value!r}")
        return value

    def read(self, text: str) -> Any:
        """The value that ``text`` stands for on a command line.

        Raises:
            argparse.ArgumentTypeError: there is none, or it is out of range.
        """
        value: Any = next((value for value in self.also if text == str(value)), None)
        if value is not None:
            return value
        problem = f"must be {self.allowed() if self.also else KINDS[self.type]}"
        try:
            value = BOOLEANS[text.lower()] if self.type is bool else MAKERS[self.type](text)
            problem = self.problem(value)
        except (KeyError, ValueError):
            pass
        if problem:
            raise argparse.ArgumentTypeError(f"{problem}, not '{text}'")
        return value

    def add_to(self, group: Any, **changes: Any) -> None:
        """Adds the flag to a parser or a group of one; ``changes`` replace what argparse is told."""
        default = "" if self.default is None else f" (default: {self.default})"
        metavar = "{" + ",".join(self.choices) + "}" if self.choices else METAVARS[self.type]
        options: dict[str, Any] = {"type": self.read, "default": self.default, "metavar": metavar}
        options["help"] = (self.help + default).replace("%", "%%")
        if self.type is bool:
            options |= {"nargs": "?", "const": True}
        group.add_argument(*self.spellings, **options | changes)


def setting(default: Any, help: str, *, type: type | None = None, **rules: Any) -> Any:
    """A field of `Settings` that a user can set. ``type``: needed if the default is None; ``rules``: see `Setting`."""
    kind = type or default.__class__
    if kind not in KINDS:
        raise TypeError(f"a setting is {', '.join(k.__name__ for k in KINDS)}, not {kind.__name__}")
    return field(default=default, metadata={"setting": Setting("", kind, default, help, **rules)})


def declared(owner: Any) -> dict[str, Setting]:
    """The settings of a dataclass by name: its fields that `setting` made."""
    found = {each.name: each.metadata["setting"] for each in fields(owner) if "setting" in each.metadata}
    return {name: replace(one, name=name) for name, one in found.items()}


Own = TypeVar("Own", bound="Settings")


@dataclass(frozen=True)
class Settings:
    """What a rule's hooks get as ``hp``. Below are the numbers that the run gives to every method; a method's own
    settings are fields made by `setting` in a subclass.
    """

    lr: float = 0.01  # learning rate; while training that of the round
    lr_decay: float = 1.0  # its factor from round to round
    optimizer: str = "sgd"  # of the local training, with the next two
    local_momentum: float = 0.0
    weight_decay: float = 0.0
    local_epochs: int = 1
    global_rounds: int = 1  # planned number of rounds
    num_classes: int = 1
    round: int = 0  # the present one
    module_seed: int = 0  # of a rule's own modules

    @classmethod
    def declared(cls) -> dict[str, Setting]:
        """The method's settings by name, in the order of their declaration."""
        return declared(cls)

    @classmethod
    def of(cls: Callable[..., Own], args: Any, **run: Any) -> Own:
        """Every field that ``args`` has as an attribute, with ``run`` in place of what is named there."""
        known = {each.name: getattr(args, each.name, MISSING) for each in fields(cls)} | run  # type: ignore[arg-type]
        return cls(**{name: value for name, value in known.items() if value is not MISSING})

    @classmethod
    def add_flags(cls, parser: argparse.ArgumentParser, title: str) -> None:
        """Adds the flags that ``parser`` does not have yet, under the heading ``title``."""
        group = parser.add_argument_group(title)
        for one in cls.declared().values():
            with suppress(argparse.ArgumentError):  # PFLlib has it
                one.add_to(group)
