"""scripts/bench.py and the stand-in for PFLlib's loop that it compares with."""

import json
import re
import shlex
import shutil
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import benchmark.data
from benchmark import command, parts, pfllib_loop
from benchmark.contestants import Ours, Setting, StandIn, Timing, round_seconds
from benchmark.passes import Bare, matmul_rate, operations
from benchmark.turns import ratio, take_turns
from flcore.utils.errors import RunError
from flcore.utils.seeds import torch_generator
from support import REPO

SMALL = ["--clients", "2", "--samples", "60", "--classes", "3", "--shape", "1", "16", "16", "--repetitions", "1"]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def setting(data_root):
    """`setting()`: what the contestants share, on the tiny data set."""

    def make(*flags, dataset="Tiny"):
        args = command.read_arguments(["-data", dataset, "-dev", "cpu", *flags])
        return Setting(args, data_root, dataset)

    return make


# ---- the stand-in for PFLlib's loop ----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["FedAvg -ls 2", "FedRep", "FedRep -pls 2", "FedCPD --cpd_fd 0"])
def test_the_stand_in_does_the_mathematics_of_our_loop(setting, monkeypatch, algorithm):
    """Given our order of samples, three rounds of it end in our weights, and score the same on the way."""
    current = {"round": 0}

    class OurOrder:
        def __init__(self, client):
            self.size = client.train_samples
            self.draw = torch_generator(0, 0, current["round"], client.id, "train", 0)

        def __iter__(self):
            return iter(torch.randperm(self.size, generator=self.draw).tolist())

    load = pfllib_loop.LoopClient.load

    def in_our_order(client, is_train, whole=False):
        batches = load(client, is_train, whole)
        if not is_train or whole:
            return batches
        return DataLoader(batches.dataset, batches.batch_size, sampler=OurOrder(client), drop_last=True)

    monkeypatch.setattr(pfllib_loop.LoopClient, "load", in_our_order)
    same = setting("-lbs", "5", "-lr", "0.05")
    ours, theirs = Ours(same, algorithm, "loop"), StandIn(same, algorithm)
    for current["round"] in range(3):  # FedCPD's prototypes have an effect from the second on
        ours.round()
        theirs.round()
        assert theirs.loop.accuracy == pytest.approx(ours.server.rs_test_acc[-1], abs=1e-12)
    assert ours.server.rs_test_acc[0] != ours.server.rs_test_acc[-1]
    shared = ours.server.shared_weights()
    for name, value in shared.items():
        assert abs(theirs.loop.global_model.state_dict()[name] - value).max() < 1e-5
    for client, other in zip(ours.server.clients, theirs.loop.clients, strict=True):
        for name, value in client.params.items():
            assert abs(other.model.state_dict()[name] - value).max() < 1e-5
        assert other.test_metrics()[2] == pytest.approx(client.test_metrics()[2], abs=1e-6)
    if "FedCPD" in algorithm:
        assert torch.allclose(theirs.loop.prototypes[0], ours.server.prototypes, atol=1e-5)


def test_the_stand_in_reads_and_collates_as_pfllib_does(setting, monkeypatch):
    """A client's file is read for the test, for the training loss and for training; batches have ten samples."""
    loop = StandIn(setting(), "FedAvg").loop
    read, sizes = [], []
    load, forward = np.load, torch.nn.Module.__call__
    monkeypatch.setattr(np, "load", lambda path, **options: read.append(path) or load(path, **options))

    def seen(module, *inputs):
        if module in [client.model.base for client in loop.clients]:
            sizes.append((module.training, len(inputs[0])))
        return forward(module, *inputs)

    monkeypatch.setattr(torch.nn.Module, "__call__", seen)
    loop.round()
    assert sorted((path.parent.name, path.stem) for path in read) == sorted(
        (part, str(i)) for i in range(4) for part in ("test", "train", "train")
    )
    # training sets of 23, 12, 7, 31 samples: full tens only, once for the loss and once for training
    assert sizes.count((True, 10)) == 6 and {size for training, size in sizes if training} == {10}
    assert sizes.count((False, 10)) == 6 and sorted(size for _, size in sizes if size != 10) == [5, 6, 8, 9]


def test_the_stand_in_knows_three_algorithms(setting, capsys):
    known = {
        name: pfllib_loop.can_run(setting().experiment(name, "loop").values)
        for name in ("FedAvg", "FedRep", "FedCPD", "FedCPD --cpd_fd 0", "FedProx")
    }
    assert known == {"FedAvg": True, "FedRep": True, "FedCPD": False, "FedCPD --cpd_fd 0": True, "FedProx": False}


# ---- counting --------------------------------------------------------------------------------------------------------

