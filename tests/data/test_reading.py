"""Reading PFLlib's files, and making sure that a data set is there before a run."""

import copy
import json
import os
import pickle
import shutil

import numpy as np
import pytest
import torch

from flcore.data.ensure import ensure_dataset
from flcore.data.generate import generate
from flcore.data.reading import DataSet
from flcore.utils.errors import RunError, UsageError
from support import REPO, write_dataset
from utils.data_utils import read_client_data, read_data


@pytest.fixture
def root(tmp_path):
    return tmp_path


@pytest.fixture
def mine(root):
    return DataSet("Mine", root)


def put(root, x, y, /, name="Mine", num_classes=4, part="train/0.npz", **plain):
    """A data set of one client as PFLlib writes it, or with plain arrays in place of `data`."""
    file = root / name / part
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, **plain or {"data": np.array({"x": x, "y": y}, dtype=object)})
    (root / name / "config.json").write_text(json.dumps({"num_clients": 1, "num_classes": num_classes}))


X, Y = np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 1, 2, 2), np.array([3, 1, 3, 3, 0, 1])


def test_a_data_sets_name_knows_its_folder(root):
    """PFLlib's pairs read by name alone; two folders may hold data sets of one name."""
    for folder, values in (("one", X), ("two", -X)):
        put(root / folder, values, Y)
    one, two = DataSet("Mine", root / "one"), DataSet("Mine", root / "two")
    for data in (two, DataSet(two), pickle.loads(pickle.dumps(two)), copy.deepcopy(two)):
        assert data == "Mine" and data.folder == root / "two" / "Mine"
        np.testing.assert_array_equal(read_data(data, 0)["x"], -X)
    np.testing.assert_array_equal(read_data(one, 0)["x"], X)
    assert DataSet("Mine").folder == REPO / "dataset" / "Mine"
    assert DataSet(two, root / "one").folder == one.folder


# --- reading ----------------------------------------------------------------------------------------------------------


def test_pfllibs_file_comes_back_as_it_was(root, mine):
    put(root, X, Y)
    put(root, X[:2], Y[:2], part="test/0.npz")
    data = mine.read(0)
    np.testing.assert_array_equal(data["x"], X)
    np.testing.assert_array_equal(data["y"], Y)
    x, y = mine.tensors(0, is_train=False)
    assert torch.equal(x, torch.tensor(X[:2])) and torch.equal(y, torch.tensor(Y[:2]))
    pairs = read_client_data(mine, 0)
    assert len(pairs) == 6 and torch.equal(pairs[1][0], torch.tensor(X[1])) and int(pairs[1][1]) == 1


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.uint8])
def test_types_are_converted(root, mine, dtype):
    put(root, np.ones((6, 1, 2, 2), dtype), Y.astype(np.int32))
    x, y = mine.tensors(0)
    assert x.dtype == torch.float32 and y.dtype == torch.int64
    x += 1  # writable


def test_plain_arrays_are_read_too(root, mine):
    put(root, None, None, x=X, y=Y)
    np.testing.assert_array_equal(mine.read(0)["y"], Y)


def test_few_shot_takes_the_first_of_each_class_of_the_training_data(root, mine):
    put(root, X, Y)
    put(root, X, Y, part="test/0.npz")
    x, y = mine.tensors(0, few_shot=1)
    assert y.tolist() == [3, 1, 0] and torch.equal(x, torch.tensor(X[[0, 1, 4]]))
    assert mine.tensors(0, few_shot=2)[1].tolist() == [3, 1, 3, 0, 1]
    assert len(mine.tensors(0, is_train=False, few_shot=1)[1]) == 6
    put(root, X[:0], Y[:0])
    assert len(mine.tensors(0, few_shot=1)[1]) == 0


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X, Y[:5], r"6 samples need as many labels, y has the shape \(5,\)"),
        (X, Y[:, None], r"6 samples need as many labels, y has the shape \(6, 1\); take y.ravel"),
        (np.float32(1), Y, "as many samples as labels"),
        (X, Y + 1, r"labels must be whole numbers in 0\.\.3"),
        (X, Y - 1, r"labels must be whole numbers in 0\.\.3"),
        (X, Y + 0.5, "labels must be whole numbers"),
        (X, Y.astype(str), "labels must be whole numbers"),
        (np.where(X > 0, np.nan, X), Y, "NaN, infinite"),
        (np.where(X > 0, 1e39, X.astype(float)), Y, "too large for float32"),
        (np.array([([1, 2], 2)] * 6, dtype=object), Y, "only images are supported so far, not text"),
    ],
)
def test_what_cannot_be_trained_on_is_named(root, mine, x, y, message):
    put(root, x, y)
    with pytest.raises(UsageError, match=rf"Mine.train.0\.npz.*{message}"):
        mine.tensors(0)


