"""FedALA: the merge by hand, when it runs and on what, and what is left when its weights stand still."""

import pytest
import torch
from torch import nn

from flcore.clients import clientala
from flcore.clients.clientala import ALASettings, adapt
from flcore.trainmodel.forward import Forward
from flcore.trainmodel.models import BaseHeadSplit
from support import same_tensors

OLD = {"head.weight": torch.tensor([[1.0], [-1.0]]), "head.bias": torch.tensor([1.0, -1.0])}
RECEIVED = {"head.weight": torch.zeros(2, 1), "head.bias": torch.zeros(2)}
DATA = torch.tensor([[2.0]]), torch.tensor([0])


class Counting(Forward):
    """Counts the forward passes through the head, which are the steps of an adaptation."""

    steps = 0

    def call(self, name, params, *args):
        self.steps += name == "head"
        return super().call(name, params, *args)


@pytest.fixture
def forward():
    return Counting(BaseHeadSplit(nn.Identity(), nn.Linear(1, 2)), torch.zeros(1, 1))


def start(adapted=True, weight=1.0):
    weights = {f"weights.{name}": torch.full_like(value, weight) for name, value in OLD.items()}
    return {"adapted": torch.tensor(adapted), **weights}


def test_one_step_by_hand(forward):
    """The received model is all 0: softmax (1/2, 1/2), so dCE/dlogits = (-1/2, 1/2) and dW = (-1, 1) for x = 2.

    received - old = (-1, 1) for weight and bias, so that W falls by 1/4 * 1 = 1/4 for the weights, by 1/8 for the bias.
    """
    params, state = adapt(forward, OLD, RECEIVED, DATA, 1, start(), ALASettings(eta=0.25))
    assert torch.equal(state["weights.head.weight"], torch.tensor([[0.75], [0.75]]))
    assert torch.equal(state["weights.head.bias"], torch.tensor([0.875, 0.875]))
    assert torch.equal(params["head.weight"], torch.tensor([[0.25], [-0.25]]))  # 1 - 0.75, -1 + 0.75
    assert torch.equal(params["head.bias"], torch.tensor([0.125, -0.125]))
    assert torch.equal(OLD["head.bias"], torch.tensor([1.0, -1.0])) and not RECEIVED["head.bias"].any()


def test_weights_stay_between_0_and_1_and_mix_exactly_there(forward):
    params, state = adapt(forward, OLD, RECEIVED, DATA, 1, start(), ALASettings(eta=1e6))
    assert not state["weights.head.bias"].any() and same_tensors(params, OLD)
    params, state = adapt(forward, RECEIVED, OLD, DATA, 1, start(), ALASettings(eta=1e6))
    assert state["weights.head.bias"].eq(1).all() and same_tensors(params, OLD)
    odd = {name: torch.randn_like(value) for name, value in OLD.items()}
    assert same_tensors(adapt(forward, OLD, odd, DATA, 1, start(), ALASettings(eta=0.0))[0], odd)


def test_parameters_that_agree_keep_their_weights(forward):
    params, state = adapt(forward, OLD, OLD, DATA, 1, start(weight=0.3), ALASettings(eta=9.0))
    assert same_tensors(state, start(weight=0.3)) and same_tensors(params, OLD)


@pytest.mark.parametrize(("adapted", "still", "steps"), [(True, 0.1, 1), (False, 0.1, 11), (False, -1.0, 100)])
def test_epochs_one_later_until_still_at_first_and_never_more_than_100(forward, monkeypatch, adapted, still, steps):
    """With a constant loss the deviation is 0, at once below 0.1; a limit below 0 is never reached."""
    monkeypatch.setattr(clientala, "STILL", still)
    _, state = adapt(forward, OLD, RECEIVED, DATA, 1, start(adapted), ALASettings(eta=0.0))
    assert forward.steps == steps and state["adapted"]


def test_the_incomplete_last_batch_counts(forward):
    data = torch.ones(5, 1), torch.tensor([0, 1, 0, 1, 0])
    adapt(forward, OLD, RECEIVED, data, 2, start(), ALASettings(eta=1.0))
    assert forward.steps == 3


def test_no_sample_no_fit(forward):
    state = start(adapted=False, weight=0.5)
    params, after = adapt(
        forward, OLD, RECEIVED, (torch.zeros(0, 1), torch.zeros(0).long()), 1, state, ALASettings(eta=1.0)
    )
    assert same_tensors(after, state)
    assert torch.equal(params["head.bias"], torch.tensor([0.5, -0.5]))


