"""GPFL: the conditional valve, its two conditions, and what is shared."""

import pytest
import torch
from torch.nn import functional as F

from flcore.clients.clientgpfl import GPFLSettings, Valve, clientGPFL
from support import same_tensors


def test_valve_by_hand():
    """Identity layers: q = (1, 3) normalises to (-1, 1) = gamma = beta. z = (2, 2): (2*0 - 1, 2*2 + 1) -> (0, 5)."""
    valve = Valve(2)
    with torch.no_grad():
        for branch in (valve.gamma, valve.beta):
            branch[0].weight.copy_(torch.eye(2))
            branch[0].bias.zero_()
    out = valve(torch.tensor([[2.0, 2.0]]), torch.tensor([1.0, 3.0]))
    assert torch.allclose(out, torch.tensor([[0.0, 5.0]]), atol=1e-4)


def test_valve_has_the_published_size():
    assert sum(parameter.numel() for parameter in Valve(512).parameters()) == 527_360


def test_frequencies_count_all_samples_and_are_no_nan_below_one_batch(make_server):
    server = make_server("GPFL", dataset="Skewed", model="DNN")
    for client in server.clients:
        y = client.data[1].tolist()
        assert client.state["frequency"].tolist() == pytest.approx([y.count(c) / len(y) for c in range(4)])
    assert server.clients[2].train_samples < server.batch_size


class Plain:
    """In place of the network: features, valve and head pass things on."""

    @staticmethod
    def features(params, x):
        return params["z"], []

    @staticmethod
    def call(name, params, z, *condition):
        return z


def test_distance_is_that_of_the_whole_batch_and_has_a_gradient_at_0():
    """Two samples at distance 3 and 4 from their class's received embedding: sqrt(9 + 16) = 5, not a mean."""
    received = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    y, state = torch.tensor([0, 1]), {"frequency": torch.tensor([0.5, 0.5])}

    def loss(z, lam):
        params = {"z": z, "gce.weight": received}
        return clientGPFL.local_loss(Plain, params, None, y, {"gce.weight": received}, state, GPFLSettings(lamda=lam))

    z = received + torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert (loss(z, 1.0) - loss(z, 0.0)).item() == pytest.approx(5, abs=1e-5)
    z = received.clone().requires_grad_()
    loss(z, 1.0).backward()
    assert z.grad.isfinite().all()


def test_loss_is_the_sum_of_the_two_routes_and_the_distance(make_server):
    server = make_server("GPFL", "-lam", "0.3", "-gr", "1", dataset="Skewed", model="DNN")
    server.train()
    client = server.clients[3]
    params = {**client.params, "gce.weight": client.params["gce.weight"] + 0.1}  # a step away from the received ones
    x, y = client.data
    loss = client.local_loss(client.forward, params, x, y, client.shared, client.state, client.hp)

    net, e = client.forward.net, server.global_params["gce.weight"]
    net.load_state_dict(params)
    z = net.base(x)
    own = sum((y == c).sum() / len(y) * e[c] for c in range(4))
    z_p, z_g = ((z * (net.cov.gamma(q) + 1) + net.cov.beta(q)).relu() for q in (own, (e[0] + e[1] + e[2] + e[3]) / 4))
    cosines = torch.stack([F.cosine_similarity(z_g, row[None]) for row in params["gce.weight"]], 1)
    expected = F.cross_entropy(net.head(z_p), y) + F.cross_entropy(cosines, y) + 0.3 * torch.linalg.norm(z_g - e[y])
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    net.load_state_dict(client.params)
    assert torch.allclose(client.scores(is_train=True)[0], net.head(net.cov(net.base(x), own)), atol=1e-5)


def test_both_conditions_come_from_the_received_embeddings(make_server):
    client = make_server("GPFL", model="DNN").clients[0]
    client.receive(dict(client.params), 0)
    before, _ = client.scores(is_train=False)
    client.params = {**client.params, "gce.weight": client.params["gce.weight"] + 1}
    assert torch.equal(client.scores(is_train=False)[0], before)
    client.receive({"gce.weight": client.params["gce.weight"]}, 1)
    assert not torch.equal(client.scores(is_train=False)[0], before)


def test_weight_decay_by_hand_acts_on_the_two_modules_only():
    """Gradient 1, weight 3, decay 1/2: 1 + 3/2."""
    one, three = torch.tensor(1.0), torch.tensor(3.0)
    names = ("base.w", "head.w", "gce.weight", "cov.beta.0.bias")
    grads = clientGPFL.local_grad(dict.fromkeys(names, one), dict.fromkeys(names, three), {}, {}, GPFLSettings(mu=0.5))
    assert grads == {"base.w": 1, "head.w": 1, "gce.weight": 2.5, "cov.beta.0.bias": 2.5}


def test_heads_stay_and_everything_else_is_common(make_server):
    server = make_server("GPFL", model="DNN")
    start = dict(server.clients[0].params)
    server.train()
    first, second = (client.params for client in server.clients[:2])
    assert {name for name in first if not torch.equal(first[name], second[name])} == {"head.weight", "head.bias"}
    for name in ("base.fc1.weight", "gce.weight", "cov.gamma.0.weight", "cov.beta.2.bias"):
        assert not torch.equal(first[name], start[name]), name


def test_defaults_are_the_authors_and_switched_on(make_server):
    server = make_server("GPFL", model="DNN")
    assert server.clients[0].hp.lamda == 0.01 and server.clients[0].hp.mu == 0.1
    server.train()
    for flags in (("-lam", "0"), ("-mu", "0")):
        other = make_server("GPFL", *flags, model="DNN")
        other.train()
        assert not same_tensors(other.global_params, server.global_params)
