"""FedPA: steps instead of epochs, the generator's loss by hand, counts of what was met, and FedAvg as its limit."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flcore.clients.clientpa import PASettings, alpha, beta
from flcore.clients.localrule import Phase
from flcore.clients.support.batches import Batches
from flcore.trainmodel.pa import FeatureGenerator, choose, distance_to_prototypes, diversity, fidelity
from flcore.trainmodel.prototypes import class_prototypes
from flcore.utils.seeds import torch_generator
from support import same_tensors

FAST = ("--pa_steps", "2", "--pa_gen_steps", "4")
OFF = ("--pa_alpha", "0", "--pa_beta", "0", "--pa_beta_min", "0")


@pytest.mark.parametrize(
    ("samples", "steps", "sizes"),
    [(25, 5, [10] * 5), (25, 2, [10] * 2), (25, 1, [10]), (7, 3, [7] * 3), (0, 3, [])],  # 25: two batches a pass
)
def test_a_phase_may_count_steps(samples, steps, sizes):
    batches = Batches((torch.arange(samples)[:, None], torch.arange(samples)), 10, torch_generator(0))
    taken = list(Phase(9, steps=steps).take(batches))
    assert [len(y) for _, y in taken] == sizes
    if steps == 5:
        assert not torch.equal(taken[0][1], taken[2][1])  # the second pass is shuffled anew


def test_labels_are_chosen_among_the_allowed_alone():
    allowed = torch.tensor([False, True, False, True, True])
    uniform = torch.tensor([0.0, 0.33, 0.34, 0.66, 0.67, 0.999999])
    assert choose(uniform, allowed).tolist() == [1, 1, 3, 3, 4, 4]
    assert choose(torch.tensor([0.9999999]), torch.tensor([True, False])).tolist() == [0]


def test_fidelity_multiplies_each_sample_by_its_own_weight():
    """Two participants, labels (0, 1). Class 0 was met 3 times by the first alone: weights 4/5 and 1/5; class 1: 1/2.

    Their cross-entropies are ln 2 everywhere but for the first one's sample of class 0, log(1 + e^-2).
    """
    logits = torch.zeros(2, 2, 2)
    logits[0, 0] = torch.tensor([2.0, 0.0])
    counts, labels = torch.tensor([[3, 0], [0, 0]]), torch.tensor([0, 1])
    half = math.log(2)
    expected = (0.8 * math.log(1 + math.exp(-2)) + 0.5 * half) / 2 + (0.2 * half + 0.5 * half) / 2
    assert fidelity(logits, labels, counts).item() == pytest.approx(expected, rel=1e-6)
    # (B,) times (B, 1) is mean(CE) * mean(w), which differs
    wrong = (math.log(1 + math.exp(-2)) + half) / 2 * 0.65 + half * 0.35
    assert fidelity(logits, labels, counts).item() != pytest.approx(wrong, rel=1e-3)


def test_diversity_by_hand():
    """Of four pairs two are of different classes: D(noise) = (1 + 9) / 2 = 5, D(features) = (2 + 0 + 1) / 3 = 1."""
    noise, features = torch.tensor([[0.0, 0.0], [1.0, 3.0]]), torch.tensor([[0.0, 1.0, 1.0], [2.0, 1.0, 0.0]])
    assert diversity(noise, features, torch.tensor([0, 1])).item() == pytest.approx(math.exp(-2 * 5 / 4), rel=1e-5)
    assert diversity(noise, features, torch.tensor([1, 1])) == 1  # pairs of one class count 0


def test_diversity_has_a_gradient_for_equal_features():
    features = torch.ones(3, 4, requires_grad=True)
    diversity(torch.rand(3, 2), features, torch.tensor([0, 1, 2])).backward()
    assert torch.isfinite(features.grad).all()


def test_generator_has_the_published_size_and_gives_embeddings_behind_a_relu():
    net = FeatureGenerator(32, 256, 10, 512)
    assert sum(p.numel() for p in net.parameters()) == 143_104
    features = net(torch.rand(5, 32), torch.arange(5))
    assert features.shape == (5, 512) and features.min() == 0
    first = net.layers[0].weight[:, 32:]  # behind the noise the class, one-hot
    hidden = net.layers[0](torch.cat([torch.zeros(1, 32), F.one_hot(torch.tensor([3]), 10)], 1))
    assert torch.allclose(hidden, (first[:, 3] + net.layers[0].bias)[None])


def test_schedules_by_hand():
    hp = PASettings(pa_alpha=25.0, pa_beta=5.0, pa_beta_min=0.15)
    assert alpha(replace(hp, round=2)) == pytest.approx(24.01) and beta(replace(hp, round=2)) == pytest.approx(4.802)
    assert alpha(replace(hp, round=999)) == 1e-4 and beta(replace(hp, round=999)) == 0.15
    assert alpha(replace(hp, pa_alpha=0.0)) == 0


@pytest.mark.parametrize(("flags", "steps"), [((), 20), (("--pa_steps", "3", "-ls", "5"), 3)])
def test_a_round_is_that_many_mini_batches(make_server, flags, steps):
    server = make_server("FedPA", "-gr", "1", "--pa_gen_steps", "4", *flags)
    server.train()
    assert [client.train_loss[1] for client in server.clients] == [10 * steps, 10 * steps, 7 * steps, 10 * steps]


def test_both_parts_off_is_fedavg_bit_for_bit(make_server):
    """25 samples in batches of 10 are two steps an epoch."""
    pa, avg = (
        make_server("FedPA", "--pa_steps", "4", *OFF, dataset="Single"),
        make_server("FedAvg", "-ls", "2", dataset="Single"),
    )
    pa.train()
    avg.train()
    weights = {name: value for name, value in pa.global_params.items() if not name.startswith("generator.")}
    assert same_tensors(weights, avg.global_params)
    assert pa.rs_test_acc == avg.rs_test_acc


def test_the_first_round_is_cross_entropy_alone(make_server):
    one, other = make_server("FedPA", "-gr", "1", *FAST), make_server("FedPA", "-gr", "1", *FAST, *OFF)
    one.train()
    other.train()
    assert all(torch.equal(one.global_params[n], v) for n, v in other.global_params.items() if "generator" not in n)


def test_loss_is_the_weighted_sum_of_its_parts(make_server):
    server = make_server("FedPA", "-gr", "1", "--pa_steps", "8", "--pa_gen_steps", "4", dataset="Skewed")
    server.train()
    assert server.seen.tolist() == [True, True, True, False]
    client = server.clients[3]
    x, y = (part[:6] for part in client.data)
    hp = replace(client.hp, round=1)
    drawn = client.local_draw(torch_generator(3), client.forward, 6, hp)
    client.forward.set_training(("base.", "head."))
    loss = client.local_loss(client.forward, client.params, x, y, client.shared, {**client.state, **drawn}, hp)

    net = client.forward.net
    net.load_state_dict({**client.params})
    net.eval()  # there is no BatchNorm but the generator's
    labels = (drawn["uniform"] * 3).long()  # nobody holds class 3
    hard = F.cross_entropy(net.head(net.generator(drawn["noise"], labels)), labels)
    z = net.base(x)
    pull = ((z - client.shared["prototypes"][y]) ** 2).mean()
    expected = F.cross_entropy(net.head(z), y) + 25 * 0.98 * hard + 5 * 0.98 * pull
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_generator_is_frozen_on_the_clients_and_trained_on_the_server(make_server):
    server = make_server("FedPA", "-gr", "2", *FAST)
    start = {name: value for name, value in server.global_params.items() if name.startswith("generator.")}
    server.train()
    after = {name: server.global_params[name] for name in start}
    assert all(not torch.equal(start[name], after[name]) for name in start)
    assert after["generator.layers.1.num_batches_tracked"] == 2 * 4
    for client in server.clients:
        assert same_tensors({name: client.params[name] for name in start}, after)
    before = {name: value.clone() for name, value in server.clients[0].params.items()}
    with torch.no_grad():
        for parameter in server.generator.parameters():
            parameter.add_(1)
    assert same_tensors(server.clients[0].params, before)  # no tensor in common


def test_the_generator_learns_features_that_the_heads_tell_apart(make_server):
    server = make_server("FedPA", "-gr", "3", "--pa_steps", "4", "--pa_gen_steps", "100", "-glr", "0.003")
    server.train()
    labels = torch.arange(4).repeat(10)
    features = server.generator.eval()(torch.rand(40, 32, generator=torch_generator(1)), labels)
    correct = (server.clients[0].forward.call("head", server.global_params, features).argmax(1) == labels).float()
    assert correct.mean() > 0.9


def test_the_distance_to_be_made_large_has_an_end():
    """Prototypes (1, 1) and none: mean square 1, so the limit is 10. Distances: (4 + 0) / 2 = 2, (64 + 0) / 2 = 32."""
    prototypes, seen = torch.tensor([[1.0, 1.0], [99.0, 99.0]]), torch.tensor([True, False])
    for value, expected in ((3.0, 2.0), (9.0, 10.0)):
        features = torch.tensor([[value, 1.0]], requires_grad=True)
        distance = distance_to_prototypes(features, torch.tensor([0]), prototypes, seen)
        distance.backward()
        assert distance.item() == expected
        assert (features.grad[0, 0] > 0) == (expected < 10)
    assert distance_to_prototypes(torch.ones(1, 2), torch.tensor([1]), prototypes, seen) == 0


def test_counts_are_the_labels_met_in_this_round(make_server):
    server = make_server("FedPA", "-gr", "2", "--pa_steps", "3")
    met = {client.id: torch.zeros(4, dtype=torch.int64) for client in server.clients}
    for client in server.clients:
        original = client.local_loss

        def look(forward, params, x, y, shared, state, hp, original=original, seen=met[client.id]):
            seen += torch.bincount(y, minlength=4)
            return original(forward, params, x, y, shared, state, hp)

        client.local_loss = look
    collected = server.receive_models

    def check():
        collected()
        for client, upload in zip(server.clients, server.uploaded_models, strict=True):
            assert torch.equal(upload["counts"], met[client.id])
            met[client.id].zero_()

    server.receive_models = check
    server.train()


def test_a_class_that_was_not_met_neither_shrinks_its_prototype_nor_travels(make_server):
    """One step of two samples a round meets at most two classes of each client."""
    server = make_server("FedPA", "-gr", "1", "-lbs", "2", "--pa_steps", "1")
    original, expected = server.aggregate_parameters, []

    def look():
        sums, weights = torch.zeros(4, 512), torch.zeros(4)
        for client, upload in zip(server.clients, server.uploaded_models, strict=True):
            x, y = client.data
            means = class_prototypes(client.forward.in_batches(client.params, x), y, 4)[0]
            for c in range(4):
                sums[c] += upload["counts"][c] * means[c]
                weights[c] += upload["counts"][c]
        expected.append((sums, weights))
        original()

    server.aggregate_parameters = look
    server.train()
    sums, weights = expected[0]
    assert weights.sum() == 8
    assert torch.equal(server.seen, weights > 0)
    for c in weights.nonzero()[:, 0].tolist():
        assert torch.allclose(server.prototypes[c], sums[c] / weights[c], atol=1e-5)


def test_absent_classes_keep_their_prototypes(make_server):
    server = make_server("FedPA", "-gr", "3", "--pa_steps", "8", "--pa_gen_steps", "4", dataset="Skewed")
    server.select_clients = lambda: [server.clients[(1, 0, 2, 3)[server.current_round]]]
    known = []
    server.end_round = lambda: known.append((server.seen.tolist(), server.prototypes.clone()))
    server.train()
    assert [seen for seen, _ in known] == [
        [False, True, False, False],
        [True, True, False, False],
        [True] * 3 + [False],
    ]
    assert torch.equal(known[1][1][1], known[2][1][1])  # client 2 holds classes 2 and 0


def test_draws_are_keyed_by_client_and_round(make_server):
    server = make_server("FedPA", "-gr", "1")
    one, other = server.clients[:2]
    assert torch.equal(torch.rand(3, generator=one.draws()), torch.rand(3, generator=one.draws()))
    assert not torch.equal(torch.rand(3, generator=one.draws()), torch.rand(3, generator=other.draws()))


def test_the_generators_batchnorm_does_not_keep_clients_from_training_on_single_samples(make_server):
    server = make_server("FedPA", "-lbs", "1", *FAST, dataset="Skewed")
    server.train()
    assert all(client.train_loss[1] == 2 for client in server.clients)


def test_another_network_will_do_and_only_its_own_batchnorm_counts(make_server):
    server = make_server("FedPA", "-gr", "2", *FAST, model="DNN")
    server.train()
    assert server.generator.layers[3].out_features == 100
    assert not server.clients[0].has_BatchNorm and isinstance(server.generator.layers[1], nn.BatchNorm1d)
    assert make_server("FedPA", dataset="Colour", model="ResNet18").clients[0].has_BatchNorm


def test_the_rule_runs_under_vmap(make_server):
    server = make_server("FedPA", "-gr", "1", *FAST)
    server.train()
    client = server.clients[0]
    hp, forward = replace(client.hp, round=1), client.forward
    drawn = [client.local_draw(torch_generator(i), forward, 5, hp) for i in range(2)]
    x, y = (torch.stack([c.data[i][:5] for c in server.clients[:2]]) for i in range(2))
    stacked = {name: torch.stack([d[name] for d in drawn]) for name in drawn[0]}
    forward.set_training(("base.", "head."))

    def loss(x, y, state):
        return client.local_loss(forward, client.params, x, y, client.shared, state, hp)

    together = torch.func.vmap(loss)(x, y, stacked)
    for i in range(2):
        assert together[i].item() == pytest.approx(loss(x[i], y[i], drawn[i]).item(), rel=1e-5)
