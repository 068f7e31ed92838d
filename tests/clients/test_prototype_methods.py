"""FedProto, FedGH and FedTGP: weights stay at home, class prototypes travel."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flcore.servers.servertgp import margin, margin_loss
from flcore.trainmodel.models import BaseHeadSplit
from flcore.trainmodel.prototypes import as_samples, shuffled
from support import same_tensors

METHODS = ["FedProto", "FedGH", "FedTGP"]


def own_means(client):
    """Class -> mean embedding, by the network itself in evaluation mode."""
    net = client.forward.net.eval()
    net.load_state_dict(client.params)
    x, y = client.data
    with torch.no_grad():
        z = net.base(x)
    return {int(c): z[y == c].mean(0) for c in y.unique()}


def before_aggregation(server):
    """Class means of every client right before each aggregation; filled while the server trains."""
    taken = []
    original = server.aggregate_parameters

    def look():
        taken.append([own_means(client) for client in server.clients])
        original()

    server.aggregate_parameters = look
    return taken


def upload(vectors, counts):
    return {"prototypes": torch.tensor(vectors), "counts": torch.tensor(counts)}


# ---- all three -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["FedProto", "FedTGP"])
def test_a_class_without_prototype_is_never_predicted(make_server, method):
    server = make_server(method, "-se", "5", dataset="Skewed")
    server.train()
    assert all((client.scores(is_train=False)[0].argmax(1) != 3).all() for client in server.clients)


@pytest.mark.parametrize("method", METHODS)
def test_extractors_stay_at_home(make_server, method):
    server = make_server(method, "-gr", "1", "-jr", "0.5")
    start = server.clients[0].params["base.fc1.0.weight"].clone()
    server.train()
    assert torch.equal(server.global_params["base.fc1.0.weight"], start)
    moved = [not torch.equal(client.params["base.fc1.0.weight"], start) for client in server.clients]
    assert sum(moved) == 2  # the participants


# ---- FedProto --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lamda", [0, 6])
def test_fedproto_loss_by_hand(make_server, lamda):
    """z = x: R = ((1 - 3)^2 + (0 - 0)^2 + 0 + 0) / 4 = 1, as class 1 has no prototype; logits 0, so CE = ln 2."""
    client = make_server("FedProto", "-lam", str(lamda)).clients[0]
    net = BaseHeadSplit(nn.Identity(), nn.Linear(2, 2))
    params = {name: torch.zeros_like(value) for name, value in net.state_dict().items()}
    client.forward.net = net
    shared = {"prototypes": torch.tensor([[3.0, 0.0], [9.0, 9.0]]), "seen": torch.tensor([True, False])}
    x, y = torch.tensor([[1.0, 0.0], [5.0, 5.0]]), torch.tensor([0, 1])
    loss = client.local_loss(client.forward, params, x, y, shared, {}, client.hp)
    assert loss.item() == pytest.approx(math.log(2) + lamda)
    assert client.local_loss(client.forward, params, x, y, {}, {}, client.hp).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("method", ["FedProto", "FedTGP"])
def test_without_the_pull_it_is_local_training(make_server, method):
    """Tested by the nearest prototype, so that only the weights agree."""
    server, local = (make_server(method, "-lam", "0", "-jr", "0.5"), make_server("Local", "-jr", "0.5"))
    server.train()
    local.train()
    for ours, theirs in zip(server.clients, local.clients, strict=True):
        assert same_tensors(ours.params, theirs.params)
    assert server.rs_train_loss == local.rs_train_loss
    assert server.rs_test_acc[0] == local.rs_test_acc[0]  # the head predicts until there are prototypes


@pytest.mark.parametrize("method", ["FedProto", "FedTGP"])
def test_the_default_pull_acts_from_the_second_round_on(make_server, method):
    for rounds, equal in (("1", True), ("2", False)):
        server, local = make_server(method, "-gr", rounds), make_server("Local", "-gr", rounds)
        assert server.clients[0].hp.lamda == 10
        server.train()
        local.train()
        assert same_tensors(server.clients[0].params, local.clients[0].params) == equal


def test_fedproto_averages_class_means_over_their_holders(make_server):
    server = make_server("FedProto", "-gr", "1", dataset="Skewed")
    taken = before_aggregation(server)
    server.train()
    assert server.seen.tolist() == [True, True, True, False]
    for c in range(3):
        holders = [means[c] for means in taken[0] if c in means]
        assert torch.allclose(server.prototypes[c], sum(holders) / len(holders), atol=1e-5)  # and not smaller
    assert {int(n) for sent in server.uploaded_models for n in sent["counts"]} == {0, 1}  # counts stay at home


def test_fedproto_weighs_by_counts_on_request(make_server):
    server = make_server("FedProto", "-gr", "1", "--proto_weighting", "count", dataset="Skewed")
    taken = before_aggregation(server)
    server.train()
    counts = [int((client.data[1] == 0).sum()) for client in server.clients]
    total = sum(n * means[0] for n, means in zip(counts, taken[0], strict=True) if n)
    assert torch.allclose(server.prototypes[0], total / sum(counts), atol=1e-5)


def test_prototypes_are_of_all_samples_in_evaluation_mode(make_server):
    """With BatchNorm: neither the batch statistics nor the running ones of training."""
    server = make_server("FedProto", "-gr", "1", "-lbs", "4", dataset="Colour", model="ResNet18")
    server.train()
    client, sent = server.clients[0], server.uploaded_models[0]
    for c, mean in own_means(client).items():
        assert torch.allclose(sent["prototypes"][c], mean, atol=1e-5)


def test_known_prototypes_outlive_their_holders_absence(make_server):
    server = make_server("FedProto", "-gr", "3", dataset="Skewed")
    known = []
    server.select_clients = lambda: [server.clients[(1, 0, 2, 3)[server.current_round]]]
    server.end_round = lambda: known.append((server.seen.tolist(), server.prototypes.clone()))
    server.train()
    assert [seen for seen, _ in known] == [
        [False, True, False, False],
        [True, True, False, False],
        [True, True, True, False],
    ]
    assert torch.equal(known[1][1][1], known[2][1][1])  # client 2 lacks class 1


# ---- FedGH -----------------------------------------------------------------------------------------------------------


def tiny_gh(make_server, *flags):
    """A server whose head is 0, and one upload: the mean (2, 0, ..., 0) of class 0."""
    server = make_server("FedGH", *flags)
    server.global_params = {name: torch.zeros_like(value) for name, value in server.global_params.items()}
    vector = [2.0] + [0.0] * 511
    server.uploaded_models = [upload([vector] * 4, [1, 0, 0, 0])]
    return server


def test_fedgh_server_step_by_hand(make_server):
    """Softmax of 0 over 4 classes is 1/4: the gradient is (-3/4, 1/4, 1/4, 1/4), times 2 for the weight; rate 1/2."""
    server = tiny_gh(make_server, "-se", "1", "-slr", "0.5")
    server.aggregate_parameters()
    step = torch.tensor([0.375, -0.125, -0.125, -0.125])
    assert torch.allclose(server.global_params["head.bias"], step)
    assert torch.allclose(server.global_params["head.weight"][:, 0], 2 * step)
    assert torch.count_nonzero(server.global_params["head.weight"][:, 1:]) == 0


def test_fedgh_passes_are_all_made_and_rate_and_passes_have_working_defaults(make_server):
    server = tiny_gh(make_server)
    assert (server.args.server_epochs, server.args.server_learning_rate) == (100, 0.01)
    head = torch.zeros(4, 512, requires_grad=True)
    bias = torch.zeros(4, requires_grad=True)
    x, y = server.uploaded_models[0]["prototypes"][:1], torch.tensor([0])
    for _ in range(100):
        grads = torch.autograd.grad(F.cross_entropy(x @ head.T + bias, y), [head, bias])
        with torch.no_grad():
            for value, grad in zip((head, bias), grads, strict=True):
                value -= 0.01 * grad
    server.aggregate_parameters()
    assert torch.allclose(server.global_params["head.weight"], head, atol=1e-6)
    assert torch.allclose(server.global_params["head.bias"], bias, atol=1e-6)


def test_fedgh_head_moves_and_learns_the_class_means(make_server):
    server = make_server("FedGH", "-gr", "1")
    start = server.global_params["head.weight"].clone()
    server.train()
    z, y = as_samples(*(torch.stack([u[name] for u in server.uploaded_models]) for name in ("prototypes", "counts")))
    loss = [
        F.cross_entropy(F.linear(z, weight, server.global_params["head.bias"]), y)
        for weight in (start, server.global_params["head.weight"])
    ]
    assert loss[1] < loss[0]


def test_fedgh_head_belongs_to_nobody(make_server):
    """Local training of no client, the first least of all, changes the server's head; all get the same back."""
    server = make_server("FedGH", "-gr", "1", "-se", "0")
    start = {name: value.clone() for name, value in server.global_params.items()}
    tuned = []
    original = server.aggregate_parameters

    def look():
        tuned.extend(client.params["head.weight"] for client in server.clients)
        assert same_tensors(server.global_params, start)
        original()

    server.aggregate_parameters = look
    server.train()
    assert all(not torch.equal(head, start["head.weight"]) for head in tuned)
    for client in server.clients:
        assert torch.equal(client.params["head.weight"], start["head.weight"])  # replaced by the untrained one
    assert all(upload.keys() == {"prototypes", "counts"} for upload in server.uploaded_models)


