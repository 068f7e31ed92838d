"""Result files read back, ours and PFLlib's."""

import numpy as np
import pytest

from flcore.utils.errors import UsageError
from flcore.utils.runs.files import write_h5
from flcore.utils.runs.read import read_run
from support.runs import finish, pid_of_the_dead
from utils import result_utils


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