# FedAvgCNN on 1 x 20 x 20 with 4 classes, multiply and add, one sample forward
CONV1, CONV2 = 2 * 16 * 16 * 32 * 25, 2 * 4 * 4 * 64 * 32 * 25
LINEAR, HEAD = 2 * 256 * 512, 2 * 512 * 4
BODY = CONV1 + CONV2 + LINEAR


@pytest.mark.parametrize(
    ("algorithm", "training"),
    [
        # samples in batches: 20 + 10 + 7 + 30 = 67 of 73. Backward is twice forward, but the image has no gradient.
        ("FedAvg", 67 * (3 * (BODY + HEAD) - CONV1)),
        ("FedAvg -ls 2", 2 * 67 * (3 * (BODY + HEAD) - CONV1)),
        # features once; the head without a gradient of z; then the body, with z's gradient through a head that rests
        ("FedRep", 73 * BODY + 67 * 2 * HEAD + 67 * (3 * BODY - CONV1 + 2 * HEAD)),
    ],
)
def test_operations_by_hand(setting, algorithm, training):
    ours = Ours(setting(), algorithm, "loop")
    ours.round()
    before = [dict(client.params) for client in ours.server.clients]
    test_samples = 9 + 8 + 6 + 5
    assert operations(ours) == {"training": training, "evaluation": 2 * test_samples * (BODY + HEAD)}
    for client, params in zip(ours.server.clients, before, strict=True):
        assert all(torch.equal(client.params[name], value) for name, value in params.items())
        assert not any(value.requires_grad for value in client.params.values())


def test_a_wider_fusion_costs_more_operations(setting):
    counts = []
    for width in (2, 4, 8):
        ours = Ours(setting(), f"FedCPD --cpd_width {width}", "loop")
        ours.round()
        counts.append(operations(ours)["training"])
    # operations are linear in the width: every convolution of the fusion has it on exactly one side
    assert counts[0] < counts[1] < counts[2]
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])


def test_overhead_is_what_lies_outside_the_passes(setting, monkeypatch):
    """A clock on which a pass of the extractor takes a second, an aggregation a hundred, and all else no time."""
    now = [0.0]
    for name in ("time", "perf_counter", "process_time"):
        monkeypatch.setattr(time, name, lambda: now[0])

    def taking(seconds, function):
        return lambda *args, **kwargs: (now.__setitem__(0, now[0] + seconds), function(*args, **kwargs))[1]

    ours = Ours(setting(), "FedRep", "loop")
    ours.server.aggregate_parameters = taking(100, ours.server.aggregate_parameters)
    forward = ours.server.clients[0].forward
    monkeypatch.setattr(forward, "features", taking(1, forward.features))
    whole, bare = take_turns([ours, Bare(ours)], 1)
    # 2 + 1 + 1 + 3 mini-batches of the extractor's phase and the features of four clients; then A and B
    assert bare.timings == [Timing(7 + 4 + 8, 7 + 4)]
    assert whole.timings == [Timing(7 + 4 + 8 + 100, 7 + 4)]


def test_a_product_of_matrices_has_a_rate():
    assert 0.1 < matmul_rate(1, torch.device("cpu")) < 10_000  # GFLOP/s


# ---- turns -----------------------------------------------------------------------------------------------------------


def test_contestants_take_turns_and_the_first_does_not_count():
    log = []

    def contestant(name, *seconds):
        left = iter(seconds)
        go = lambda: log.append(name) or Timing(next(left))  # noqa: E731
        return SimpleNamespace(algorithm=name, executor="loop", round=go)

    between = []
    measured = take_turns([contestant("A", 9, 1, 2), contestant("B", 8, 3, 4)], 2, lambda: between.append(0))
    assert log == ["A", "B"] * 3 and len(between) == 2
    assert [one.seconds for one in measured] == [[1, 2], [3, 4]]


def test_a_ratio_is_the_median_of_the_turns_own_ratios():
    assert ratio([2, 30, 8], [1, 10, 2]) == 3  # of 2, 3, 4; the ratio of the medians is 4
    assert ratio([1, 4], [1, 2]) == 1.5


# ---- a checkout of PFLlib --------------------------------------------------------------------------------------------

LINES = "Round number: 0\n------- time cost ------- 7.5\nRound number: 1\n------- time cost ------- 2.25\n"
AVERAGE = "\nAverage time cost per round.\n1.5e-01\n"


def test_seconds_from_pfllibs_lines():
    assert round_seconds(LINES) == 2.25 and round_seconds(LINES + AVERAGE) == 2.25
    assert round_seconds(AVERAGE) == 0.15
    for nothing in ("", "------- time cost ------- 7.5\n"):  # one line is the first round's, which does not count
        with pytest.raises(RunError, match="time cost"):
            round_seconds(nothing)


