"""Locks between processes, and file systems without."""

import errno
import fcntl
import os

import pytest

from flcore.trainmodel.state_store import PREFIX, StateStore
from flcore.utils import locks
from flcore.utils.runs.claim import claim_run


@pytest.fixture(params=[errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def no_locks(monkeypatch, request):
    def refuse(file, how):
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", refuse)
    locks._say_none.cache_clear()
    yield os.strerror(request.param)
    locks._say_none.cache_clear()


def test_a_lock_keeps_others_out_until_its_file_is_closed(tmp_path):
    with open(tmp_path / "a", "w") as first, open(tmp_path / "a", "w") as second:
        assert locks.lock(first) is True and locks.lock(second) is False
        first.close()
        assert locks.lock(second) is True


def test_without_locks_a_run_goes_on_with_one_note(tmp_path, no_locks, caplog):
    for repeat in range(2):
        assert claim_run(tmp_path, "D", "A", "g", repeat, {"lr": 1}).goal == "g"
    assert caplog.text.count(f"this file system has no locks ({no_locks})") == 1


def test_without_locks_no_other_runs_states_are_removed(tmp_path, no_locks):
    first = StateStore(tmp_path, 1)
    second = StateStore(tmp_path, 1)
    assert first.folder.exists() and len(list(tmp_path.glob(f"{PREFIX}*"))) == 2
    first.close()
    second.close()
    assert not list(tmp_path.glob(f"{PREFIX}*"))
