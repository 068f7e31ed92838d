"""Images of every kind of source, and what may be wrong with a stranger's files."""

import gzip
import pickle
import struct
import sys
import types

import numpy as np
import pytest
from PIL import Image

from flcore.data.image_files import read_idx
from flcore.data.sources import KNOWN, Known, load, read_source
from flcore.utils.errors import RunError, UsageError

X = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)  # 5 images of 4 x 3 pixels
Y = np.array([3, 0, 9, 1, 3], np.uint8)


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder, name=lambda part: part, pack=lambda content: content):
    folder.mkdir(parents=True, exist_ok=True)
    for part, cut in (("train", slice(0, 3)), ("t10k", slice(3, 5))):
        (folder / name(f"{part}-images-idx3-ubyte")).write_bytes(pack(idx(X[cut])))
        (folder / name(f"{part}-labels-idx1-ubyte")).write_bytes(pack(idx(Y[cut])))
    return folder


def write_cifar10(folder, protocol=2):
    folder.mkdir(parents=True, exist_ok=True)
    for i, part in enumerate(
        ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
    ):
        batch = {"data": np.full((2, 3072), i, np.uint8), "labels": [i, 9 - i], "batch_label": b"x"}
        (folder / part).write_bytes(pickle.dumps(batch, protocol))
    return folder


def write_cifar100(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for i, part in enumerate(["train", "test"]):
        data = np.arange(3072, dtype=np.uint16).astype(np.uint8)[None] + np.uint8(i)
        batch = {b"data": data, b"fine_labels": [50 + i], b"coarse_labels": [1]}
        (folder / part).write_bytes(pickle.dumps(batch))
    return folder


def write_images(folder, mode="L", sizes=((4, 3), (4, 3), (4, 3))):
    for i, (name, size) in enumerate(zip(["b/2.png", "a/1.png", "b/1.png"], sizes, strict=True)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size, i + 1 if mode == "L" else (i + 1, 20, 30)).save(folder / name)
    return folder


# --- every kind -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        (lambda part: part, bytes),
        (lambda part: part + ".gz", gzip.compress),
        (lambda part: part.replace("-idx", ".idx"), bytes),
        (lambda part: "MNIST/raw/" + part, bytes),
    ],
    ids=["plain", "gzipped", "dots", "torchvision's folder"],
)
def test_idx_files(tmp_path, name, pack):
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    read = load("MNIST", write_idx(tmp_path, name, pack), tmp_path)
    np.testing.assert_array_equal(read.x, X[:, None])
    assert read.y.tolist() == [2, 0, 3, 1, 2] and read.class_names == ("0", "1", "3", "9")  # the classes that occur
    assert read.x.dtype == np.uint8 and read.y.dtype == np.int64


@pytest.mark.parametrize("below", ["", "cifar-10-batches-py"])
def test_cifar10_batches(tmp_path, below):
    write_cifar10(tmp_path / below)
    read = load("Cifar10", tmp_path, tmp_path)
    assert read.x.shape == (12, 3, 32, 32) and read.x.dtype == np.uint8
    assert read.y.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5, 5, 4] and read.class_names == tuple("0123456789")
    np.testing.assert_array_equal(read.x[:, 0, 0, 0], np.repeat(range(6), 2))
    names = [b"airplane", b"automobile", b"bird", b"cat", b"deer", b"dog", b"frog", b"horse", b"ship", b"truck"]
    (tmp_path / below / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}))
    assert load("Cifar10", tmp_path, tmp_path).class_names[3] == "cat"


def test_cifar100_batches_are_channel_first_with_fine_labels(tmp_path):
    read = load("Cifar100", write_cifar100(tmp_path / "cifar-100-python").parent, tmp_path)
    assert read.y.tolist() == [50, 51] and len(read.class_names) == 100
    # stored row by row, the red plane first: pixel (c, h, w) is number 1024 c + 32 h + w
    assert read.x[0, 2, 3, 4] == (2048 + 96 + 4) % 256


@pytest.mark.parametrize("shape", [(5, 4, 3), (5, 1, 4, 3)])
def test_npz(tmp_path, shape):
    np.savez(tmp_path / "a.npz", x=X.reshape(shape), y=Y)
    read = load("MNIST", tmp_path / "a.npz", tmp_path)
    np.testing.assert_array_equal(read.x, X[:, None])
    assert read.y.dtype == np.int64 and np.array(read.class_names)[read.y].tolist() == [str(label) for label in Y]