def test_features_below_the_head_are_computed_once_and_change_nothing(make_server):
    """The short way for top layer = head, against the general one with one tensor more, which does not differ."""
    client = make_server("FedALA").clients[0]
    still = "base.fc1.0.bias"
    received = {name: value if name == still else value + 0.1 for name, value in client.params.items()}
    short, general = (
        {"adapted": torch.tensor(True), **{f"weights.{name}": torch.ones_like(received[name]) for name in names}}
        for names in (["head.weight", "head.bias"], [still, "head.weight", "head.bias"])
    )
    (one, weights), (other, _) = (
        adapt(client.forward, client.params, received, client.data, 10, state, client.hp) for state in (short, general)
    )
    assert not weights["weights.head.weight"].eq(1).all()
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


@pytest.mark.parametrize("flags", [("-et", "0"), ("-s", "1")])  # W stays 1; too few samples for one in a hundred
def test_weights_that_stand_still_at_1_are_fedavg_bit_for_bit(make_server, flags):
    ala, avg = make_server("FedALA", *flags), make_server("FedAvg")
    ala.train()
    avg.train()
    assert same_tensors(ala.global_params, avg.global_params)
    assert ala.rs_test_acc == avg.rs_test_acc and ala.rs_train_loss == avg.rs_train_loss


def test_the_first_download_is_taken_as_it_is_and_the_second_adapted(make_server):
    server = make_server("FedALA", "-gr", "1")
    moments = []
    original = server.score_download

    def look():
        moments.append([(dict(client.params), dict(client.state)) for client in server.clients])
        original()

    server.score_download = look
    server.train()
    for (_, state), (later, adapted) in zip(*moments, strict=True):
        assert not state["adapted"] and all(value.eq(1).all() for n, value in state.items() if n != "adapted")
        assert adapted["adapted"] and not adapted["weights.head.weight"].eq(1).all()
        assert state.keys() == adapted.keys()
        assert torch.equal(later["base.fc1.0.weight"], server.global_params["base.fc1.0.weight"])  # lower layers
        assert not torch.equal(later["head.weight"], server.global_params["head.weight"])
    assert not torch.equal(moments[1][0][0]["head.weight"], moments[1][1][0]["head.weight"])


@pytest.mark.parametrize(
    ("flag", "names"),
    [
        ("1", {"head.bias"}),
        ("2", {"head.weight", "head.bias"}),
        ("4", {"base.fc1.0.weight", "base.fc1.0.bias", "head.weight", "head.bias"}),
        ("0", None),
        ("99", None),
    ],
)
def test_p_counts_tensors_from_the_end(make_server, flag, names):
    client = make_server("FedALA", "-p", flag).clients[0]
    assert {name.removeprefix("weights.") for name in client.state} - {"adapted"} == (names or set(client.trainable))


def test_the_whole_network_can_be_adapted(make_server):
    server = make_server("FedALA", "-p", "0", "-gr", "2")
    server.train()
    assert not server.clients[0].state["weights.base.conv1.0.weight"].eq(1).all()


def test_the_subset_is_random_keyed_and_of_that_size(make_server, monkeypatch):
    taken = []

    def look(forward, old, received, data, batch_size, state, hp):
        taken.append(data[0])
        return received, state

    monkeypatch.setattr(clientala, "adapt", look)
    server = make_server("FedALA", "-gr", "2")
    server.train()
    assert [len(x) for x in taken] == [18, 9, 5, 24] * 2  # 80 % of 23, 12, 7, 31, rounded down
    everything = server.clients[0].data[0]
    places = [int((everything == row).flatten(1).all(1).nonzero()[0]) for row in taken[0]]
    assert len(set(places)) == 18 and sorted(places) != list(range(min(places), min(places) + 18))
    assert not torch.equal(taken[0], taken[4])  # another round, another subset
    again = make_server("FedALA", "-gr", "2")
    again.train()
    assert torch.equal(taken[0], taken[8])


def test_absent_clients_adapt_too(make_server):
    server = make_server("FedALA", "-gr", "2")
    server.select_clients = lambda: server.clients[:1]
    server.train()
    assert all(client.state["adapted"] for client in server.clients)


def test_a_single_client_is_local_training(make_server):
    server, alone = make_server("FedALA", dataset="Single"), make_server("Local", dataset="Single")
    server.train()
    alone.train()
    for name, value in alone.clients[0].params.items():
        assert torch.allclose(server.clients[0].params[name], value, atol=1e-6), name
