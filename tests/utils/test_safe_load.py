"""Plain numpy content comes through unchanged; anything else is refused, and its code never runs."""

import io
import os
import pickle
import zipfile

import numpy as np
import pytest

from flcore.utils.errors import UsageError
from flcore.utils.safe_load import load_npy, load_npz, load_pickle
from support.evil import Evil

CONTENT = {
    "x": np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 7,
    "y": np.array([3, 1], np.int64),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "axes": np.arange(24.0).reshape(2, 3, 4).transpose(1, 0, 2),
    "flags": np.array([True, False]),
    "names": np.array(["a", "bcd"]),
    "empty": np.zeros((0, 1, 28, 28), np.float32),
    "pairs": np.array([([1, 2], 2), ([3], 1)], dtype=object),
    "inner": np.array([np.arange(3), {"deep": np.ones(2)}, None], dtype=object),
    "number": np.float64(2.5),
    "text": "plain",
    "bytes": b"\x00\xff",
    "list": [1, 2.5, (True, None)],
}


def same(a, b):
    if isinstance(a, np.ndarray):
        assert type(b) is np.ndarray and a.shape == b.shape and a.dtype == b.dtype
        for one, other in zip(a.ravel(), b.ravel(), strict=True):
            same(one, other)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert type(a) is type(b) and len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            same(one, other)
    else:
        assert type(a) is type(b) and a == b


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_content_survives_every_protocol(tmp_path, protocol):
    (tmp_path / "p").write_bytes(pickle.dumps(CONTENT, protocol=protocol))
    same(CONTENT, load_pickle(tmp_path / "p"))


def test_the_other_byte_order(tmp_path):
    (tmp_path / "p").write_bytes(pickle.dumps(np.arange(5, dtype=">i4")))
    np.testing.assert_array_equal(load_pickle(tmp_path / "p"), [0, 1, 2, 3, 4])


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_numpy_1_module_names(tmp_path, protocol):
    class Numpy1(pickle._Pickler):
        def save_global(self, obj, name=None):
            module = getattr(obj, "__module__", "").replace("numpy._core", "numpy.core")
            if module == "numpy.core.multiarray":
                self.write(f"c{module}\n{obj.__name__}\n".encode())
                self.memoize(obj)
            else:
                super().save_global(obj, name)

        dispatch = dict(pickle._Pickler.dispatch)
        dispatch[type(pickle.dumps)] = save_global  # functions
        dispatch[type(np.dot)] = save_global

    stream = io.BytesIO()
    Numpy1(stream, protocol).dump(CONTENT)
    assert b"numpy.core.multiarray" in stream.getvalue() and b"numpy._core" not in stream.getvalue()
    (tmp_path / "p").write_bytes(stream.getvalue())
    same(CONTENT, load_pickle(tmp_path / "p"))


def test_arrays_written_by_python_2(tmp_path):
    # What Python 2's cPickle wrote (protocol 2): byte strings as SHORT_BINSTRING, among them the array's raw content.
    def string(text):
        return b"U" + bytes([len(text)]) + text

    data = b"\x80\x02}" + string(b"data") + b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85"
    data += string(b"b") + b"\x87R(K\x01K\x02K\x03\x86cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R"
    data += b"(K\x03" + string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    data += string(bytes([1, 2, 3, 250, 251, 252])) + b"tbs."
    (tmp_path / "batch").write_bytes(data)
    loaded = load_pickle(tmp_path / "batch")
    assert list(loaded) == [b"data"]
    np.testing.assert_array_equal(loaded[b"data"], np.array([[1, 2, 3], [250, 251, 252]], np.uint8))


def test_npz_and_npy_round_trip_and_are_writable(tmp_path):
    x, y = np.arange(12, dtype=np.uint8).reshape(3, 4), np.asfortranarray(np.ones((2, 3)))
    np.savez_compressed(tmp_path / "a.npz", x=x, y=y, data=np.array({"x": x}, dtype=object))
    loaded = load_npz(tmp_path / "a.npz")
    same({"x": x, "y": y}, {"x": loaded["x"], "y": loaded["y"]})
    assert loaded["data"].shape == () and loaded["y"].flags.f_contiguous
    same({"x": x}, loaded["data"].item())
    loaded["x"][0, 0] = loaded["data"].item()["x"][0, 0] = 9
    np.save(tmp_path / "a.npy", y)
    same(y, load_npy(tmp_path / "a.npy"))


