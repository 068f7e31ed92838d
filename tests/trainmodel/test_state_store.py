"""Clients' own tensors: how many there are in memory, and that those on disk are the same."""

import errno
import os

import pytest
import torch

from flcore.data.reading import DataSet
from flcore.executors.loop import LoopExecutor
from flcore.executors.threads import ThreadsExecutor
from flcore.registry import METHODS
from flcore.trainmodel import state_store
from flcore.trainmodel.state_store import StateStore
from flcore.utils.errors import RunError, UsageError
from support import same_tensors
from support.memory import bytes_held, own_tensors


def stop_between_rounds(server, done):
    """Ends the training when `done` rounds are finished, before the next download."""

    class StoppedError(Exception):
        pass

    between = server._between_rounds

    def stop(finished):
        between(finished)
        if finished == done:
            raise StoppedError

    server._between_rounds = stop
    with pytest.raises(StoppedError):
        server.train()


def test_a_thousand_clients_of_fedavg_hold_no_thousand_models(make_server, monkeypatch):
    read = DataSet.tensors
    monkeypatch.setattr(DataSet, "tensors", lambda data, i, *how: read(data, i % 4, *how))
    server = make_server("FedAvg", "-jr", "0.1", model="MLR")
    server.clients = server.participation.make(type(server.clients[0]), range(1000))
    server.num_clients, server.num_join_clients = 1000, 100
    server.score_download = server.end_round = lambda: None
    server.evaluation.after_training = lambda after: None
    stop_between_rounds(server, 2)
    model = bytes_held(server.global_params.values())
    held = bytes_held(server.global_params.values(), *map(own_tensors, server.clients), *server.uploaded_models)
    assert held == 2 * model  # the average, and the download before it


@pytest.mark.parametrize(("algorithm", "parts"), [("FedRep", ("head.",)), ("FedALA", ("",)), ("Local", ("",))])
def test_between_rounds_a_client_holds_its_own_part_only(make_server, algorithm, parts):
    server = make_server(algorithm)
    stop_between_rounds(server, 1)
    own = sum(value.nbytes for name, value in server.global_params.items() if name.startswith(parts))
    common = bytes_held(server.global_params.values(), server.last_message.values())
    states = bytes_held(*(client.state.values() for client in server.clients))
    initial = bytes_held(server.clients[0].forward.net.state_dict().values())
    held = bytes_held(server.global_params.values(), *map(own_tensors, server.clients))
    assert 4 * own + states <= held <= common + initial + 4 * own + states


LONG = pytest.mark.long
QUICK = ("FedALA", "FedCPD")


@pytest.mark.parametrize(
    "algorithm", [line.name if line.name in QUICK else pytest.param(line.name, marks=LONG) for line in METHODS]
)
@pytest.mark.parametrize("executor", [LoopExecutor, ThreadsExecutor])
def test_state_on_disk_changes_nothing(make_server, tmp_path, algorithm, executor):
    flags = ("-gr", "2", "-jr", "0.75", "-se", "3", "--pa_gen_steps", "3")
    memory = make_server(algorithm, *flags)
    disk = make_server(algorithm, *flags, "--state_dir", str(tmp_path), "--state_cache", "1", executor=executor())
    for server in (memory, disk):
        server.train()
    assert memory.rs_test_acc == disk.rs_test_acc and memory.rs_train_loss == disk.rs_train_loss
    assert same_tensors(memory.global_params, disk.global_params)
    for one, other in zip(memory.clients, disk.clients, strict=True):
        assert same_tensors(one.params, other.params) and same_tensors(one.state, other.state)
    assert len(disk.store.present) == 1
    disk.store.close()
    assert list(tmp_path.iterdir()) == []


