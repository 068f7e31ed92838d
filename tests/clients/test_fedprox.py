"""FedProx and FedPer, the two nearest relatives of FedAvg."""

import pytest
import torch
from torch.nn import functional as F

from flcore.clients.clientprox import ProxSettings, clientProx
from flcore.servers.serverper import FedPer
from support import same_tensors


def test_the_pull_by_hand():
    """Gradient 2, weight 3, received 1, mu 1/2: 2 + 1/2 * (3 - 1) = 3."""
    grads = clientProx.local_grad(
        {"w": torch.tensor(2.0)}, {"w": torch.tensor(3.0)}, {"w": torch.tensor(1.0)}, {}, ProxSettings(mu=0.5)
    )
    assert grads["w"] == 3


def test_the_step_follows_the_gradient_of_the_whole_objective(make_server):
    server = make_server("FedProx", "-mu", "0.7", model="DNN")
    client = server.clients[0]
    received = {name: value + 0.1 for name, value in client.params.items()}
    params = {name: value.clone().requires_grad_() for name, value in client.params.items()}
    x, y = client.data
    loss = F.cross_entropy(client.forward(params, x)[0], y)
    plain = dict(zip(params, torch.autograd.grad(loss, list(params.values()), retain_graph=True), strict=True))
    objective = loss + 0.7 / 2 * sum((params[name] - received[name]).square().sum() for name in params)
    expected = torch.autograd.grad(objective, list(params.values()))
    found = clientProx.local_grad(plain, params, received, {}, client.hp)
    for ours, theirs in zip(found.values(), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("flags", [(), ("-jr", "0.5", "-ls", "2", "-ld")])
def test_mu_0_is_fedavg_bit_for_bit(make_server, flags):
    prox, avg = make_server("FedProx", "-mu", "0", *flags, model="DNN"), make_server("FedAvg", *flags, model="DNN")
    prox.train()
    avg.train()
    assert same_tensors(prox.global_params, avg.global_params)
    assert prox.rs_test_acc == avg.rs_test_acc and prox.rs_train_loss == avg.rs_train_loss


def test_the_default_is_not_fedavg_and_a_strong_pull_holds_the_weights(make_server):
    moved = []
    for flags in (("-mu", "0"), (), ("-mu", "50")):
        server = make_server("FedProx", "-gr", "1", "-ls", "5", *flags, model="DNN")
        start = server.global_params["base.fc1.weight"]
        server.train()
        moved.append((server.global_params["base.fc1.weight"] - start).norm())
    assert moved[0] > moved[1] > 2 * moved[2]


def test_the_reported_loss_is_the_cross_entropy_alone(make_server):
    """One batch of everything, two epochs: no pull acts in the first step, so the second one sees FedAvg's weights."""
    flags = ("-gr", "1", "-lbs", "-1", "-ls", "2")
    prox, avg = make_server("FedProx", "-mu", "10", *flags, model="DNN"), make_server("FedAvg", *flags, model="DNN")
    prox.train()
    avg.train()
    assert prox.rs_train_loss == avg.rs_train_loss
    assert not same_tensors(prox.global_params, avg.global_params)


def test_batchnorm_statistics_feel_no_pull(make_server):
    client = make_server("FedProx", dataset="Colour", model="ResNet18").clients[0]
    assert "base.bn1.running_mean" in client.params
    assert not any("running" in name or "num_batches" in name for name in client.trainable)


def test_fedper_trains_both_parts_together_and_averages_one(make_server):
    """After one round: Local's heads, and the mean of Local's extractors by 23, 12, 7 and 31 samples."""
    per, alone = make_server("FedPer", "-gr", "1", model="DNN"), make_server("Local", "-gr", "1", model="DNN")
    per.train()
    alone.train()
    for client, other in zip(per.clients, alone.clients, strict=True):
        assert torch.equal(client.params["head.weight"], other.params["head.weight"])
    mean = sum(
        n / 73 * client.params["base.fc1.weight"] for n, client in zip((23, 12, 7, 31), alone.clients, strict=True)
    )
    assert torch.allclose(per.global_params["base.fc1.weight"], mean, atol=1e-7)
    assert all(torch.equal(c.params["base.fc1.weight"], per.global_params["base.fc1.weight"]) for c in per.clients)


def test_fedper_with_nothing_personal_is_fedavg_bit_for_bit(make_server, monkeypatch):
    monkeypatch.setattr(FedPer, "shares", ("base.", "head."))
    per, avg = make_server("FedPer", model="DNN"), make_server("FedAvg", model="DNN")
    per.train()
    avg.train()
    assert same_tensors(per.global_params, avg.global_params) and per.rs_test_acc == avg.rs_test_acc


def test_fedrep_with_nothing_personal_is_fedavg_bit_for_bit(make_server, monkeypatch):
    """An empty head phase draws nothing either, so that the extractor's batches are FedAvg's."""
    server, avg = make_server("FedRep"), make_server("FedAvg")
    first, second = type(server.clients[0]).local_plan(server.hp)
    plan = [first._replace(moves=("none.",)), second._replace(moves=("base.", "head."))]
    monkeypatch.setattr(type(server.clients[0]), "local_plan", staticmethod(lambda hp: plan))
    monkeypatch.setattr(type(server), "shares", ("base.", "head."))
    server.train()
    avg.train()
    assert same_tensors(server.global_params, avg.global_params)


def test_fedper_absent_clients_keep_their_heads_and_are_scored(make_server):
    server = make_server("FedPer", "-gr", "2", model="DNN")
    heads = [client.params["head.weight"] for client in server.clients]
    server.select_clients = lambda: server.clients[:1]
    server.train()
    kept = [torch.equal(client.params["head.weight"], head) for client, head in zip(server.clients, heads, strict=True)]
    assert kept == [False, True, True, True]
    assert server.records["rs_client_acc"][-1].shape == (4,) and server.uploaded_ids == [0]
