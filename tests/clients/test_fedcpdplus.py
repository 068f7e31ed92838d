"""FedCPD+: FedCPD that predicts by a head in closed form."""

import pytest
import torch

from flcore.trainmodel.closed_form import ridge_classifier
from flcore.utils.errors import RunError
from support import same_tensors

AS_FEDCPD = ("--cpd_fd", "1", "--cpd_align", "1", "-gr", "2")


def test_it_trains_as_fedcpd_does(make_server):
    """With FedCPD's weights all that trains and travels is the same to the bit."""
    plain, server = make_server("FedCPD", *AS_FEDCPD), make_server("FedCPD+", *AS_FEDCPD)
    for each in (plain, server):
        each.train()
    assert same_tensors(server.shared_weights(), plain.shared_weights())
    assert torch.equal(server.prototypes, plain.prototypes)
    for one, other in zip(server.clients, plain.clients, strict=True):
        assert same_tensors({name: one.params[name] for name in other.params}, other.params)


def scores_by_hand(client):
    """Of its test data, by the extractor that the client has now."""
    x, y = client.tensors(is_train=True)
    z = client.forward.in_batches(client.params, x)
    weight, bias = ridge_classifier(z, y, client.num_classes, client.hp.cpd_ridge)
    return client.forward.in_batches(client.params, client.tensors(is_train=False)[0]) @ weight.T + bias


def test_it_predicts_by_the_present_extractor_before_and_after_training(make_server):
    server = make_server("FedCPD+", "-gr", "1", "--cpd_ridge", "0.5")
    server.send_models()
    client = server.clients[0]
    before = client.scores(is_train=False)[0]
    torch.testing.assert_close(before, scores_by_hand(client))
    client.train()
    after = client.scores(is_train=False)[0]
    torch.testing.assert_close(after, scores_by_hand(client))
    assert not torch.equal(before, after)


def test_a_diverged_client_is_left_out(make_server):
    server = make_server("FedCPD+", "-lr", "1e8", "-gr", "1")
    with pytest.raises(RunError, match="no participant is left"):
        server.train()
    assert server.round_uploads.left_out == {0, 1, 2, 3}


def test_distillation_is_off_by_default_and_can_be_switched_on(make_server):
    assert not make_server("FedCPD+").clients[0].state
    assert "taught" in make_server("FedCPD+", "--cpd_fd", "1").clients[0].state


def test_a_client_without_training_samples_is_scored(make_server):
    client = make_server("FedCPD+").clients[0]
    x, y = client.data
    client._tensors[True] = x[:0], y[:0]
    client.receive({}, 0)
    assert not client.scores(is_train=False)[0].any()
