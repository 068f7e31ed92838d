import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flcore import registry
from flcore.utils import cli
from flcore.utils.cli import ours, pfllib, resolve_device
from flcore.utils.cli.parser import COMMON, make_parser
from flcore.utils.errors import UsageError
from support import REPO

FLAGS = [*(flag for _, flags in COMMON for flag in flags), *ours.PROTOTYPES, *pfllib.METHODS, *pfllib.IDLE]


def arguments(*words):
    return cli.read(words, registry.find(cli.chosen_in(words)[0]), registry.METHODS)


def read(*words):
    return argparse.Namespace(**arguments(*words).values)


def refused(*words):
    with pytest.raises(UsageError) as error:
        read(*words)
    return str(error.value)


def test_a_pfllib_command_line_is_understood():
    args = read(
        *"-data Cifar100 -m CNN -algo FedRep -gr 2000 -did 0 -nc 20 -lbs 10 -pls 5 -jr 0.5 -lr 0.005 -go x".split()
    )
    assert (args.dataset, args.algorithm, args.global_rounds, args.plocal_epochs) == ("Cifar100", "FedRep", 2000, 5)
    assert (args.join_ratio, args.local_learning_rate, args.goal) == (0.5, 0.005, "x")


def test_defaults_are_the_papers_protocol():
    args = read()
    assert (args.global_rounds, args.local_learning_rate, args.batch_size, args.local_epochs) == (200, 0.01, 10, 1)
    assert (args.dataset, args.num_clients, args.num_classes, args.device, args.seed) == (
        "Digits",
        None,
        None,
        "auto",
        0,
    )


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag.type is bool], ids=lambda flag: flag.name)
def test_booleans_say_what_is_written(flag):
    name = flag.spellings[0]
    assert getattr(read(), flag.name) is False
    assert getattr(read(name), flag.name) is True
    for word in ("True", "true", "1", "yes"):
        assert getattr(read(name, word), flag.name) is True
    for word in ("False", "false", "0", "no"):
        assert getattr(read(name, word), flag.name) is False
    assert getattr(read(f"--no-{flag.name}"), flag.name) is False
    assert f"--{flag.name}: must be True or False, not 'flase'" in refused(name, "flase")


def test_a_boolean_without_value_leaves_the_next_flag_alone():
    args = read("-ld", "-gr", "3")
    assert args.learning_rate_decay is True and args.global_rounds == 3


@pytest.mark.parametrize(
    ("short", "good", "bad"),
    [
        ("-jr", ["0.001", "1"], ["0", "1.01", "5.0", "-1", "nan", "one"]),
        ("-cdr", ["0", "0.99"], ["1", "-0.1"]),
        ("-gr", ["0", "7"], ["-1", "1.5"]),
        ("-eg", ["1"], ["0"]),
        ("-lbs", ["1", "-1"], ["0", "-2"]),
        ("-nc", ["1"], ["0"]),
        ("-ncl", ["1"], ["0"]),
        ("-lr", ["1e-9"], ["0", "-1", "inf", "nan"]),
        ("-ldg", ["0.5"], ["0"]),
        ("-ls", ["0"], ["-1"]),
        ("-pls", ["0"], ["-1"]),
        ("-t", ["1"], ["0"]),
        ("-tc", ["1"], ["0"]),
        ("-fs", ["0"], ["-1"]),
        ("-nnc", ["0"], ["-1"]),
        ("-ften", ["0"], ["-1"]),
        ("-sd", ["0", str(2**63 - 1)], ["-1", str(2**63)]),
        ("--num_threads", ["1", "1024"], ["0", "1025"]),
        ("-tth", ["1"], ["0"]),
        ("-tsr", ["0", "1"], ["-0.1", "1.1"]),
        ("--on_nan", ["skip", "stop"], ["Skip", ""]),
        ("--label_noise", ["0", "1"], ["1.5"]),
        ("--attack", ["none", "signflip", "noise", "labelflip"], ["flip"]),
        ("--attack_rate", ["0", "1"], ["-1", "2"]),
        ("--attack_scale", ["0.5"], ["0", "-1"]),
        ("--aggregate", ["mean", "median", "trimmed", "krum"], ["average"]),
        ("--trim", ["0", "0.49"], ["0.5", "-0.1"]),
        ("-s", ["1", "100"], ["0", "101"]),
        ("-dev", ["auto", "cpu", "cuda", "cuda:12", "mps"], ["gpu", "cuda:", "cuda:x", "CUDA", "cpu:0"]),
        ("-ex", ["auto", "loop"], ["fast"]),
    ],
)
def test_ranges_are_checked_and_the_flag_is_named(short, good, bad):
    flag = next(flag for flag in FLAGS if short in flag.spellings)
    for word in good:
        assert getattr(read(short, word), flag.name) == flag.read(word)
    for word in bad:
        message = refused(short, word)
        assert flag.label in message and word in message and len(message.splitlines()) == 1