@pytest.mark.parametrize("nest", ["alone", "in a dict", "in an array", "in an array in an array"])
def test_code_is_refused_and_never_runs(tmp_path, nest):
    evil = Evil(tmp_path / "ran")
    content = {
        "alone": evil,
        "in a dict": {"x": evil},
        "in an array": np.array([evil], dtype=object),
        "in an array in an array": np.array([{"x": np.array([1, evil], dtype=object)}], dtype=object),
    }[nest]
    np.savez(tmp_path / "bad.npz", data=np.array({"x": content}, dtype=object))
    with pytest.raises(UsageError, match=rf"bad\.npz is refused.*asks for {os.mkdir.__module__}\.mkdir"):
        load_npz(tmp_path / "bad.npz")
    assert not (tmp_path / "ran").exists()
    np.load(tmp_path / "bad.npz", allow_pickle=True)["data"]  # numpy itself would have run it
    assert (tmp_path / "ran").exists()


def array_pickle(shape=b"K\x02\x85", dtype=b"X\x02\x00\x00\x00u1", raw=b"C\x02ab", call=b"K\x00\x85C\x01b"):
    """The pickle of a small uint8 array with parts to replace by false ones."""
    made = b"\x80\x04cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + call + b"tR"
    return (
        made
        + b"(K\x01"
        + shape
        + b"cnumpy\ndtype\n("
        + dtype
        + b"\x89\x88tR(K\x03X\x01\x00\x00\x00|NNNK\x00K\x00K\x00tb\x89"
        + raw
        + b"tb."
    )


