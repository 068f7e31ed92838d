"""Strangers' files: whatever the bytes are, a reader gives plain content or raises UsageError, within bounded memory
and time.

tests/corpus holds what once broke that, from crafting or from mutations as below: among them keys that take 2**60 steps
to hash, one content used for a thousand arrays, shapes and lengths far beyond the file, and bombs of every packer.
"""

import functools
import gzip
import io
import json
import math
import pickle
import resource
import signal
import struct
import warnings
import zipfile
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from flcore.data import image_files, image_folders, reading
from flcore.trainmodel.ktl import ImageGenerator
from flcore.utils import safe_load
from flcore.utils.errors import UsageError
from flcore.utils.runs.read import read_run
from flcore.utils.runs.status import read_info
from flcore.utils.safe_load import bounds
from support import REPO, write_generator

SECONDS, MEMORY = 20, 2**30  # for one file; the time is for a busy machine, most take milliseconds
CORPUS = sorted((REPO / "tests" / "corpus").iterdir())


@contextmanager
def bounded():
    """In the body memory may grow by MEMORY (address space) and time pass for SECONDS."""

    def too_long(*_):
        raise AssertionError("took too long")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def plain(value):
    """Whether ``value`` is arrays, numbers, text and containers of them, and nothing else."""
    if isinstance(value, dict):
        return all(map(plain, [*value, *value.values()]))
    if isinstance(value, list | tuple):
        return all(map(plain, value))
    if isinstance(value, np.ndarray):
        return type(value) is np.ndarray and (value.dtype.kind != "O" or all(map(plain, value.ravel().tolist())))
    return value is None or isinstance(value, str | bytes | bool | int | float | complex | np.generic)


def read_image(path):
    return image_folders.read_images([path])[0]


def read_generator(path):
    ImageGenerator(str(path), 6, (1, 8, 8), "cpu")


READERS = {  # by the end of the file's name
    ".client.npz": reading.read_partition,
    ".npz": safe_load.load_npz,
    ".npy": safe_load.load_npy,
    ".pkl": safe_load.load_pickle,
    ".idx": lambda path: image_files.read_idx(path, 3),
    ".idx.gz": lambda path: image_files.read_idx(path, 3),
    ".h5": lambda path: read_run(path).arrays,
    ".json": safe_load.load_json,
    ".run.json": read_info,
    ".png": read_image,
    ".pt": read_generator,
}


def read(path):
    """The content, checked to be plain, or None if the file was refused."""
    reader = next(READERS[end] for end in sorted(READERS, key=len, reverse=True) if path.name.endswith(end))
    with bounded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            content = reader(path)
        except UsageError as error:
            assert len(str(error)) < 2000 and path.name in str(error)
            return None
        assert plain(content)
        return content


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_what_once_did_harm(path, tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "UNPACKED", 2**24)
    copy = tmp_path / "images" / "0" / path.name
    copy.parent.mkdir(parents=True)
    copy.write_bytes(path.read_bytes())
    content = read(copy)
    if path.name == "infinite.json":  # is JSON as Python reads it; config.json's fields are checked one by one
        assert content["num_clients"] == math.inf
    else:
        assert content is None


# --- mutations --------------------------------------------------------------------------------------------------------

X, Y = (np.arange(96) % 7).astype(np.float32).reshape(6, 1, 4, 4), np.arange(6) % 3
DATA = np.array({"x": X, "y": Y}, dtype=object)


def saved(write, *args, **options):
    stream = io.BytesIO()
    write(stream, *args, **options)
    return stream.getvalue()


def zipped(method):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr("x.npy", saved(np.save, X))
        archive.writestr("y.npy", saved(np.save, Y))
    return stream.getvalue()


def result(**options):
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        for name in ("rs_test_acc", "rs_round"):
            file.create_dataset(name, data=np.arange(9) / 8, **options)
    return stream.getvalue()