def test_the_first_repeat_lies_below_the_number_of_repeats():
    assert read("-pv", "2", "-t", "3").prev == 2
    assert "-pv/--prev: must be below -t/--times (3)" in refused("-pv", "3", "-t", "3")


def test_names_are_not_completed_and_the_nearest_one_is_named():
    assert refused("--local_ep", "3") == "--local_ep: no such flag. Did you mean --local_epochs?"


def test_given_is_what_was_typed():
    assert arguments().given == frozenset()
    typed = arguments("-gr", "200", "--no-auto_break", "-ld", "--seed=0", "-nb", "4").given  # also the default
    assert typed == {"global_rounds", "auto_break", "learning_rate_decay", "seed", "num_classes"}


def test_an_old_spelling_works_with_a_note():
    assert read("-nb", "100").num_classes == 100
    assert arguments("-nb", "100").notes == ("note: -nb is an old spelling of --num_classes",)
    assert arguments("-ncl", "100").notes == ()


def test_flags_without_effect_are_told():
    assert arguments(*"-algo FedRep -lam 2 -pls 1 -vs 5 -gr 3 --cpd_align 0".split()).notes == (
        "note: --cpd_align has no effect on FedRep",
        "note: -lam/--lamda has no effect on FedRep",
        "note: -vs/--vocab_size is accepted but has no effect yet",
    )
    assert arguments("-algo", "FedRep").notes == ()


def test_a_part_that_is_switched_off_is_told():
    assert arguments("-algo", "FedProx", "-mu", "0", "-lam", "0").notes == (
        "note: -mu/--mu 0 switches a part of FedProx off",
        "note: -lam/--lamda has no effect on FedProx",
    )
    assert arguments("-algo", "FedProx", "-mu", "0.1").notes == ()
    assert arguments("-algo", "FedCPD", "--cpd_fd", "0").notes == ("note: --cpd_fd 0 switches a part of FedCPD off",)


def test_a_method_that_counts_batches_has_no_use_for_epochs():
    method = registry.find("FedPA")
    found = cli.read(["-ls", "5"], method, registry.METHODS)
    assert found.notes == ("note: -ls/--local_epochs has no effect on FedPA",) and "local_epochs" not in found.used


def test_a_flag_that_needs_another_is_told_and_makes_no_other_settings():
    found = arguments("-algo", "FedAvg", "--trim", "0.2", "--attack_rate", "0.3")
    assert found.notes == (
        "note: --attack_rate has no effect without --attack",
        "note: --trim has no effect without --aggregate",
    )
    assert not {"trim", "attack_rate"} & found.used
    found = arguments("--trim", "0.2", "--aggregate", "krum", "--attack_rate", "0.3", "--attack", "noise")
    assert found.notes == () and {"trim", "attack_rate"} <= found.used


def test_keywords_mean_what_the_flags_mean():
    method = registry.find("FedCPD")
    words = ["-algo", "FedCPD", "-gr", "3", "--cpd_align", "5", "-ld", "-mu", "1"]
    given = {"algorithm": "FedCPD", "global_rounds": 3, "cpd_align": 5, "learning_rate_decay": True, "mu": 1}
    assert cli.settle(method, given, registry.METHODS) == cli.read(words, method, registry.METHODS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cpd_alin": 1.0}, "cpd_alin: no such setting. Did you mean cpd_align?"),
        ({"cpd_align": -1}, "cpd_align: must be 0 or more, not -1.0"),
        ({"num_clients": 2.5}, "num_clients: must be a whole number, not 2.5"),
        ({"num_clients": True}, "num_clients: must be a whole number, not True"),
        ({"local_learning_rate": float("nan")}, "local_learning_rate: must be a finite number, not nan"),
        ({"learning_rate_decay": 1}, "learning_rate_decay: must be True or False, not 1"),
        ({"cpd_proto_weighting": "counts"}, "cpd_proto_weighting: must be one of uniform, count, not 'counts'"),
        ({"batch_size": 0}, "batch_size: must be 1 or more, or -1 for one batch of all samples, not 0"),
    ],
)
def test_wrong_keywords_are_refused(given, message):
    with pytest.raises(UsageError) as error:
        cli.settle(registry.find("FedCPD"), given, registry.METHODS)
    assert str(error.value) == message