def test_fedgh_server_training_touches_no_client(make_server):
    server = make_server("FedGH", "-gr", "1")
    server.send_models()  # clients hold the very tensors that the server has
    before = [{name: value.clone() for name, value in client.params.items()} for client in server.clients]
    server.uploaded_models = [upload([[2.0] * 512] * 4, [1, 0, 0, 0])]
    start = server.global_params["head.weight"]
    server.aggregate_parameters()
    assert not torch.equal(server.global_params["head.weight"], start)
    for client, kept in zip(server.clients, before, strict=True):
        assert same_tensors(client.params, kept)
        assert not any(value.requires_grad for value in client.params.values())


def test_fedgh_without_uploads_keeps_its_head(make_server):
    server = tiny_gh(make_server)
    server.uploaded_models = [upload([[0.0] * 512] * 4, [0] * 4)]
    server.aggregate_parameters()
    assert torch.count_nonzero(server.global_params["head.weight"]) == 0


def test_batches_of_a_pass_hold_every_pair_once():
    generator = torch.Generator().manual_seed(0)
    first, second = (list(shuffled(23, 10, generator)) for _ in range(2))
    assert [len(part) for part in first] == [10, 10, 3]
    assert torch.equal(torch.cat(first).sort().values, torch.arange(23))
    assert not torch.equal(torch.cat(first), torch.cat(second))
    assert [len(part) for part in shuffled(23, -1, generator)] == [23]
    assert list(shuffled(0, 10, generator)) == []
    z, y = as_samples(torch.arange(6.0).view(2, 3, 1), torch.tensor([[1, 0, 2], [0, 3, 0]]))
    assert z.flatten().tolist() == [0, 2, 4] and y.tolist() == [0, 2, 1]


