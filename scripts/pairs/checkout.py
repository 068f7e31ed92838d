"""The methods of a PFLlib checkout, as its main.py chooses them, and the modules that one of them is made of."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flcore.utils.errors import UsageError

# What a pair finds here instead of in its checkout: the classes it builds on, and the reading of data.
OURS = {
    "flcore.clients.clientbase": "flcore.clients.clientbase",
    "flcore.servers.serverbase": "flcore.servers.serverbase",
    "utils.data_utils": "flcore.data.pfllib",
}
PACKAGES = ("flcore", "utils")


@dataclass(frozen=True)
class Choice:
    """What a checkout's main.py does for one value of -algo.

    module, name: of the server's class.
    head: "split" into base and head, "cut" off, or "whole"; see `flcore.registry.Method`.
    """

    module: str
    name: str
    head: str


@dataclass
class Pair:
    """A server's module with all it needs from the checkout.

    sources: the text of each module, by its name in the checkout, with its imports as they are to be here.
    missing: packages that it imports and that are not installed.
    """

    sources: dict[str, str] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)


def choices(system: Path) -> dict[str, Choice]:
    """The methods in the if-chain over ``args.algorithm`` of a checkout's main.py, by name.

    Raises:
        UsageError: main.py cannot be read, or has no such chain.
    """
    path = system / "main.py"
    tree = _parse(path)
    modules = {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and (name := _algorithm(node.test)):
            calls = [called for statement in node.body for called in _calls(statement)]
            servers = [called for called in calls if modules.get(called, "").startswith("flcore.servers.")]
            if servers:
                found[name] = Choice(modules[servers[-1]], servers[-1], _head(node.body, calls))
    if not found:
        raise UsageError(f"{path}: there is no chain of `if args.algorithm == ...` in it")
    return found


def _algorithm(test: ast.expr) -> str:
    """The name in ``args.algorithm == name``; empty for another condition."""
    if isinstance(test, ast.Compare) and len(test.comparators) == 1 and isinstance(test.left, ast.Attribute):
        right = test.comparators[0]
        if test.left.attr == "algorithm" and isinstance(test.ops[0], ast.Eq) and isinstance(right, ast.Constant):
            return str(right.value)
    return ""


def _calls(node: ast.AST) -> list[str]:
    """The plain names that are called in it."""
    return [call.func.id for call in ast.walk(node) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)]


def _head(body: list[ast.stmt], calls: list[str]) -> str:
    if "BaseHeadSplit" in calls:
        return "split"
    targets = [target for one in body if isinstance(one, ast.Assign) for target in one.targets]
    return "cut" if any(ast.unparse(target) == "args.model.fc" for target in targets) else "whole"


def read_pair(system: Path, choice: Choice, package: str) -> Pair:
    """The modules of a method, whose imports of each other name the ``package`` that they come to lie in.

    Raises:
        UsageError: a module is missing or cannot be read, or imports another in a way that cannot be adapted.
    """
    pair, waiting = Pair(), [choice.module]
    while waiting:
        module = waiting.pop()
        if module in pair.sources:
            continue
        path = system / f"{module.replace('.', '/')}.py"
        lines = _read(path).splitlines(keepends=True)
        for node in ast.walk(_parse(path)):
            for name in _imported(node, path):
                top = name.partition(".")[0]
                if top not in PACKAGES:
                    if top not in sys.stdlib_module_names and importlib.util.find_spec(top) is None:
                        pair.missing.add(top)
                    continue
                if name not in OURS:
                    waiting.append(name)
                place = OURS.get(name) or f"{package}.{name.rpartition('.')[2]}"
                line = node.lineno - 1  # type: ignore[attr-defined]  # an import has one
                if name not in lines[line]:
                    raise UsageError(f"{path}, line {line + 1}: this import of {name} cannot be adapted")
                lines[line] = lines[line].replace(name, place, 1)
        pair.sources[module] = "".join(lines)
    if len({module.rpartition(".")[2] for module in pair.sources}) < len(pair.sources):
        raise UsageError(f"{system}: {', '.join(sorted(pair.sources))} have the same name but for their folders")
    return pair


def _imported(node: ast.AST, path: Path) -> Iterator[str]:
    """The modules that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        if node.level or node.module in PACKAGES:
            raise UsageError(f"{path}, line {node.lineno}: this kind of import cannot be adapted")
        yield node.module or ""
    elif isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.partition(".")[0] in PACKAGES and not alias.asname:
                raise UsageError(f"{path}, line {node.lineno}: `import {alias.name}` cannot be adapted; use `from`")
            yield alias.name


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UnicodeError:
        raise UsageError(f"{path}: it is not UTF-8") from None


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(_read(path))
    except SyntaxError as error:
        raise UsageError(f"{path}, line {error.lineno}: {error.msg}") from None