def test_another_methods_keyword_is_noted():
    found = cli.settle(registry.find("FedRep"), {"cpd_align": 5.0, "global_rounds": 7}, registry.METHODS)
    assert found.notes == ("note: --cpd_align has no effect on FedRep",)
    assert found.values["global_rounds"] == 7 and "cpd_align" not in found.values


def test_names_are_unique_and_no_default_breaks_its_own_limit():
    spellings = [spelling for flag in FLAGS for spelling in flag.spellings]
    assert len(spellings) == len(set(spellings))
    for flag in FLAGS:
        assert flag.check(flag.default) == flag.default, flag.name


def help_of(*words):
    """The titles of --help's groups in their order, and the lines under each."""
    method = registry.find(cli.chosen_in(words)[0])
    text = make_parser(method, registry.METHODS, {"model": ["CNN", "DNN"]}, all=not words).format_help()
    groups = {}
    for block in text.split("\n\n"):
        title, _, lines = block.partition(":\n")
        groups[title.strip()] = " ".join(lines.split())
    return groups


def test_help_shows_what_the_method_uses_first_with_its_own_defaults():
    groups = help_of("-algo", "MOON")
    titles = list(groups)
    assert titles[1:4] == ["options", "settings of MOON", "general"]
    assert list(help_of("-algo", "FedGH"))[2:4] == ["settings of FedGH", "class prototypes that it uploads"]
    assert titles[-2] == "PFLlib's flags without effect on MOON"
    assert "-mu X, --mu X weight of the model-contrastive loss (default: 1.0)" in groups["settings of MOON"]
    assert "-tau X, --tau X temperature of the contrast (default: 0.5)" in groups["settings of MOON"]
    assert "--lamda" in groups[titles[-2]] and "--mu" not in groups[titles[-2]]
    assert "--cpd_fd" not in str(groups)


def test_help_without_a_method_tells_of_all():
    groups = help_of()
    titles = list(groups)
    settings = groups["settings of single methods (-algo ALGORITHM --help: those of one)"]
    assert "FedProx: weight of the proximal term (default: 0.1)" in settings and "--cpd_fd" in settings
    assert titles[-2] == "PFLlib's flags that serve no method here"
    assert "--p_learning_rate" in groups[titles[-2]] and "--mu" not in groups[titles[-2]]
    assert "method to run: Local, FedAvg, FedProx" in groups["general"] and "or one of: CNN, DNN" in groups["general"]


def test_help_describes_every_flag_with_its_default():
    text = " ".join(" ".join(help_of("-algo", "FedAvg").values()).split())
    for flag in FLAGS:
        default = "" if flag.default is None else f" (default: {flag.default})"
        assert flag.name in ("algorithm", "model") or f"{flag.help}{default}" in text, flag.name


@pytest.mark.parametrize(
    ("words", "code"), [("--list", 0), ("--help", 0), ("-eg 0", 2), ("--no-such-flag", 2), ("-dev cuda -did 99", 2)]
)
def test_exit_codes(words, code):
    command = [sys.executable, "main.py", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPO / "system")
    assert done.returncode == code and "Traceback" not in done.stderr


# ---- devices: the machine that runs the tests may have a card or none, so torch's answers are set


@pytest.fixture
def cards(monkeypatch):
    def have(number):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda card: f"card {card}")
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)

    return have


def device_of(words, say=lambda line: None):
    found = arguments(*words.split())
    values = found.values
    return resolve_device(values["device"], values["device_id"] if "device_id" in found.given else None, say)