# ---- FedTGP ----------------------------------------------------------------------------------------------------------


def test_margin_by_hand():
    """Centres 0, 3 and 10: nearest neighbours at 3, 3 and 7, so 7; without the class at 10 it is 3."""
    centres = torch.tensor([[0.0], [3.0], [10.0], [2.0]])
    here = torch.tensor([True, True, True, False])
    assert margin(centres, here, 100.0) == 7
    assert margin(centres, here, 5.0) == 5
    assert margin(centres, here & (centres[:, 0] < 5), 100.0) == 3
    assert margin(centres, here & (centres[:, 0] > 5), 100.0) == 100  # one class only


def test_margin_loss_by_hand():
    """Distances 2 to the true prototype and 3 to the other, margin 4: -log(e^-6 / (e^-6 + e^-3))."""
    trained = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    loss = margin_loss(torch.zeros(1, 2), torch.tensor([0]), trained, 4.0)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(3)))


def test_margin_loss_stays_finite_where_distances_are_zero():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        points = 10 * torch.randn(6, 64, generator=generator)
        trained = points.clone().requires_grad_()
        loss = margin_loss(points, torch.arange(6), trained, margin(points, torch.ones(6, dtype=torch.bool), 100.0))
        loss.backward()
        assert loss.isfinite() and trained.grad.isfinite().all()


