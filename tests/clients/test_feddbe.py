"""FedDBE: a personal bias of the features, and the consensus that their running mean is drawn to."""

import pytest
import torch
from torch.nn import functional as F

from flcore.clients.clientdbe import Bias, clientDBE
from flcore.clients.localrule import Phase
from flcore.utils.errors import UsageError
from support import same_tensors

THETA = ("base.", "head.")
BATCHES = torch.tensor([[[1.0, 3.0], [3.0, 5.0]], [[4.0, 8.0], [4.0, 8.0]]])  # means (2, 4) and (4, 8)


@pytest.mark.parametrize(("momentum", "second"), [(1.0, [4.0, 8.0]), (0.5, [10 / 3, 20 / 3])])
def test_running_mean_by_hand(momentum, second):
    """Momentum 1/2: weights 1/4 and 1/2, so (2/4 + 4/2) / (3/4) = 10/3. A mean that starts at 0 would give 5/2."""
    memory = Bias(2, momentum)
    with torch.no_grad():
        memory.bias.copy_(torch.tensor([10.0, 0.0]))
    shifted, mean = memory(BATCHES[0])
    assert torch.equal(shifted, torch.tensor([[11.0, 3.0], [13.0, 5.0]]))
    assert mean.tolist() == [2, 4]
    assert torch.allclose(memory(BATCHES[1])[1], torch.tensor(second))


def test_gradient_goes_through_the_present_batch_only_and_evaluation_moves_nothing():
    memory = Bias(2, 0.5)
    first, second = (batch.clone().requires_grad_() for batch in BATCHES)
    memory(first)
    memory(second)[1].sum().backward()
    assert first.grad is None and torch.allclose(second.grad, torch.full((2, 2), 1 / 3))  # weight 2/3 over 2 samples
    before = {name: value.clone() for name, value in memory.state_dict().items()}
    memory.eval()
    memory(BATCHES[0])
    assert same_tensors(memory.state_dict(), before)


def test_loss_is_that_of_the_shifted_features_and_half_the_squared_distance(make_server):
    server = make_server("FedDBE", "-klw", "7", "-gr", "1", model="DNN")
    server.train()
    client = server.clients[0]
    assert client.params["memory.bias"].abs().sum() > 0
    x, y = client.data
    client.forward.set_training(("",))
    loss = client.local_loss(client.forward, client.params, x, y, client.shared, client.state, client.hp)
    z = (x.flatten(1) @ client.params["base.fc1.weight"].T + client.params["base.fc1.bias"]).relu()
    logits = (z + client.params["memory.bias"]) @ client.params["head.weight"].T + client.params["head.bias"]
    distance = sum((a - b) ** 2 / 2 for a, b in zip(z.mean(0), server.consensus, strict=True)) / 100
    assert distance > 0
    assert loss.item() == pytest.approx((F.cross_entropy(logits, y) + 7 * distance).item(), rel=1e-5)
    assert torch.allclose(client.scores(is_train=True)[0], logits, atol=1e-5)


def test_kappa_0_and_a_frozen_bias_is_fedavg_bit_for_bit(make_server, monkeypatch):
    dbe, avg = make_server("FedDBE", "-klw", "0", model="DNN"), make_server("FedAvg", model="DNN")
    monkeypatch.setattr(clientDBE, "local_plan", staticmethod(lambda hp: [Phase(hp.local_epochs, THETA)]))
    dbe.train()
    avg.train()
    assert all(torch.equal(dbe.global_params[name], value) for name, value in avg.global_params.items())
    assert dbe.rs_test_acc == avg.rs_test_acc and dbe.rs_train_loss == avg.rs_train_loss


def test_each_half_of_the_default_changes_training(make_server):
    results = []
    for flags in ((), ("-klw", "0")):
        server = make_server("FedDBE", *flags, model="DNN")
        server.train()
        results.append(server.global_params["base.fc1.weight"])
    avg = make_server("FedAvg", model="DNN")
    avg.train()
    with_regulariser, without = results
    assert not torch.allclose(with_regulariser, without, atol=1e-6)
    assert not torch.allclose(without, avg.global_params["base.fc1.weight"], atol=1e-6)


@pytest.mark.parametrize("flags", [(), ("-jr", "0.5")])
def test_consensus_is_the_weighted_mean_after_one_plain_round_of_all_clients(make_server, flags):
    server, alone = (
        make_server("FedDBE", *flags, "-gr", "2", model="DNN"),
        make_server("Local", "-gr", "1", model="DNN"),
    )
    trained, train = [], server.executor.train
    server.executor.train = lambda clients, done: (trained.append([c.id for c in clients]), train(clients, done))
    seen = []
    server.end_round = lambda: seen.append(server.consensus)
    server.train()
    alone.train()
    assert trained[0] == [0, 1, 2, 3]
    assert [len(ids) for ids in trained[1:]] == ([4, 4] if not flags else [2, 2])
    features = [client.forward.features(client.params, client.data[0])[0] for client in alone.clients]
    assert torch.allclose(seen[0], torch.cat(features).mean(0), atol=1e-5)  # by n_i = the mean over all samples
    assert torch.equal(seen[0], seen[1])


def test_the_round_before_the_first_leaves_no_trace_but_the_consensus(make_server):
    server, avg = make_server("FedDBE", "-gr", "0", model="DNN"), make_server("FedAvg", "-gr", "0", model="DNN")
    start = dict(server.clients[0].params)
    server.train()
    avg.train()
    assert server.consensus.abs().sum() > 0
    assert all(same_tensors(client.params, start) for client in server.clients)
    assert server.rs_test_acc == avg.rs_test_acc


def test_running_mean_restarts_every_round(make_server):
    server = make_server("FedDBE", "-mo", "0.3", "-gr", "2", model="DNN")
    weights, end = [], server.end_round

    def end_round():
        weights.append(server.clients[0].params["memory.weight"].item())
        return end()

    server.end_round = end_round
    server.train()
    assert weights == [pytest.approx(1 - 0.7**2)] * 2  # two batches a round


def test_the_bias_stays_at_home_and_absent_clients_keep_theirs(make_server):
    server = make_server("FedDBE", "-gr", "2", model="DNN")
    server.select_clients = lambda: server.clients[:2]
    server.train()
    assert not any(name.startswith("memory.") for upload in server.uploaded_models for name in upload)
    first, second, *absent = [client.params["memory.bias"] for client in server.clients]
    assert not torch.equal(first, second) and first.abs().sum() > 0
    assert all(torch.equal(bias, torch.zeros(100)) for bias in absent)


def test_the_consensus_is_counted_once_for_every_client(make_server):
    server = make_server("FedDBE", "-jr", "0.5", model="DNN")
    size = 4 * sum(v.numel() for name, v in server.global_params.items() if name.startswith(THETA))
    server.train()
    expected = [2 * size + 4 * 100 * 4, 2 * size, 2 * size]  # K = 100 floats for each of 4 clients
    assert server.records["rs_bytes_down"] == server.records["rs_bytes_up"] == expected


def test_new_clients_know_the_consensus(make_server):
    server = make_server("FedDBE", "-nnc", "1", "-ften", "1", "-gr", "1", model="DNN")
    server.train()
    assert torch.equal(server.new_clients[0].shared["consensus"], server.consensus)
    assert server.new_clients[0].params["memory.bias"].abs().sum() > 0


def test_a_mean_that_never_moves_is_refused(make_server):
    with pytest.raises(UsageError, match="-mo/--momentum: must be above 0"):
        make_server("FedDBE", "-mo", "0")