@pytest.mark.parametrize(
    ("number", "words", "device"),
    [
        (0, "", "cpu"),
        (0, "-did 3", "cpu"),
        (0, "-dev cpu", "cpu"),
        (2, "", "cuda:0"),
        (2, "-did 1", "cuda:1"),
        (2, "-dev cuda", "cuda:0"),
        (2, "-dev cuda -did 1", "cuda:1"),
        (2, "-dev cuda:1", "cuda:1"),
        (2, "-dev cuda:1 -did 1", "cuda:1"),
        (2, "-dev cpu -did 1", "cpu"),
    ],
)
def test_device(cards, number, words, device):
    cards(number)
    said = []
    assert str(device_of(words, said.append)) == device
    assert len(said) == 1 and device in said[0]
    assert ("-did has no effect" in said[0]) is ("-did" in words and device == "cpu")


@pytest.mark.parametrize(
    ("number", "words", "part"),
    [
        (0, "-dev cuda", "-dev cuda: torch sees no CUDA device; use -dev cpu or -dev auto"),
        (0, "-dev cuda -did 7", "torch sees no CUDA device"),
        (0, "-did 0,1,2,3", "-did/--device_id: must be the number of one card, such as 0, not '0,1,2,3'"),
        (2, "-dev cuda -did 7", "there is no card 7, torch sees 2"),
        (2, "-did 2", "there is no card 2"),
        (2, "-dev cuda:1 -did 0", "name different cards"),
        (2, "-did 0,1,2,3", "must be the number of one card, such as 0, not"),
        (2, "-dev mps", "no MPS device"),
    ],
)
def test_a_device_that_is_not_there_is_an_error(cards, number, words, part):
    cards(number)
    with pytest.raises(UsageError, match=part) as error:
        device_of(words)
    assert error.value.exit_code == 2


def test_the_callers_visible_devices_are_left_alone(cards, monkeypatch):
    cards(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    device_of("-did 1")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5,6"


# ---- files of settings


@pytest.fixture
def config(tmp_path):
    """``config("seed = 3", "-sd", "4")`` -> what a command line with this file means."""

    def make(text, *words):
        (tmp_path / "a b.toml").write_text(text, encoding="utf-8")
        argv = ["--config", str(tmp_path / "a b.toml"), *words]
        algorithm, found = cli.chosen_in(argv)
        return cli.read(argv, registry.find(algorithm), registry.METHODS, config=found)

    return make


def test_a_file_of_settings_holds_where_the_command_line_says_nothing(config):
    found = config('algorithm = "FedProx"\nmu = 1\nseed = 3\nlearning_rate_decay = true\ngoal = "größe"', "-sd", "4")
    assert (found.method.name, found.values["mu"], found.values["seed"]) == ("FedProx", 1.0, 4)
    assert found.values["learning_rate_decay"] is True and found.values["goal"] == "größe"
    assert found.given == {"algorithm", "mu", "seed", "learning_rate_decay", "goal", "config"}
    assert config('algorithm = "FedProx"', "-algo", "FedCPD").method.name == "FedCPD"
    assert config("mu = 2.0").notes == ("note: -mu/--mu has no effect on FedAvg",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_client = 3", "num_client: no such setting. Did you mean num_clients?"),
        ("join_ratio = 5", "join_ratio: must be above 0 and at most 1, not 5.0"),
        ("num_clients = 2.5", "num_clients: must be a whole number, not 2.5"),
        ("seed = [0, 1]", "seed has several values, and a run takes one"),
        ("[grid]\nseed = 1", "grid has several values, and a run takes one"),
        ('config = "other.toml"', "it cannot name another file"),
        ("seed = ", "Invalid value (at end of document)"),
    ],
)
def test_a_wrong_file_of_settings_is_refused_by_name(config, text, message):
    with pytest.raises(UsageError) as error:
        config(text)
    assert str(error.value).startswith("--config ") and str(error.value).endswith(f"a b.toml: {message}")


def test_a_file_of_settings_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match=r"--config nowhere\.toml: No such file"):
        cli.chosen_in(["--config", "nowhere.toml"])


# ---- paths


@pytest.mark.parametrize("name", [flag.name for flag in FLAGS if flag.type is Path])
def test_every_path_knows_the_home(name, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    if name != "config":
        assert getattr(read(f"--{name}=~/a [b] ü"), name) == tmp_path / "a [b] ü"
        assert cli.settle(registry.find("FedAvg"), {name: "~/x"}, registry.METHODS).values[name] == tmp_path / "x"
    assert "must be a path, not ''" in refused(f"--{name}=")
    assert "must be a path, not '~nobody-has-this-name/x'" in refused(f"--{name}=~nobody-has-this-name/x")