def test_files_hold_what_nobody_else_has(make_server, tmp_path):
    server = make_server("FedRep", "-jr", "0.5", "--state_dir", str(tmp_path), "--state_cache", "1")
    stop_between_rounds(server, 1)
    head = sum(value.nbytes for name, value in server.global_params.items() if name.startswith("head."))
    sizes = {client.id: 0 for client in server.clients}
    sizes |= {int(path.stem): path.stat().st_size for path in server.store.folder.glob("*.safetensors")}
    selected = {client.id for client in server.selected_clients}
    away = {number for number in sizes if number not in server.store.present}
    assert all(head < sizes[number] < head + 500 for number in selected & away)
    assert all(sizes[number] == 0 for number in set(sizes) - selected)  # never trained: all it has is common


@pytest.fixture
def shelves(tmp_path):
    """A store for one client at a time, and three clients' shelves."""
    store = StateStore(tmp_path, 1)
    yield store, [store.shelf(number, lambda: []) for number in range(3)]
    store.close()


def test_what_is_put_in_comes_out_also_after_others_were_used(shelves):
    store, clients = shelves
    for round_number in range(3):
        for number, shelf in enumerate(clients):
            vector = torch.full((3,), float(10 * round_number + number))
            shelf["weights"] = {"a": vector, "turned": torch.arange(6.0).reshape(2, 3).T + number}
            shelf["state"] = {"same": vector, "nothing": torch.zeros(0), "flag": torch.tensor(number > 0)}
        for number, shelf in enumerate(clients):
            assert shelf["weights"]["a"].tolist() == [10 * round_number + number] * 3
            assert shelf["weights"]["turned"].stride() == (1, 3) and shelf["weights"]["turned"][2, 1] == 5 + number
            assert shelf["state"]["same"] is shelf["weights"]["a"]  # one object before and after
            assert shelf["state"]["flag"] == (number > 0) and list(shelf) == ["weights", "state"]
    assert set(store.present) == {2}


def test_what_did_not_change_is_not_written_again(shelves):
    store, (first, second, _) = shelves
    first["state"] = {"a": torch.ones(3)}
    second["state"] = {}
    path = store.folder / "0.safetensors"
    before = path.stat().st_mtime_ns
    first["weights"] = {"b": first["state"]["a"]}  # the same tensor under another name
    assert second["state"] == {}
    assert path.stat().st_mtime_ns == before and torch.equal(first["weights"]["b"], torch.ones(3))
    first["state"] = {"a": torch.zeros(3)}
    assert second["state"] == {} and path.stat().st_mtime_ns > before
    assert torch.equal(first["state"]["a"], torch.zeros(3)) and torch.equal(first["weights"]["b"], torch.ones(3))


def test_a_full_disk_is_told_and_loses_nothing(shelves, monkeypatch):
    store, (first, second, _) = shelves
    first["state"] = {"a": torch.ones(3)}

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(state_store, "write_tensors", full)
        with pytest.raises(RunError, match=r"--state_dir: .*0.safetensors cannot be written: No space left on device"):
            second["state"] = {}
    assert torch.equal(first["state"]["a"], torch.ones(3))


def test_a_lost_file_is_told(shelves):
    store, (first, second, _) = shelves
    first["state"] = {"a": torch.ones(3)}
    second["state"] = {}
    (store.folder / "0.safetensors").unlink()
    with pytest.raises(RunError, match=r"0.safetensors cannot be read \(No such file"):
        first["state"]


def test_a_folder_that_cannot_be_written_to_is_a_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--state_dir .*file cannot be written to"):
        StateStore(tmp_path / "file", 1)


@pytest.mark.skipif(os.name != "posix", reason="locks")
def test_what_a_killed_run_left_is_removed_and_a_living_ones_is_not(tmp_path):
    living = StateStore(tmp_path, 1)
    dead = tmp_path / f"{state_store.PREFIX}dead"
    dead.mkdir()
    (dead / ".lock").touch()
    (dead / "0.safetensors").touch()
    (tmp_path / "mine").mkdir()
    other = StateStore(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([living.folder.name, other.folder.name, "mine"])
    living.close()
    other.close()
