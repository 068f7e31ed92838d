"""Ditto: a personal model held near the global one, and a global copy that knows nothing of it."""

import pytest
import torch

from flcore.clients.clientditto import DittoSettings, clientDitto
from flcore.trainmodel.forward import subset
from support import same_tensors


def test_the_pull_by_hand():
    """Gradient 2, personal weight 3, received 1, mu 1/2: 2 + 1/2 * (3 - 1) = 3; the global copy's stays 2."""
    two, three, one, nine = map(torch.tensor, (2.0, 3.0, 1.0, 9.0))
    grads = clientDitto.local_grad(
        {"personal.w": two, "w": two}, {"personal.w": three, "w": nine}, {"w": one}, {}, DittoSettings(mu=0.5)
    )
    assert grads == {"personal.w": 3, "w": 2}  # towards the received weight 1, not the copy's present 9


@pytest.mark.parametrize("flags", [(), ("-jr", "0.5", "-ls", "2", "-pls", "2")])
def test_mu_0_makes_the_personal_model_a_local_one_bit_for_bit(make_server, flags):
    ditto, alone = make_server("Ditto", "-mu", "0", *flags, model="DNN"), make_server("Local", *flags, model="DNN")
    ditto.train()
    alone.train()
    for client, other in zip(ditto.clients, alone.clients, strict=True):
        assert same_tensors(subset(client.params, "personal."), other.params)
    assert ditto.rs_test_acc == alone.rs_test_acc
    assert ditto.records["rs_test_acc_after"] == alone.records["rs_test_acc_after"]


def test_without_personal_epochs_the_global_copy_is_fedavg_bit_for_bit(make_server):
    ditto, avg = make_server("Ditto", "-pls", "0", model="DNN"), make_server("FedAvg", model="DNN")
    start = subset(ditto.clients[0].params, "personal.")
    ditto.train()
    avg.train()
    for name, value in avg.global_params.items():
        assert torch.equal(ditto.global_params[name], value)
    assert ditto.rs_train_loss == avg.rs_train_loss
    assert all(same_tensors(subset(client.params, "personal."), start) for client in ditto.clients)


def test_the_global_copy_feels_nothing_of_mu_and_the_personal_model_does(make_server):
    servers = [make_server("Ditto", *flags, model="DNN") for flags in ((), ("-mu", "0"), ("-mu", "50"))]
    for server in servers:
        server.train()
    default, none, strong = servers
    assert same_tensors(default.global_params, none.global_params)
    assert same_tensors(default.global_params, strong.global_params)

    def distance(server):
        client = server.clients[0]
        return (client.params["personal.base.fc1.weight"] - client.params["base.fc1.weight"]).norm()

    assert distance(none) > distance(default) > distance(strong)


def test_scores_are_the_personal_models_and_one_an_evaluation(make_server):
    server = make_server("Ditto", "-gr", "2", model="DNN")
    server.train()
    assert len(server.rs_test_acc) == len(server.rs_test_auc) == 3 and len(server.rs_train_loss) == 2
    client = server.clients[0]
    scores, _ = client.scores(is_train=False)
    x, _ = client.tensors(is_train=False)
    hidden = (
        x.flatten(1) @ client.params["personal.base.fc1.weight"].T + client.params["personal.base.fc1.bias"]
    ).relu()
    expected = hidden @ client.params["personal.head.weight"].T + client.params["personal.head.bias"]
    assert torch.allclose(scores, expected, atol=1e-5)


def test_patience_counts_evaluations_once(make_server):
    server = make_server("Ditto", "-gr", "50", "-ab", "-tc", "2", model="DNN")
    server.test_metrics = lambda: ([0, 1, 2, 3], [9, 8, 6, 5], [3] * 4, [1.0] * 4)  # never better than at first
    server.train()
    assert server.records["rs_round"] == [0, 1, 2]


def test_personal_models_stay_at_home_and_absent_clients_keep_theirs(make_server):
    server = make_server("Ditto", "-gr", "2", model="DNN")
    start = server.clients[0].params["personal.head.weight"]
    assert torch.equal(start, server.clients[0].params["head.weight"])  # the common initial weights
    server.select_clients = lambda: server.clients[:2]
    server.train()
    assert not any(name.startswith("personal.") for upload in server.uploaded_models for name in upload)
    personal = [client.params["personal.head.weight"] for client in server.clients]
    assert [torch.equal(value, start) for value in personal] == [False, False, True, True]
    assert not torch.equal(personal[0], personal[1])
    assert len({client.params["head.weight"].sum().item() for client in server.clients}) == 1


def test_a_model_with_feature_maps_and_batchnorm_can_be_doubled(make_server):
    server = make_server("Ditto", "-gr", "1", "-lbs", "4", dataset="Colour", model="ResNet18")
    server.train()
    client = server.clients[0]  # 8 samples, two batches in each phase; each phase moves its own statistics
    assert server.uploaded_models[0]["base.bn1.num_batches_tracked"] == 2
    assert client.params["personal.base.bn1.num_batches_tracked"] == 2
