"""Every executor against the loop, for every registered algorithm."""

import pytest
import torch

from flcore.executors.loop import LoopExecutor, units
from flcore.executors.stacked import StackedExecutor
from flcore.executors.threads import ThreadsExecutor
from flcore.registry import METHODS
from support import same_tensors


@pytest.mark.parametrize("algorithm", [line.name for line in METHODS])
@pytest.mark.parametrize("flags", [(), ("-jr", "0.5", "-cdr", "0.5", "-ls", "2")])
def test_threads_equal_the_loop_bit_for_bit(make_server, algorithm, flags):
    servers = [
        make_server(algorithm, *flags, executor=executor)
        for executor in (LoopExecutor(), ThreadsExecutor(num_workers=3))
    ]
    for server in servers:
        server.train()
    loop, threads = servers
    assert same_tensors(loop.global_params, threads.global_params)
    for one, other in zip(loop.clients, threads.clients, strict=True):
        assert same_tensors(one.params, other.params) and same_tensors(one.state, other.state)
        assert one.train_loss == other.train_loss
    assert loop.rs_test_acc == threads.rs_test_acc and loop.rs_test_auc == threads.rs_test_auc


def test_threads_equal_the_loop_with_batchnorm(make_server):
    flags = ("-gr", "1", "-lbs", "4")
    loop = make_server("FedAvg", *flags, dataset="Colour", model="ResNet18")
    threads = make_server("FedAvg", *flags, dataset="Colour", model="ResNet18", executor=ThreadsExecutor(2))
    loop.train()
    threads.train()
    assert same_tensors(loop.global_params, threads.global_params)


@pytest.mark.parametrize("executor", [LoopExecutor(), ThreadsExecutor(2), StackedExecutor()])
def test_a_failure_names_client_and_round(make_server, executor):
    server = make_server("FedAvg", executor=executor)
    server.clients[2].load_train_data = lambda: [(torch.zeros(1, 1, 3, 3), torch.zeros(1))]
    with pytest.raises(RuntimeError) as error:
        server.train()
    assert "client 2 in round 0" in "".join(error.value.__notes__)


def test_a_failure_after_training_together_names_its_client(make_server):
    server = make_server("FedAvg", executor=StackedExecutor())

    def fail(*args):
        raise RuntimeError("no upload")

    server.clients[1].local_end = fail
    with pytest.raises(RuntimeError) as error:
        server.train()
    assert "client 1 in round 0" in "".join(error.value.__notes__)


@pytest.mark.parametrize("executor", [LoopExecutor(), ThreadsExecutor(2)], ids=["loop", "threads"])
def test_small_clients_with_the_same_weights_are_scored_together(make_server, executor):
    server = make_server("FedAvg", "-gr", "1", model="DNN")
    server.train()
    clients = server.clients  # 9, 8, 6, 5 test samples
    assert units(clients) == [clients] and units(clients[:2]) == [clients[:2]]
    together = executor.test(clients)
    for client, (correct, number, auc) in zip(clients, together, strict=True):
        assert (correct, number) == client.test_metrics()[:2] and auc == pytest.approx(
            client.test_metrics()[2], abs=1e-6
        )
    executor.train(clients, lambda: None)
    assert units(clients) == [[client] for client in clients]


def test_clients_are_not_scored_together_where_that_could_change_something(make_server):
    personal = make_server("FedRep", "-gr", "1", model="DNN")
    personal.train()
    assert len(units(personal.clients)) == 4
    common = make_server("FedAvg", "-gr", "0", model="DNN")
    common.train()
    common.clients[1].test_samples = 60
    assert [len(unit) for unit in units(common.clients)] == [1, 1, 2]  # 9 + 60 are too many

    class Own(type(common.clients[0])):
        def test_metrics(self):
            return 0, 1, 0.5

    for client in common.clients:
        client.__class__ = Own
    assert LoopExecutor().test(common.clients) == [(0, 1, 0.5)] * 4  # a method's own
