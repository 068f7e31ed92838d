"""A round in parts: less memory, the same result."""

import pytest
import torch

from flcore.data.reading import DataSet
from flcore.executors.loop import LoopExecutor
from flcore.executors.threads import ThreadsExecutor
from flcore.registry import METHODS, Method
from flcore.servers.messages import CLASS_MEANS
from flcore.servers.serveravg import FedAvg
from flcore.servers.support import uploads
from flcore.utils.errors import RunError
from support import same_tensors
from support.memory import bytes_held, own_tensors
from support.poison import poison_message, poison_training

NAMES = [line.name for line in METHODS]
ONE_PART = {"FedGH", "FedKTL", "FedProto", "FedTGP", "Local"}  # no weights are averaged


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of ``size`` clients."""

    def use(size):
        monkeypatch.setattr(uploads, "SMALLEST_PART", size)
        monkeypatch.setattr(uploads, "WAITING", {"cpu": 0})

    return use


def assert_alike(server, other):
    assert server.rs_test_acc == other.rs_test_acc
    for name in ("rs_bytes_up", "rs_left_out", "rs_late", "rs_simulated_seconds", "rs_test_acc_after"):
        assert server.records[name] == other.records[name], name
    assert server.uploaded_ids == other.uploaded_ids and server.uploaded_weights == other.uploaded_weights
    assert server.rs_train_loss == pytest.approx(other.rs_train_loss, rel=1e-5)
    for owner, twin in zip((server, *server.clients), (other, *other.clients), strict=True):
        own, own_twin = (getattr(o, "params", None) or o.global_params for o in (owner, twin))
        for name, value in own.items():
            if name == "generator.layers.0.bias":  # before a BatchNorm: its gradient is rounding, which Adam enlarges
                continue
            torch.testing.assert_close(value, own_twin[name], rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("algorithm", NAMES)
def test_a_round_in_parts_ends_like_one_in_one_part(make_server, small_parts, algorithm):
    flags = ("-gr", "2", "-se", "3", "--pa_gen_steps", "3", "--pa_steps", "3")
    whole = make_server(algorithm, *flags, model="DNN")
    parts = make_server(algorithm, *flags, model="DNN")
    whole.train()
    small_parts(1)
    train, sizes = parts.executor.train, []
    parts.executor.train = lambda clients, done: (sizes.append(len(clients)), train(clients, done))
    parts.train()
    expected = [4, 4] if algorithm in ONE_PART else [1] * 8
    assert sizes == ([4] if algorithm == "FedDBE" else []) + expected  # FedDBE trains all once before
    assert_alike(parts, whole)


@pytest.mark.parametrize("algorithm", ["FedAvg", "FedCPD", "FedPA"])
def test_lost_late_and_bad_uploads_are_lost_in_parts_too(make_server, small_parts, algorithm):
    # 0.012 s of training at least, so that client 0, 1 or 3 is late if it is slow; and one of four is dropped
    flags = ("-gr", "2", "-cdr", "0.25", "-tsr", "0.5", "-tth", "0.1", "--pa_gen_steps", "3", "--pa_steps", "3")
    servers = [make_server(algorithm, *flags, model="MLR") for _ in range(2)]
    for server, size in zip(servers, (4, 2), strict=True):
        poison_training(server.clients[2], {0})
        poison_message(server.clients[3], {1})
        small_parts(size)
        server.train()
    assert_alike(*servers)
    assert servers[0].records["rs_left_out_clients"] == servers[1].records["rs_left_out_clients"]


@pytest.mark.parametrize("algorithm", ["FedAvg", "FedRep"])
def test_threads_are_equal_to_the_loop_in_parts(make_server, small_parts, algorithm):
    small_parts(2)
    one, other = (
        make_server(algorithm, "-gr", "2", executor=run, model="DNN") for run in (LoopExecutor(), ThreadsExecutor(2))
    )
    one.train()
    other.train()
    assert same_tensors(one.global_params, other.global_params) and one.rs_train_loss == other.rs_train_loss


def test_a_thousand_trained_models_are_never_in_memory_together(make_server, small_parts, monkeypatch):
    read = DataSet.tensors
    monkeypatch.setattr(DataSet, "tensors", lambda data, i, *how: read(data, i % 4, *how))
    server = make_server("FedAvg", "-gr", "1", model="MLR")
    server.num_clients = server.num_join_clients = 1000
    server.participation.attackers = [False] * 1000
    server.train_slow_clients = server.send_slow_clients = [False] * 1000
    server.clients = server.participation.make(type(server.clients[0]), range(1000))
    small_parts(20)
    model, most, test = bytes_held(server.global_params.values()), [], server.evaluation.test

    def count(clients):
        most.append(
            bytes_held(
                server.global_params.values(),
                server.round_uploads.sums.values(),
                *map(own_tensors, server.clients),
                *(upload.values() for upload in server.round_uploads.messages),
                *(before.params.values() for before in server.round_uploads.before.values()),
            )
        )
        return test(clients)

    server.evaluation.test = count
    server.train()
    assert len(most) == 1 + 50 + 1  # A, every part at B, A
    assert max(most) <= (20 + 2) * model  # a part's, the download, the sum


@pytest.mark.parametrize("flags", [("--aggregate", "median"), ("-dlg", "True")])
def test_who_reads_every_upload_gets_them_together(make_server, small_parts, flags):
    server = make_server("FedAvg", *flags)
    small_parts(1)
    assert server.round_uploads.parts(server.clients) == [server.clients] and not server.round_uploads.added


def test_an_aggregation_of_ones_own_sees_whole_uploads(make_server, small_parts):
    """A server written against `uploaded_models` must not find weights missing, however many clients there are.

    Its card says nothing of means, as that of any new method.
    """

    class Own(FedAvg):
        def aggregate_parameters(self):
            self.seen = [sorted(upload) for upload in self.uploaded_models]

    class OwnToo(FedAvg):
        def receive_models(self):
            self.seen = [client.params for client in self.selected_clients]
            super().receive_models()

    small_parts(1)
    server = make_server("FedAvg", "-gr", "1", model="MLR")
    server.__class__, server.method = Own, Method("Own", "a:b", "")
    server.train()
    assert server.seen == [sorted(server.global_params)] * 4
    server = make_server("FedAvg", "-gr", "1", model="MLR")
    server.__class__, server.method = OwnToo, Method("Own", "a:b", "")
    server.train()
    assert not any(same_tensors(params, server.clients[0].shared) for params in server.seen)  # as they were trained


def test_a_round_in_parts_in_which_nobody_is_left_ends_the_run(make_server, small_parts):
    server = make_server("FedAvg", "-gr", "1", model="MLR")
    for client in server.clients:
        poison_training(client, {0})
    small_parts(1)
    with pytest.raises(RunError, match=r"no participant is left. Left out in this round: clients \[0, 1, 2, 3\]"):
        server.train()


@pytest.mark.parametrize("algorithm", ["FedCPD", "FedGH", "FedPA", "FedTGP"])
def test_clients_without_class_means_are_left_out_also_if_they_are_most(make_server, algorithm):
    server = make_server(algorithm, "-gr", "1", "-se", "1", "--pa_gen_steps", "1", "--pa_steps", "1", model="MLR")
    for client in server.clients[:3]:
        withhold_class_means(client)
    server.train()
    assert server.records["rs_left_out_clients"] == [(0, 0), (0, 1), (0, 2)] and server.uploaded_ids == [3]


def test_without_any_class_means_the_run_ends_with_the_reason(make_server):
    server = make_server("FedGH", "-gr", "1", model="MLR")
    for client in server.clients:
        withhold_class_means(client)
    with pytest.raises(RunError, match="FedGH: every client's upload lacks prototypes or counts"):
        server.train()


def withhold_class_means(client):
    message = client.message
    client.message = lambda shares: {k: v for k, v in message(shares).items() if k not in CLASS_MEANS}
