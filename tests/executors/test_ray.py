"""The Ray executor against the loop: every method, lost actors, resumed runs. Most run on a double of Ray, in one
process that pickles whatever would travel; the last ones on a cluster of this machine.
"""

import os
import signal
import sys

import pytest
import torch

from flcore.executors import ray_executor
from flcore.executors.ray_executor import RayExecutor
from flcore.executors.ray_tensors import HELD, Packed, Parcel, Table, known_as
from flcore.experiment import Experiment
from flcore.registry import METHODS
from flcore.utils.errors import RunError, UsageError
from flcore.utils.runs.checkpoint import Checkpoints
from support import REPO, SHORT, same_tensors
from support.checkpoints import INFO, everything, plain, resumed_after

ray = pytest.importorskip("ray")

from support.ray_double import RayDouble  # noqa: E402

PART = ("-jr", "0.5", "-cdr", "0.5")


@pytest.fixture
def double(monkeypatch):
    """``double(actors, ...)`` -> an executor on a `RayDouble`."""

    def make(actors=2, sums=False, **options):
        monkeypatch.setitem(sys.modules, "ray", RayDouble(**options))
        return RayExecutor(actors=actors, sums=sums)

    return make


def pair(make_server, executor, algorithm, *flags, only=()):
    """A server that has trained in the loop, and one that has with the executor and further flags ``only``."""
    flags = (*flags, *SHORT.get(algorithm, ()))
    expected, server = make_server(algorithm, *flags), make_server(algorithm, *flags, *only)
    server.executor = executor
    for each in (expected, server):
        each.train()
    return expected, server


QUICK = ("FedCPD", "FedALA", "FedDBE", "FedCRL", "FedKTL")
REST = [pytest.param(line.name, marks=pytest.mark.slow) for line in METHODS if line.name not in QUICK]


@pytest.mark.parametrize("algorithm", [*QUICK, *REST])
def test_ray_equals_the_loop_bit_for_bit(make_server, double, algorithm):
    expected, server = pair(make_server, double(), algorithm, *PART)
    assert everything(server) == everything(expected)


def test_labels_and_networks_are_the_same_far_away(make_server, double):
    flags = ("--label_noise", "0.4", "--attack", "labelflip", "--attack_rate", "0.5", "-gr", "1", "-lbs", "4")
    flags += ("--validation", "0.3")
    expected, server = pair(make_server, double(), "FedAvg", *flags, only=("-ex", "ray"))
    assert everything(server) == everything(expected)
    assert not any(client._tensors for client in server.clients)  # nothing was read for training here


@pytest.mark.parametrize("network", ["AllAtOnce", "InTwoPlaces"])
def test_a_users_network_is_the_same_far_away(make_server, double, network):
    flags = ("-m", f"{REPO}/tests/support/networks.py:{network}", "--optimizer", "adam", "-lr", "0.001")
    expected, server = pair(make_server, double(), "FedRep", *flags)
    assert everything(server) == everything(expected)


@pytest.mark.parametrize("algorithm", ["FedCPD", "FedALA"])
@pytest.mark.parametrize("flags", [(), ("--state_dir", "states", "--state_cache", "1")], ids=["memory", "disk"])
def test_a_lost_actors_clients_run_elsewhere(make_server, double, tmp_path, monkeypatch, caplog, algorithm, flags):
    monkeypatch.chdir(tmp_path)
    calls = []

    def dies(number, method, what):
        calls.append((number, what))
        return number == 0 and calls.count((0, "train")) == 2 and what == "train"

    expected, server = pair(make_server, double(dies=dies), algorithm, only=flags)
    assert "an actor was lost" in caplog.text and (2, "train") in calls  # which took the lost one's place
    assert everything(server) == everything(expected)


MEANS = [line.name for line in METHODS if line.means_only]
SLOW_MEANS = [name if name in ("FedRep", "FedCPD") else pytest.param(name, marks=pytest.mark.slow) for name in MEANS]


@pytest.mark.parametrize("algorithm", SLOW_MEANS)
def test_sums_of_actors_are_the_loops_up_to_rounding(make_server, double, algorithm):
    expected, server = pair(make_server, double(sums=True), algorithm, *PART)
    # FedPA's server trains a generator with Adam, which makes as much of a small gradient's rounding as of a large one
    assert_alike(server, expected, atol=1e-4 if algorithm == "FedPA" else 1e-6)


