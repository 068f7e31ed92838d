"""Settings: what a field declares, what values it takes, and what every method declares."""

import argparse
import dataclasses
import types
import typing
from pathlib import Path

import numpy as np
import pytest

from flcore.hyperparams import Setting, Settings, setting
from flcore.registry import METHODS
from flcore.utils.cli import pfllib


@dataclasses.dataclass(frozen=True)
class Parent(Settings):
    mu: float = setting(0.1, "a weight", least=0)
    steps: int = setting(3, "a number", least=1, most=9)


@dataclasses.dataclass(frozen=True)
class Child(Parent):
    mu: float = setting(0.5, "another weight", above=0, most=1)
    mix: float | str = setting("auto", "a share", type=float, least=0, below=1, also=("auto",))
    form: str = setting("kl", "a form", choices=("kl", "l2"))
    file: str | None = setting(None, "a file", type=str)
    whole: bool = setting(False, "a switch")


def test_settings_are_inherited_and_may_be_declared_anew():
    assert [*Parent.declared()] == ["mu", "steps"] and [*Child.declared()] == "mu steps mix form file whole".split()
    assert Child.declared()["mu"].default == 0.5 and Child.declared()["mu"].help == "another weight"
    assert Settings.declared() == {}


def test_values_come_from_the_arguments_and_else_from_the_defaults():
    args = types.SimpleNamespace(mu=0.25, local_epochs=4, unknown=1)
    assert Child.of(args, lr=0.5) == Child(mu=0.25, local_epochs=4, lr=0.5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Child().mu = 1.0


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("mu", {"1": 1.0, "1e-3": 0.001}, ["0", "1.5", "nan", "inf", "x", ""]),
        ("steps", {"1": 1, "9": 9}, ["0", "10", "1.0", "x"]),
        ("mix", {"auto": "auto", "0": 0.0, "0.5": 0.5}, ["1", "Auto", "nan"]),
        ("form", {"l2": "l2"}, ["L2", "", "kl "]),
        ("file", {"a b": "a b"}, []),
        ("whole", {"True": True, "no": False, "1": True}, ["2", ""]),
    ],
)
def test_words_of_a_command_line(name, good, bad):
    one = Child.declared()[name]
    for text, value in good.items():
        assert one.read(text) == value and type(one.read(text)) is type(value)
    for text in bad:
        with pytest.raises(argparse.ArgumentTypeError, match=f"must be .*, not '{text}'"):
            one.read(text)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("mu", [1, 0.5, np.float32(0.5), np.int64(1)], [0, 1.5, float("nan"), "0.5", True, None]),
        ("steps", [1, np.int32(9)], [0, 10, 1.0, "1", False, None]),
        ("mix", ["auto", 0, 0.5], [1, "0.5", True]),
        ("form", ["l2"], ["L2", 1, None]),
        ("file", [None, "a"], [1, True]),
        ("whole", [True, False], [0, 1, "True", None]),
    ],
)
def test_values_of_a_program(name, good, bad):
    one = Child.declared()[name]
    for value in good:
        checked = one.check(value)
        assert checked == value and type(checked) in (one.type, str, type(None))
    for value in bad:
        with pytest.raises(ValueError, match="must be .*, not "):
            one.check(value)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({}, ""),
        ({"above": 0}, "above 0"),
        ({"least": 1}, "1 or more"),
        ({"least": 0, "most": 1}, "from 0 to 1"),
        ({"least": 0, "below": 0.5}, "at least 0 and below 0.5"),
        ({"above": 0, "most": 1}, "above 0 and at most 1"),
        ({"least": 1, "also": ("auto",)}, "1 or more or auto"),
        ({"least": 1, "also": (-1,), "words": "1 or more, or -1 for all"}, "1 or more, or -1 for all"),
    ],
)
def test_ranges_in_words(rules, words):
    assert Setting("x", float, 1.0, "help", **rules).allowed() == words


