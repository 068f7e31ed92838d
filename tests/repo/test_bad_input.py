"""Wrong inputs of every kind: the exit code, what the message names, no traceback, and no file left behind.

2: the user's mistake; 1: the run or a write failed. Every command runs in this process, on its own copy of a data set.
"""

import gzip
import json
import os
import pickle
import resource
import shutil
import socket
import struct
import zipfile
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import main
import plugin.checkout
import plugin.command
import report  # noqa: E402
import train_generator  # noqa: E402
from flcore.data import plot
from flcore.data.command import main as generate
from flcore.data.image_files import IDX_PARTS
from flcore.utils.runs.read import read_run
from flcore.utils.safe_load import bounds
from support import REPO, write_dataset
from support.evil import Evil


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    root = tmp_path_factory.mktemp("original")
    write_dataset(root, "Tiny")
    write_dataset(root, "Small", shape=(1, 8, 8))
    write_dataset(root, "Vectors", shape=(12,))
    return root


@pytest.fixture
def folder(original, tmp_path, monkeypatch):
    """A folder with the data sets in data/, to be damaged."""
    shutil.copytree(original, tmp_path / "data")
    monkeypatch.setattr(bounds, "UNPACKED", 2**20)  # small bombs are made faster
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(call, code, words, folder, capsys):
    """``call()`` ends with ``code``, its message holds the ``words``, and ``folder`` holds what it held before."""

    def files():
        found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock" != path.name)
        return {path: path.stat().st_mtime_ns for path in found}

    before = files()
    capsys.readouterr()
    try:
        got = call() or 0
    except SystemExit as end:
        got = end.code or 0
    error = capsys.readouterr().err
    assert got == code, error
    assert "Traceback" not in error
    for word in words.split("|"):
        assert word in error
    assert files() == before


# --- flags of main.py -------------------------------------------------------------------------------------------------

FLAGS = [
    ("-algo FedAvgg", "no such algorithm|Did you mean FedAvg?"),
    ("-algo ../FedAvg", "no such algorithm"),
    ("-m CNNN", "no such model|CNN"),
    ("-m ../models", "no such model"),
    ("-data NoSuch", "there is no data set 'NoSuch'"),
    ("-data Tiy", "did you mean Tiny?"),
    ("-data ../data/Tiny", "there is no data set"),
    ("-data /etc", "there is no data set '/etc'"),
    ("-data .", "there is no data set '.'"),
    ("--data_dir nowhere", "there is no data set 'Tiny'|nowhere"),
    ("-ncl 5", "-ncl 5|4 classes"),
    ("-nc 9", "Tiny has 4 clients, 9 are asked for"),
    ("-nc 0", "-nc|1 or more"),
    ("-nc 1e3", "-nc|a whole number"),
    ("-nnc 4", "-nnc 4 leaves no client"),
    ("-nc 4 -nnc 1", "Tiny has 4 clients, 5 are asked for"),
    ("-jr 5", "-jr|at most 1"),
    ("-jr 0", "-jr|above 0"),
    ("-jr nan", "-jr|a finite number"),
    ("-cdr 1", "-cdr|below 1"),
    ("-gr -1", "-gr|0 or more"),
    ("-gr 2.5", "-gr|a whole number"),
    ("-gr", "-gr|expected one argument"),
    ("-ls many", "-ls|a whole number"),
    ("-lbs 0", "-lbs|1 or more, or -1"),
    ("-lr 0", "-lr|above 0"),
    ("-lr inf", "-lr|a finite number"),
    ("-ld flase", "True or False"),
    ("-eg 0", "-eg|1 or more"),
    ("-tc 0", "-tc|1 or more"),
    ("-fs -1", "-fs|0 or more"),
    ("-t 0", "-t/--times|1 or more"),
    ("-t 2 -pv 2", "-pv/--prev|below -t"),
    ("-sd -1", "-sd|from 0"),
    ("--num_threads 0", "--num_threads|from 1"),
    ("-ex warp", "-ex|must be one of"),
    ("-dev tpu", "-dev|auto, cpu, cuda"),
    ("-dev cuda:-1", "-dev|auto, cpu, cuda"),
    ("-s 101", "-s/--rand_percent|from 1 to 100"),
    ("-Ts 1.5", "-Ts|from 0 to 1"),
    ("-tth 0", "-tth|above 0"),
    ("--local_ep 3", "--local_ep: no such flag"),
    ("--frobnicate", "--frobnicate: no such flag"),
    ("stray", "stray: no such flag"),
    ("-algo FedCPD --cpd_tau 0", "--cpd_tau|above 0"),
    ("-algo FedCPD --cpd_fd -1", "--cpd_fd|0 or more"),
    ("-algo FedCPD --cpd_width 0", "--cpd_width"),
    ("-algo FedCPD --cpd_proto_weighting best", "--cpd_proto_weighting|must be one of"),
    ("-algo FedDBE -mo 0", "-mo/--momentum: must be above 0"),
    ("-algo FedKTL", "--generator FILE"),
    ("-algo FedKTL --generator none.pt", "none.pt: there is no such file"),
    ("-algo FedKTL --generator data/Tiny/config.json", "not TorchScript"),
    ("-algo FedKTL --ktl_server_batch 1", "--ktl_server_batch|2 or more"),
    ("-data Vectors -m CNN", "-m CNN takes images"),
    ("-data Small -m CNN", "at least 16x16 pixels"),
    ("-data Vectors -m DNN -algo FedKTL --generator none.pt", "FedKTL works on images"),
    ("--results_dir data/Tiny/config.json", "--results_dir|cannot be written to"),
    ("--results_dir /proc/none", "--results_dir|cannot be written to"),
    ("--results_dir /dev/null", "--results_dir|cannot be written to"),
]