def checkout(folder, code):
    (folder / "system").mkdir(parents=True)
    (folder / "system" / "main.py").write_text(code)
    return folder


def flags_of(folder):
    return ["--pfllib", str(folder), "--executors", "loop", "--algorithms", "FedAvg", "-lbs", "2"]


def test_a_checkout_gets_our_settings_and_stays_as_it_is(setting, tmp_path, capsys):
    code = f"""
import pathlib, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
wanted = {{"-algo": "FedAvg", "-m": "CNN", "-lbs": "2", "-lr": "0.01", "-gr": "1", "-nc": "4", "-ncl": "4"}}
wanted |= {{"-jr": "1.0", "-dev": "cpu", "-ls": "1"}}
assert wanted.items() <= flags.items(), flags
folder = pathlib.Path("..") / "dataset" / flags["-data"]  # where PFLlib looks
assert "Cifar10" in flags["-data"] and (folder / "test" / "3.npz").is_file()
pathlib.Path("../results").mkdir(exist_ok=True)
print({LINES!r})
"""
    folder = checkout(tmp_path / "PFLlib", code)
    same = setting(*flags_of(folder), "--repetitions", "2", dataset="Colour")
    found = parts.rounds(same, tmp_path / "scratch")["rounds"]
    loop, theirs = found
    assert theirs["executor"] == "pfllib" and theirs["seconds"] == [2.25, 2.25]
    expected = sorted(2.25 / seconds for seconds in loop["seconds"])
    assert loop["times_faster_than"]["pfllib"] == pytest.approx(sum(expected) / 2)
    assert "samples_per_second" in loop and "roofline: FedAvg, loop" in capsys.readouterr().out
    assert [path.name for path in folder.rglob("*")] == ["system", "main.py"]


@pytest.mark.parametrize(("code", "word"), [("raise ImportError('no ujson')", "no ujson"), ("", "time cost")])
def test_a_checkout_that_fails_is_an_error(data_root, tmp_path, capsys, code, word):
    folder = checkout(tmp_path / "PFLlib", code)
    flags = ["-data", "Colour", "--data_dir", str(data_root), "--out", str(tmp_path / "out.json"), "-dev", "cpu"]
    assert command.main([*flags, *flags_of(folder)]) == 1
    errors = capsys.readouterr().err
    assert word in errors and "--pfllib" in errors


def test_images_that_pfllibs_network_cannot_take_are_refused(data_root, tmp_path, capsys):
    folder = checkout(tmp_path / "PFLlib", "")
    flags = ["-data", "Tiny", "--data_dir", str(data_root), "--out", str(tmp_path / "out.json"), *flags_of(folder)]
    assert command.main(flags) == 2
    assert "(1, 20, 20)" in capsys.readouterr().err


@pytest.mark.slow
def test_the_double_of_pfllib_runs(setting, tmp_path):
    shutil.copytree(REPO / "tests" / "pfllib_double", tmp_path / "PFLlib")
    same = setting(*flags_of(tmp_path / "PFLlib"), "--repetitions", "1", dataset="Colour")
    before = sorted((tmp_path / "PFLlib").rglob("*"))
    [loop, theirs] = parts.rounds(same, tmp_path / "scratch")["rounds"]
    assert theirs["seconds"][0] > 0 and loop["times_faster_than"]["pfllib"] > 0
    assert sorted((tmp_path / "PFLlib").rglob("*")) == before


# ---- the command -----------------------------------------------------------------------------------------------------


def run_small(out, *flags):
    """The result of a small run, and what was left in its folder."""
    assert command.main([*SMALL, "-dev", "cpu", "--out", str(out), *flags]) == 0
    assert sorted(path.name for path in out.parent.iterdir()) == ["bench.json"]
    return json.loads(out.read_text())


def test_a_run_leaves_numbers(tmp_path, capsys):
    flags = ["--algorithms", "FedAvg", "FedProx -mu 0.1", "--executors", "threads", "pfllib-loop"]
    result = run_small(tmp_path / "sub" / "bench.json", *flags)
    assert result["command"].startswith("python scripts/bench.py --clients 2") and result["seed"] == 0
    assert result["versions"]["torch"] and result["processor"] and result["peak_memory_bytes"]["resident"] > 0
    assert result["data"]["num_clients"] == 2 and result["data"]["shape"] == [1, 16, 16]
    pairs = [(line["algorithm"], line["executor"]) for line in result["rounds"]]
    assert pairs == [("FedAvg", "threads"), ("FedAvg", "pfllib-loop"), ("FedProx -mu 0.1", "threads")]
    ours, theirs, _ = result["rounds"]
    assert ours["times_faster_than"]["pfllib-loop"] == theirs["seconds"][0] / ours["seconds"][0]
    assert ours["threads"] >= 1 and ours["share_of_peak"] > 0
    assert ours["projected_hours"] == pytest.approx(200 / 3600 * ours["median_seconds"])
    printed = capsys.readouterr().out
    assert "does not know FedProx" in printed and "turn 1/1" in printed and "| FedAvg | threads |" in printed