def test_distances_are_exact_far_from_the_origin():
    """The expanded square loses 1e-3 beside 1e6; points 0.5 apart are still 0.5 apart."""
    points = torch.tensor([[1000.0] * 64, [1000.0] * 63 + [1000.5]])
    assert margin(points, torch.tensor([True, True]), 100.0) == 0.5


def test_fedtgp_trains_its_network_and_keeps_it(make_server):
    server = make_server("FedTGP", "-gr", "3", "-se", "20")
    networks = []
    server.end_round = lambda: networks.append(
        (server.network, {name: value.clone() for name, value in server.network.state_dict().items()})
    )
    server.train()
    assert all(network is networks[0][0] for network, _ in networks)
    for name, value in networks[0][1].items():
        assert not torch.equal(value, networks[1][1][name]), name
    assert sum(value.numel() for value in networks[0][1].values()) == 4 * 512 + 2 * (512**2 + 512)
    losses = server.records["rs_server_loss"]
    assert len(losses) == 3 and losses[-1] < losses[0]
    with torch.no_grad():
        assert torch.equal(server.prototypes, server.network())


def test_fedtgp_puts_prototypes_near_their_uploads_and_far_from_others(make_server):
    server = make_server("FedTGP", "-lbs", "-1", "-slr", "0.1", "-se", "100")
    points, y = 5 * torch.eye(64)[:4], torch.arange(4)
    network = server.new_network(64)
    bound = margin(points, y >= 0, 100.0)
    assert bound.item() == pytest.approx(5 * math.sqrt(2))
    server.fit(network, points, y, bound)
    distances = ((points[:, None] - network().detach()) ** 2).sum(2).sqrt()
    true = distances.diagonal()
    others = distances.masked_fill(torch.eye(4, dtype=torch.bool), torch.inf).amin(1)
    assert (others - true > bound / 2).all()  # at most the bound, by the triangle inequality


def test_fedtgp_uses_the_authors_settings(make_server):
    args = make_server("FedTGP").args
    assert (args.server_epochs, args.server_learning_rate, args.tgp_margin) == (100, 0.01, 100)


def test_fedtgp_neither_pulls_to_nor_predicts_a_class_nobody_uploaded(make_server):
    server = make_server("FedTGP", "-gr", "2", dataset="Skewed")
    server.select_clients = lambda: [server.clients[1]]
    server.train()
    assert server.seen.tolist() == [False, True, False, False]
    assert torch.count_nonzero(server.prototypes[0]) > 0
    client = server.clients[3]
    x, y = client.data
    cold = y != 1
    loss = client.local_loss(client.forward, client.params, x[cold], y[cold], client.shared, {}, client.hp)
    assert torch.equal(loss, F.cross_entropy(client.forward(client.params, x[cold])[0], y[cold]))
    assert (client.scores(is_train=False)[0].argmax(1) == 1).all()
