import argparse
import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time

import h5py
import numpy as np
import pytest
import torch

from flcore.utils import result_utils
from flcore.utils.args import make_parser, parse
from flcore.utils.errors import RunError, UsageError
from flcore.utils.result_utils import claim_run, read_run, run_info, run_settings, settings_digest, write_h5, write_json
from support import REPO


@pytest.fixture
def claim(tmp_path):
    """`claim(lr=0.1)` claims for a run with these settings."""

    def make(goal="test", repeat=0, overwrite=False, reuse=False, resume=False, **settings):
        how = overwrite, reuse, resume
        return claim_run(tmp_path, "Digits", "FedCPD", goal, repeat, settings, *how, say=lambda line: None)

    return make


def finish(files, accuracy=(0.5,)):
    write_h5(files.h5, {"rs_test_acc": accuracy})
    files.finish("finished")
    return files


def pid_of_the_dead():
    gone = subprocess.Popen(["true"])
    gone.wait()
    return gone.pid


# ---- writing


def test_h5_holds_what_was_given(tmp_path):
    write_h5(
        tmp_path / "a.h5",
        {"rs_test_acc": [0.25, float("nan")], "rs_round": [0, 5], "rs_client_acc": np.eye(2), "e": []},
    )
    with h5py.File(tmp_path / "a.h5") as file:
        assert {name: (file[name].dtype.kind, file[name].shape) for name in file} == {
            "rs_test_acc": ("f", (2,)),
            "rs_round": ("i", (2,)),
            "rs_client_acc": ("f", (2, 2)),
            "e": ("f", (0,)),
        }
        assert file["rs_test_acc"][0] == 0.25 and file["rs_test_acc"].dtype == np.float64


@pytest.mark.parametrize(("write", "bad"), [(write_h5, {"a": ["text"]}), (write_json, {"a": object()})])
def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, write, bad):
    path = tmp_path / "file"
    write(path, {"a": [1.0]})
    before = path.read_bytes()
    with pytest.raises((TypeError, ValueError)):
        write(path, bad)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["file"]


def test_a_reader_never_sees_half_a_file(tmp_path):
    path, values = tmp_path / "a.h5", np.arange(20000.0)
    write_h5(path, {"a": values})
    stop = threading.Event()

    def write_again():
        while not stop.is_set():
            write_h5(path, {"a": values})

    writer = threading.Thread(target=write_again)
    writer.start()
    try:
        for _ in range(50):
            with open(path, "rb") as file:  # as another process would find it
                assert len(file.read()) > values.nbytes
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("write", [write_h5, write_json])
def test_a_full_disk_is_told_and_the_old_file_kept(tmp_path, monkeypatch, write):
    write(tmp_path / "file", {"a": [1.0]})
    before = (tmp_path / "file").read_bytes()

    def full(*names):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match=r"file cannot be written \(No space left on device\); what was there is kept"):
        write(tmp_path / "file", {"a": [2.0]})
    assert (tmp_path / "file").read_bytes() == before and os.listdir(tmp_path) == ["file"]


# ---- what a run was


def settings_of(*words):
    return run_settings(parse(make_parser(), words), "d1")


def test_settings_are_what_decides_the_numbers():
    base = settings_of()
    assert (
        settings_of("-go", "x", "-t", "3", "-pv", "1", "--results_dir", "r", "--overwrite", "--num_threads", "2")
        == settings_of("-ex", "loop")
        == base
    )
    assert settings_of("-lr", "0.02") == base | {"local_learning_rate": 0.02}
    ignored = run_settings(parse(make_parser(), ["-lam", "7"]), "d1", {"lamda"})
    assert ignored == {name: value for name, value in base.items() if name != "lamda"}
    assert run_settings(parse(make_parser(), []), "d2") == base | {"data_digest": "d2"}