def test_image_folder(tmp_path):
    read = read_source(write_images(tmp_path))
    assert read.x.shape == (3, 1, 3, 4) and read.y.tolist() == [0, 1, 1]  # PIL's size is width x height
    assert read.x[:, 0, 0, 0].tolist() == [2, 3, 1] and read.class_names == ("a", "b")  # a/1, b/1, b/2
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    assert read_source(tmp_path).notes == ("1 files that are no images are passed over (.txt)",)
    write_images(tmp_path / "colour", "RGB")
    x = read_source(tmp_path / "colour").x
    assert x.shape == (3, 3, 3, 4) and x[0, :, 0, 0].tolist() == [2, 20, 30]


def test_digits():
    read = load("Digits", None, None)
    x, y = read.x, read.y
    assert x.shape == (1797, 1, 28, 28) and np.bincount(y).tolist() == [
        178,
        182,
        177,
        183,
        181,
        182,
        181,
        179,
        174,
        180,
    ]
    assert x.min() == 0 and x.max() == 255
    from sklearn.datasets import load_digits

    # the brightest of 8 x 8 pixels is white, and resizing keeps the mean brightness
    np.testing.assert_allclose(x.mean((1, 2, 3)), load_digits().images.mean((1, 2)) * 255 / 16, rtol=0.1)


def test_installed_fashion_mnist_is_found(tmp_path, monkeypatch):
    folder = write_idx(tmp_path / "installed", lambda part: part + ".gz", gzip.compress)
    monkeypatch.setitem(KNOWN, "FashionMNIST", Known(10, "FashionMNIST", KNOWN["MNIST"].files, str(folder)))
    read = load("FashionMNIST", None, tmp_path / "rawdata")
    np.testing.assert_array_equal(read.x, X[:, None])
    assert read.y.tolist() == Y.tolist() and len(read.class_names) == 10


def test_files_put_into_rawdata_are_used(tmp_path):
    assert len(load("MNIST", None, write_idx(tmp_path / "rawdata")).x) == 5


# --- download ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def torchvision(monkeypatch):
    """Stands in for torchvision.datasets: `fetch` is what a download does."""
    module = types.SimpleNamespace(fetch=None)

    class CIFAR10:
        url = "https://example.org/cifar.tar.gz"

        def __init__(self, root, download):
            assert download
            module.fetch(root)

    module.CIFAR10 = CIFAR10
    monkeypatch.setitem(sys.modules, "torchvision", types.SimpleNamespace(datasets=module))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", module)
    return module


def test_download(tmp_path, torchvision):
    torchvision.fetch = lambda root: write_cifar10(root / "cifar-10-batches-py")
    assert len(load("Cifar10", None, tmp_path / "rawdata").x) == 12
    torchvision.fetch = None  # a second time the files are there
    assert len(load("Cifar10", None, tmp_path / "rawdata").x) == 12


def test_half_fetched_files_are_fetched_again(tmp_path, torchvision):
    folder = write_cifar10(tmp_path / "cifar-10-batches-py")
    whole = (folder / "test_batch").read_bytes()
    (folder / "test_batch").write_bytes(whole[:100])
    torchvision.fetch = lambda root: write_cifar10(folder)
    assert len(load("Cifar10", None, tmp_path).x) == 12


def test_failed_download_says_what_to_do_and_leaves_nothing(tmp_path, torchvision):
    def fail(root):
        (root / "cifar").mkdir()
        raise OSError("<urlopen error [Errno 111] Connection refused>")

    torchvision.fetch = fail
    with pytest.raises(RunError) as error:
        load("Cifar10", None, tmp_path / "Cifar10" / "rawdata")
    for needed in (
        "example.org",
        "refused",
        "https_proxy",
        "data_batch_1",
        "rawdata",
        "--source",
        "generate_Digits.py",
    ):
        assert needed in str(error.value)
    assert not (tmp_path / "Cifar10").exists()


def test_torchvision_knows_these_names():
    datasets = pytest.importorskip("torchvision.datasets")
    for known in KNOWN.values():
        if known.torchvision:
            kind = getattr(datasets, known.torchvision)
            assert hasattr(kind, "url") or hasattr(kind, "mirrors")


