"""Data sets are written as PFLlib's files, whole, and are told apart by their settings."""

import json
from collections import Counter

import numpy as np
import pytest

from flcore.data.writing import is_made, pfllib_settings, write_dataset
from flcore.utils.errors import UsageError
from flcore.utils.safe_load import load_npz
from support import REPO, load_module

SETTINGS = pfllib_settings(2, niid=True, balance=False, partition="dir")


def part(*labels):
    return {"x": np.zeros((len(labels), 1, 2, 2), np.float32), "y": np.array(labels, np.int64)}


def save(folder, train, test, **extra):
    return write_dataset(folder, train, test, 3, [[(0, 3)] for _ in range(2)], SETTINGS | extra)


def test_files_are_pfllibs(tmp_path):
    save(tmp_path, [part(0, 0), part(1, 2)], [part(0), part(2)], seed=5)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == {
        "num_clients": 2,
        "num_classes": 3,
        "non_iid": True,
        "balance": False,
        "partition": "dir",
        "Size of samples for labels in clients": [[[0, 3]], [[0, 3]]],
        "alpha": 0.1,
        "batch_size": 10,
        "shape": [1, 2, 2],
        "seed": 5,
    }
    with open(tmp_path / "train" / "1.npz", "rb") as file:  # read as PFLlib does
        data = np.load(file, allow_pickle=True)["data"].tolist()
    assert data["x"].dtype == np.float32 and data["x"].shape == (2, 1, 2, 2) and data["y"].tolist() == [1, 2]
    assert load_npz(tmp_path / "test" / "1.npz")["data"].item()["y"].tolist() == [2]
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == sorted(
        ["0.npz", "1.npz", "0.npz", "1.npz", "config.json"]
    )


def test_same_content_same_bytes(tmp_path):
    for name in ("a", "b"):
        save(tmp_path / name, [part(0, 0), part(1, 2)], [part(0), part(2)])
    for file in (tmp_path / "a").rglob("*.*"):
        assert file.read_bytes() == (tmp_path / "b" / file.relative_to(tmp_path / "a")).read_bytes()


def test_settings_and_files_are_compared(tmp_path):
    save(tmp_path, [part(0), part(1)], [part(0), part(2)], seed=5)
    assert is_made(tmp_path, SETTINGS) and is_made(tmp_path, SETTINGS | {"seed": 5})
    for other in ({"seed": 6}, {"other": 1}, {"alpha": 0.2}, {"num_clients": 3}, {"partition": "pat"}):
        assert not is_made(tmp_path, SETTINGS | other)
    (tmp_path / "test" / "1.npz").write_bytes(b"")
    assert not is_made(tmp_path, SETTINGS)
    (tmp_path / "config.json").write_text("[")
    assert not is_made(tmp_path, SETTINGS)


def test_an_interrupted_run_never_looks_finished(tmp_path):
    def interrupted():
        yield part(0)
        raise KeyboardInterrupt

    save(tmp_path, [part(0), part(1)], [part(0), part(2)])
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, interrupted(), [part(0), part(2)])
    assert not (tmp_path / "config.json").exists() and not is_made(tmp_path, SETTINGS)


def test_files_of_an_earlier_larger_data_set_are_removed(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "7.npz").write_bytes(b"old")
    (tmp_path / "train" / ".1.npz.123").write_bytes(b"old")
    save(tmp_path, [part(0), part(1)], [part(0), part(2)])
    assert Counter(path.name for path in (tmp_path / "train").iterdir()) == Counter(["0.npz", "1.npz"])


# --- PFLlib's functions -----------------------------------------------------------------------------------------------


@pytest.fixture
def pfllib():
    return load_module(REPO / "dataset" / "utils" / "dataset_utils.py")


def paths(folder):
    return f"{folder}/config.json", f"{folder}/train/", f"{folder}/test/"


def test_pfllibs_four_functions_make_a_data_set_that_check_knows(pfllib, tmp_path, capsys):
    x, y = np.zeros((200, 1, 2, 2), np.float32), np.arange(200) % 5
    assert not pfllib.check(*paths(tmp_path), 4, True, False, "dir")
    images, labels, statistic = pfllib.separate_data((x, y), 4, 5, True, False, "dir")
    train, test = pfllib.split_data(images, labels)
    pfllib.save_file(*paths(tmp_path), train, test, 4, 5, statistic, True, False, "dir")
    assert pfllib.check(*paths(tmp_path), 4, True, False, "dir") and "already there" in capsys.readouterr().out
    assert not pfllib.check(*paths(tmp_path), 4, True, False, "pat")
    assert sum(len(part["y"]) for part in (*train, *test)) == 200
    pfllib.alpha = 0.5  # changed in the file, as in PFLlib
    assert not pfllib.check(*paths(tmp_path), 4, True, False, "dir")


@pytest.mark.parametrize("partition", ["dir", "pat", None])
def test_iid_is_pat_with_all_classes_whatever_the_partition(pfllib, partition):
    y = np.tile(np.arange(5), 40)
    _, _, statistic = pfllib.separate_data((y, y), 4, 5, False, True, partition, 2)
    assert statistic == [[(c, 10) for c in range(5)]] * 4


def test_pfllibs_three_paths_must_be_one_folder(pfllib, tmp_path):
    with pytest.raises(UsageError, match="of one folder"):
        pfllib.check(f"{tmp_path}/config.json", f"{tmp_path}/training/", f"{tmp_path}/test/", 2)
