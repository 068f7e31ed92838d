"""A run's arrays grow on disk: no round is lost, whenever the run is killed, and little is written twice."""

import errno
import itertools
import os
import random
import signal
import time

import h5py
import numpy as np
import pytest

from flcore.utils.errors import RunError, UsageError
from flcore.utils.runs import rounds
from flcore.utils.runs.files import write_h5
from flcore.utils.runs.read import read_run
from flcore.utils.runs.rounds import GrowingFile, lines_of


def grown(number, clients=3):
    """The records of a run after so many rounds: a score, and a row of all clients, before and after training."""
    each = np.arange(clients) / 7
    return {
        "rs_round": list(range(number)),
        "rs_test_acc": [index / 3 for index in range(number)],
        "rs_client_acc": [each + index for index in range(number)],
        "rs_joined": [np.ones(clients, dtype=np.int8)] * number,
        "rs_left_out_clients": [(index, 0) for index in range(0, number, 5)],
        "rs_train_loss": [],
    }


def equal(arrays, number):
    expected = grown(number)
    return all(np.array_equal(arrays[name], np.asarray(expected[name])) for name in expected if len(expected[name]))


def test_every_round_is_readable_at_once_and_at_the_end_there_is_one_whole_file(tmp_path):
    path = tmp_path / "D_A_test_0.h5"
    file, in_h5 = GrowingFile(path), []
    for number in range(1, 60):
        file.save(grown(number))
        assert equal(read_run(path).arrays, number)
        with h5py.File(path) as h5:
            in_h5.append(len(h5["rs_round"]))
    assert in_h5[:9] == [1, 2, 3, 4, 5, 6, 7, 8, 8]
    assert all(number - there <= number / 8 for number, there in enumerate(in_h5, 1)) and len(set(in_h5)) < 30
    file.save(grown(59))  # nothing new
    file.close(grown(60))
    assert [path.name for path in tmp_path.iterdir()] == [path.name]
    with h5py.File(path) as h5:
        assert equal({name: h5[name][()] for name in h5}, 60) and h5["rs_joined"].dtype == np.int8
        assert h5["rs_train_loss"].shape == (0,)


def test_what_is_written_grows_with_the_run_and_not_with_its_square(tmp_path, monkeypatch):
    """Rewritten after each of 200 rounds, the file would be written 100 times."""
    path, sizes = tmp_path / "D_A_test_0.h5", []

    def write(path, lists):
        write_h5(path, lists)
        sizes.append(path.stat().st_size)

    monkeypatch.setattr(rounds, "write_h5", write)
    file = GrowingFile(path)
    for number in range(1, 201):
        file.save(grown(number, clients=500))
    lines = lines_of(path).stat().st_size
    file.close(grown(200, clients=500))
    assert sum(sizes) + lines < 14 * path.stat().st_size


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_run_killed_at_any_moment_leaves_every_round_that_it_saved(tmp_path):
    draw, seen = random.Random(1), []
    for kill in range(12):
        path = tmp_path / f"D_A_test_{kill % 3}.h5"  # most of them after one that was killed
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            file = GrowingFile(path)
            for number in itertools.count(1):
                file.save(grown(number))
                os.write(writing, b".")
        os.close(writing)
        os.read(reading, 1)  # its first
        time.sleep(draw.uniform(0, 0.04))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        saved = 1 + sum(map(len, iter(lambda end=reading: os.read(end, 65536), b"")))
        os.close(reading)
        found = read_run(path).arrays
        assert saved <= len(found["rs_round"]) <= saved + 1 and equal(found, len(found["rs_round"]))
        with h5py.File(path) as h5:
            assert len(h5["rs_round"]) >= saved * 7 // 8
        seen.append(saved)
    assert len(set(seen)) > 3


def test_a_full_disk_leaves_what_was_saved(tmp_path, monkeypatch):
    path = tmp_path / "D_A_test_0.h5"
    file = GrowingFile(path)
    for number in range(1, 9):
        file.save(grown(number))
    with open(lines_of(path), "a", encoding="utf-8") as half:
        half.write('{"rs_round": [8], "rs_te')  # as far as the disk took it
    assert equal(read_run(path).arrays, 8)

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("builtins.open", full)
    with pytest.raises(RunError, match=r"rounds.jsonl cannot be written \(No space left on device\)"):
        file.save(grown(9))


def test_the_lines_of_an_earlier_run_are_not_those_of_the_next(tmp_path):
    path = tmp_path / "D_A_test_0.h5"
    killed = GrowingFile(path)
    for number in range(1, 30):
        killed.save(grown(number))
    GrowingFile(path).save(grown(2))
    assert equal(read_run(path).arrays, 2) and len(read_run(path).arrays["rs_round"]) == 2


def test_a_list_that_begins_anew_makes_the_file_anew(tmp_path):
    path = tmp_path / "D_A_test_0.h5"
    file = GrowingFile(path)
    for number in (1, 2, 3, 1):
        file.save({"rs_test_acc": [number / 4] * number})
    assert read_run(path).arrays["rs_test_acc"].tolist() == [0.25]


@pytest.mark.parametrize("content", ['["a"]', '{"rs_round": 3}', '{"rs_round": [[1, 2], 3]}', '{"rs_round": ["x"]}'])
def test_lines_that_hold_something_else_are_refused(tmp_path, content):
    path = tmp_path / "D_A_test_0.h5"
    write_h5(path, grown(1))
    lines_of(path).write_text(content + "\n")
    with pytest.raises(UsageError, match="not a readable result file"):
        read_run(path)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b"\0" * 100, b'{"rs_round": [' + b"1" * 5000 + b"]}"])
def test_lines_that_are_no_json_count_as_not_there(tmp_path, content):
    path = tmp_path / "D_A_test_0.h5"
    write_h5(path, grown(2))
    lines_of(path).write_bytes(content + b"\n")
    assert equal(read_run(path).arrays, 2)
