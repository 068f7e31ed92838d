"""FedCRL as reconstructed: its mixing weight by hand, its loss, its messages, and FedAvg as its limit."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from flcore import registry
from flcore.clients.clientcrl import CRLSettings, clientCRL, mixing_weight
from flcore.utils.errors import UsageError
from support import REPO, same_tensors

BY_LOSS = CRLSettings()


def shared(seen):
    return {"prototypes": torch.eye(4), "seen": torch.tensor(seen)}


def state(loss, measured=1.0):
    return {"loss": torch.tensor(loss), "measured": torch.tensor(measured)}


@pytest.mark.parametrize(
    ("loss", "seen", "expected"),
    [
        (math.log(4) / 2, [True] * 4, 0.5),  # half of what features without information give
        (math.log(4) / 2, [True, True, False, False], 1.0),  # log 2 is all that two classes can give
        (0.0, [True] * 4, 0.0),
        (9.0, [True] * 4, 1.0),
        (0.0, [True, False, False, False], 1.0),  # one class: nothing to contrast, take the global model
        (0.0, [False] * 4, 1.0),
    ],
)
def test_mixing_weight_by_hand(loss, seen, expected):
    assert mixing_weight(shared(seen), state(loss), BY_LOSS).item() == pytest.approx(expected, abs=1e-6)


def test_the_global_model_is_taken_until_there_is_a_loss():
    assert mixing_weight(shared([True] * 4), state(0.0, measured=0.0), BY_LOSS) == 1
    assert mixing_weight({}, state(0.0), BY_LOSS) == 1
    assert mixing_weight(shared([True] * 4), state(0.0), CRLSettings(crl_mix=0.25)) == 0.25


def test_weights_are_mixed_by_hand():
    params = {"head.weight": torch.tensor([9.0]), "n": torch.tensor(1)}
    own = {**state(math.log(4) / 4), "own.head.weight": torch.tensor([4.0])}
    received = {"head.weight": torch.tensor([8.0]), "n": torch.tensor(3)}
    mixed = clientCRL.local_begin(None, params, received, None, shared([True] * 4), own, BY_LOSS)
    assert mixed["head.weight"].item() == pytest.approx(5.0)  # 3/4 of its own 4 and 1/4 of 8
    assert mixed["n"] == 3  # counters are taken over


@pytest.mark.parametrize("flags", [("--crl_mix", "1"), ("--crl_mix", "1", "-jr", "0.5"), ("-gr", "1")])
def test_without_contrast_and_mixing_it_is_fedavg_bit_for_bit(make_server, flags):
    """With ``-gr 1`` there is nothing to mix by yet."""
    common = ("-jr", "0.5") if "-jr" in flags else ("-gr", "1") if "-gr" in flags else ()
    crl, avg = make_server("FedCRL", "-lam", "0", *flags), make_server("FedAvg", *common)
    crl.train()
    avg.train()
    assert same_tensors(crl.global_params, avg.global_params)
    assert crl.rs_test_acc == avg.rs_test_acc and crl.rs_train_loss == avg.rs_train_loss


def test_mixing_nothing_and_contrasting_nothing_is_local_training(make_server):
    crl, alone = make_server("FedCRL", "-lam", "0", "--crl_mix", "0"), make_server("Local")
    crl.train()
    alone.train()
    for one, other in zip(crl.clients, alone.clients, strict=True):
        assert same_tensors(one.params, other.params)


def test_loss_is_cross_entropy_plus_the_weighted_contrast(make_server):
    """Against InfoNCE of cosines written down anew; class 3 has no representation and nobody's sample is of it."""
    server = make_server("FedCRL", "-gr", "1", "-lam", "3", "-tau", "0.2", dataset="Skewed")
    server.train()
    client = server.clients[3]
    x, y = (part[:6] for part in client.data)
    loss = client.local_loss(client.forward, client.params, x, y, client.shared, client.state, client.hp)
    logits, z, _ = client.forward(client.params, x)
    known = client.shared["prototypes"][:3]
    assert client.shared["seen"].tolist() == [True, True, True, False]
    ratios = torch.stack([F.cosine_similarity(z, p[None]) for p in known], 1).div(0.2).exp()
    contrast = -(ratios[range(6), y] / ratios.sum(1)).log().mean()
    assert contrast > 0
    assert loss.item() == pytest.approx((F.cross_entropy(logits, y) + 3 * contrast).item(), rel=1e-5)