def test_flags_are_added_beside_those_that_a_parser_has():
    parser = argparse.ArgumentParser()
    parser.add_argument("-mu", "--mu", type=float, default=9.0)  # as PFLlib's main.py
    Child.add_flags(parser, "a method")
    args = parser.parse_args(["--mix", "0.5", "--whole"])
    assert (args.mu, args.mix, args.whole, args.steps, args.file) == (9.0, 0.5, True, 3, None)
    assert "a share (default: auto)" in parser.format_help()


def test_a_setting_is_of_one_of_five_types():
    with pytest.raises(TypeError, match="a setting is bool, int, float, str, Path, not tuple"):
        setting((1, 2), "a pair")


# ---- every method ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_setting_is_explained_and_has_a_range_and_a_sound_default(method):
    settings = method.settings_class()
    annotations = typing.get_type_hints(settings)
    theirs = {flag.name: flag.type for flag in pfllib.METHODS}
    for name, one in method.settings().items():
        kinds = typing.get_args(annotations[name]) or (annotations[name],)
        assert one.help and "\n" not in one.help and not one.help.endswith("."), name
        assert one.source or one.type in (bool, str, Path), name
        assert one.allowed() or one.type in (bool, str, Path), name
        assert one.type in kinds and (one.default is None) == (type(None) in kinds), name
        assert one.check(one.default) == one.default == getattr(settings(), name), name
        assert theirs.get(name, one.type) is one.type, name


# The defaults of commit af9d930: a method's own where it says so, else PFLlib's. They decide every result so far.
DEFAULTS = {
    "Local": {},
    "FedAvg": {},
    "FedProx": {"mu": 0.1},
    "FedPer": {},
    "FedRep": {"plocal_epochs": 1},
    "FedProto": {"lamda": 10.0, "proto_weighting": "uniform"},
    "FedGH": {"server_epochs": 100, "server_learning_rate": 0.01},
    "FedALA": {"eta": 1.0, "rand_percent": 80, "layer_idx": 2},
    "FedPA": {
        "noise_dim": 32,
        "hidden_dim": 256,
        "generator_learning_rate": 3e-4,
        "pa_steps": 20,
        "pa_gen_steps": 50,
        "pa_alpha": 25.0,
        "pa_beta": 5.0,
        "pa_beta_min": 0.15,
    },
    "FedProc": {"proc_dim": 256},
    "FedCRL": {"lamda": 1.0, "tau": 0.5, "crl_share": "model", "crl_mix": "loss"},
    "FedTGP": {"lamda": 10.0, "server_epochs": 100, "server_learning_rate": 0.01, "tgp_margin": 100.0},
    "FedHKD": {"lamda": 0.05, "tau": 0.5, "hkd_gamma": 0.05, "hkd_nu": None, "hkd_form": "kl"},
    "FedKTL": {
        "lamda": 1.0,
        "mu": 50.0,
        "server_epochs": 100,
        "server_learning_rate": 0.01,
        "noise_dim": 512,
        "generator": None,
        "trust_generator": False,
        "ktl_server_batch": 100,
    },
    "MOON": {"mu": 1.0, "tau": 0.5},
    "Ditto": {"mu": 1.0, "plocal_epochs": 1},
    "FedCP": {"lamda": 5.0},
    "GPFL": {"lamda": 0.01, "mu": 0.1},
    "FedDBE": {"kl_weight": 50.0, "momentum": 1.0},
    "FedCPD": {
        "plocal_epochs": 1,
        "cpd_fd": 1.0,
        "cpd_align": 1.0,
        "cpd_contrast": 1.0,
        "cpd_tau": 0.1,
        "cpd_width": 16,
        "cpd_reduction": 16,
        "cpd_proto_weighting": "uniform",
    },
}
DEFAULTS["FedCPD+"] = DEFAULTS["FedCPD"] | {"cpd_fd": 0.0, "cpd_align": 10.0, "cpd_ridge": 1.0}


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_defaults_are_what_they_were(method):
    found = {name: one.default for name, one in method.settings().items()}
    assert found == DEFAULTS[method.name]
    assert {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in DEFAULTS[method.name].items()
    }
