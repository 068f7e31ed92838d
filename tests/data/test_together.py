"""Processes that want the same data set at the same time, and ends in the middle."""

import errno
import fcntl
import json
import os
import signal
import time

import numpy as np
import pytest

from flcore.data import command, generate, writing
from flcore.data.ensure import ensure_dataset
from flcore.data.reading import DataSet
from flcore.utils import interrupt, locks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


@pytest.fixture(params=["locks", "none"])
def locking(monkeypatch, request):
    """With locks of the file system, and without."""
    if request.param == "none":

        def refuse(file, how):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.fixture(scope="module")
def digits():
    return generate.load("Digits", None, None).take(np.arange(0, 1797, 3))


@pytest.fixture
def slow(monkeypatch, digits):
    """Writing a client's file takes its time; the digits are few, and read already."""
    save = writing._save

    def save_slowly(path, content):
        time.sleep(0.01)
        return save(path, content)

    monkeypatch.setattr(writing, "_save", save_slowly)
    monkeypatch.setattr(generate, "load", lambda *how: digits)


def begin(root, stuck=False):
    """A process that makes sure of the digits; its exit code is the number of times that it made them, plus 10.

    stuck: it never comes to the test files.
    """
    child = os.fork()
    if child == 0:
        save = writing._save
        writing._save = lambda path, content: time.sleep(60 * (stuck and "test" in path.parts)) or save(path, content)
        said = []
        code = 1
        try:
            data = ensure_dataset("Digits", 4, root, said.append)
            data.digest()
            code = 10 + sum("images in 4 clients" in line for line in said)
        finally:
            os._exit(code)
    return child


def code_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_one_makes_the_data_and_the_others_wait(tmp_path, slow, locking):
    codes = [code_of(child) for child in [begin(tmp_path) for _ in range(4)]]
    assert sorted(codes) == [10, 10, 10, 11]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".Digits.lock", "Digits"]
    assert not (tmp_path / "Digits" / ".unfinished").exists()


def test_if_the_one_is_killed_another_makes_them(tmp_path, slow, locking):
    first = begin(tmp_path, stuck=True)
    while not (tmp_path / "Digits" / ".unfinished" / "train" / "2.npz").exists():
        time.sleep(0.002)
    others = [begin(tmp_path) for _ in range(3)]
    os.kill(first, signal.SIGKILL)
    assert code_of(first) == -signal.SIGKILL
    assert sorted(map(code_of, others)) == [10, 10, 11]


def test_what_a_process_left_that_was_killed_while_it_put_the_files_in_place_is_made_again(tmp_path, slow, monkeypatch):
    root = tmp_path / "Digits"
    for part in ("train", ".unfinished/train"):
        (root / part).mkdir(parents=True)
    (root / "train" / "0.npz").write_bytes(b"")
    assert code_of(begin(tmp_path)) == 11 and DataSet("Digits", tmp_path).problem() == ""


def test_a_lock_ends_with_its_process(tmp_path, locking):
    child = os.fork()
    if child == 0:
        with locks.locked(tmp_path / "lock"):
            (tmp_path / "inside").touch()
            time.sleep(60)
    while not (tmp_path / "inside").exists():
        time.sleep(0.002)
    said = []
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with locks.locked(tmp_path / "lock", "waiting", said.append):
        pass
    assert said in ([], ["waiting"]) and not (tmp_path / "lock.held").exists()


@pytest.mark.parametrize("kind", ["SIGTERM", "SIGHUP"])
def test_an_end_while_data_are_made_has_a_reason_and_leaves_the_earlier_ones(tmp_path, slow, kind):
    ensure_dataset("Digits", 4, tmp_path, lambda line: None)
    before = json.loads((tmp_path / "Digits" / "config.json").read_text())
    with interrupt.handled():
        os.kill(os.getpid(), getattr(signal, kind))
        with pytest.raises(KeyboardInterrupt, match="interrupted; .*Digits is as it was before"):
            generate.generate("Digits", tmp_path / "Digits", force=True, num_clients=3, say=lambda line: None)
    assert json.loads((tmp_path / "Digits" / "config.json").read_text()) == before
    assert DataSet("Digits", tmp_path).problem() == "" and not (tmp_path / "Digits" / ".unfinished").exists()


def test_a_generator_that_is_ended_says_so(tmp_path, digits, monkeypatch, capfd):
    monkeypatch.setattr(generate, "load", lambda *how: os.kill(os.getpid(), signal.SIGUSR1) or digits)
    with pytest.raises(SystemExit) as end:
        command.main("Digits", ["--out", str(tmp_path / "D")])
    errors = capfd.readouterr().err
    assert end.value.code == 130 and "SIGUSR1: stopping" in errors and "D is as it was before" in errors
