"""What methods declare of themselves is true, for every line of the registry."""

import pytest

from flcore.clients.clientavg import clientAVG
from flcore.clients.clientbase import Client
from flcore.clients.clientcp import clientCP
from flcore.clients.localrule import LocalRule
from flcore.registry import METHODS
from flcore.servers.serveravg import FedAvg
from flcore.servers.serverbase import Server
from flcore.utils.errors import UsageError
from support import SHORT, same_tensors

NAMES = [line.name for line in METHODS]
QUICK = ("-gr", "2", "-jr", "0.75")


@pytest.mark.parametrize("algorithm", NAMES)
def test_what_a_download_replaces_is_not_needed_before_it(make_server, algorithm):
    server = make_server(algorithm, *QUICK, *SHORT.get(algorithm, ()), model="DNN")
    next(server.each_round())
    messages = []
    server.broadcast, server.current_round = messages.append, 1
    server.send_models()
    for client in server.clients:
        kept = client.params, client.state, client.shared
        client.receive(messages[0], 1)
        params, state = client.params, client.state
        client.params, client.state, client.shared = kept
        client.release()
        client.receive(messages[0], 1)
        assert same_tensors(client.params, params) and same_tensors(client.state, state)


def overrides(own, base, *names):
    return any(getattr(own, name) is not getattr(base, name) for name in names)


@pytest.mark.parametrize("algorithm", NAMES)
def test_declared_is_what_is_overridden(make_server, algorithm):
    server = make_server(algorithm, *QUICK, *SHORT.get(algorithm, ()), model="DNN")
    rule = type(server.clients[0])
    assert rule.corrects == overrides(rule, LocalRule, "local_grad")
    assert rule.scored_by_rule != overrides(rule, Client, "test_metrics", "scores", "scores_of", "_predict")
    assert rule.parallel and not rule.own_training and not server.own_loop


def test_a_class_that_does_not_say_gets_the_safe_value():
    class Mixed(clientAVG):
        @staticmethod
        def local_begin(forward, params, received, data, shared, state, hp):
            return {name: (params[name] + value) / 2 for name, value in received.items()}

        @staticmethod
        def local_grad(grads, params, shared, state, hp):
            return grads

        def scores_of(self, x):
            return super().scores_of(x)

    class Adds:
        def receive(self, message, current_round):
            super().receive(message, current_round)

    class ByMixin(Adds, clientCP):
        pass

    assert (Mixed.replaced, Mixed.corrects, Mixed.scored_by_rule) == ((), True, False)
    assert (clientAVG.replaced, clientAVG.corrects, clientAVG.scored_by_rule) == (("",), False, True)
    assert (ByMixin.replaced, clientCP.replaced) == ((), ("base.", "cpn."))


def test_a_class_with_a_train_of_its_own_is_hosted():
    class Pair(Client):
        def train(self):
            pass

    class Heir(Pair):
        pass

    class Loop(Server):
        def train(self):
            pass

    assert all(one.own_training and not (one.parallel or one.stackable or one.scored_by_rule) for one in (Pair, Heir))
    assert Loop.own_loop and not FedAvg.own_loop and not clientAVG.own_training


def test_clients_with_their_own_training_need_a_server_with_its_own_loop(make_server, pfllib_pair):
    server = make_server("FedAvg")
    with pytest.raises(UsageError, match="clientAVG brings its own training, but FedAvg has no `train`"):
        server.set_clients(pfllib_pair.clientAVG)
