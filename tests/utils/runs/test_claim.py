"""Names of runs: nothing is lost, whatever was there, and whoever is still writing."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from flcore.utils.errors import UsageError
from flcore.utils.runs import claim as claims
from flcore.utils.runs.claim import claim_run
from flcore.utils.runs.files import write_h5
from flcore.utils.runs.provenance import settings_digest
from flcore.utils.runs.read import read_run
from flcore.utils.runs.record import checkpoint_folder
from support import REPO
from support.runs import finish, pid_of_the_dead


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
        monkeypatch.setattr(claims, "code_digest", lambda: code)
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
    checkpoint_folder(started.h5).mkdir()
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
    monkeypatch.setattr(claims, "code_digest", lambda: "other code")
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
from flcore.utils.runs.claim import claim_run
from flcore.utils.runs.files import write_h5
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


def test_run_json_tells_the_peak_memory(claim):
    files = finish(claim())
    assert json.loads(files.json.read_text())["peak_memory_bytes"]["resident"] > 2**20


def test_what_a_killed_run_was_writing_is_swept(tmp_path):
    half, other = tmp_path / ".Tiny_FedAvg_test_0.h5.4711", tmp_path / ".Tiny_FedAvg_test_1.h5.4711"
    half.write_text("half")
    other.write_text("half")  # of another repeat
    claim_run(tmp_path, "Tiny", "FedAvg", "test", 0, {"lr": 1})
    assert not half.exists() and other.exists()