# --- what may be wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "has no y, it holds x"),
        ({"images": X, "y": Y}, "has no x, it holds images, y"),
        ({"x": X.astype(int) * 1000, "y": Y}, "type int64 with values 0 to 59000, of which nobody knows"),
        ({"x": X * np.nan, "y": Y}, "NaN or infinite"),
        ({"x": X[0, 0], "y": Y}, r"x must be numbers of shape .* it is uint8 \(3,\)"),
        ({"x": np.zeros((5, 32, 32, 3), np.uint8), "y": Y}, "channels last"),
        ({"x": np.zeros((5, 28, 28, 1), np.uint8), "y": Y}, r"channels last.*transpose\(0, 3, 1, 2\)"),
        ({"x": X, "y": Y / 2}, "y must be integers"),
        ({"x": X, "y": Y[:4]}, "5 samples need as many labels"),
        ({"x": X, "y": Y[:, None]}, r"5 samples need as many labels, y has the shape \(5, 1\); take y.ravel"),
        ({"x": X, "y": np.eye(10)[Y]}, r"5 samples need .* \(5, 10\), which looks one-hot; take y.argmax\(1\)"),
        ({"x": X, "y": Y * 0}, "all samples are of one class"),
        ({"x": X, "y": np.arange(5)}, "each of the 5 samples has a label of its own"),
        ({"x": X[:0], "y": Y[:0]}, "holds no images"),
        ({"x": X[:, :0], "y": Y}, "have no pixels"),
        ({"x": X, "y": -Y.astype(int)}, "y of sample 0 is -3, labels must be 0 or more"),
        ({"x": np.array([print], dtype=object), "y": Y}, "is refused"),
    ],
)
def test_wrong_npz(tmp_path, arrays, message):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(UsageError, match=f"mine.npz.*{message}"):
        load("MNIST", tmp_path / "mine.npz", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(X)[:-1], "is damaged: its header says"),
        (idx(X) + b"x", "is damaged: its header says"),
        (gzip.compress(idx(X), mtime=0)[:-9], "is damaged"),
        (gzip.compress(idx(X), mtime=0)[:30], "is damaged"),
        (idx(Y), "not an idx file of bytes with 3 axes"),
        (idx(X)[:7], "not an idx file"),
        (b"<html>not found</html>", "not an idx file"),
        (b"", "not an idx file"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, "is damaged"),
    ],
)
def test_wrong_idx(tmp_path, content, message):
    (tmp_path / "train-images").write_bytes(content)
    with pytest.raises(UsageError, match=f"train-images.*{message}"):
        read_idx(tmp_path / "train-images", 3)


def test_missing_and_mismatched_official_files(tmp_path):
    write_idx(tmp_path / "a")
    (tmp_path / "a" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UsageError, match="lacks t10k-labels-idx1-ubyte"):
        read_source(tmp_path / "a")
    write_idx(tmp_path / "b")
    (tmp_path / "b" / "t10k-labels-idx1-ubyte").write_bytes(idx(Y))
    with pytest.raises(UsageError, match="t10k-images-idx3-ubyte: 2 images need as many labels"):
        read_source(tmp_path / "b")
    write_idx(tmp_path / "c")
    (tmp_path / "c" / "t10k-images-idx3-ubyte").write_bytes(idx(X[3:, 1:]))
    with pytest.raises(UsageError, match="t10k-images-idx3-ubyte: images of shape .1, 3, 3."):
        read_source(tmp_path / "c")
    write_cifar10(tmp_path / "d")
    (tmp_path / "d" / "data_batch_4").unlink()
    with pytest.raises(UsageError, match="lacks data_batch_4"):
        read_source(tmp_path / "d")


@pytest.mark.parametrize(
    "batch", [{"labels": [1]}, {"data": np.zeros((1, 3000), np.uint8), "labels": [1]}, {"data": X}, [1], {1: 2}]
)
def test_wrong_cifar_batch(tmp_path, batch):
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps(batch))
    with pytest.raises(UsageError, match="data_batch_2 is "):
        read_source(tmp_path)


def test_cifar_batch_without_labels(tmp_path):
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_2").write_bytes(pickle.dumps({"data": np.zeros((1, 3072), np.uint8)}))
    with pytest.raises(UsageError, match="data_batch_2 is not a CIFAR batch: it has no whole numbers"):
        read_source(tmp_path)


def test_wrong_images(tmp_path):
    write_images(tmp_path / "sizes", sizes=((4, 3), (4, 3), (5, 3)))
    with pytest.raises(
        UsageError,
        match=r"b.1\.png is 3 x 5 pixels .height x width., the images before it are 3 x 4: .*--image_size 3x4",
    ):
        read_source(tmp_path / "sizes")
    write_images(tmp_path / "broken")
    (tmp_path / "broken" / "a" / "1.png").write_bytes(b"not a png")
    with pytest.raises(UsageError, match=r"a.1\.png is not an image"):
        read_source(tmp_path / "broken")


def test_something_else(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    for path in (tmp_path, tmp_path / "a.txt", tmp_path / "none"):
        with pytest.raises(UsageError, match="is not a source of images"):
            read_source(path)