HUGE = b"\x8a\x06\x00\x00\x00\x00\x00\x10"  # the number 2**44
COMPLEX = b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(X\x03\x00\x00\x00c16tRC\x10" + bytes(16) + b"tR"
OBJECTS = b"X\x02\x00\x00\x00O8"


@pytest.mark.parametrize(
    ("crafted", "reason"),
    [
        (array_pickle(shape=HUGE + b"\x85"), "does not fit its shape"),
        (array_pickle(shape=HUGE + b"\x85", dtype=OBJECTS, raw=b"]"), "does not fit its shape"),
        (array_pickle(shape=b"K\x09\x85", dtype=OBJECTS, raw=b"]"), "does not fit its shape"),
        (array_pickle(dtype=OBJECTS), "does not fit its shape"),
        (array_pickle(shape=b"J\xff\xff\xff\xff\x85", raw=b"C\x00"), "of shape"),
        (array_pickle(dtype=b"X\x06\x00\x00\x00f4,(9)"), "the array type"),
        (array_pickle(dtype=b"X\x02\x00\x00\x00V8"), "the array type"),
        (b"cnumpy\nndarray\n" + HUGE + b"\x85\x85R.", "complete pickle"),  # calling numpy.ndarray(2**44)
        (b"cnumpy\nndarray\n.", "of type object"),
        (b"cnumpy\ndtype\n.", "of type Callee"),
        (b"cnumpy\ndtype\n}X\x05\x00\x00\x00_makeNsb.", "complete pickle"),
        (b"cnumpy\ndtype\nN}X\x05\x00\x00\x00_makeNs\x86b.", "tries to set '_make'"),
        (b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(" + OBJECTS + b"tRC\x00tR.", "that is an object"),
        (b"cbuiltins\neval\n(C\x011tR.", r"asks for builtins\.eval"),
        (b"cutils.safe_load\nos\n.", r"asks for utils\.safe_load\.os"),
        (b"\x82\x01.", "registered extension"),
        (b"]\x94h\x00a.", "contains itself"),
        (b"\x80\x04\x8f.", "of type set"),
        (b"X\xff\xff\xff\x00short", "only 5 remain"),
        (b"\x8e\x00\x00\x00\x00\x00\x10\x00\x00ab.", "only 3 remain"),  # 2**44 bytes are announced
        (b"", "damaged"),
        (b"}K\x01Ns.", "a key of type int"),
        (b"}N\x85Ns.", "a key of type tuple"),
        (b"}N\x85NbNs.", "a key of type tuple"),  # a state of None is put on a tuple
        (b"}N\x85\x94Ns.", "a key of type tuple"),
        (b"N\x85\x940}h\x00Ns.", "a key of type tuple"),  # from the memo
        (b"}(C\x01aN(0NK\x01u.", "a key of type None"),  # the second mark is taken off again
        (b"(C\x01aNN\x85Nd.", "a key of type tuple"),
        (b"}" + COMPLEX + b"Ns.", "a key of type any"),
        (b"}(]a.", "takes more values than there are"),  # across a mark
        (b"Nr\xff\xff\xff\x7f.", "a memo index of 2147483647"),
        (b"Np99999999999\n.", "a memo index of 99999999999"),
        (b"Pname\n.", "a persistent object"),
    ],
)
def test_crafted_pickles_are_refused(tmp_path, crafted, reason):
    (tmp_path / "crafted").write_bytes(crafted)
    with pytest.raises(UsageError, match=reason) as error:
        load_pickle(tmp_path / "crafted")
    assert "crafted" in str(error.value)


def test_the_unaltered_array_pickle_is_read(tmp_path):
    (tmp_path / "good").write_bytes(array_pickle())
    same(np.array([97, 98], np.uint8), load_pickle(tmp_path / "good"))


def test_a_second_state_for_an_array_is_checked_too(tmp_path):
    # protocol 5 arrays come finished; a state put on top must not reach numpy unchecked
    crafted = pickle.dumps(np.arange(3, dtype=np.uint8), protocol=5)[:-1]
    crafted += b"(K\x01" + HUGE + b"\x85cnumpy\ndtype\n(" + OBJECTS + b"tR\x89]tb."
    (tmp_path / "crafted").write_bytes(crafted)
    with pytest.raises(UsageError, match="does not fit its shape"):
        load_pickle(tmp_path / "crafted")


def test_shared_lists_do_not_explode(tmp_path):
    shared = [1]
    for _ in range(60):  # 2**60 elements if written out
        shared = [shared, shared]
    (tmp_path / "p").write_bytes(pickle.dumps(shared))
    assert len(load_pickle(tmp_path / "p")) == 2


def test_a_header_cannot_claim_more_than_there_is(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**42, 3)})
    for name in ("x.npz", "x.npy"):
        if name == "x.npz":
            with zipfile.ZipFile(tmp_path / name, "w") as archive:
                archive.writestr("x.npy", header.getvalue() + b"1234")
        else:
            (tmp_path / name).write_bytes(header.getvalue() + b"1234")
        with pytest.raises(UsageError, match=f"{name} is damaged.*4 bytes follow"):
            (load_npz if name == "x.npz" else load_npy)(tmp_path / name)


def test_damaged_files_are_named(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", data=np.array({"x": np.arange(4000.0)}, dtype=object))
    whole = (tmp_path / "a.npz").read_bytes()
    for name, content in {
        "half.npz": whole[: len(whole) // 2],
        "flipped.npz": whole[:200] + bytes([whole[200] ^ 255]) + whole[201:],
        "text.npz": b"<html>404</html>",
        "empty.npz": b"",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=name):
            load_npz(tmp_path / name)
    with pytest.raises(UsageError, match=r"none\.npz is missing"):
        load_npz(tmp_path / "none.npz")
    with pytest.raises(UsageError, match="damaged"):
        load_npz(tmp_path)


def test_structured_arrays_with_objects_are_refused(tmp_path):
    np.save(tmp_path / "s.npy", np.array([(1, Evil(tmp_path / "ran"))], dtype=[("a", "i4"), ("b", "O")]))
    with pytest.raises(UsageError, match=r"s\.npy is refused"):
        load_npy(tmp_path / "s.npy")
    assert not (tmp_path / "ran").exists()