def test_other_content_is_refused(root, mine, tmp_path):
    put(root, None, None, other=X)
    with pytest.raises(UsageError, match="0.npz is not PFLlib's"):
        mine.read(0)
    with pytest.raises(UsageError, match="1.npz is missing"):
        mine.read(1)

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    put(root, Evil(), Y)
    with pytest.raises(UsageError, match="0.npz is refused"):
        mine.read(0)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"num_clients": 2, "num_classes": 1000001}',
        '{"num_clients": 0, "num_classes": 2}',
        '{"num_clients": true}',
    ],
)
def test_damaged_config(root, mine, content):
    (root / "Mine").mkdir()
    with pytest.raises(UsageError, match=r"config\.json is missing"):
        mine.config()
    (root / "Mine" / "config.json").write_text(content)
    with pytest.raises(UsageError, match=r"config\.json is damaged"):
        mine.config()


def test_a_changed_config_is_read_again(root, mine):
    put(root, X, Y)
    mine.config()["num_clients"] = 99  # the caller's own copy
    assert mine.config()["num_clients"] == 1
    (root / "Mine" / "config.json").write_text('{"num_clients": 17, "num_classes": 4}')
    assert mine.config()["num_clients"] == 17


def test_shape_from_config_or_file(root, mine):
    put(root, X, Y)
    assert mine.shape() == (1, 2, 2)
    plain = (root / "Mine" / "config.json").read_text()
    (root / "Mine" / "config.json").write_text('{"num_clients": 1, "num_classes": 4, "shape": [3, 8, 8]}')
    assert mine.shape() == (3, 8, 8)
    (root / "Mine" / "config.json").write_text(plain)
    put(root, np.empty(0), Y[:0])  # a first client without images does not know
    put(root, X, Y, part="test/0.npz")
    assert mine.shape() == (1, 2, 2)
    data = mine.read(0)
    assert (data["x"].shape, data["x"].dtype, data["y"].shape) == ((0, 1, 2, 2), np.float32, (0,))
    put(root, np.empty(0), Y[:0], part="test/0.npz")
    with pytest.raises(UsageError, match="Mine .*has no image at all"):
        mine.read(0)


@pytest.mark.parametrize(("shape", "source"), [(None, "the first client's have"), ([1, 2, 2], "config.json says")])
def test_a_client_of_another_shape_is_named(root, mine, shape, source):
    put(root, X, Y)
    put(root, X.reshape(6, 1, 4, 1), Y, part="test/0.npz")
    if shape:
        (root / "Mine" / "config.json").write_text(json.dumps(mine.config() | {"shape": shape}))
    mine.read(0)
    with pytest.raises(UsageError, match=rf"Mine.test.0\.npz: .*\(1, 4, 1\), {source} \(1, 2, 2\)"):
        mine.read(0, is_train=False)


@pytest.mark.parametrize(
    "part", ['"shape": []', '"shape": [1, 0, 2]', '"shape": "x"', '"shape": [true]', '"shape": null']
)
def test_an_impossible_shape_is_named(root, mine, part):
    put(root, X, Y)
    (root / "Mine" / "config.json").write_text(f'{{"num_clients": 1, "num_classes": 4, {part}}}')
    with pytest.raises(UsageError, match=r"Mine.config\.json is damaged: shape must be"):
        mine.read(0)


