"""Ours is a superset of PFLlib: flags, methods and attributes of the base classes, functions. Names are compared."""

import ast
import inspect
import json
from pathlib import Path

import pytest

from flcore.clients.clientbase import Client
from flcore.servers.serverbase import Server
from flcore.utils.cli import pfllib
from support import REPO, load_module

FLAGS = (*pfllib.GENERAL, *pfllib.PARTICIPATION, *pfllib.RESULTS, *pfllib.METHODS, *pfllib.IDLE)
SURFACE = json.loads(Path(__file__).with_name("pfllib_surface.json").read_text())

# What differs from PFLlib on purpose; docs/pfllib.md says why.
OUR_DEFAULTS = {
    "dataset": "Digits",
    "num_clients": None,
    "num_classes": None,
    "global_rounds": 200,
    "local_learning_rate": 0.01,
    "device": "auto",
}
NOT_OFFERED = {"process_text", "process_Shakespeare", "process_image"}


@pytest.mark.parametrize("theirs", SURFACE["main_py_flags"], ids=lambda flag: flag["flags"][0])
def test_every_flag_is_there(theirs):
    short, long = theirs["flags"]
    flag = next(flag for flag in FLAGS if flag.short == short)
    assert (f"--{flag.name}", flag.type.__name__) == (long, theirs["type"])
    expected = OUR_DEFAULTS.get(flag.name, ast.literal_eval(theirs["default"]))
    assert flag.default == expected and isinstance(flag.default, type(expected))


def test_the_differing_defaults_differ():
    theirs = {flag["flags"][1][2:]: ast.literal_eval(flag["default"]) for flag in SURFACE["main_py_flags"]}
    assert all(theirs[name] != default for name, default in OUR_DEFAULTS.items())


def accepts(function, parameters):
    """Whether a call that names or orders its arguments as PFLlib's does would be understood."""
    ours = list(inspect.signature(function).parameters)
    return ours[: len(parameters)] == [name.lstrip("*") for name in parameters]


@pytest.mark.parametrize(
    ("base", "name", "parameters"),
    [
        (base, name, parameters)
        for base, part in ((Client, "clientbase"), (Server, "serverbase"))
        for name, parameters in SURFACE[part][base.__name__]["methods"].items()
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_every_method_of_the_base_classes_is_there(base, name, parameters):
    if name in NOT_OFFERED:
        pytest.skip("not offered")
    assert accepts(getattr(base, name), parameters)


@pytest.mark.parametrize(("base", "part"), [(Client, "clientbase"), (Server, "serverbase")])
def test_every_attribute_of_the_base_classes_is_set(base, part):
    set_anywhere = {
        node.attr
        for parent in base.__mro__[:-1]
        for node in ast.walk(ast.parse(inspect.getsource(parent)))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    assert set(SURFACE[part][base.__name__]["attributes"]) - set_anywhere - set(dir(base)) == set()


@pytest.mark.parametrize(
    ("path", "name", "parameters"),
    [
        (path, name, parameters)
        for path in ("system/utils/data_utils.py", "system/utils/result_utils.py", "dataset/utils/dataset_utils.py")
        for name, parameters in SURFACE[Path(path).stem].items()
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_every_function_is_there(path, name, parameters):
    if name in NOT_OFFERED:
        pytest.skip("not offered")
    assert accepts(getattr(load_module(REPO / path), name), parameters)
