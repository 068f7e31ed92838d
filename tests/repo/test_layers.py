"""Imports flow one way, as docs/architecture.md says."""

import ast
import re
import sys

import pytest

from plugin.checkout import FILES
from support import REPO

SYSTEM = REPO / "system"
ORDER = re.findall(r"^    (hyperparams < .*?)\n\n", (REPO / "docs" / "architecture.md").read_text(), re.M | re.S)[0]
ORDER = [name if name == "main" else f"flcore.{name}" for name in re.split(r"\s*<\s*", ORDER)]
ORDER.append("utils")  # PFLlib's names, which nothing of ours needs
PORTABLE = [name for name in FILES if not name.endswith("cpd.py") or "trainmodel" in name]  # the pair needs its host


def layer(module):
    return next((i for i, name in enumerate(ORDER) if module == name or module.startswith(name + ".")), None)


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "flcore":
                yield from (f"flcore.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", sorted(SYSTEM.rglob("*.py")), ids=lambda path: str(path.relative_to(SYSTEM)))
def test_no_import_points_upwards(path):
    own = layer(".".join(path.relative_to(SYSTEM).with_suffix("").parts))
    for module in imports(path):
        if layer(module) is not None:
            assert layer(module) <= own, f"{path} imports {module}"


def test_files_are_of_a_readable_length():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SYSTEM.rglob("*.py")}
    assert not [f"{path}: {lines} lines" for path, lines in lengths.items() if lines > 400]
    assert lengths[SYSTEM / "flcore" / "servers" / "serverbase.py"] < 250


@pytest.mark.parametrize("name", PORTABLE)
def test_portable_files_import_torch_the_standard_library_and_each_other_only(name):
    portable = {file.removesuffix(".py").replace("/", ".") for file in PORTABLE}
    outside = set(imports(SYSTEM / name)) - portable
    assert {module.split(".")[0] for module in outside} <= {"torch", *sys.stdlib_module_names}


def test_files_of_tests_have_names_of_their_own():
    """pytest imports them by these."""
    names = [path.name for path in (REPO / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
