"""MOON: the contrast of the model in training with the received and with its own previous one."""

import pytest
import torch
from torch.nn import functional as F

from flcore.clients.clientmoon import model_contrast
from flcore.trainmodel.forward import Forward, subset
from support import same_tensors


def test_contrast_by_hand():
    """Cosines 1 (received) and 0 (previous), tau 1/2: -log(e^2 / (e^2 + 1)) = log(1 + e^-2) = 0.126928."""
    z, received, previous = torch.tensor([[2.0, 0.0]]), torch.tensor([[5.0, 0.0]]), torch.tensor([[0.0, 0.1]])
    assert model_contrast(z, received, previous, 0.5).item() == pytest.approx(0.126928, abs=1e-6)
    assert model_contrast(z, previous, received, 0.5).item() == pytest.approx(2.126928, abs=1e-6)
    assert model_contrast(z, received, received, 0.5).item() == pytest.approx(0.693147, abs=1e-6)  # ln 2


def test_contrast_stays_finite_and_moves_the_trained_model_only():
    z, received, previous = (torch.randn(3, 4, requires_grad=True) for _ in range(3))
    model_contrast(z, received, previous, 1e-3).backward()  # exp(1000) would overflow
    assert z.grad.isfinite().all() and z.grad.abs().sum() > 0
    assert received.grad is None and previous.grad is None
    dead = torch.zeros(1, 4, requires_grad=True)
    loss = model_contrast(dead.relu(), torch.zeros(1, 4), torch.randn(1, 4), 0.5)
    loss.backward()
    assert loss.isfinite() and torch.equal(dead.grad, torch.zeros(1, 4))


@pytest.mark.parametrize("flags", [(), ("-jr", "0.5", "-ls", "2")])
def test_mu_0_is_fedavg_bit_for_bit(make_server, flags):
    moon, avg = make_server("MOON", "-mu", "0", *flags, model="DNN"), make_server("FedAvg", *flags, model="DNN")
    moon.train()
    avg.train()
    assert same_tensors(moon.global_params, avg.global_params)
    assert moon.rs_test_acc == avg.rs_test_acc and moon.rs_train_loss == avg.rs_train_loss


def test_the_default_differs_from_fedavg_once_there_is_a_previous_model(make_server):
    """In round 0 both references are the initial model, and the contrast is ln 2 without gradient."""
    for rounds, same in (("1", True), ("2", False)):
        moon, avg = make_server("MOON", "-gr", rounds, model="DNN"), make_server("FedAvg", "-gr", rounds, model="DNN")
        moon.train()
        avg.train()
        ours, theirs = (server.global_params["base.fc1.weight"] for server in (moon, avg))
        assert torch.allclose(ours, theirs, atol=1e-7, rtol=0) == same
        assert moon.rs_train_loss[0] == pytest.approx(avg.rs_train_loss[0] + 0.693147, abs=1e-5)


def test_loss_is_cross_entropy_and_the_weighted_contrast(make_server):
    server = make_server("MOON", "-mu", "3", "-tau", "0.2", "-gr", "1", model="DNN")
    server.train()
    client = server.clients[0]
    params = {name: value + 0.01 for name, value in client.params.items()}
    x, y = client.data
    loss = client.local_loss(client.forward, params, x, y, client.shared, client.state, client.hp)

    def features(source):
        return (x.flatten(1) @ source["base.fc1.weight"].T + source["base.fc1.bias"]).relu()

    z, received, previous = (
        features(params),
        features(server.global_params),
        features(subset(client.state, "previous.")),
    )
    near, far = (torch.exp(F.cosine_similarity(z, other) / 0.2) for other in (received, previous))
    logits = z @ params["head.weight"].T + params["head.bias"]
    expected = F.cross_entropy(logits, y) - 3 * torch.log(near / (near + far)).mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_previous_model_is_that_of_the_last_participation(make_server):
    server = make_server("MOON", "-gr", "2", model="DNN")
    everybody, kept = server.select_clients(), []
    initial = dict(server.clients[0].params)
    assert torch.equal(server.clients[0].state["previous.base.fc1.weight"], initial["base.fc1.weight"])
    server.select_clients = lambda: everybody if server.current_round == 0 else everybody[1:]
    collect = server.receive_models

    def look():
        collect()
        for client in server.selected_clients:
            assert torch.equal(client.state["previous.base.fc1.weight"], client.params["base.fc1.weight"])
        kept.append([client.state["previous.base.fc1.weight"] for client in server.clients])

    server.receive_models = look
    server.train()
    assert torch.equal(kept[0][0], kept[1][0]) and not torch.equal(kept[0][1], kept[1][1])


def test_references_are_run_without_a_graph(make_server, monkeypatch):
    client = make_server("MOON", model="DNN").clients[0]
    client.receive(dict(client.params), 0)
    run, needed = Forward.features, []

    def look(self, params, x, frozen=False):
        out = run(self, params, x, frozen)
        needed.append((frozen, out[0].requires_grad))
        return out

    monkeypatch.setattr(Forward, "features", look)
    client.train()
    assert needed == [(False, True), (True, False), (True, False)] * 2  # two batches of ten


def test_references_leave_batchnorm_alone(make_server):
    """In round 0 the contrast has no gradient, so that all statistics are FedAvg's."""
    flags = ("-gr", "1", "-lbs", "4")
    moon, avg = (make_server(name, *flags, dataset="Colour", model="ResNet18") for name in ("MOON", "FedAvg"))
    moon.train()
    avg.train()
    for name, value in avg.global_params.items():
        assert torch.allclose(moon.global_params[name], value, atol=1e-6), name
