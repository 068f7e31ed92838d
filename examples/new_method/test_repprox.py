"""FedRepProx: a number to redo by hand, and the identity mu = 0."""

import torch

from flcore.clients.clientrepprox import RepProxSettings, clientRepProx


def test_the_pull_is_towards_what_was_received():
    received = {"base.weight": torch.tensor([1.0, 2.0])}
    params = {"base.weight": torch.tensor([1.5, 2.0]), "head.weight": torch.tensor([3.0])}
    grads = {"base.weight": torch.tensor([0.1, 0.1]), "head.weight": torch.tensor([0.2])}
    found = clientRepProx.local_grad(grads, params, received, {}, RepProxSettings(mu=2.0))
    # 0.1 + 2 * (1.5 - 1.0) and 0.1 + 2 * 0; the head is not in the message
    torch.testing.assert_close(found["base.weight"], torch.tensor([1.1, 0.1]))
    torch.testing.assert_close(found["head.weight"], torch.tensor([0.2]))


def test_without_the_term_it_is_fedrep(make_server):
    rep, repprox = make_server("FedRep"), make_server("FedRepProx", "--mu", "0")
    rep.train(), repprox.train()
    assert rep.rs_test_acc == repprox.rs_test_acc and rep.rs_train_loss == repprox.rs_train_loss
