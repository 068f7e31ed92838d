"""What holds for FedProx, FedPer, MOON, Ditto, FedDBE, GPFL and FedCP alike."""

import pytest
import torch
from torch.func import grad_and_value, vmap

METHODS = ["FedProx", "FedPer", "MOON", "Ditto", "FedDBE", "GPFL", "FedCP"]


@pytest.mark.parametrize("algorithm", METHODS)
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