def test_digest_ignores_order_only():
    assert settings_digest({"a": 1, "b": 2}) == settings_digest({"b": 2, "a": 1})
    assert settings_digest({"a": 1, "b": 2}) != settings_digest({"a": 2, "b": 1})
    assert settings_digest({"a": 1}) != settings_digest({"a": "1"})


def test_run_info_is_complete_and_json(tmp_path):
    args = parse(make_parser(), ["-lr", "0.1", "-sd", "3"])
    args.model, args.device, args.shape = torch.nn.Linear(2, 2), torch.device("cpu"), (1, 28, 28)
    info = run_info(args, {"evaluation_point": "A", "sizes": np.array([1, 2])})
    assert json.loads(json.dumps(info, allow_nan=False)) == info
    assert info["arguments"]["device"] == "cpu" and info["arguments"]["shape"] == [1, 28, 28]
    assert info["arguments"]["local_learning_rate"] == 0.1 and info["given"] == ["local_learning_rate", "seed"]
    assert (info["seed"], info["evaluation_point"], info["sizes"]) == (3, "A", [1, 2])
    assert info["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert set(info["versions"]) == {"python", "torch", "torchvision", "numpy", "scikit-learn", "h5py"}


def git(folder, *command):
    identity = ["-c", "user.name=n", "-c", "user.email=e@x"]
    subprocess.run(["git", *identity, *command], cwd=folder, check=True, capture_output=True)


def test_the_commit_is_told_in_a_checkout_only(tmp_path, monkeypatch):
    ours = tmp_path / "outer" / "ours"
    (ours / "system").mkdir(parents=True)
    code = ours / "system" / "a.py"
    code.write_text("a = 1\n")
    monkeypatch.setattr(result_utils, "REPO", ours)
    args = argparse.Namespace()
    assert (run_info(args)["commit"], run_info(args)["dirty"]) == (None, None)
    git(tmp_path / "outer", "init")
    git(tmp_path / "outer", "commit", "--allow-empty", "-m", "theirs")
    assert run_info(args)["commit"] is None  # somebody else's repository around a copy of ours
    git(ours, "init")
    git(ours, "add", "system")
    git(ours, "commit", "-m", "ours")
    assert len(run_info(args)["commit"]) == 40 and run_info(args)["dirty"] is False
    code.write_text("a = 2\n")
    assert run_info(args)["dirty"] is True
    monkeypatch.setenv("PATH", "")
    assert run_info(args)["commit"] is None  # no git at all


# ---- claiming a name


def test_the_files_have_pfllibs_name(claim, tmp_path):
    files = claim(lr=0.1)
    assert files.h5 == tmp_path / "Digits_FedCPD_test_0.h5" and files.json == tmp_path / "Digits_FedCPD_test_0.run.json"
    stored = json.loads(files.json.read_text())
    assert stored["settings"] == {"lr": 0.1} and stored["status"] == "running" and stored["pid"] == os.getpid()
    files.finish("finished")
    stored = json.loads(files.json.read_text())
    assert stored["status"] == "finished" and stored["end"] >= stored["start"] and stored["wall_time_s"] >= 0


def test_other_settings_never_overwrite(claim):
    first = finish(claim(lr=0.1), [0.1])
    second = claim(lr=0.2)
    write_h5(second.h5, {"rs_test_acc": [0.2]})
    second.finish("interrupted")
    assert second.goal == "test-" + settings_digest({"lr": 0.2})[:6]
    again = finish(claim(lr=0.2), [0.3])  # the second's name, and only that one, is taken again
    assert again.h5 == second.h5
    assert read_run(first.h5).arrays["rs_test_acc"] == [0.1] and read_run(second.h5).arrays["rs_test_acc"] == [0.3]


def test_a_finished_result_is_never_replaced_without_being_asked(tmp_path, monkeypatch):
    said = []

    def claim(code="a", **how):
        monkeypatch.setattr(result_utils, "code_digest", lambda: code)
        return claim_run(tmp_path, "D", "A", "g", 0, {"lr": 1}, say=said.append, **how)

    first = finish(claim(), [0.1])
    assert said == []
    stem = "g-" + settings_digest({"lr": 1})[:6]
    assert finish(claim(), [0.2]).goal == stem  # also with the same settings
    [line] = said
    assert f"'g' belongs to another run; this one is named '{stem}'" in line and "--reuse" in line
    assert "--overwrite" in line and "\n" not in line
    assert finish(claim(code="b"), [0.3]).goal == finish(claim(code="b", reuse=True)).goal == f"{stem}-2"
    assert claim(reuse=True).goal == "g" and read_run(first.h5).arrays["rs_test_acc"] == [0.1]
    assert finish(claim(overwrite=True), [0.4]).goal == "g" and read_run(first.h5).arrays["rs_test_acc"] == [0.4]
    assert "D_A_g_0.h5, an earlier run with the same settings, is replaced" in said[-1]
    both = {"reuse": True, "overwrite": True}  # always the user's own name: reused if it can be, replaced if not
    assert finish(claim(code="b", **both), [0.5]).goal == "g" and claim(code="b", **both).reused
    assert read_run(first.h5).arrays["rs_test_acc"] == [0.5]


@pytest.mark.parametrize("ended", ["interrupted", "failed", "killed", "finished, file lost"])
def test_what_is_not_finished_is_replaced(claim, ended):
    files = claim(lr=0.1)
    if "lost" not in ended:
        write_h5(files.h5, {"rs_test_acc": [0.1]})
    files.finish(ended.partition(",")[0])
    if ended == "killed":
        files.update(status="running", pid=pid_of_the_dead())
    assert claim(lr=0.1).goal == "test"


def test_what_is_replaced_stays_until_something_is_written(claim):
    files = finish(claim(lr=0.1), [0.1])
    files.h5.with_suffix(".pt").write_text("model")
    before = files.json.read_text()
    for lr in (0.1, 0.2):
        again = claim(lr=lr, overwrite=True)
        assert read_run(files.h5).arrays["rs_test_acc"] == [0.1]
        again.finish("failed")  # before its first arrays
        assert files.json.read_text() == before and files.h5.with_suffix(".pt").exists()
    again = claim(lr=0.2, overwrite=True)
    write_h5(again.h5, {"rs_test_acc": [0.2]})
    assert not files.h5.with_suffix(".pt").exists()  # the old arrays' model
    again.finish("interrupted")
    run = read_run(files.h5)
    assert (run.status, run.info["settings"], run.arrays["rs_test_acc"]) == ("interrupted", {"lr": 0.2}, [0.2])


def test_a_run_killed_before_its_first_arrays_leaves_the_result_that_it_was_to_replace(claim):
    files = finish(claim(lr=0.1), [0.1])
    before = json.loads(files.json.read_text())
    for lr in (0.1, 0.2, 0.2):
        claim(lr=lr, overwrite=True).update(pid=pid_of_the_dead())
        run = read_run(files.h5)
        assert run.info == before and run.status == "finished" and run.arrays["rs_test_acc"] == [0.1]
    assert claim(lr=0.1, reuse=True).reused and claim(lr=0.2).goal != "test"
    again = claim(lr=0.2, overwrite=True)
    assert read_run(files.h5).info == before  # its arrays are still those
    write_h5(again.h5, {"rs_test_acc": [0.2]})
    again.update(pid=pid_of_the_dead())
    assert read_run(files.h5).info["settings"] == {"lr": 0.2} and read_run(files.h5).status == "interrupted"


def test_a_later_process_of_the_same_number_is_another_one(claim):
    files = claim(lr=0.1)
    assert read_run_status(files) == "running"
    files.update(process="of an earlier boot 17")
    assert read_run_status(files) == "interrupted" and claim(lr=0.1).goal == "test"


def read_run_status(files):
    write_h5(files.h5, {"rs_test_acc": [0.1]})
    return read_run(files.h5).status


def test_resume_takes_the_name_of_the_unfinished_run_with_checkpoints(claim, tmp_path):
    finish(claim(lr=0.1))
    started = claim(lr=0.2)
    write_h5(started.h5, {"rs_test_acc": [0.2]})
    started.finish("interrupted")
    (tmp_path / "Digits_FedCPD_test_0.h5").unlink()
    (tmp_path / "Digits_FedCPD_test_0.run.json").unlink()  # so that "test" is free again
    assert not claim(lr=0.2, resume=True, repeat=1).resumed
    result_utils.checkpoint_folder(started.h5).mkdir()
    assert not claim(lr=0.3, resume=True).resumed and not claim(goal="other", lr=0.2, resume=True).resumed
    again = claim(lr=0.2, resume=True)
    assert again.resumed and again.h5 == started.h5 and len(again.info["resumed"]) == 1
    with pytest.raises(UsageError, match=f"still being written by process {os.getpid()}"):
        claim(lr=0.2, resume=True)
    again.update(pid=pid_of_the_dead(), host="elsewhere")
    with pytest.raises(UsageError, match="still being written"):
        claim(lr=0.2, resume=True)
    assert claim(lr=0.2, resume=True, overwrite=True).resumed
    finish(again)
    assert claim(goal=again.goal, lr=0.2, resume=True).reused


def test_pfllibs_own_file_that_was_not_replaced_after_all_has_no_run_json(claim, tmp_path):
    write_h5(tmp_path / "Digits_FedCPD_test_0.h5", {})
    files = claim(lr=0.1, overwrite=True)
    assert files.goal == "test" and files.json.exists()
    files.finish("failed")
    assert files.h5.exists() and not files.json.exists()


def test_pfllibs_own_file_is_not_overwritten(claim, tmp_path):
    (tmp_path / "Digits_FedCPD_test_0.h5").write_bytes(b"theirs")
    assert claim(lr=0.1).goal != "test"
    assert (tmp_path / "Digits_FedCPD_test_0.h5").read_bytes() == b"theirs"


def test_repeats_of_one_run_share_a_goal(claim):
    finish(claim(repeat=1, lr=0.1))
    first = claim(repeat=0, lr=0.2)  # repeat 0 would be free, but "test" belongs to lr 0.1
    second = claim(goal=first.goal, repeat=1, lr=0.2)
    assert first.goal == second.goal == "test-" + settings_digest({"lr": 0.2})[:6]
    assert claim(repeat=2, lr=0.1).goal == "test"


def test_overwrite_takes_the_name(claim):
    finish(claim(lr=0.1))
    assert claim(lr=0.2, overwrite=True).goal == "test"


def test_a_run_still_going_is_left_alone(claim):
    going = claim(lr=0.1)
    digest = settings_digest({"lr": 0.1})[:6]
    assert claim(lr=0.1).goal == f"test-{digest}"
    assert claim(lr=0.1).goal == f"test-{digest}-2"
    assert claim(lr=0.1, overwrite=True).goal == f"test-{digest}-3"
    going.finish("interrupted")
    assert claim(lr=0.1).goal == "test"


@pytest.mark.parametrize(
    ("host", "hours", "overwrite", "replaced"),
    [
        (socket.gethostname(), 0, False, True),
        ("elsewhere", 5.9, False, False),  # cannot be asked
        ("elsewhere", 6.1, False, True),  # but has been silent for long
        ("elsewhere", 0, True, True),
    ],
)
def test_a_run_whose_process_is_gone_is_replaced(claim, host, hours, overwrite, replaced):
    files = claim(lr=0.1)
    files.update(pid=pid_of_the_dead(), host=host)
    write_h5(files.h5, {})
    for path, age in ((files.h5, hours), (files.json, hours + 9)):  # the younger of the two counts
        os.utime(path, (time.time() - age * 3600,) * 2)
    assert read_run(files.h5).status == ("interrupted" if replaced and not overwrite else "running")
    assert (claim(lr=0.1, overwrite=overwrite).goal == "test") is replaced


def test_reuse(claim, monkeypatch):
    first = claim(lr=0.1)
    first.finish("interrupted")
    assert not claim(lr=0.1, reuse=True).reused  # unfinished
    finish(claim(lr=0.1, overwrite=True, goal="b"))
    assert claim(lr=0.1, goal="b", reuse=True).reused
    assert not claim(lr=0.2, goal="b", reuse=True).reused
    monkeypatch.setattr(result_utils, "code_digest", lambda: "other code")
    assert not claim(lr=0.1, goal="b", reuse=True).reused


def test_reuse_leaves_the_files_as_they_are(claim):
    files = finish(claim(lr=0.1))
    before = files.h5.read_bytes(), files.json.read_bytes()
    again = claim(lr=0.1, reuse=True)
    assert (files.h5.read_bytes(), files.json.read_bytes()) == before and again.info["status"] == "finished"
    files.h5.unlink()
    assert not claim(lr=0.1, reuse=True).reused


@pytest.mark.parametrize(
    ("goal", "name"), [("a/b:c d", "a-b-c-d"), ("../../x", "x"), ("..", "test"), ("größe", "größe")]
)
def test_goal_is_made_a_file_name(claim, tmp_path, goal, name):
    assert claim(goal=goal).h5 == tmp_path / f"Digits_FedCPD_{name}_0.h5"


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--results_dir .*file"):
        claim_run(tmp_path / "file", "D", "A", "g", 0, {})


def test_processes_that_start_at_once_get_a_name_each(tmp_path):
    program = """
import sys, time
from pathlib import Path
from flcore.utils.result_utils import claim_run, write_h5
folder, number = Path(sys.argv[1]), int(sys.argv[2])
(folder / f"ready{number}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
files = claim_run(folder / "results", "D", "A", "g", 0, {"same": True}, say=lambda line: None)
write_h5(files.h5, {"rs_test_acc": [number]})
(folder / f"done{number}").touch()
while not (folder / "end").exists():
    time.sleep(0.001)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    processes = [subprocess.Popen([*command, str(number)], cwd=REPO / "system") for number in range(4)]

    def all_have(word):
        while not all((tmp_path / f"{word}{number}").exists() for number in range(4)):
            assert all(process.poll() is None for process in processes)
            time.sleep(0.01)

    all_have("ready")
    (tmp_path / "go").touch()
    all_have("done")
    (tmp_path / "end").touch()
    assert [process.wait(timeout=20) for process in processes] == [0] * 4
    results = sorted((tmp_path / "results").glob("*.h5"))
    assert sorted(float(read_run(path).arrays["rs_test_acc"][0]) for path in results) == [0, 1, 2, 3]
    assert len(list((tmp_path / "results").glob("*.run.json"))) == 4


# ---- reading


def test_read_run(claim):
    files = finish(claim(goal="my_goal", repeat=3, lr=0.1), [0.1, 0.9])
    run = read_run(files.h5)
    assert (run.dataset, run.algorithm, run.goal, run.repeat, run.status) == (
        "Digits",
        "FedCPD",
        "my_goal",
        3,
        "finished",
    )
    assert run.arrays["rs_test_acc"].tolist() == [0.1, 0.9] and run.info["settings"] == {"lr": 0.1}


def test_read_run_of_pfllibs_own_file(tmp_path):
    write_h5(tmp_path / "MNIST_FedAvg_a_b_2.h5", {"rs_test_acc": [0.5]})
    run = read_run(tmp_path / "MNIST_FedAvg_a_b_2.h5")
    assert (run.dataset, run.algorithm, run.goal, run.repeat, run.status) == ("MNIST", "FedAvg", "a_b", 2, "")


def test_a_killed_run_counts_as_interrupted(claim):
    files = claim(lr=0.1)
    write_h5(files.h5, {})
    assert read_run(files.h5).status == "running"
    files.update(pid=pid_of_the_dead())
    assert read_run(files.h5).status == "interrupted"


@pytest.mark.parametrize("content", [b"", b"not hdf5", None])
def test_a_damaged_or_missing_file_is_named(tmp_path, content):
    path = tmp_path / "MNIST_FedAvg_test_0.h5"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=path.name):
        read_run(path)


def test_a_half_copied_file_is_named(tmp_path):
    path = tmp_path / "MNIST_FedAvg_test_0.h5"
    write_h5(path, {"rs_test_acc": np.zeros(5000)})
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(UsageError, match=path.name):
        read_run(path)


# ---- PFLlib's functions


@pytest.fixture
def three_repeats(tmp_path, monkeypatch):
    monkeypatch.setattr(result_utils, "RESULTS", tmp_path)
    for repeat, curve in enumerate([[0.1, 0.5, 0.3], [0.2, float("nan"), 0.7], [0.6]]):
        write_h5(tmp_path / f"MNIST_FedAvg_test_{repeat}.h5", {"rs_test_acc": curve})


def test_average_of_the_best(three_repeats, capsys):
    result_utils.average_data("FedAvg", "MNIST", "test", 3)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2  # PFLlib's
    # best 0.5, 0.7, 0.6: mean 0.6, population standard deviation sqrt((0.01 + 0.01 + 0) / 3)
    assert lines[-2].startswith("std for best accuracy: 0.0816") and lines[-1].startswith("mean for best accuracy: 0.6")


@pytest.mark.parametrize(
    ("times", "lines"), [(4, ["std for best accuracy: 0.0", "mean for best accuracy: 0.5"]), (3, 0)]
)
def test_repeats_without_any_accuracy_do_not_count(tmp_path, monkeypatch, capsys, times, lines):
    monkeypatch.setattr(result_utils, "RESULTS", tmp_path)
    for repeat, curve in enumerate([[float("nan")] * 2, [], [float("nan")], [0.25, 0.5]]):
        write_h5(tmp_path / f"MNIST_FedAvg_test_{repeat}.h5", {"rs_test_acc": curve})
    result_utils.average_data("FedAvg", "MNIST", "test", times)
    lines = lines or ["std for best accuracy: nan", "mean for best accuracy: nan"]
    assert capsys.readouterr().out.splitlines() == lines


def test_a_missing_repeat_does_not_hide_the_others(three_repeats, capsys):
    assert len(result_utils.get_all_results_for_one_algo("FedAvg", "MNIST", "test", 10)) == 3
    with pytest.raises(UsageError, match="MNIST_FedProx_test_0.h5"):
        result_utils.average_data("FedProx", "MNIST", "test", 10)


def test_read_data_then_delete(three_repeats, tmp_path, capsys):
    path = tmp_path / "MNIST_FedAvg_test_0.h5"
    assert result_utils.read_data_then_delete("MNIST_FedAvg_test_0").tolist() == [0.1, 0.5, 0.3] and path.exists()
    result_utils.read_data_then_delete("MNIST_FedAvg_test_0", delete=True)
    assert not path.exists() and "Length:  3" in capsys.readouterr().out


def test_run_json_tells_the_peak_memory(claim):
    files = finish(claim())
    assert json.loads(files.json.read_text())["peak_memory_bytes"]["resident"] > 2**20


def test_what_a_killed_run_was_writing_is_swept(tmp_path):
    half, other = tmp_path / ".Tiny_FedAvg_test_0.h5.4711", tmp_path / ".Tiny_FedAvg_test_1.h5.4711"
    half.write_text("half")
    other.write_text("half")  # of another repeat
    claim_run(tmp_path, "Tiny", "FedAvg", "test", 0, {"lr": 1})
    assert not half.exists() and other.exists()