def test_with_sums_a_lost_actors_clients_train_again(make_server, double, caplog):
    """Actors are lost while they train, score and add up; each time the clients whose weights were there train anew."""
    calls = []

    def dies(number, method, what):
        calls.append((number, method if method == "sums" else what))
        return calls[-1] == (0, "train") and calls.count((0, "train")) == 2 or calls[-1] in ((2, "test"), (1, "sums"))

    expected, server = pair(make_server, double(sums=True, dies=dies), "FedRep")
    lost = [number for number in range(3) if server.executor.ray.dead & {number}]
    assert lost == [0, 1, 2] and caplog.text.count("an actor was lost") == 3
    assert_alike(server, expected)


def test_with_sums_one_tensor_a_weight_comes_from_each_actor(make_server, double, monkeypatch):
    """FedRep with 4 clients on 2 actors: of the extractor two sums come back in a round, of the heads all four."""
    server = make_server("FedRep", "-gr", "1")
    server.executor = double(sums=True)
    came, get = [], server.executor._get
    monkeypatch.setattr(server.executor, "_get", lambda reference: came.append(get(reference)) or came[-1])
    server.train()
    sums = [one for one in came if isinstance(one, dict)]
    assert [sorted(one) for one in sums] == 2 * [sorted(server.shared_weights())]
    replies = [reply for one in came if isinstance(one, list) for reply in one if reply.tensors]
    trained = [reply for reply in replies if reply.left]
    assert len(trained) == 4 and all(len(reply.tensors.content) == 2 for reply in trained)  # head.weight, head.bias


def test_with_sums_a_client_left_out_is_not_in_them(make_server, double, monkeypatch):
    def broken(forward, params, x, y, *rest):
        return loss(forward, params, x, y, *rest) * (float("nan") if len(y) == 7 else 1)  # client 2 has 7 samples

    expected, server = make_server("FedAvg"), make_server("FedAvg")
    server.executor = double(sums=True)
    loss = server.rule.local_loss
    monkeypatch.setattr(server.rule, "local_loss", staticmethod(broken))
    for each in (expected, server):
        each.train()
    assert plain(server.records["rs_left_out"]) == [1, 1, 1]  # clients a round
    assert_alike(server, expected)


@pytest.mark.parametrize("flags", [("--aggregate", "median"), ("--attack", "signflip")], ids=["median", "attack"])
def test_where_uploads_are_looked_at_sums_are_not_used(make_server, double, flags):
    expected, server = pair(make_server, double(sums=True), "FedAvg", *flags)
    assert everything(server) == everything(expected)


def assert_alike(server, expected, atol=1e-6):
    """The same but for the order of the additions."""
    torch.testing.assert_close(server.global_params, expected.global_params, rtol=1e-4, atol=atol)
    torch.testing.assert_close(server.rs_train_loss, expected.rs_train_loss, rtol=1e-4, atol=atol)
    for one, other in zip(server.clients, expected.clients, strict=True):
        torch.testing.assert_close(one.params, other.params, rtol=1e-4, atol=atol)
        torch.testing.assert_close(one.state, other.state, rtol=1e-4, atol=atol)
    for name in ("rs_joined", "rs_bytes_up", "rs_left_out"):
        assert plain(server.records[name]) == plain(expected.records[name])
    assert server.rs_test_acc == expected.rs_test_acc


def test_endless_losses_end_the_run(make_server, double):
    server = make_server("FedRep")
    server.executor = double(dies=lambda number, method, what: what == "train")
    with pytest.raises(RunError, match="actors of Ray were lost in one round"):
        server.train()


@pytest.mark.parametrize("flags", [(), ("--eval_clients", "2")], ids=["all", "sample"])
def test_a_resumed_run_ends_with_the_same_numbers(make_server, double, tmp_path, flags):
    def make(resume):
        server = make_server("FedCPD", *PART, *flags)
        server.executor = double()
        server.checkpoints = Checkpoints(tmp_path / "run.h5", INFO, 1, resume, lambda line: None)
        return server

    expected = make_server("FedCPD", *PART, *flags)
    expected.train()
    resumed = resumed_after(make, 1)
    assert everything(resumed)[0] == everything(expected)[0]
    assert all(same_tensors(one.params, resumed.clients[one.id].params) for one in expected.lasting_clients())


def test_a_client_left_out_is_restored(make_server, double):
    expected, server = pair(make_server, double(), "FedRep", "-lr", "1e8", "-gr", "1")
    assert expected.records["rs_left_out"] == server.records["rs_left_out"]
    assert everything(server) == everything(expected)


def test_errors_come_back_as_they_are(make_server, double, monkeypatch):
    server = make_server("FedAvg")
    server.executor = double()
    monkeypatch.setattr(server.rule, "local_end", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError) as error:
        server.train()
    assert "client 3 in round 0" in "".join(error.value.__notes__)  # the longest is the first


