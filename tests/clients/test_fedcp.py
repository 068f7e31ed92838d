"""FedCP: the conditional policy, its noise, and what becomes of the two heads."""

import pytest
import torch
from torch.nn import functional as F

from flcore.clients.clientcp import clientCP, context
from support import same_tensors


def test_context_by_hand():
    """Column sums (3, 4) have length 5."""
    assert torch.allclose(
        context({"head.weight": torch.tensor([[1.0, 2.0], [2.0, 2.0]])})["context"], torch.tensor([0.6, 0.8])
    )
    assert torch.equal(context({"head.weight": torch.tensor([[1.0, -1.0], [-1.0, 1.0]])})["context"], torch.zeros(2))


def test_training_never_moves_the_context(make_server):
    """Over the classes the gradients of a cross-entropy sum to 0, so that taking it once is taking it every round."""
    server = make_server("FedCP", "-lr", "0.5", "-gr", "3", model="DNN")
    start = server.clients[0].params["head.weight"]
    server.train()
    for client in server.clients:
        head = client.params["head.weight"]
        assert (head - start).abs().max() > 0.1
        assert torch.allclose(F.normalize(head.sum(0), dim=0), client.state["context"], atol=1e-4)


def test_policy_network_has_the_published_size(make_server):
    client = make_server("FedCP").clients[0]
    assert sum(v.numel() for name, v in client.params.items() if name.startswith("cpn.")) == 527_360


def test_loss_splits_every_feature_between_the_two_heads(make_server):
    server = make_server("FedCP", "-lam", "2", "-gr", "2", model="DNN")
    server.train()
    client, hp = server.clients[0], server.clients[0].hp
    x, y = client.data
    params = {name: value + 0.01 for name, value in client.params.items()}
    gumbel = torch.randn(len(y), 2, 100)
    state = {**client.state, "gumbel": gumbel}
    loss = client.local_loss(client.forward, params, x, y, client.shared, state, hp)

    net = client.forward.net
    net.load_state_dict(params)
    z = net.base(x)
    v = params["head.weight"].new_tensor(client.state["context"].tolist())
    assert v.norm().item() == pytest.approx(1, abs=1e-5)
    scores = net.cpn(z * v)
    # of a pair with Gumbel numbers the softmax is a logistic function of the differences
    r = torch.sigmoid(scores[:, :100] - scores[:, 100:] + gumbel[:, 0] - gumbel[:, 1])
    own = net.head(z * r)
    quiet = torch.sigmoid(scores[:, :100] - scores[:, 100:])
    quiet_own = net.head(z * quiet)
    net.load_state_dict({**params, **{name: value for name, value in client.shared.items()}})
    reference, common, quiet_common = net.base(x), net.head(z * (1 - r)), net.head(z * (1 - quiet))

    def kernel(a, b):
        squares = torch.cdist(a, b) ** 2
        return sum(torch.exp(-squares / (2 * width)) for width in (10, 15, 20, 50)).mean()

    mmd = kernel(z, z) + kernel(reference, reference) - 2 * kernel(z, reference)
    assert mmd > 0
    assert loss.item() == pytest.approx((F.cross_entropy(own + common, y) + 2 * mmd).item(), rel=1e-4)
    scored = client.local_predict(client.forward, params, x, client.shared, client.state, hp)
    assert torch.allclose(scored, quiet_own + quiet_common, atol=1e-4)


def test_noise_is_gumbels_and_evaluation_is_its_median(make_server):
    client = make_server("FedCP", model="DNN").clients[0]
    noise = client.local_draw(client.draws(), client.forward, 400, client.hp)["gumbel"]
    assert noise.shape == (400, 2, 100)
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)  # Euler's constant
    assert noise.var().item() == pytest.approx(torch.pi**2 / 6, abs=0.05)
    drawn = torch.sigmoid(0.8 + noise[:, 0] - noise[:, 1])
    assert drawn.median().item() == pytest.approx(torch.sigmoid(torch.tensor(0.8)).item(), abs=0.01)


def test_noise_is_keyed_by_client_and_round_and_new_in_every_step(make_server):
    server = make_server("FedCP", model="DNN")

    def draw(client, current_round, steps=1):
        client.round = current_round
        generator = client.draws()
        return [client.local_draw(generator, client.forward, 3, client.hp)["gumbel"] for _ in range(steps)]

    one, other = server.clients[:2]
    first, second = draw(one, 0, steps=2)
    assert torch.equal(first, draw(one, 0)[0])
    assert not any(torch.equal(first, noise) for noise in (second, draw(one, 1)[0], draw(other, 0)[0]))


def test_training_draws_and_evaluation_does_not(make_server):
    server = make_server("FedCP", "-gr", "2", model="DNN")
    server.train()
    client = server.clients[0]
    torch.manual_seed(1)
    before, _ = client.scores(is_train=False)
    torch.manual_seed(2)
    assert torch.equal(client.scores(is_train=False)[0], before)
    assert "gumbel" not in client.state

    class Noiseless(clientCP):
        @staticmethod
        def local_draw(generator, forward, size, hp):
            return {"gumbel": torch.zeros(())}

    quiet = make_server("FedCP", "-gr", "2", model="DNN")
    quiet.set_clients(Noiseless)
    quiet.train()
    assert not same_tensors(quiet.global_params, server.global_params)


def test_the_mixed_head_goes_up_and_the_personal_one_stays(make_server):
    server = make_server("FedCP", "-gr", "2", model="DNN")
    seen, collect = [], server.receive_models

    def look():
        collect()
        for client, upload in zip(server.clients, server.uploaded_models, strict=True):
            for name in ("head.weight", "head.bias"):
                assert torch.allclose(upload[name], 0.5 * client.params[name] + 0.5 * client.shared[name])
                assert not torch.equal(upload[name], client.params[name])
        seen.append([client.params["head.weight"] for client in server.clients])

    server.receive_models = look
    server.train()
    for client, head in zip(server.clients, seen[-1], strict=True):  # after one more download
        assert torch.equal(client.params["head.weight"], head)
        assert torch.equal(client.shared["head.weight"], server.global_params["head.weight"])


def test_absent_clients_get_head_and_policy_too(make_server):
    server = make_server("FedCP", "-gr", "1", model="DNN")
    server.select_clients = lambda: server.clients[:1]
    server.train()
    for client in server.clients:
        assert torch.equal(client.params["cpn.0.weight"], server.global_params["cpn.0.weight"])
        assert torch.equal(client.shared["head.weight"], server.global_params["head.weight"])


def test_training_loss_is_recorded_and_auto_break_honoured(make_server):
    server = make_server("FedCP", "-gr", "50", "-ab", "-tc", "2", model="DNN")
    server.test_metrics = lambda: ([0, 1, 2, 3], [9, 8, 6, 5], [3] * 4, [1.0] * 4)  # never better than at first
    server.train()
    assert server.records["rs_round"] == [0, 1, 2]
    assert len(server.rs_train_loss) == 2 and all(loss > 0 for loss in server.rs_train_loss)
