"""Arrays and tables of samples, with their labels, users and values."""

import numpy as np
import pandas as pd
import pytest

from flcore.data.ensure import ensure_dataset
from flcore.data.generate import generate
from flcore.data.new_images import read_new
from flcore.data.reading import DataSet
from flcore.data.sources import Reading, load, read_source
from flcore.utils.errors import UsageError

X = np.arange(12, dtype=np.float64).reshape(6, 2)
TABLE = pd.DataFrame({"width": X[:, 0], "height": X[:, 1], "kind": list("bababa"), "who": [2, 2, 2, 10, 10, 1]})


@pytest.fixture(params=["csv", "tsv", "parquet"])
def table(request, tmp_path):
    """Writes a table to a file of each kind."""
    if request.param == "parquet":
        pytest.importorskip("pyarrow")

    def write(frame=TABLE):
        path = tmp_path / f"t.{request.param}"
        if request.param == "parquet":
            frame.to_parquet(path)
        else:
            frame.to_csv(path, index=False, sep="\t" if request.param == "tsv" else ",")
        return path

    return write


def test_a_table_with_labels_and_users(table):
    read = read_source(table(), Reading(label_column="kind", user_column="who"))
    np.testing.assert_array_equal(read.x, X)
    assert read.class_names == ("a", "b") and read.y.tolist() == [1, 0, 1, 0, 1, 0] and read.x.dtype == np.float32
    assert read.user_names == ("1", "2", "10") and read.users.tolist() == [1, 1, 1, 2, 2, 0]
    assert str(read) == "6 vectors of 2 numbers, 2 classes (0: a, 1: b), values 0 to 11, 3 users"


def test_one_client_a_user(tmp_path):
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    how = {"partition": "natural", "label_column": "kind", "user_column": "who"}
    made = generate("Mine", tmp_path / "out", source=tmp_path / "t.csv", **how)
    assert made.config["users"] == ["2", "10"] and made.config["num_clients"] == 2  # user 1 has one row
    assert (
        made.config["arguments"][:3] == ["noniid", "-", "natural"] and "--num_clients" not in made.config["arguments"]
    )
    data = DataSet("out", tmp_path)
    x = np.concatenate([data.read(0, part)["x"] for part in (True, False)])
    np.testing.assert_array_equal(x[x[:, 0].argsort()], X[:3])
    assert "--num_clients" not in data.command()
    with pytest.raises(
        UsageError, match="has 2 clients, 3 are asked for: use -nc 2 or make another partition, since nat"
    ):
        ensure_dataset("out", 3, tmp_path)


@pytest.mark.parametrize(
    ("changes", "how", "message"),
    [
        ({}, {}, "which column is the label. --label_column NAME, one of width, height, kind, who"),
        ({}, {"label_column": "kin"}, "has no kin, it holds width, height, kind, who. Did you mean kind"),
        ({"who": list("xyzxyz")}, {"label_column": "kind"}, "column 'who' holds other than numbers .'x' in row"),
        (
            {"height": [1, 2, np.nan, 4, 5, 6]},
            {"label_column": "kind"},
            "'height' has no number in row (3|4), nor have 0",
        ),
        ({"kind": [None, *"aabba"]}, {"label_column": "kind"}, "'kind' of sample 0 is (nan|None), no name of a class"),
        (
            {"kind": np.linspace(0, 1, 6)},
            {"label_column": "kind"},
            "must be integers or names of classes, it is float64",
        ),
        ({"kind": [1, 2, 1, np.nan, 2, 1]}, {"label_column": "kind"}, "column 'kind' of sample 3 is missing"),
        ({"kind": ["a", "a ", *"abab"]}, {"label_column": "kind"}, "differ in spaces alone: 'a', 'a ', 'b'"),
        ({"kind": range(6)}, {"label_column": "kind"}, "each of the 6 samples has a label of its own"),
        ({"who": [None, *"xxxyy"]}, {"label_column": "kind", "user_column": "who"}, "sample 0 has no user"),
    ],
)
def test_wrong_tables(table, changes, how, message):
    with pytest.raises(UsageError, match=message):
        read_source(table(TABLE.assign(**changes)), Reading(**how))


def test_keras_files_are_merged(tmp_path):
    pixels = np.arange(80, dtype=np.uint8).reshape(5, 4, 4)
    arrays = {"x_train": pixels[:3], "y_train": [4, 9, 4], "x_test": pixels[3:], "y_test": [9, 4]}
    np.savez(tmp_path / "mnist.npz", **arrays)
    read = read_source(tmp_path / "mnist.npz")
    np.testing.assert_array_equal(read.x[:, 0], pixels)
    assert read.y.tolist() == [0, 1, 0, 1, 0] and read.class_names == ("4", "9")
    np.savez(tmp_path / "mnist.npz", **arrays | {"x_test": pixels[3:, 1:]})
    with pytest.raises(UsageError, match=r"x_train is \(3, 4, 4\), x_test \(2, 3, 4\): of another shape"):
        read_source(tmp_path / "mnist.npz")
    np.savez(tmp_path / "words.npz", x=pixels[:4], y=np.array([b"b", b"a", b"b", b"a"]))
    assert read_source(tmp_path / "words.npz").class_names == ("a", "b")


def test_columns_may_be_separated_by_semicolons(tmp_path):
    rows = [f"{a};{b};{kind}" for (a, b), kind in zip(X.tolist(), TABLE["kind"], strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["width;height;label", *rows]), encoding="utf-8-sig")
    np.testing.assert_array_equal(read_source(tmp_path / "t.csv").x, X)


