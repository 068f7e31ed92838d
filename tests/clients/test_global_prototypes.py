"""FedProc and FedHKD: one averaged model, and knowledge about each class beside it."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flcore.clients.clienthkd import HKDSettings, clientHKD
from flcore.clients.clientproc import ProcSettings, clientProc
from support import same_tensors

METHODS = ["FedProc", "FedHKD"]


@pytest.mark.parametrize("method", METHODS)
def test_all_clients_have_one_model_participants_or_not(make_server, method):
    server = make_server(method, "-jr", "0.3", dataset="Skewed")
    server.train()
    for client in server.clients:
        for name, value in client.params.items():
            if name in server.shared_weights():
                assert torch.equal(value, server.global_params[name]), name


class FakeForward:
    """A network of given parts in place of the real one: extractor = identity."""

    def __init__(self, **parts):
        self.net = nn.ModuleDict(parts)

    def __call__(self, params, x):
        return self.call("head", params, x), x, []

    def features(self, params, x):
        return x, []

    def call(self, name, params, x):
        return self.net[name](x)


def linear(weight):
    layer = nn.Linear(len(weight[0]), len(weight), bias=False)
    layer.weight.data = torch.tensor(weight)
    return layer


# ---- FedProc ---------------------------------------------------------------------------------------------------------


def proc_loss(current_round, shared):
    """x = (3, 4) of class 0 becomes z = (0.6, 0.8); the classifier is 0, so that CE = ln 3."""
    forward = FakeForward(projection=nn.Identity(), classifier=linear([[0.0, 0.0]] * 3))
    x, y = torch.tensor([[3.0, 4.0]]), torch.tensor([0])
    return clientProc.local_loss(
        forward, {}, x, y, shared, {}, ProcSettings(round=current_round, global_rounds=4)
    ).item()


def test_fedproc_loss_by_hand():
    """Centres (2, 0) and (0, 7) count as unit vectors: z . c = 0.6 and 0.8; class 2 has none and is left out."""
    shared = {
        "prototypes": torch.tensor([[2.0, 0.0], [0.0, 7.0], [0.0, 0.0]]),
        "seen": torch.tensor([True, True, False]),
    }
    contrast = math.log(1 + math.exp(0.8 - 0.6))
    assert proc_loss(0, {}) == pytest.approx(math.log(3))
    assert proc_loss(0, shared) == pytest.approx(contrast)
    assert proc_loss(1, shared) == pytest.approx(0.25 * math.log(3) + 0.75 * contrast)
    assert proc_loss(4, shared) == proc_loss(9, shared) == pytest.approx(math.log(3))
    assert proc_loss(1, shared | {"seen": torch.tensor([False, True, True])}) == pytest.approx(0.25 * math.log(3))


def test_fedproc_schedule_follows_the_planned_rounds(make_server, monkeypatch):
    seen = set()
    original = clientProc.local_loss

    def look(forward, params, x, y, shared, state, hp):
        seen.add((hp.round, hp.global_rounds))
        return original(forward, params, x, y, shared, state, hp)

    monkeypatch.setattr(clientProc, "local_loss", staticmethod(look))
    make_server("FedProc", "-gr", "3", "-ls", "2").train()
    assert seen == {(0, 3), (1, 3), (2, 3)}


def test_fedproc_centres_are_means_over_all_samples_of_projected_unit_vectors(make_server):
    server = make_server("FedProc", "-gr", "1", dataset="Skewed")
    vectors, labels = [], []
    original = server.aggregate_parameters

    def look():
        for client in server.clients:
            net = client.forward.net
            net.load_state_dict(client.params)
            x, y = client.data
            with torch.no_grad():
                z = net.projection(net.base(x))
            vectors.append(z / z.norm(dim=1, keepdim=True))
            labels.append(y)
        original()

    server.aggregate_parameters = look
    server.train()
    z, y = torch.cat(vectors), torch.cat(labels)
    assert server.seen.tolist() == [True, True, True, False] and server.prototypes.shape == (4, 256)
    for c in range(3):
        assert torch.allclose(server.prototypes[c], z[y == c].mean(0), atol=1e-6)


def test_fedproc_keeps_the_centres_of_absent_classes(make_server):
    server = make_server("FedProc", "-gr", "2", dataset="Skewed")
    server.select_clients = lambda: [server.clients[(0, 1, 0)[server.current_round]]]
    centres = []
    server.end_round = lambda: centres.append(server.prototypes)
    server.train()
    assert server.seen.tolist() == [True, True, False, False]
    assert torch.equal(centres[0][0], centres[1][0]) and not torch.equal(centres[0][1], centres[1][1])


def test_fedproc_predicts_with_its_own_classifier(make_server):
    server = make_server("FedProc", "-gr", "1")
    server.train()
    client = server.clients[0]
    net = client.forward.net
    net.load_state_dict(client.params)
    x, _ = client.data
    expected = net.classifier(F.normalize(net.projection(net.base(x)), dim=1))
    assert torch.allclose(client.scores(is_train=True)[0], expected, atol=1e-6)


def test_fedproc_states_and_shares_its_extra_parameters(make_server, caplog):
    server = make_server("FedProc", "--proc_dim", "32", "-gr", "1")
    extra = 512 * 512 + 512 + 32 * 512 + 32 + 33 * 4
    assert f"of {extra:,} parameters in place of the head's {513 * 4:,}" in caplog.text
    start = server.global_params
    server.train()
    for name in ("projection.0.weight", "projection.2.bias", "classifier.weight"):
        assert not torch.equal(server.global_params[name], start[name])
        assert torch.equal(server.clients[0].params[name], server.clients[3].params[name])
    assert torch.equal(server.global_params["head.weight"], start["head.weight"])  # idle


# ---- FedHKD ----------------------------------------------------------------------------------------------------------


def hkd_hp(**changes):
    return replace(HKDSettings(lamda=0.0, hkd_gamma=0.0, tau=0.5, hkd_nu=0.0, num_classes=2), **changes)


def hkd_loss(**changes):
    """The head is 0 (softmax 1/2 each); only class 0 is known, H = (1, 0), Q = (0.8, 0.2)."""
    forward = FakeForward(head=linear([[0.0, 0.0]] * 2))
    shared = {
        "prototypes": torch.tensor([[1.0, 0.0, 0.8, 0.2], [9.0, 9.0, 0.5, 0.5]]),
        "seen": torch.tensor([True, False]),
    }
    x, y = torch.tensor([[4.0, 4.0], [0.0, 0.0]]), torch.tensor([0, 1])
    return clientHKD.local_loss(forward, {}, x, y, shared, {}, hkd_hp(**changes)).item() - math.log(2)


def test_fedhkd_loss_by_hand():
    """KL / 2 classes; squares 9 + 16 over 2 samples * 2 elements. Norms: (0.3, -0.3), and (3, 4) over 2 samples."""
    divergence = 0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5)
    assert hkd_loss() == pytest.approx(0, abs=1e-6)
    assert hkd_loss(lamda=3.0) == pytest.approx(3 * divergence / 2, rel=1e-5)
    assert hkd_loss(hkd_gamma=2.0) == pytest.approx(2 * 25 / 4)
    assert hkd_loss(lamda=3.0, hkd_form="l2") == pytest.approx(3 * 0.3 * math.sqrt(2), rel=1e-5)
    assert hkd_loss(hkd_gamma=2.0, hkd_form="l2") == pytest.approx(2 * 5 / 2)


@pytest.mark.parametrize("form", ["kl", "l2"])
def test_fedhkd_distillation_moves_the_head_alone_and_the_pull_the_extractor_alone(make_server, form):
    server = make_server("FedHKD", "-gr", "1")
    server.train()
    client = server.clients[0]
    x, y = (part[:5] for part in client.data)

    def gradients(**changes):
        hp = replace(client.hp, **{"lamda": 0.0, "hkd_gamma": 0.0, "hkd_form": form, **changes})

        def loss(params):
            return client.local_loss(client.forward, params, x, y, client.shared, {}, hp)

        return torch.func.grad(loss)(client.params)

    plain, head, extractor = gradients(), gradients(lamda=1.0), gradients(hkd_gamma=1.0)
    for name, value in plain.items():
        assert torch.equal(value, head[name]) == name.startswith("base."), name
        assert torch.equal(value, extractor[name]) == name.startswith("head."), name


def test_fedhkd_extreme_logits_and_a_perfect_match_stay_finite():
    forward = FakeForward(head=linear([[1000.0, 0.0], [-1000.0, 0.0]]))
    shared = {
        "prototypes": torch.tensor([[1.0, 0.0, 1.0, 0.0], [-1.0, 0.0, 0.5, 0.5]]),
        "seen": torch.tensor([True, True]),
    }
    for form in ("kl", "l2"):
        x = torch.tensor([[1.0, 0.0]], requires_grad=True)
        hp = hkd_hp(lamda=1.0, hkd_gamma=1.0, hkd_form=form)
        loss = clientHKD.local_loss(forward, {}, x, torch.tensor([0]), shared, {}, hp)
        grads = torch.autograd.grad(loss, [x, forward.net["head"].weight])
        assert loss.isfinite() and all(grad.isfinite().all() for grad in grads)


def test_fedhkd_without_its_terms_is_fedavg(make_server):
    flags = ("-lam", "0", "--hkd_gamma", "0")
    hkd, avg = make_server("FedHKD", *flags), make_server("FedAvg")
    hkd.train()
    avg.train()
    assert same_tensors(hkd.global_params, avg.global_params)
    assert hkd.rs_train_loss == avg.rs_train_loss and hkd.rs_test_acc == avg.rs_test_acc


@pytest.mark.parametrize("form", ["kl", "l2"])
def test_fedhkd_by_default_differs_from_fedavg_from_the_second_round_on(make_server, form):
    for rounds, equal in (("1", True), ("2", False)):
        hkd, avg = make_server("FedHKD", "-gr", rounds, "--hkd_form", form), make_server("FedAvg", "-gr", rounds)
        hkd.train()
        avg.train()
        assert same_tensors(hkd.global_params, avg.global_params) == equal
    assert (hkd.args.lamda, hkd.args.hkd_gamma, hkd.args.tau) == (0.05, 0.05, 0.5)


def test_fedhkd_knowledge_is_the_mean_over_the_samples_of_all_who_hold_enough(make_server):
    """nu = 0.4: a client speaks of the classes that are at least four tenths of its data."""
    server = make_server("FedHKD", "-gr", "1", "--hkd_nu", "0.4", "-tau", "0.7", dataset="Skewed")
    rows, labels = [], []
    original = server.aggregate_parameters

    def look():
        for client in server.clients:
            net = client.forward.net
            net.load_state_dict(client.params)
            x, y = client.data
            with torch.no_grad():
                z = net.base(x)
                row = torch.cat([z, torch.exp(net.head(z) / 0.7)], 1)
            row[:, 512:] /= row[:, 512:].sum(1, keepdim=True)
            enough = torch.bincount(y, minlength=4)[y] >= 0.4 * len(y)
            rows.append(row[enough])
            labels.append(y[enough])
        original()

    server.aggregate_parameters = look
    server.train()
    assert sum(map(len, labels)) < sum(client.train_samples for client in server.clients)
    row, y = torch.cat(rows), torch.cat(labels)
    assert server.seen.tolist() == [c in y for c in range(4)]
    for c in y.unique():
        assert torch.allclose(server.prototypes[c], row[y == c].mean(0), atol=1e-5)


@pytest.mark.parametrize(("classes", "nu"), [(2, 0.25), (10, 0.25), (100, 0.025)])
def test_fedhkd_threshold_suits_the_number_of_classes(classes, nu):
    assert HKDSettings(num_classes=classes).nu == pytest.approx(nu)
    assert HKDSettings(num_classes=classes, hkd_nu=0.0).nu == 0


def test_fedhkd_where_nobody_holds_enough_goes_on_without_knowledge(make_server):
    server, avg = make_server("FedHKD", "--hkd_nu", "1.1", "-gr", "2"), make_server("FedAvg", "-gr", "2")
    server.train()
    avg.train()
    assert not server.seen.any() and "prototypes" not in server.clients[0].shared
    assert same_tensors(server.global_params, avg.global_params)