def test_digest_tells_data_apart(root):
    put(root, X, Y, name="A")
    put(root, X, Y, name="B")
    assert DataSet("A", root).digest() == DataSet("B", root).digest()
    put(root, X, Y[::-1], name="B")
    assert DataSet("A", root).digest() != DataSet("B", root).digest()
    put(root, X, Y, name="C", part="test/0.npz")
    assert DataSet("A", root).digest() != DataSet("C", root).digest()


# --- ensure_dataset ---------------------------------------------------------------------------------------------------


@pytest.fixture
def said():
    return []


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The digits with the generator's defaults, but for three clients."""
    folder = tmp_path_factory.mktemp("made") / "Digits"
    generate("Digits", folder, num_clients=3)
    return folder


def settings_of(root, name="Digits"):
    config = json.loads((root / name / "config.json").read_text())
    return config["num_clients"], config["partition"], config["seed"]


def test_a_complete_data_set_is_left_alone(root, said):
    write_dataset(root, "Tiny")
    before = DataSet("Tiny", root).digest()
    for count in (None, 4):
        data = ensure_dataset("Tiny", count, root, said.append)
        assert (data, data.config()["num_clients"]) == ("Tiny", 4)
    assert ensure_dataset("tiny", None, root, said.append) == "Tiny"
    assert said == [] and DataSet("Tiny", root).digest() == before


def test_a_missing_data_set_is_made(root, said):
    data = ensure_dataset("digits", 3, root, said.append)
    config = data.config()
    assert (data, config["num_clients"], config["num_classes"]) == ("Digits", 3, 10)
    assert len(data.tensors(2)[1]) > 0
    assert "data set Digits is not there" in said[0] and "--num_clients 3" in said[0]
    assert said[1].startswith("Digits: 1,797 images of 1 channel") and "1797 images in 3 clients" in said[2]


@pytest.mark.parametrize("damage", ["config.json", "test/2.npz"])
def test_a_damaged_data_set_is_never_replaced(root, digits, damage):
    shutil.copytree(digits, root / "Digits")
    (root / "Digits" / damage).unlink()
    with pytest.raises(
        UsageError, match=rf"{damage} is missing.*: make it again: python .*generate_Digits.py.* --force"
    ):
        ensure_dataset("Digits", None, root)
    assert (root / "Digits" / "train" / "1.npz").exists()


@pytest.mark.parametrize("arguments", [[], ["--alpha", "5.0"], ["iid", "-", "-"], None])
def test_another_number_of_clients_is_refused_with_both_ways_out(root, digits, arguments):
    shutil.copytree(digits, root / "Digits")
    config = json.loads((digits / "config.json").read_text()) | {"arguments": arguments}
    if arguments is None:  # of another tool
        del config["arguments"], config["generator"]
    (root / "Digits" / "config.json").write_text(json.dumps(config))
    before = DataSet("Digits", root).digest()
    with pytest.raises(
        UsageError, match="Digits has 3 clients, 2 are asked for: use -nc 3 or make a partition"
    ) as error:
        ensure_dataset("Digits", 2, root)
    shown = " ".join(arguments or [])
    assert f"generate_Digits.py {shown} --num_clients 2".replace("  ", " ") in str(error.value)
    assert "use -data Digits-2" in str(error.value) and DataSet("Digits", root).digest() == before
    with pytest.raises(UsageError, match=r"4 are asked for \(-nc 2 -nnc 2\): use -nc 1 or"):
        ensure_dataset("Digits", 4, root, num_new=2)
    assert ensure_dataset("Digits", 3, root) == "Digits"