@functools.cache
def originals(kind):
    """Valid files of a kind."""
    idx = b"\0\0\x08\x03" + struct.pack(">III", 3, 4, 4) + bytes(range(48))
    packers = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    content = {"data": X, b"labels": [1, 2, 3], "mixed": np.array([1, "a", None], dtype=object), "s": np.float64(3)}
    config = {"num_clients": 4, "num_classes": 3, "shape": [1, 4, 4], "arguments": ["--source", "x"], "a": {"b": [1.5]}}
    run = {"status": "finished", "dataset": "a", "algorithm": "b", "goal": "c", "repeat": 0, "pid": 1, "host": "h"}
    pictures = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
    grey = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    return {
        ".client.npz": lambda: [saved(np.savez, data=DATA), saved(np.savez_compressed, data=DATA), zipped(0)],
        ".npz": lambda: [zipped(packer) for packer in packers],
        ".npy": lambda: [saved(np.save, X), saved(np.save, DATA)],
        ".pkl": lambda: [pickle.dumps(content, protocol) for protocol in range(2, 6)],
        ".idx": lambda: [idx, gzip.compress(idx)],
        ".h5": lambda: [result(), result(compression="gzip", chunks=(3,))],
        ".json": lambda: [json.dumps(config).encode()],
        ".run.json": lambda: [json.dumps(run).encode()],
        ".png": lambda: [saved(lambda stream, kind=kind: grey.save(stream, kind)) for kind in pictures],
    }[kind]()


NUMBERS = st.sampled_from([0, 1, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
EDITS = st.tuples(
    st.sampled_from(["flip", "number", "delete", "repeat", "insert", "splice", "cut"]),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1, exclude_max=True),
    NUMBERS,
    st.binary(min_size=1, max_size=8),
)


def edit(content, originals, how, where, other, number, new):
    """``content`` with one thing changed, ``where`` as a part of its length."""
    at, length = int(where * len(content)), int(other * 64) + 1
    if how == "flip":
        changed = bytes([content[at] ^ (1 << number % 8)]) if content else b""
        return content[:at] + changed + content[at + 1 :]
    if how == "number":
        size = 4 if number < 2**32 else 8
        order = "little" if length % 2 else "big"
        return content[:at] + number.to_bytes(size, order) + content[at + size :]
    if how == "delete":
        return content[:at] + content[at + length :]
    if how == "repeat":
        return content[:at] + content[at : at + length] * 2 + content[at + length :]
    if how == "insert":
        return content[:at] + new + content[at:]
    if how == "splice":
        donor = originals[length % len(originals)]
        return content[:at] + donor[int(other * len(donor)) :]
    return content[:at]


def fuzz(folder, kind, examples):
    path = folder / "images" / "0" / f"a_b_c_0{kind}"
    path.parent.mkdir(parents=True)
    files = originals(kind)
    for content in files:
        path.write_bytes(content)
        assert read(path) is not None  # else nothing is tested
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]

    @settings(max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=quiet)
    @given(st.sampled_from(files), st.lists(EDITS, min_size=1, max_size=4))
    def check(content, edits):
        for arguments in edits:
            content = edit(content, files, *arguments)
        path.write_bytes(content)
        read(path)

    check()


KINDS = [kind for kind in READERS if kind not in (".pt", ".idx.gz")]


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_files(tmp_path, kind):
    fuzz(tmp_path, kind, 40)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_many_mutated_files(tmp_path, kind):
    fuzz(tmp_path, kind, 2000)


@pytest.mark.long
def test_mutated_generators(tmp_path):
    """The check of names must not break what it passes on; what torch then makes of the file is torch's."""
    whole = write_generator(tmp_path / "whole.pt").read_bytes()
    path = tmp_path / "changed.pt"

    @settings(max_examples=500, derandomize=True, database=None, deadline=None)
    @given(st.lists(EDITS, min_size=1, max_size=3))
    def check(edits):
        content = whole
        for arguments in edits:
            content = edit(content, [whole], *arguments)
        path.write_bytes(content)
        read(path)

    check()