def command(*flags):
    return main.main(["-data", "Tiny", "--data_dir", "data", "--results_dir", "results", "-gr", "1", *flags])


@pytest.mark.parametrize(("flags", "words"), FLAGS, ids=[flags for flags, _ in FLAGS])
def test_flags(folder, capsys, flags, words):
    check(lambda: command(*flags.split()), 2, words, folder, capsys)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_a_card_that_is_not_there(folder, capsys):
    check(lambda: command("-dev", "cuda:7"), 2, "-dev cuda:7|no CUDA device", folder, capsys)


@pytest.mark.parametrize("goal", ["../../up", "/etc/passwd", "a/b:c*?", "", "..", "ß\n\x1b[2J$x_{$"])
def test_a_goal_never_leaves_the_folder_of_the_results(folder, goal):
    assert command("-gr", "0", "-m", "MLR", "-go", goal) == 0
    made = [path for path in folder.rglob("*") if path.is_file() and "data" not in path.parts]
    assert {path.parent for path in made if path.parent.suffix != ".models"} == {folder / "results"}
    assert all(path.is_relative_to(folder / "results") for path in made)
    assert sum(path.suffix == ".h5" for path in made) == 1
    assert all(path.name.isprintable() for path in made)


# --- data files -------------------------------------------------------------------------------------------------------

X, Y = np.zeros((6, 1, 20, 20), np.float32), np.arange(6) % 4


def npz(x=X, y=Y, **arrays):
    """Writes a client's file as PFLlib does, or with these arrays in place of `data`."""

    def write(path):
        np.savez_compressed(path, **arrays or {"data": np.array({"x": x, "y": y}, dtype=object)})

    return write


def with_pixel(value, dtype=np.float64):
    x = X.astype(dtype)
    x[3, 0, 2, 2] = value
    return x


def with_label(value):
    return np.where(np.arange(6) == 4, value, Y)


def header_only(shape, descr="<f4"):
    def write(path):
        with zipfile.ZipFile(path, "w") as archive:
            header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
            content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"1234"
            archive.writestr("x.npy", content)
            archive.writestr("y.npy", content)

    return write


def bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive, archive.open("x.npy", "w") as member:
        for _ in range(3):  # MiB; in the file a few hundred bytes
            member.write(bytes(2**20))