def test_the_command_in_the_error_does_it(root, digits, monkeypatch):
    import shlex
    import subprocess
    import sys

    shutil.copytree(digits, root / "Digits")
    config = json.loads((digits / "config.json").read_text()) | {"arguments": ["--seed", "4"]}
    (root / "Digits" / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(REPO / "system")
    with pytest.raises(UsageError) as error:
        ensure_dataset("Digits", 2, root)
    command = shlex.split(str(error.value).rpartition(": ")[2])
    assert command[0] == "python"
    subprocess.run([sys.executable, *command[1:]], check=True, capture_output=True)
    assert settings_of(root, "Digits-2") == (2, "dir", 4)
    assert ensure_dataset("Digits-2", 2, root).config()["num_clients"] == 2


OWN = """
import os, sys
import numpy as np
from utils.dataset_utils import check, separate_data, split_data, save_file

def generate_dataset(dir_path, num_clients, niid, balance, partition):
    paths = dir_path + "config.json", dir_path + "train/", dir_path + "test/"
    if check(*paths, num_clients, niid, balance, partition):
        return
    images = np.load("own.npy")
    labels = np.arange(len(images)) % 5
    X, y, statistic = separate_data((images, labels), num_clients, 5, niid, balance, partition, class_per_client=2)
    train_data, test_data = split_data(X, y)
    save_file(*paths, train_data, test_data, num_clients, 5, statistic, niid, balance, partition)

niid, balance, partition = sys.argv[1] == "noniid", sys.argv[2] == "balance", sys.argv[3]
generate_dataset("Own/", 4, niid, balance, partition)
"""


def test_a_users_own_generator_is_run(root, said, monkeypatch):
    """As PFLlib's are: in its own process, with three words, from the folder of the data sets."""
    scripts = root / "dataset"
    shutil.copytree(REPO / "dataset" / "utils", scripts / "utils")
    (scripts / "generate_Own.py").write_text(OWN)
    monkeypatch.setattr("flcore.data.ensure.DATASET", scripts)
    with pytest.raises(UsageError, match="FileNotFoundError.*own.npy.*Once that is mended: cd .*noniid - dir") as error:
        ensure_dataset("own", None, root / "data", said.append)
    assert "\n" not in str(error.value)
    np.save(root / "data" / "own.npy", np.random.default_rng(0).normal(size=(400, 1, 4, 4)).astype(np.float32))
    config = ensure_dataset("own", 4, root / "data", said.append).config()
    assert config["num_clients"] == 4 and config["non_iid"] and "seed" not in config
    sizes = [sum(n for _, n in own) for own in config["Size of samples for labels in clients"]]
    trained = [len(DataSet("Own", root / "data").read(i)["y"]) for i in range(4)]
    assert sum(sizes) == 400 and trained == [size * 3 // 4 for size in sizes]
    with pytest.raises(
        UsageError, match="Own has 4 clients, 5 are asked for: use -nc 4 or make it again with the tool"
    ):
        ensure_dataset("Own", 5, root / "data")


def test_data_sets_without_a_generator(root):
    write_dataset(root, "Tiny")
    with pytest.raises(UsageError, match="has 4 clients, 10 are asked for: use -nc 4 or make it again"):
        ensure_dataset("Tiny", 10, root)
    (root / "Tiny" / "test" / "1.npz").unlink()
    with pytest.raises(UsageError, match=r"1\.npz is missing or empty: make it again with the tool"):  # no -nc helps
        ensure_dataset("Tiny", 10, root)
    (root / "Tiny" / "config.json").unlink()
    with pytest.raises(UsageError, match=r"config\.json is missing.*make it again with the tool"):
        ensure_dataset("Tiny", None, root)


@pytest.mark.parametrize(("name", "near"), [("Cifar", "Cifar10"), ("fashion", "FashionMNIST"), ("Tyni", "Tiny")])
def test_an_unknown_name_gets_the_nearest(root, name, near):
    write_dataset(root, "Tiny")
    with pytest.raises(UsageError, match=rf"no data set '{name}': did you mean {near}\?.*Digits"):
        ensure_dataset(name, None, root)
    with pytest.raises(UsageError, match="no data set 'xyz': Known are Cifar10, "):
        ensure_dataset("xyz", None, root)


def test_a_failing_generator_is_reported_with_the_command(root, said, monkeypatch):
    def fail(*_):
        raise RunError("no network")

    monkeypatch.setattr("flcore.data.generate.load", fail)
    with pytest.raises(UsageError, match="making data set MNIST failed: no network") as error:
        ensure_dataset("MNIST", 5, root, said.append)
    assert "--num_clients 5" in str(error.value).splitlines()[-1]


# --- what it is taken for ---------------------------------------------------------------------------------------------


def test_a_data_set_tells_what_it_is_taken_for(root, mine, digits):
    assert DataSet("Digits", digits.parent).describe() == (
        "Digits: 3 clients, 1,797 images of 1 channel, 28 x 28 pixels (height x width), 10 classes, values -1 to 1",
        [],
    )
    put(root, 100 * X, Y)
    text, warnings = mine.describe()
    assert text.startswith("Mine: 1 client, images of 1 channel, 2 x 2 pixels (height x width), 4 classes, values -100")
    assert text.endswith("in train/0.npz") and warnings == [
        "values from -100 to 100 are taken as they are, and networks learn best from about -1 to 1."
    ]
    put(root, X / 1000, Y)
    assert "values from -0.001 to 0.001 hardly differ" in mine.describe()[1][0]
    write_dataset(root, labels=[[0, 1], [1], [2, 0], [0, 1, 2]])
    tiny = DataSet("Tiny", root)
    tiny.file(2, False).write_bytes(tiny.file(1, True).read_bytes())
    assert tiny.describe()[1] == [
        "train/1.npz and test/2.npz hold the same samples",
        "1 of the 4 classes have no sample",
    ]
    tiny.file(4, True).write_bytes(tiny.file(3, True).read_bytes()[:-1])
    assert tiny.describe()[1][-1] == "train/ has the files of 5 clients, config.json says 4"


@pytest.mark.parametrize(("dtype", "white"), [(np.uint8, 255), (np.uint16, 65535)])
def test_whole_pixels_are_scaled_as_the_generators_do(root, mine, dtype, white):
    pixels = np.array([0, white, white // 5, white // 5 * 2, 0, 0] * 4, dtype).reshape(6, 1, 2, 2)
    put(root, pixels, Y)
    x = mine.read(0)["x"]
    np.testing.assert_allclose(x.ravel()[:4], [-1, 1, -0.6, -0.2], atol=1e-6)
    assert mine.describe() == (
        "Mine: 1 client, images of 1 channel, 2 x 2 pixels (height x width), 4 classes, values -1 to 1, "
        "scaled from whole numbers in train/0.npz",
        [],
    )
    put(root, X, Y, part="test/0.npz")
    with pytest.raises(
        UsageError, match=r"test.0\.npz: its images are float32, those of .*train.0\.npz are whole numbers"
    ):
        mine.read(0, is_train=False)


@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 28, 1), (48, 32, 3)])
def test_channels_that_come_last_are_named_before_training(root, mine, shape):
    put(root, np.zeros((6, *shape), np.float32), Y)
    with pytest.raises(UsageError, match=r"0\.npz: .*channels last.*transpose\(0, 3, 1, 2\)"):
        mine.shape()
    (root / "Mine" / "config.json").write_text(json.dumps(mine.config() | {"shape": list(shape)}))
    assert mine.read(0)["x"].shape[1:] == shape  # whoever says so means it


def test_a_list_of_labels_is_read_as_pfllib_reads_it(root, mine):
    put(root, X, Y.tolist())
    assert mine.read(0)["y"].tolist() == torch.Tensor(Y.tolist()).long().tolist()
    put(root, X, np.eye(4)[Y])
    with pytest.raises(UsageError, match=r"6 samples need .* shape \(6, 4\), which looks one-hot; take y.argmax\(1\)"):
        mine.read(0)
