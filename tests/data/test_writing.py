"""Data sets are written as PFLlib's files, whole, and are told apart by their settings."""

import hashlib
import json
from collections import Counter

import numpy as np
import pytest

from flcore.data import finish, write_client
from flcore.data.reading import DataSet
from flcore.data.writing import pfllib_settings, write_dataset
from flcore.utils.errors import UsageError
from flcore.utils.safe_load import load_npz
from support import REPO, load_module

SETTINGS = pfllib_settings(2, niid=True, balance=False, partition="dir")


def part(*labels):
    return {"x": np.zeros((len(labels), 1, 2, 2), np.float32), "y": np.array(labels, np.int64)}


def is_made(folder, settings):
    return DataSet(folder.name, folder.parent).made_with(settings)


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
        "range": [0.0, 0.0],
        "files": {
            f"{part}/{i}.npz": [path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()]
            for part in ("train", "test")
            for i, path in enumerate(sorted((tmp_path / part).iterdir()))
        },
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


def test_an_interrupted_run_leaves_the_earlier_data_set_and_never_looks_finished(tmp_path):
    def interrupted():
        yield part(0)
        raise KeyboardInterrupt

    save(tmp_path, [part(0), part(1)], [part(0), part(2)])
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, interrupted(), [part(0), part(2)], seed=6)
    assert is_made(tmp_path, SETTINGS) and not is_made(tmp_path, SETTINGS | {"seed": 6})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "test", "train"]
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "new", interrupted(), [part(0), part(2)])
    assert not DataSet("new", tmp_path).exists()


def test_files_of_an_earlier_larger_data_set_are_removed(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "7.npz").write_bytes(b"old")
    (tmp_path / "train" / ".1.npz.123").write_bytes(b"old")
    save(tmp_path, [part(0), part(1)], [part(0), part(2)])
    assert Counter(path.name for path in (tmp_path / "train").iterdir()) == Counter(["0.npz", "1.npz"])


# --- a data set that is split already ---------------------------------------------------------------------------------


def test_clients_one_by_one(tmp_path):
    x, y = np.arange(24.0).reshape(6, 1, 2, 2), [0, 2, 1, 0, 1, 1]
    write_client(tmp_path / "Mine", 1, (x[:4], y[:4]), (x[4:], y[4:]))
    write_client(tmp_path / "Mine", 0, ((x[:2, 0] * 10).astype(np.uint8), [2, 2]), (x[:0], []))
    data = DataSet("Mine", tmp_path)
    assert "config.json is missing" in data.problem()
    config = finish(tmp_path / "Mine", ["cat", "cow", "dog"], source="by hand")
    assert config["Size of samples for labels in clients"] == [[(2, 2)], [(0, 2), (1, 3), (2, 1)]]
    assert data.problem() == "" and data.class_names() == ("cat", "cow", "dog") and data.config()["source"] == "by hand"
    np.testing.assert_array_equal(data.read(1)["x"], x[:4])
    np.testing.assert_allclose(data.read(0)["x"].ravel()[:3], [-1, 2 * 10 / 255 - 1, 2 * 20 / 255 - 1], rtol=1e-6)
    assert data.describe()[0].startswith("Mine: 2 clients, 8 images of 1 channel, 2 x 2 pixels")
    with pytest.raises(UsageError, match="Mine holds a data set that is finished"):
        write_client(tmp_path / "Mine", 0, (x, y), (x, y))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ((np.zeros((2, 1, 2, 2)), [0]), "client 3, train: 2 samples need as many labels"),
        ((np.zeros((2, 1, 2, 2)), [0, 0.5]), "client 3, train: y must be whole numbers"),
        ((np.full((2, 1, 2, 2), np.nan), [0, 1]), "client 3, train: x must be finite numbers"),
        ((np.zeros((2, 8, 8, 3)), [0, 1]), "channels last"),
    ],
)
def test_a_wrong_client_is_refused(tmp_path, train, message):
    with pytest.raises(UsageError, match=message):
        write_client(tmp_path, 3, train, (np.zeros((1, 1, 2, 2)), [0]))
    assert not list(tmp_path.rglob("*.npz"))


def test_clients_that_do_not_belong_together(tmp_path):
    with pytest.raises(UsageError, match="there is no client yet"):
        finish(tmp_path)
    write_client(tmp_path, 0, (np.zeros((2, 3)), [0, 1]), (np.zeros((2, 3)), [0, 4]))
    with pytest.raises(UsageError, match=r"label 4 is outside 0\.\.1"):
        finish(tmp_path, ["a", "b"])
    write_client(tmp_path, 2, (np.zeros((2, 4)), [0, 1]), (np.zeros((2, 4)), [0, 1]))
    with pytest.raises(UsageError, match=r"1\.npz is missing"):
        finish(tmp_path)
    write_client(tmp_path, 1, (np.zeros((2, 3)), [0, 1]), (np.zeros((2, 3)), [0, 1]))
    with pytest.raises(UsageError, match=r"one shape, there are \(3,\) \(train/0.npz\), \(4,\) \(train/2.npz\)"):
        finish(tmp_path)
    assert not (tmp_path / "config.json").exists()


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