def nested(path):
    shared = [0.0]
    for _ in range(40):  # as an array 2**40 numbers
        shared = [shared, shared]
    npz(x=shared)(path)


def truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def encrypted(path):
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # a flag in the central directory
    path.write_bytes(content)


def as_folder(path):
    path.unlink()
    path.mkdir()


def pipe(path):
    path.unlink()
    os.mkfifo(path)  # opening it would wait for ever


DATA = {  # what happens to train/2.npz
    "missing": (Path.unlink, "2.npz is missing or empty"),
    "empty": (lambda path: path.write_bytes(b""), "2.npz is missing or empty"),
    "a folder": (as_folder, "2.npz is missing or empty"),
    "a pipe": (pipe, "2.npz is missing or empty"),
    "a link to nothing": (lambda path: (path.unlink(), path.symlink_to("none")), "2.npz is missing or empty"),
    "text": (lambda path: path.write_text("<html>404</html>"), "2.npz is damaged or of another kind"),
    "truncated": (truncated, "2.npz is damaged or of another kind"),
    "a flipped byte": (flipped, "2.npz is damaged or of another kind"),
    "encrypted": (encrypted, "2.npz is damaged or of another kind"),
    "an .npy": (lambda path: np.save(path.open("wb"), X), "2.npz is damaged or of another kind"),
    "a bare pickle": (lambda path: path.write_bytes(pickle.dumps({"x": X, "y": Y})), "2.npz is damaged"),
    "other arrays": (npz(images=X, labels=Y), "2.npz is not PFLlib's"),
    "no labels": (npz(data=np.array({"x": X}, dtype=object)), "2.npz is not PFLlib's"),
    "not a dict": (npz(data=np.array([1, 2], dtype=object)), "2.npz is not PFLlib's"),
    "nested lists": (nested, "2.npz is not PFLlib's: its x and y must be arrays"),
    "lengths differ": (npz(y=Y[:5]), "2.npz|6 samples need as many labels, y has the shape (5,)"),
    "labels of two axes": (npz(y=Y[:, None]), "2.npz|6 samples need as many labels, y has the shape (6, 1)"),
    "another shape": (npz(x=X[:, :, :-1]), r"2.npz|shape (1, 19, 20)"),
    "three channels": (npz(x=X.repeat(3, 1)), r"2.npz|shape (3, 20, 20)"),
    "a label too large": (npz(y=with_label(4)), "2.npz|whole numbers in 0..3"),
    "a negative label": (npz(y=with_label(-1)), "2.npz|whole numbers in 0..3"),
    "a broken label": (npz(y=with_label(0.5)), "2.npz|whole numbers in 0..3"),
    "a NaN label": (npz(y=with_label(np.nan)), "2.npz|whole numbers in 0..3"),
    "a huge label": (npz(y=np.full(6, 2**64 - 1, np.uint64)), "2.npz|whole numbers in 0..3"),
    "labels as text": (npz(y=Y.astype(str)), "2.npz|whole numbers in 0..3"),
    "labels as objects": (npz(y=Y.astype(object)), "2.npz|whole numbers in 0..3"),
    "a NaN pixel": (npz(x=with_pixel(np.nan)), "2.npz|NaN, infinite"),
    "an infinite pixel": (npz(x=with_pixel(np.inf)), "2.npz|NaN, infinite"),
    "a pixel beyond float32": (npz(x=with_pixel(1e300)), "2.npz|too large for float32"),
    "complex pixels": (npz(x=X + 1j), "2.npz|x is complex"),
    "words": (npz(x=np.array(["a", "b", "c", "d", "e", "f"])), "2.npz|not numbers; only images are supported"),
    "texts with lengths": (npz(x=np.array([([1, 2], 2)] * 6, dtype=object)), "2.npz|not text with lengths"),
    "dates": (npz(x=np.zeros(6, "M8[s]"), y=Y), "2.npz is refused"),
    "code": (npz(x=Evil("ran")), "2.npz is refused, none of it was run"),
    "code in an object array": (npz(data=np.array([Evil("ran")], dtype=object)), "2.npz is refused, none of it"),
    "a huge declared shape": (header_only((2**40, 3)), "2.npz is damaged"),
    "a negative declared shape": (header_only((-1, 3)), "2.npz is refused"),
    "a million axes": (header_only("(" + "1," * 3000 + ")"), "2.npz is "),
    "structured numbers": (header_only((1,), [("a", "<i2"), ("b", "<i2")]), "2.npz|not numbers"),
    "a bomb": (bomb, "2.npz is refused|would unpack to 3 MiB"),
}