@pytest.mark.slow
def test_the_other_parts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(parts, "CLIENTS", (2, 4))
    monkeypatch.setattr(parts, "WIDTHS", (2,))
    flags = ["--overhead", "--flops", "--scaling", "--algorithms", "FedAvg", "FedProx -mu 0.1"]
    result = run_small(tmp_path / "sub" / "bench.json", *flags, "--executors", "loop")
    assert "rounds" not in result and len(result["overhead"]) == 2
    assert [line["algorithm"] for line in result["flops"]] == ["FedRep", "FedCPD --cpd_fd 0", "FedCPD --cpd_width 2"]
    assert result["flops"][0]["predicted"] == result["flops"][0]["measured"] == 1 < result["flops"][2]["predicted"]
    assert [line["value"] for line in result["scaling"]["clients"]] == [2, 2, 4, 4]
    assert [line["value"] for line in result["scaling"]["samples"]] == [15, 15, 30, 30, 60, 60]
    assert [line["value"] for line in result["scaling"]["local epochs"]] == [1, 1, 2, 2, 4, 4]
    assert "overhead: FedAvg" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--executors", "lop"], ["--executors", "lop", "threads", "pfllib-loop"]),
        (["--repetitions", "0"], ["--repetitions", "1 or more"]),
        (["--pfllib", "nowhere"], ["--pfllib", "system/main.py", "nowhere"]),
        (["--algorithms", "FedAvgg"], ["FedAvgg", "FedAvg?"]),
        (["--algorithms", "FedAvg -jr 0.5"], ["-jr"]),
        (["--algorithms", "FedCPD --cpd_fd 'x"], ["--algorithms", "quotation"]),
        (["--algorithms", ""], ["--algorithms"]),
        (["-m", "CNNN"], ["CNNN", "CNN"]),
        (["-dev", "gpu"], ["-dev"]),
        (["--lr", "0"], ["-lr"]),
        (["--seed", "-1"], ["--seed"]),
        (["--shape", "3", "8", "8"], ["16x16"]),
        (["-data", "NoSuch"], ["NoSuch"]),
        (["--samples", "100"], ["--samples", "too few", "20 clients"]),
        (["--scaling", "--samples", "4000"], ["--scaling", "8000"]),
        (["--out", "bench.txt"], ["--out", ".json"]),
    ],
)
def test_a_mistake_exits_with_2_and_says_what_is_wrong(tmp_path, capsys, flags, words):
    small = ["--repetitions", "1"] if "--samples" in flags else SMALL
    out = [] if "--out" in flags else ["--out", str(tmp_path / "bench.json")]
    try:
        code = command.main([*small, *out, *flags])
    except SystemExit as stop:
        code = stop.code
    errors = capsys.readouterr().err
    assert code == 2, errors
    for word in words:
        assert word in errors
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert command.main([*SMALL, "--out", str(tmp_path / "file" / "bench.json")]) == 1
    assert "file" in capsys.readouterr().err


def test_made_up_data_are_shared_out(tmp_path):
    folder, name = benchmark.data.make_data(tmp_path, 3, 90, 5, (1, 16, 16), seed=0, equal=True)
    parts = {}
    for part in ("train", "test"):
        for i in range(3):
            with np.load(folder / name / part / f"{i}.npz", allow_pickle=True) as file:
                parts[part, i] = file["data"].item()
    assert [len(parts["train", i]["y"]) for i in range(3)] == [22] * 3
    assert [len(parts["test", i]["y"]) for i in range(3)] == [8] * 3
    x = parts["train", 0]["x"]
    assert x.shape[1:] == (1, 16, 16) and x.dtype == np.float32 and abs(x).max() <= 1
    again = benchmark.data.make_data(tmp_path / "again", 3, 90, 5, (1, 16, 16), seed=0, equal=True)
    assert (again[0] / name / "train" / "0.npz").read_bytes() == (folder / name / "train" / "0.npz").read_bytes()


def test_commands_of_the_documentation_are_understood():
    text = (REPO / "docs" / "performance.md").read_text()
    commands = re.findall(r"`python scripts/bench\.py([^`]*)`|^ *python scripts/bench\.py(.*)$", text, re.MULTILINE)
    assert len(commands) > 4
    for words in map("".join, commands):
        if "PATH_TO_PFLLIB" not in words:
            command.read_arguments(shlex.split(words))
