"""What holds for FedProx, FedPer, MOON, Ditto, FedDBE, GPFL and FedCP alike."""

import pytest
import torch
from torch.func import grad_and_value, vmap

THETA, EXTRACTOR = ("base.", "head."), ("base.",)
TRAVELS = {
    "FedProx": THETA,
    "FedPer": EXTRACTOR,
    "MOON": THETA,
    "Ditto": THETA,
    "FedDBE": THETA,
    "GPFL": (*EXTRACTOR, "gce.", "cov."),
    "FedCP": (*THETA, "cpn."),
}


EXTRA = {"GPFL": 527_360 + 4 * 512, "FedCP": 527_360}  # floats beside the network's, for FedAvgCNN's K = 512, 4 classes


@pytest.mark.parametrize(("algorithm", "prefixes"), TRAVELS.items())
def test_bytes_are_those_of_the_specification(make_server, algorithm, prefixes):
    server = make_server(algorithm, "-jr", "0.5", "-gr", "2")
    own = tuple(prefix for prefix in prefixes if prefix in THETA)
    floats = sum(v.numel() for name, v in server.global_params.items() if name.startswith(own)) + EXTRA.get(
        algorithm, 0
    )
    server.train()
    assert server.records["rs_bytes_down"][-1] == server.records["rs_bytes_up"][-1] == 2 * 4 * floats


@pytest.mark.parametrize("algorithm", TRAVELS)
@pytest.mark.parametrize("flags", [("-jr", "0.3"), ("-cdr", "0.5", "-lbs", "100"), ("-lbs", "1", "-jr", "0.5")])
def test_runs_with_partial_participation_and_missing_classes(make_server, algorithm, flags):
    server = make_server(algorithm, *flags, "-gr", "2", dataset="Skewed", model="DNN")
    server.train()
    for client in server.clients:
        assert all(value.isfinite().all() for value in (*client.params.values(), *client.state.values()))
        assert client.scores(is_train=False)[0].isfinite().all()
    assert all(loss == loss for loss in server.rs_train_loss)


@pytest.mark.parametrize("algorithm", TRAVELS)
def test_with_one_client_the_average_is_its_upload(make_server, algorithm):
    server = make_server(algorithm, "-gr", "2", dataset="Single", model="DNN")
    server.train()
    (upload,) = server.uploaded_models
    for name, value in upload.items():
        assert torch.allclose(server.global_params[name], value, atol=1e-7), name


@pytest.mark.parametrize("algorithm", TRAVELS)
def test_nobody_shares_memory_that_training_changes(make_server, algorithm):
    server = make_server(algorithm, "-gr", "1", model="DNN")
    server.train()
    common = {name: value.clone() for name, value in server.global_params.items()}
    other = {name: value.clone() for name, value in server.clients[1].params.items()}
    server.clients[0].train()
    assert all(torch.equal(server.global_params[name], value) for name, value in common.items())
    assert all(torch.equal(server.clients[1].params[name], value) for name, value in other.items())


@pytest.mark.parametrize("algorithm", TRAVELS)
def test_the_rule_runs_under_vmap_as_in_the_loop(make_server, algorithm):
    """Losses, gradients and running statistics of all clients in one call, for every phase of the plan."""
    server = make_server(algorithm, "-gr", "1", model="DNN")
    server.train()
    clients = server.clients
    one, hp, shared, rule = clients[0].forward, clients[0].hp, clients[0].shared, type(clients[0])
    x, y = (torch.stack([client.data[i][:5] for client in clients]) for i in (0, 1))
    states = [{**client.state, **rule.local_draw(client.draws(), one, 5, hp)} for client in clients]

    def stack(dicts, names):
        return {name: torch.stack([tensors[name] for tensors in dicts]) for name in names}

    for phase in rule.local_plan(hp):
        loss_of = phase.loss or rule.local_loss
        one.set_training(phase.moves)
        moving = [name for name in clients[0].trainable if name.startswith(phase.moves)]
        fixed = [name for name in clients[0].params if name not in moving]
        copies = [{name: value.clone() for name, value in client.params.items()} for client in clients]

        def loss(moving, fixed, state, x, y, loss_of=loss_of):
            return loss_of(one, {**moving, **fixed}, x, y, shared, state, hp)

        still = stack(copies, fixed)
        grads, losses = vmap(grad_and_value(loss))(stack(copies, moving), still, stack(states, states[0]), x, y)
        for i, (params, state) in enumerate(zip(copies, states, strict=True)):
            moves, rest = ({name: params[name] for name in names} for names in (moving, fixed))
            expected, value = grad_and_value(loss)(moves, rest, state, x[i], y[i])
            assert losses[i].item() == pytest.approx(value.item(), rel=1e-5)
            for name, gradient in expected.items():
                assert torch.allclose(grads[name][i], gradient, atol=1e-5, rtol=1e-3), name
            for name, buffer in rest.items():  # FedDBE's running mean moves
                assert torch.allclose(still[name][i], buffer, atol=1e-6), name