def test_a_file_that_is_no_table(tmp_path):
    (tmp_path / "t.csv").write_text('a,b\n1,2\n1,2,3\n"')
    (tmp_path / "t.parquet").write_bytes(b"PAR1 nothing")
    for name, message in (("t.csv", "is no table that can be read"), ("t.parquet", "is no table|pip install pyarrow")):
        with pytest.raises(UsageError, match=f"{name}.*({message})"):
            read_source(tmp_path / name, Reading(label_column="a"))


def test_labels_of_whole_numbers_keep_their_names(tmp_path):
    TABLE.assign(label=[3, 7, 3, 12, 7, 3]).drop(columns=["kind", "who"]).to_csv(tmp_path / "t.csv", index=False)
    read = read_source(tmp_path / "t.csv")  # a column called label needs no flag
    assert read.class_names == ("3", "7", "12") and read.y.tolist() == [0, 1, 0, 2, 1, 0]


def test_a_column_of_row_numbers_is_no_feature(tmp_path):
    TABLE.drop(columns="who").to_csv(tmp_path / "t.csv")
    read = read_source(tmp_path / "t.csv", Reading(label_column="kind"))
    np.testing.assert_array_equal(read.x, X)
    assert read.notes == ("the first column numbers the rows and is left out",)


def test_standardised_columns_and_channels(tmp_path):
    np.savez(tmp_path / "v.npz", x=np.column_stack([X, np.full(6, 5.0)]), y=[0, 1] * 3)
    x = load("Mine", tmp_path / "v.npz", tmp_path, how=Reading(standardise=True)).x
    # 0, 2, .., 10: mean 5, standard deviation sqrt(35 / 3)
    np.testing.assert_allclose(x[:, 0], (np.arange(6) * 2 - 5) / np.sqrt(35 / 3), rtol=1e-6)
    assert (x[:, 2] == 0).all()  # constant
    images = np.random.default_rng(0).integers(0, 255, (1500, 3, 4, 4)).astype(np.uint8)
    np.savez(tmp_path / "i.npz", x=images, y=np.arange(1500) % 2)
    x = load("Mine", tmp_path / "i.npz", tmp_path, how=Reading(standardise=True)).x
    np.testing.assert_allclose(x.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(x.std((0, 2, 3)), 1, atol=1e-4)


def test_what_was_standardised_by_is_kept_for_new_samples(tmp_path):
    np.savez(tmp_path / "v.npz", x=X, y=[0, 1] * 3)
    made = generate("Mine", tmp_path / "out", source=tmp_path / "v.npz", num_clients=2, min_samples=2, standardise=True)
    np.testing.assert_allclose(made.config["standardised"], [[5, 6], [np.sqrt(35 / 3)] * 2], rtol=1e-6)
    data = DataSet("out", tmp_path)
    own = np.concatenate([data.read(i, part)["x"] for i in (0, 1) for part in (True, False)])
    np.save(tmp_path / "new.npy", X)
    _, x, _ = read_new(tmp_path / "new.npy", (2,), ("0", "1"), data)
    np.testing.assert_allclose(x[x[:, 0].argsort()], own[own[:, 0].argsort()], rtol=1e-6)
    names, x, _ = read_new(data.file(1, False), (2,), ("0", "1"), data)  # a client's own file is ready
    np.testing.assert_array_equal(x, data.read(1, False)["x"])


def test_large_values_are_told(tmp_path, capsys):
    np.savez(tmp_path / "v.npz", x=X * 100, y=[0, 1] * 3)
    made = generate("Mine", tmp_path / "out", source=tmp_path / "v.npz", num_clients=2, min_samples=2)
    assert "note: values from 0 to 1100 are taken as they are" in capsys.readouterr().out
    assert "6 samples in 2 clients" in str(made)
    assert "values from 0 to 1100" in DataSet("out", tmp_path).describe()[1][0]


def test_pixels_stored_as_other_numbers_are_pixels(tmp_path):
    pixels = np.arange(0, 240, 10).reshape(6, 1, 2, 2)
    for dtype in (np.int64, np.float32):
        np.savez(tmp_path / "i.npz", x=pixels.astype(dtype), y=[0, 1] * 3)
        assert read_source(tmp_path / "i.npz").x.dtype == np.uint8
    for dtype in (bool, np.uint8, np.int32):  # black and white
        np.savez(tmp_path / "i.npz", x=(pixels > 100).astype(dtype), y=[0, 1] * 3)
        np.testing.assert_array_equal(read_source(tmp_path / "i.npz").x, (pixels > 100) * 255)
    np.savez(tmp_path / "i.npz", x=pixels / 255, y=[0, 1] * 3)
    np.testing.assert_array_equal(read_source(tmp_path / "i.npz").x, pixels / 255)


def test_npy_files_with_users(tmp_path):
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(UsageError, match="needs its labels beside it, in .*y.npy"):
        read_source(tmp_path)
    np.save(tmp_path / "y.npy", np.array(list("uvuvuv")))
    np.save(tmp_path / "users.npy", np.array([5, 5, 5, 5, 9, 9]))
    for path in (tmp_path, tmp_path / "x.npy"):
        read = read_source(path)
        assert read.class_names == ("u", "v") and read.users.tolist() == [0, 0, 0, 0, 1, 1]