def test_the_stored_loss_is_the_mean_contrast_over_the_samples_of_known_classes():
    hp = CRLSettings(num_classes=4, tau=0.5)

    class Identity:
        def in_batches(self, params, x):
            return x

    x = torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 0]])
    y = torch.tensor([0, 1, 2])
    message = shared([True, True, False, False])  # class 2 is unknown: its sample does not count
    after, upload = clientCRL.local_end(Identity(), {}, (x, y), message, state(0.0, 0.0), hp)
    assert after["loss"].item() == pytest.approx(math.log(1 + math.exp(-2)), rel=1e-5)  # cosines 1 and 0, tau 1/2
    assert after["measured"] == 1
    assert upload.keys() == {"embeddings"} and torch.equal(upload["embeddings"], x)
    for seen in ([True, False, False, False], [False, False, False, True]):  # no contrast; no sample of a known class
        kept, _ = clientCRL.local_end(Identity(), {}, (x, y), shared(seen), state(0.7), hp)
        assert kept["loss"] == torch.tensor(0.7) and kept["measured"] == 1


def test_representations_are_averaged_by_samples_and_absent_ones_kept(make_server):
    server = make_server("FedCRL", "-gr", "2", dataset="Skewed")
    server.select_clients = lambda: [server.clients[(1, 0, 2)[server.current_round]]]
    server.train()
    assert server.seen.tolist() == [True, True, False, False]  # client 2's upload of class 2 never came
    server = make_server("FedCRL", "-gr", "1", dataset="Skewed")
    original = server.aggregate_parameters
    expected = []

    def look():
        z, y = zip(*((c.forward.in_batches(c.params, c.data[0]), c.data[1]) for c in server.clients), strict=True)
        expected.append(torch.cat(z)[torch.cat(y) == 0].mean(0))
        original()

    server.aggregate_parameters = look
    server.train()
    assert torch.allclose(server.prototypes[0], expected[0], atol=1e-5)


def test_an_absent_client_is_mixed_from_its_own_weights_not_from_mixed_ones(make_server):
    server = make_server("FedCRL", "-gr", "3", "--crl_mix", "0.5")
    everybody = server.select_clients()
    server.select_clients = lambda: everybody if server.current_round == 0 else everybody[1:]
    server.train()
    absent, name = server.clients[0], "base.fc1.0.weight"
    expected = (absent.state[f"own.{name}"] + server.global_params[name]) / 2
    assert torch.allclose(absent.params[name], expected, atol=1e-7)


def test_mixing_weights_are_recorded(make_server):
    server = make_server("FedCRL", "-gr", "3", "-lr", "0.1")
    server.train()
    recorded = np.array(server.records["rs_crl_mix"])
    assert recorded.shape == (4, 4)
    assert (recorded[:2] == 1).all()  # no representation before round 1, no loss measured before the end of it
    assert ((recorded[2:] > 0) & (recorded[2:] < 1)).any()


@pytest.mark.parametrize(("flags", "prefixes"), [((), ("base.", "head.")), (("--crl_share", "base"), ("base.",))])
def test_bytes_are_the_shared_weights_and_the_representations(make_server, flags, prefixes):
    server = make_server("FedCRL", "-gr", "2", *flags, dataset="Skewed")
    server.train()
    size = sum(4 * value.numel() for name, value in server.global_params.items() if name.startswith(prefixes))
    held = sum(int(client.data[1].unique().numel()) for client in server.clients)
    assert server.records["rs_bytes_up"] == [4 * size + held * 512 * 4 + 4 * 4 * 8] * 2
    assert server.records["rs_bytes_down"] == [4 * size, 4 * (size + 4 * 512 * 4 + 4)]


def test_sharing_the_extractor_keeps_the_head_at_home(make_server):
    server = make_server("FedCRL", "--crl_share", "base")
    start = server.global_params["head.weight"].clone()
    server.train()
    assert torch.equal(server.global_params["head.weight"], start)
    assert not torch.equal(server.clients[0].params["head.weight"], server.clients[1].params["head.weight"])
    assert not any(name.startswith("own.head") for name in server.clients[0].state)


def test_it_says_that_it_is_a_reconstruction():
    for path in ("clients/clientcrl.py", "servers/servercrl.py"):
        assert "RECONSTRUCTION FROM THE ABSTRACT" in (REPO / "system" / "flcore" / path).read_text().split('"""')[1]
    assert registry.find("FedCRL").reconstruction is True


def test_batchnorm_is_mixed_and_its_counter_taken_over(make_server):
    server = make_server("FedCRL", "-gr", "2", "-lbs", "4", dataset="Colour", model="ResNet18")
    server.train()
    assert all(torch.isfinite(value).all() for value in server.clients[0].params.values())
    assert (
        server.clients[0].params["base.bn1.num_batches_tracked"] == server.global_params["base.bn1.num_batches_tracked"]
    )


@pytest.mark.parametrize("text", ["1.5", "-0.1", "nan", "global"])
def test_a_wrong_mix_is_refused(make_server, text):
    with pytest.raises(UsageError, match="--crl_mix: must be"):
        make_server("FedCRL", "--crl_mix", text)