@pytest.mark.parametrize("case", DATA)
def test_data_files(folder, capsys, case):
    damage, words = DATA[case]
    damage(folder / "data" / "Tiny" / "train" / "2.npz")
    check(command, 2, words, folder, capsys)
    assert not (folder / "ran").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(folder, capsys):
    (folder / "data" / "Tiny" / "train" / "2.npz").chmod(0)
    check(command, 2, "2.npz|Permission denied", folder, capsys)


def test_something_among_the_files_that_is_none(folder, capsys):
    (folder / "data" / "Tiny" / "train" / "9.npz").mkdir()
    check(command, 2, "9.npz is not a file", folder, capsys)


def test_a_training_set_without_labels_of_any_kind(folder, capsys):
    for i in range(4):
        npz(X[:0], Y[:0])(folder / "data" / "Tiny" / "train" / f"{i}.npz")
    check(command, 2, "no client of Tiny has train samples", folder, capsys)


def edited(**changes):
    def write(path):
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return write


def text(content):
    return lambda path: path.write_text(content)


CONFIG = {
    "missing": (Path.unlink, "config.json is missing"),
    "empty": (text(""), "config.json is damaged"),
    "half": (text('{"num_clients": 4, "num_cl'), "config.json is damaged"),
    "a list": (text("[4, 4]"), "config.json is damaged"),
    "bytes": (lambda path: path.write_bytes(b"\xff\xfe\x00"), "config.json is damaged"),
    "deeply nested": (text("[" * 100_000 + "]" * 100_000), "config.json is damaged"),
    "nested": (edited(more=json.loads("[" * 50 + "]" * 50)), "config.json is damaged|nested too deeply"),
    "an endless number": (text('{"num_clients": ' + "9" * 100_000 + "}"), "config.json is damaged"),
    "infinitely many clients": (text('{"num_clients": 1e999, "num_classes": 4}'), "num_clients must be a whole number"),
    "clients as text": (edited(num_clients="4"), "num_clients must be a whole number"),
    "clients as truth": (edited(num_clients=True), "num_clients must be a whole number"),
    "no clients": (edited(num_clients=0), "num_clients must be a whole number"),
    "too many clients": (edited(num_clients=10**18), "4.npz is missing or empty"),
    "negative classes": (edited(num_classes=-4), "num_classes must be a whole number"),
    "no classes": (edited(num_classes=None), "num_classes must be a whole number"),
    "too few classes": (edited(num_classes=2), "0.npz|whole numbers in 0..1"),
    "countless classes": (edited(num_classes=10**9), "num_classes is 1000000000, more than"),
    "shape as text": (edited(shape="1,20,20"), "shape must be whole numbers"),
    "shape with 0": (edited(shape=[1, 0, 20]), "shape must be whole numbers"),
    "another shape": (edited(shape=[3, 20, 20]), "0.npz|config.json says (3, 20, 20)"),
    "a huge shape": (edited(shape=[1, 10**9, 10**9]), "0.npz|config.json says"),
    "arguments that are none": (edited(arguments=5), "arguments must be a list of words"),
    "arguments of another kind": (edited(arguments=["--source", 5]), "arguments must be a list of words"),
    "a folder": (as_folder, "config.json is damaged"),
}


@pytest.mark.parametrize("case", CONFIG)
def test_config(folder, capsys, case):
    damage, words = CONFIG[case]
    damage(folder / "data" / "Tiny" / "config.json")
    check(command, 2, words, folder, capsys)


