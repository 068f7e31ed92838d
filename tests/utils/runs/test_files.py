"""Files are written whole or not at all."""

import errno
import os
import threading

import h5py
import numpy as np
import pytest

from flcore.utils.errors import RunError
from flcore.utils.runs.files import whole_file, write_h5, write_json


def test_h5_holds_what_was_given(tmp_path):
    write_h5(
        tmp_path / "a.h5",
        {"rs_test_acc": [0.25, float("nan")], "rs_round": [0, 5], "rs_client_acc": np.eye(2), "e": []},
    )
    with h5py.File(tmp_path / "a.h5") as file:
        assert {name: (file[name].dtype.kind, file[name].shape) for name in file} == {
            "rs_test_acc": ("f", (2,)),
            "rs_round": ("i", (2,)),
            "rs_client_acc": ("f", (2, 2)),
            "e": ("f", (0,)),
        }
        assert file["rs_test_acc"][0] == 0.25 and file["rs_test_acc"].dtype == np.float64


@pytest.mark.parametrize(("write", "bad"), [(write_h5, {"a": ["text"]}), (write_json, {"a": object()})])
def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, write, bad):
    path = tmp_path / "file"
    write(path, {"a": [1.0]})
    before = path.read_bytes()
    with pytest.raises((TypeError, ValueError)):
        write(path, bad)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["file"]


def test_an_interrupted_file_does_not_appear(tmp_path):
    with pytest.raises(RuntimeError), whole_file(tmp_path / "a") as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_a_reader_never_sees_half_a_file(tmp_path):
    path, values = tmp_path / "a.h5", np.arange(20000.0)
    write_h5(path, {"a": values})
    stop = threading.Event()

    def write_again():
        while not stop.is_set():
            write_h5(path, {"a": values})

    writer = threading.Thread(target=write_again)
    writer.start()
    try:
        for _ in range(50):
            with open(path, "rb") as file:  # as another process would find it
                assert len(file.read()) > values.nbytes
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("write", [write_h5, write_json])
def test_a_full_disk_is_told_and_the_old_file_kept(tmp_path, monkeypatch, write):
    write(tmp_path / "file", {"a": [1.0]})
    before = (tmp_path / "file").read_bytes()

    def full(*names):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match=r"file cannot be written \(No space left on device\); what was there is kept"):
        write(tmp_path / "file", {"a": [2.0]})
    assert (tmp_path / "file").read_bytes() == before and os.listdir(tmp_path) == ["file"]
