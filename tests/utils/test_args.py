import os
import subprocess
import sys

import pytest
import torch

from flcore.utils.args import FLAGS, IDLE, describe_ignored, idle_flags, make_parser, parse, resolve_device
from flcore.utils.errors import UsageError
from support import REPO

SYSTEM = REPO / "system"


def read(*words):
    return parse(make_parser(), words)


def refused(capsys, *words):
    with pytest.raises(SystemExit) as end:
        read(*words)
    assert end.value.code == 2
    return capsys.readouterr().err


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
def test_booleans_say_what_is_written(flag, capsys):
    name = flag.spellings[0]
    assert getattr(read(), flag.name) is False
    assert getattr(read(name), flag.name) is True
    for word in ("True", "true", "1", "yes"):
        assert getattr(read(name, word), flag.name) is True
    for word in ("False", "false", "0", "no"):
        assert getattr(read(name, word), flag.name) is False
    assert getattr(read(f"--no-{flag.name}"), flag.name) is False
    assert f"--{flag.name}: must be True or False, not 'flase'" in refused(capsys, name, "flase")


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
def test_ranges_are_checked_and_the_flag_is_named(short, good, bad, capsys):
    flag = next(flag for flag in FLAGS if short in flag.spellings)
    for word in good:
        assert getattr(read(short, word), flag.name) == flag.type(word)
    for word in bad:
        message = refused(capsys, short, word)
        assert flag.label in message and word in message and len(message.splitlines()) == 2


def test_the_first_repeat_lies_below_the_number_of_repeats(capsys):
    assert read("-pv", "2", "-t", "3").prev == 2
    assert "-pv/--prev: must be below -t/--times (3)" in refused(capsys, "-pv", "3", "-t", "3")


def test_names_are_not_completed(capsys):
    assert "--local_ep" in refused(capsys, "--local_ep", "3")


def test_given_is_what_was_typed():
    assert read().given == frozenset()
    typed = read("-gr", "200", "--no-auto_break", "-ld", "--seed=0", "-nb", "4").given  # also where it is the default
    assert typed == {"global_rounds", "auto_break", "learning_rate_decay", "seed", "num_classes"}


def test_an_old_spelling_works_with_a_note(capsys):
    assert read("-nb", "100").num_classes == 100
    assert "-nb is an old spelling of --num_classes" in capsys.readouterr().err
    read("-ncl", "100")
    assert capsys.readouterr().err == ""


def test_flags_without_effect_are_told():
    parser = make_parser()
    parser.add_argument("--cpd_align", type=float, default=1.0)
    words = "-algo FedRep -lam 2 -pls 1 -vs 5 -gr 3 --cpd_align 0".split()
    assert describe_ignored(parse(parser, words), {"plocal_epochs"}) == [
        "note: --cpd_align has no effect on FedRep",
        "note: -lam/--lamda has no effect on FedRep",
        "note: -vs/--vocab_size is accepted but has no effect yet",
    ]
    assert describe_ignored(parse(parser, words), {"plocal_epochs", "lamda", "cpd_align", "vocab_size"}) == []
    assert describe_ignored(parse(parser, ["-algo", "FedRep"]), set()) == []


def test_a_term_that_is_switched_off_is_told():
    args = parse(make_parser(), ["-algo", "FedProx", "-mu", "0", "-lam", "0"])
    assert describe_ignored(args, {"mu"}) == [
        "note: -mu/--mu 0 switches a term of FedProx off",
        "note: -lam/--lamda has no effect on FedProx",
    ]
    assert describe_ignored(parse(make_parser(), ["-algo", "FedProx", "-mu", "0.1"]), {"mu"}) == []


def test_a_flag_that_needs_another_is_told_and_makes_no_other_settings():
    args = parse(make_parser(), ["-algo", "FedAvg", "--trim", "0.2", "--attack_rate", "0.3"])
    assert describe_ignored(args, set()) == [
        "note: --attack_rate has no effect without --attack",
        "note: --trim has no effect without --aggregate",
    ]
    assert {"trim", "attack_rate"} <= idle_flags(args)
    args = parse(make_parser(), ["--trim", "0.2", "--aggregate", "krum", "--attack_rate", "0.3", "--attack", "noise"])
    assert describe_ignored(args, set()) == [] and not {"trim", "attack_rate"} & idle_flags(args)


def test_flags_that_do_nothing_yet_are_in_their_own_group():
    idle = {flag.short for flag in FLAGS if flag.group == IDLE}
    assert idle == set("-sfn -fd -vs -ml".split())


def test_names_are_unique_and_no_default_breaks_its_own_limit():
    spellings = [spelling for flag in FLAGS for spelling in flag.spellings]
    assert len(spellings) == len(set(spellings))
    for flag in FLAGS:
        if flag.limit and flag.default is not None:
            assert flag.limit.holds(flag.default), flag.name


def test_help_describes_every_flag_with_its_default():
    text = " ".join(make_parser().format_help().split())
    for flag in FLAGS:
        default = "" if flag.default is None else f" (default: {flag.default})"
        assert f"{flag.help}{default}" in text, flag.name
    assert all(group in text for group in {flag.group for flag in FLAGS})


@pytest.mark.parametrize(
    ("words", "code"), [("-dev cpu", 0), ("-eg 0", 2), ("--no-such-flag", 2), ("-dev cuda -did 99", 2)]
)
def test_exit_codes(words, code):
    program = """
import sys
from flcore.utils.args import make_parser, parse, resolve_device
from flcore.utils.errors import UsageError
try:
    resolve_device(parse(make_parser(), sys.argv[1:]))
except UsageError as error:
    sys.exit(error.exit_code)
"""
    done = subprocess.run([sys.executable, "-c", program, *words.split()], capture_output=True, text=True, cwd=SYSTEM)
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
    assert str(resolve_device(read(*words.split()), said.append)) == device
    assert len(said) == 1 and device in said[0]
    assert ("-did has no effect" in said[0]) is ("-did" in words and device == "cpu")


@pytest.mark.parametrize(
    ("number", "words", "part"),
    [
        (0, "-dev cuda", "-dev cuda: torch sees no CUDA device; use -dev cpu or -dev auto"),
        (0, "-dev cuda -did 7", "torch sees no CUDA device"),
        (2, "-dev cuda -did 7", "there is no card 7, torch sees 2"),
        (2, "-did 2", "there is no card 2"),
        (2, "-dev cuda:1 -did 0", "name different cards"),
        (2, "-did 0,1", "the number of one card"),
        (2, "-dev mps", "no MPS device"),
    ],
)
def test_a_device_that_is_not_there_is_an_error(cards, number, words, part):
    cards(number)
    with pytest.raises(UsageError, match=part) as error:
        resolve_device(read(*words.split()))
    assert error.value.exit_code == 2


def test_the_callers_visible_devices_are_left_alone(cards, monkeypatch):
    cards(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    resolve_device(read("-did", "1"), lambda line: None)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5,6"