def test_only_what_an_actor_lacks_travels(make_server, double, monkeypatch):
    """FedRep: the head stays where it is, the extractor is in the message, and all four actors keep their client."""
    jobs, job = [], ray_executor.Job
    monkeypatch.setattr(ray_executor, "Job", lambda *fields: jobs.append(job(*fields)) or jobs[-1])
    server = make_server("FedRep")
    server.executor = double(actors=4)
    server.train()
    assert len(jobs) == 4 * (4 + 3 + 3) and not any(one.tensors.content for one in jobs)
    assert {slot for slot in server.executor.home.values()} == set(server.executor.slots)


def test_clients_go_longest_first_and_stay_unless_that_costs_more_than_a_tenth(make_server, double):
    server = make_server("FedAvg")  # 23, 12, 7, 31 samples, each counted with one more
    executor = server.executor = double()
    server.train()
    place = {client: executor.slots.index(slot) for client, slot in executor.home.items()}
    assert place[3] == place[2] != place[0] == place[1]  # 32 + 8 and 24 + 13
    home = dict(executor.home)
    executor.train(server.clients[:2], lambda: None)
    assert executor.home[0] is home[0] and executor.home[1] is not home[1]  # 24 and 13 beside each other
    executor.train([server.clients[1], server.clients[3]], lambda: None)
    assert executor.home[3] is not executor.home[1]


def test_a_parcel_holds_each_tensor_once_and_in_its_layout():
    a, b = torch.randn(3, 4).bfloat16(), torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    groups = {"params": {"a": a, "b": b, "m": torch.ones(2)}, "state": {"again": a, "none": torch.zeros(0, 3)}}
    message = {"m": groups["params"]["m"]}
    parcel = Parcel.of(groups, [known_as(1, message)])
    assert len(parcel.content) == 3 and parcel.groups["params"]["m"] == (1, "m")
    opened = parcel.opened(lambda number, name: message[name], "cpu")
    assert same_tensors(opened["params"], groups["params"]) and opened["params"]["a"] is opened["state"]["again"]
    assert opened["params"]["b"].stride() == b.stride() and opened["state"]["none"].shape == (0, 3)
    assert parcel.own(groups).keys() == {"params.a", "params.b", "state.again", "state.none"}
    assert torch.equal(Packed.of(torch.tensor(True)).tensor("cpu"), torch.tensor(True))


def test_a_table_keeps_nothing_alive_and_tells_what_is_gone():
    table, own = Table(), {"params.a": torch.ones(1), "state.b": torch.ones(2)}
    table.update(7, own)
    assert set(table.known(7).values()) == {(HELD, "params.a"), (HELD, "state.b")}
    del own["params.a"]
    assert table.take_gone() == {7: {"params.a"}} and table.take_gone() == {}
    table.forget(7)
    assert table.take_gone() == {7: {"state.b"}} and not table.held and not table.gone


def test_without_ray_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="pip install 'ray>="):
        RayExecutor()


# ---- on a cluster ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster():
    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(address="local", num_cpus=2, object_store_memory=10**8, **options)
    yield
    ray.shutdown()


@pytest.mark.slow
def test_an_actor_that_is_killed_in_a_round_changes_nothing(make_server, cluster, caplog):
    executor = RayExecutor(actors=2)
    hand_out, killed = executor._hand_out, []

    def kill_one(*asked):
        waiting = hand_out(*asked)
        if asked[0] == "train" and server.current_round == 1 and not killed:
            killed.append(pids[executor.slots[0]])
            os.kill(killed[0], signal.SIGKILL)
        elif not killed:
            pids.update({slot: ray.get(slot.handle.ready.remote()) for slot in executor.slots})
        return waiting

    expected, server, pids = make_server("FedCPD"), make_server("FedCPD"), {}
    server.executor, executor._hand_out = executor, kill_one
    expected.train()
    server.train()
    executor.close()
    assert killed and "an actor was lost" in caplog.text
    assert everything(server) == everything(expected)


@pytest.mark.slow
def test_the_flag_runs_in_processes_of_their_own(cluster, data_root):
    settings = {"algorithm": "FedRep", "dataset": "Tiny", "data_dir": str(data_root), "device": "cpu"}
    curves = [
        Experiment(**settings, global_rounds=2, results_dir=None, executor=executor).run().repeats[0].test_acc.tolist()
        for executor in ("loop", "ray")
    ]
    assert curves[0] == curves[1]