# --- nothing can be written -------------------------------------------------------------------------------------------


@contextmanager
def full_disk(size):
    """In the body no file can grow beyond ``size`` bytes; pytest's own output, which may go to a file, comes after."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def sizes(folder):
    """The bytes of a small run's run.json and of its arrays, of which the first round's need about 80 %."""
    assert command("-m", "MLR", "--results_dir", "sizes") == 0
    return [(folder / "sizes" / f"Tiny_FedAvg_test_0{kind}").stat().st_size for kind in (".run.json", ".h5")]


def test_no_room_for_the_results(folder, capsys, sizes):
    with full_disk(100):
        check(lambda: command("-m", "MLR"), 1, "error: |File too large", folder, capsys)


def test_no_room_for_the_arrays(folder, capsys, sizes):
    with full_disk(sizes[0] + 300):
        check(lambda: command("-m", "MLR"), 1, "error: |File too large", folder, capsys)


def test_a_disk_that_fills_up_costs_the_later_rounds_only(folder, capsys, sizes):
    with full_disk(sizes[1] - 100):
        assert command("-m", "MLR") == 1
    assert "File too large" in capsys.readouterr().err
    run = read_run(folder / "results" / "Tiny_FedAvg_test_0.h5")
    assert run.status == "failed" and len(run.arrays["rs_test_acc"]) == 1
    kept = {path.name.partition("_0")[2] for path in (folder / "results").glob("*_0*")}
    assert kept == {".h5", ".run.json", ".rounds.jsonl"}  # nothing half-made


def test_no_room_for_a_data_set(folder, capsys):
    with full_disk(3000):
        check(lambda: generate("Digits", ["-nc", "3", "--out", "Digits"]), 1, "error: |File too large", folder, capsys)


def test_no_room_for_a_picture(folder, capsys):
    with full_disk(3000):
        check(lambda: plot.main([str(folder / "data" / "Tiny")]), 1, "File too large", folder, capsys)


def test_an_earlier_result_survives_a_full_disk(folder, capsys, sizes):
    assert command("-m", "MLR") == 0
    earlier = (folder / "results" / "Tiny_FedAvg_test_0.h5").read_bytes()
    with full_disk(sizes[0] + 300):
        assert command("-m", "MLR", "--overwrite") == 1
    assert "File too large" in capsys.readouterr().err
    assert (folder / "results" / "Tiny_FedAvg_test_0.h5").read_bytes() == earlier
    assert read_run(folder / "results" / "Tiny_FedAvg_test_0.h5").status == "finished"


def test_a_model_too_large_for_the_memory(folder, capsys):
    edited(num_classes=10**6)(folder / "data" / "Tiny" / "config.json")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, hard))
    try:
        check(command, 1, "error: not enough memory", folder, capsys)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# --- generate_<Name>.py -----------------------------------------------------------------------------------------------

IMAGES, LABELS = np.zeros((40, 8, 8), np.uint8), np.arange(40) % 10


def source(x=IMAGES, y=LABELS, **arrays):
    return lambda folder: np.savez(folder / "s.npz", **arrays or {"x": x, "y": y})


def idx(name, content):
    def write(folder):
        (folder / "raw").mkdir()
        (folder / "raw" / name).write_bytes(content)

    return write


GENERATE = [
    ("noniid - Dir", 2, "must be pat or dir or exdir or natural or -, not 'Dir'", None),
    ("niid - dir", 2, "must be iid or noniid|did you mean iid?", None),
    ("noniid balance dir", 2, "balance contradicts dir", None),
    ("noniid - -", 2, "needs a partition", None),
    ("noniid - dir more", 2, "unrecognized arguments: more", None),
    ("--nc 0", 2, "must be 1 or more", None),
    ("--nc many", 2, "--nc", None),
    ("--alpha 0", 2, "must be above 0", None),
    ("--alpha -1", 2, "must be above 0", None),
    ("--alpha inf", 2, "--alpha", None),
    ("--train_ratio 1", 2, "must be above 0 and below 1", None),
    ("--fraction 0", 2, "must be above 0", None),
    ("--classes_per_client 11", 2, "at most 10", None),
    ("--min_samples 1", 2, "must be 2 or more", None),
    ("--seed -1", 2, "must be 0 or more", None),
    ("--nc 5000", 2, "5000 clients with at least 2 images each need", None),
    ("--source none.npz", 2, "none.npz is missing", None),
    ("--source data", 2, "is not a source of images", None),
    ("--source s.txt", 2, "is not a source of images", lambda folder: (folder / "s.txt").write_text("x,y")),
    ("--source s.npz", 2, "s.npz has no x, it holds images", source(images=IMAGES)),
    ("--source s.npz", 2, "8 samples need as many labels", source(x=IMAGES[0])),
    ("--source s.npz", 2, "x must be numbers", source(x=IMAGES.astype(str))),
    ("--source s.npz", 2, "channels last", source(x=np.zeros((40, 8, 8, 3), np.uint8))),
    ("--source s.npz", 2, "40 samples need as many labels", source(y=np.arange(39) % 10)),
    ("--source s.npz", 2, "each of the 40 samples has a label of its own", source(y=np.arange(40))),
    ("--source s.npz", 2, "is -1, labels must be 0 or more", source(y=LABELS - 1)),
    ("--source s.npz", 2, "y must be integers", source(y=LABELS / 2)),
    ("--source s.npz", 2, "have no pixels", source(x=IMAGES[:, :0])),
    ("--source s.npz", 2, "holds no images", source(x=IMAGES[:0], y=np.arange(0))),
    ("--source s.npz", 2, "s.npz is damaged", lambda folder: (folder / "s.npz").write_text("none")),
    ("--source s.npz", 2, "s.npz is refused|3 MiB", lambda folder: bomb(folder / "s.npz")),
    ("--source raw", 2, "lacks train-labels", idx("train-images-idx3-ubyte", b"")),
    ("--source raw", 2, "image that can be read", lambda folder: picture(folder, b"%!PS-Adobe-3.0 EPSF-3.0\n")),
    ("--source raw", 2, "image that can be read", lambda folder: picture(folder, b"\x89PNG\r\n\x1a\n")),
    ("--source raw", 2, "5000 x 5000 pixels", lambda folder: picture(folder, b"P5 5000 5000 255\n", "0.pgm")),
    ("--out data/Tiny/config.json", 1, "error: ", None),
    ("--out /proc/none", 1, "error: ", None),
]


def picture(folder, content, name="0.png"):
    (folder / "raw" / "zero").mkdir(parents=True)
    (folder / "raw" / "zero" / name).write_bytes(content)


@pytest.mark.parametrize(
    ("flags", "code", "words", "prepare"), GENERATE, ids=[f"{flags}-{words}" for flags, _, words, _ in GENERATE]
)
def test_generators(folder, capsys, flags, code, words, prepare):
    if prepare:
        prepare(folder)
    flags = [*flags.split(), *([] if "--out" in flags else ["--out", "Made"])]
    flags += [] if "-nc" in flags or "--nc" in flags else ["--nc", "3"]
    check(lambda: generate("Digits", flags), code, words, folder, capsys)
    assert not (folder / "Made").exists()


def test_a_gzip_bomb_among_official_files(folder, capsys):
    (folder / "raw").mkdir()
    for name in IDX_PARTS:
        with gzip.open(folder / "raw" / f"{name}.gz", "wb", 9) as file:
            for _ in range(2):
                file.write(bytes(2**20))
    check(lambda: generate("MNIST", ["--source", "raw", "--out", "Made"]), 2, "would unpack to", folder, capsys)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (Path.unlink, "config.json is missing"),
        (text("{"), "config.json is damaged"),
        (text("[]"), "config.json is damaged"),
        (edited(num_clients=10**9, num_classes=10**9), "config.json is damaged"),
        (edited(num_classes=10**9), "config.json is damaged"),
        (edited(**{"Size of samples for labels in clients": [[[-1, 3]], [], [], []]}), "config.json is damaged"),
        (edited(**{"Size of samples for labels in clients": [[[0, "many"]], [], [], []]}), "config.json is damaged"),
        (edited(**{"Size of samples for labels in clients": 7}), "config.json is damaged"),
    ],
)
def test_a_picture_of_a_wrong_config(folder, capsys, damage, words):
    damage(folder / "data" / "Tiny" / "config.json")
    check(lambda: plot.main([str(folder / "data" / "Tiny")]), 2, words, folder, capsys)


# --- results ----------------------------------------------------------------------------------------------------------


def h5(make, name="Tiny_FedAvg_test_0.h5"):
    def write(folder):
        with h5py.File(folder / name, "w") as file:
            make(file)

    return write


def put(name, **options):
    return lambda file: file.create_dataset(name, **options)


def external_link(file):
    with h5py.File(Path(file.filename).parent / "other.h5", "w") as other:
        other["rs_test_acc"] = [0.5]
    file["rs_test_acc"] = h5py.ExternalLink("other.h5", "rs_test_acc")


def external_data(file):
    Path("secret").write_bytes(bytes(80))
    file.create_dataset("rs_test_acc", shape=(10,), dtype="f8", external=[("secret", 0, 80)])


def bomb_h5(file):
    array = file.create_dataset("rs_test_acc", data=np.zeros(2**10), compression="gzip", maxshape=(None,))
    array.resize((2**18,))  # 2 MiB


def virtual_data(file):
    layout = h5py.VirtualLayout((10,), "f8")
    layout[:] = h5py.VirtualSource("other.h5", "rs_test_acc", (10,))
    file.create_virtual_dataset("rs_test_acc", layout)


REPORT = {
    "no folder": (lambda folder: None, "none", "there is no result file none"),
    "an empty folder": (lambda folder: (folder / "results").mkdir(), "results", "there is no result file in results"),
    "text": (lambda folder: (folder / "a_b_c_0.h5").write_text("hello"), "a_b_c_0.h5", "not a readable result file"),
    "empty": (lambda folder: (folder / "a_b_c_0.h5").write_bytes(b""), "a_b_c_0.h5", "not a readable result file"),
    "another name": (h5(put("rs_test_acc", data=[0.1]), "x.h5"), "x.h5", "has no run.json and is not named"),
    "no accuracies": (h5(put("other", data=[0.1])), "Tiny_FedAvg_test_0.h5", "has no array rs_test_acc"),
    "words": (h5(put("rs_test_acc", data=["a", "b"])), "Tiny_FedAvg_test_0.h5", "has no array rs_test_acc"),
    "a huge array": (
        h5(put("rs_test_acc", shape=(10**12,), dtype="f8", chunks=(10**6,))),
        "Tiny_FedAvg_test_0.h5",
        "not a readable result file|larger than the file can hold",
    ),
    "an array beyond all numbers": (
        h5(put("rs_test_acc", shape=(2**62, 2**62), dtype="f8", chunks=(1, 1))),
        "Tiny_FedAvg_test_0.h5",
        "larger than the file can hold",
    ),
    "a bomb": (h5(bomb_h5), "Tiny_FedAvg_test_0.h5", "larger than the file can hold"),
    "a link to another file": (h5(external_link), "Tiny_FedAvg_test_0.h5", "has no array rs_test_acc"),
    "content of another file": (h5(external_data), "Tiny_FedAvg_test_0.h5", "lies outside"),
    "virtual content": (h5(virtual_data), "Tiny_FedAvg_test_0.h5", "lies outside"),
}


@pytest.mark.parametrize("case", REPORT)
def test_results(folder, capsys, case):
    prepare, name, words = REPORT[case]
    prepare(folder)
    check(lambda: report.main([name]), 2, words, folder, capsys)


RUN_JSON = {
    "no JSON": "hello",
    "a list": "[1]",
    "deep": "[" * 100_000,
    "numbers for names": '{"dataset": 1, "algorithm": 2, "goal": 3, "repeat": 0}',
    "a list for a name": '{"dataset": ["a"], "algorithm": "FedAvg", "goal": "g", "repeat": 0}',
    "text for the repeat": '{"dataset": "a", "algorithm": "FedAvg", "goal": "g", "repeat": "x"}',
    "an infinite repeat": '{"dataset": "a", "algorithm": "FedAvg", "goal": "g", "repeat": 1e999}',
    "a list for a digest": '{"settings_digest": []}',
    "a process beyond all numbers": '{"status": "running", "pid": 99999999999999999999999999}',
    "commands for the terminal": '{"dataset": "\\u001b[2J", "algorithm": "FedAvg", "goal": "g", "repeat": 0}',
}


@pytest.mark.parametrize("case", RUN_JSON)
def test_a_wrong_run_json_counts_as_none(folder, capsys, case):
    content = RUN_JSON[case]
    if "running" in content:
        content = json.dumps(json.loads(content) | {"host": socket.gethostname()})
    h5(put("rs_test_acc", data=[0.25, 0.75]))(folder)
    (folder / "Tiny_FedAvg_test_0.run.json").write_text(content)
    assert report.main(["Tiny_FedAvg_test_0.h5", "--differences"]) == 0
    shown = capsys.readouterr().out
    assert "75.00" in shown and "Tiny" in shown and "\x1b" not in shown
    assert command("-m", "MLR", "--results_dir", ".", "-gr", "0") == 0  # and does not stop a new run


def test_formulas_and_odd_arrays_are_drawn_as_they_are(folder, capsys):
    def odd(file):
        file["rs_test_acc"], file["rs_test_acc_after"] = [[0.1, np.inf], [np.nan, -1e300]], 0.5
        file["rs_round"], file["rs_seconds"] = 3, [np.nan]

    h5(odd, "$\\frac{_FedAvg_$x_{_0.h5")(folder)
    assert report.main(["$\\frac{_FedAvg_$x_{_0.h5", "--out", "curves.png"]) == 0
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written(folder, capsys):
    h5(put("rs_test_acc", data=[0.1]))(folder)
    (folder / "curves.png").mkdir()
    check(lambda: report.main(["Tiny_FedAvg_test_0.h5", "--out", "curves.png"]), 1, "curves.png", folder, capsys)
    assert not list(folder.glob(".curves*"))


# --- the plug-in and the generator of images --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("none", "no such folder"),
        ("data/Tiny/config.json", ""),
        ("data", "is not a PFLlib checkout"),
        ("", "PATH_TO_PFLLIB"),
        ("data --frobnicate", "unrecognized arguments"),
    ],
)
def test_plug_in(folder, capsys, words, message):
    check(lambda: plugin.command.main(words.split()), 2, message, folder, capsys)


@pytest.mark.parametrize("name", ["../../../victim", "/tmp/victim"])
def test_a_manifest_cannot_name_files_outside_the_checkout(folder, capsys, name):
    checkout = folder / "checkout"
    shutil.copytree(REPO / "tests" / "pfllib_double", checkout)
    victim = folder / "victim"
    victim.write_text("mine")
    system = next(path.parent for path in checkout.rglob("main.py"))
    files = {os.path.relpath(victim, system) if name[0] == "." else str(victim): plugin.checkout.digest(b"mine")}
    (system / plugin.checkout.MANIFEST).write_text(json.dumps({"files": files}))
    check(lambda: plugin.command.main([str(checkout), "--uninstall"]), 1, "is damaged", folder, capsys)
    assert victim.read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--latent_dim 0", 2, "must be 1 or more"),
        ("--epochs many", 2, "--epochs"),
    ],
)
def test_training_a_generator(folder, capsys, words, code, message):
    check(lambda: train_generator.main(words.split()), code, message, folder, capsys)


def test_a_strangers_saved_model_runs_nothing(folder):
    from flcore.clients.support.items import load_item

    torch.save({"base.weight": Evil(folder / "ran")}, folder / "model.pt")
    with pytest.raises(pickle.UnpicklingError):
        load_item(folder / "model.pt", "cpu")
    assert not (folder / "ran").exists()
