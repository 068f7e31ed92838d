"""Networks of users: trained with the same numbers by every executor, or refused in one line before any training."""

import pytest
import torch

from flcore.executors.loop import LoopExecutor
from flcore.executors.stacked import Stack, StackedExecutor
from flcore.executors.threads import ThreadsExecutor
from flcore.experiment import Experiment
from flcore.registry import METHODS
from flcore.trainmodel.forward import tensors_of
from flcore.utils.errors import UsageError
from support import SHORT, same_tensors
from support.networks import LOOP, REFUSED, TRAINED, AllAtOnce, Base, Dropout, Frozen, FrozenHead, FrozenNorm


@pytest.fixture
def make(data_root, caplog):
    """``make(Net, "FedCPD", executor)`` -> a server ready to train."""
    caplog.set_level("INFO", "flcore")

    def server(model, algorithm="FedCPD", executor=None, rounds=2, **settings):
        settings = {"dataset": "Skewed", "data_dir": str(data_root), "device": "cpu", "executor": "loop", **settings}
        experiment = Experiment(algorithm=algorithm, model=model, global_rounds=rounds, results_dir=None, **settings)
        made = experiment.server(module_seed=0)
        made.executor = executor or LoopExecutor()
        return made

    return server


def everything(server):
    """All that training has made, as one dict."""
    found = {f"server.{name}": value for name, value in server.global_params.items()}
    for client in server.clients:
        for part in ("params", "state"):
            found |= {f"{client.id}.{part}.{name}": value for name, value in getattr(client, part).items()}
    return found


def trained(make, *how, **settings):
    server = make(*how, **settings)
    server.train()
    return server


def assert_close(ours, loops, within=1e-4):
    assert ours.keys() == loops.keys()
    for name, value in loops.items():
        torch.testing.assert_close(
            ours[name], value, rtol=within, atol=within, msg=lambda found, of=name: f"{of}: {found}"
        )


@pytest.mark.parametrize("network", TRAINED)
def test_an_odd_network_trains_the_same_in_every_executor(make, caplog, network):
    loop, threads, stacked = (
        trained(make, network, "FedCPD", executor, cpd_width=4, local_learning_rate=0.005)
        for executor in (LoopExecutor(), ThreadsExecutor(2), StackedExecutor())
    )
    expected = everything(loop)
    assert same_tensors(everything(threads), expected)
    assert_close(everything(stacked), expected)
    assert ("stacked:" in caplog.text) is (network.__name__ in LOOP)
    fresh = make(network, cpd_width=4)  # what lends its structure keeps its own tensors
    assert same_tensors(*(tensors_of(server.clients[0].forward.net) for server in (loop, fresh)))
    moved = [client.params["head.weight"] for client in loop.clients]
    assert not torch.equal(moved[0], moved[1])


@pytest.mark.parametrize(("network", "reason"), REFUSED)
def test_a_network_that_cannot_be_trained_is_refused_in_one_line(make, network, reason):
    with pytest.raises(UsageError, match=reason) as error:
        make(network)
    assert "\n" not in str(error.value) and network.__name__ in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "within"),
    [({}, 1e-4), ({"optimizer": "adam", "weight_decay": 0.01}, 1e-2)],  # Adam makes whole steps of what is rounding
    ids=["sgd", "adam"],
)
@pytest.mark.parametrize("algorithm", [method.name for method in METHODS])
def test_every_method_trains_the_oddest_network(make, caplog, generator_file, algorithm, settings, within):
    flags = SHORT.get(algorithm, ())
    settings = settings | {name.strip("-"): int(value) for name, value in zip(flags[::2], flags[1::2], strict=True)}
    if algorithm == "FedKTL":
        settings |= {"generator": str(generator_file), "noise_dim": 6}
    loop, threads, stacked = (
        trained(make, AllAtOnce, algorithm, executor, local_learning_rate=0.001, **settings)
        for executor in (LoopExecutor(), ThreadsExecutor(2), StackedExecutor())
    )
    assert same_tensors(everything(threads), everything(loop))
    assert_close(everything(stacked), everything(loop), within)
    assert "stacked:" not in caplog.text


# ---- frozen parts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("algorithm", "sent"), [("FedAvg", True), ("FedRep", False), ("Ditto", False)])
def test_frozen_weights_stay_and_travel_only_with_all_weights(make, algorithm, sent):
    server = make(Frozen, algorithm)
    before = {name: value for name, value in server.global_params.items() if name.startswith("base.one")}
    values = {name: value.clone() for name, value in before.items()}
    server.train()
    for client in server.clients:
        assert len(before) == 2 and all(torch.equal(client.params[name], value) for name, value in values.items())
        assert client.params["base.one.weight"].data_ptr() == before["base.one.weight"].data_ptr()  # one in memory
    assert ("base.one.weight" in server.last_message) is sent
    assert "base.two.weight" in server.last_message


def test_frozen_weights_are_not_counted(make):
    """FedRep sends the extractor: 4 * 25 + 4 weights of the first convolution, 4 * 4 * 9 + 4 of the second."""
    whole, frozen = (trained(make, network, "FedRep", rounds=1) for network in (Base, Frozen))
    clients = len(whole.clients)
    assert whole.records["rs_bytes_up"] == [4 * clients * (104 + 148)]
    assert frozen.records["rs_bytes_up"] == frozen.records["rs_bytes_down"] == [4 * clients * 148]


@pytest.mark.parametrize("algorithm", ["FedAvg", "FedCPD"])  # the second has a teacher in evaluation mode
def test_batchnorm_with_frozen_weights_keeps_its_statistics(make, algorithm):
    server = trained(make, FrozenNorm, algorithm)
    norm = {name: value for name, value in server.clients[0].params.items() if "running" in name or "num_b" in name}
    assert [float(value.sum()) for value in norm.values()] == [0, 4, 0]


@pytest.mark.parametrize("algorithm", ["FedPA", "FedRep", "FedALA"])
def test_a_frozen_head_stays_as_it_is(make, algorithm):
    more = {"pa_gen_steps": 2, "pa_steps": 2} if algorithm == "FedPA" else {}
    server = trained(make, FrozenHead, algorithm, **more)
    heads = [client.params["head.weight"] for client in server.clients]
    assert all(torch.equal(head, server.args.model.head.weight) for head in heads)


def test_a_head_that_the_server_trains_must_not_be_frozen(make):
    with pytest.raises(UsageError, match="FedGH trains the head"):
        make(FrozenHead, "FedGH")


# ---- dropout ---------------------------------------------------------------------------------------------------------


def test_dropout_is_keyed_by_client_and_round_and_off_in_evaluation(make):
    server = make(Dropout, "FedAvg", local_epochs=2)
    server.train()
    client = server.clients[0]
    assert client.test_metrics() == client.test_metrics()

    def again(round):
        client.round = round
        client.params = server.global_params
        client.train()
        return client.params

    first = again(1)
    torch.rand(100)  # what others draw does not matter
    assert same_tensors(first, again(1)) and not same_tensors(first, again(2))


def test_dropout_leaves_out_the_share_that_it_says(make):
    """A mask of 0 and 2 with p = 1/2, whose mean is 1: over 36 * 23 draws within 4 standard deviations (1/29)."""
    from flcore.trainmodel.draws import drawing

    forward = make(Dropout, "FedAvg").clients[0].forward
    forward.set_training(("",))
    with drawing(forward, [torch.Generator().manual_seed(0)]):
        mask = forward.call("base.drop", {}, torch.ones(23, 36))
    assert set(mask.unique().tolist()) == {0.0, 2.0} and abs(float(mask.mean()) - 1) < 4 / 29
    with drawing(forward, [torch.Generator().manual_seed(0)]):
        assert torch.equal(forward.call("base.drop", {}, torch.ones(23, 36)), mask)


@pytest.mark.parametrize("algorithm", ["FedCP", "FedPA", "MOON", "Ditto", "FedGH"])
def test_dropout_in_methods_with_draws_and_models_of_their_own(make, algorithm):
    more = {"server_epochs": 2} if algorithm == "FedGH" else {"pa_gen_steps": 2} if algorithm == "FedPA" else {}
    loop, stacked = (
        trained(make, Dropout, algorithm, executor, **more) for executor in (LoopExecutor(), StackedExecutor())
    )
    assert_close(everything(stacked), everything(loop))


# ---- local optimisers ------------------------------------------------------------------------------------------------


OPTIMIZERS = [
    {"optimizer": "adam", "weight_decay": 0.01},
    {"optimizer": "adamw", "weight_decay": 0.1},
    {"local_momentum": 0.9, "weight_decay": 0.01},
]


@pytest.mark.parametrize("settings", OPTIMIZERS)
@pytest.mark.parametrize("algorithm", ["FedRep", "FedProx"])
def test_an_optimiser_moves_the_same_in_every_executor(make, caplog, algorithm, settings):
    settings = {"local_learning_rate": 0.003, "local_epochs": 2, **settings}
    loop, threads, stacked = (
        trained(make, Base, algorithm, executor, **settings)
        for executor in (LoopExecutor(), ThreadsExecutor(2), StackedExecutor(3))
    )
    assert same_tensors(everything(threads), everything(loop))
    assert_close(everything(stacked), everything(loop), within=2e-3)  # Adam divides small numbers by small ones
    assert "stacked:" not in caplog.text


@pytest.mark.parametrize("settings", OPTIMIZERS)
def test_a_round_is_what_torch_optim_makes_of_it(make, settings):
    """FedRep by hand with torch.optim: a fresh optimiser for the head's phase, and another for the extractor's."""
    server = make(Base, "FedRep", local_learning_rate=0.01, **settings)
    server.current_round, server.selected_clients = 0, server.clients
    server.send_models()
    client = server.clients[0]
    net = client.weights.module
    own = {"lr": 0.01, "weight_decay": settings["weight_decay"]}
    batches = client.load_train_data()
    for part in (net.head, net.base):
        if settings.get("optimizer") is None:
            optimizer = torch.optim.SGD(part.parameters(), momentum=0.9, **own)
        else:
            make_one = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings["optimizer"]]
            optimizer = make_one(part.parameters(), **own)
        for x, y in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    by_hand = {name: value.clone() for name, value in net.state_dict().items()}
    fresh = make(Base, "FedRep", local_learning_rate=0.01, **settings)
    fresh.current_round, fresh.selected_clients = 0, fresh.clients
    fresh.send_models()
    fresh.clients[0].train()
    assert_close(fresh.clients[0].params, by_hand, within=1e-5)


def test_momentum_is_refused_where_it_does_nothing(make):
    with pytest.raises(UsageError, match="--local_momentum is for --optimizer sgd"):
        make(Base, optimizer="adam", local_momentum=0.9)


def test_frozen_weights_are_not_stacked(make):
    """Of 400 weights 104 are frozen: a stack holds the others of every client, and these once."""
    server = make(Frozen, "FedAvg")
    server.current_round, server.selected_clients = 0, server.clients
    server.send_models()
    run = Stack([(client, client.load_train_data()) for client in server.clients])
    clients = len(server.clients)
    assert sum(value.numel() for value in run.params.values()) == 296 * clients
    assert {name: value.numel() for name, value in run.common.items()} == {"base.one.weight": 100, "base.one.bias": 4}
    StackedExecutor().train(server.clients, lambda: None)
    last = server.clients[-1].params
    assert (
        list(last) == list(server.global_params) and last["base.one.bias"] is server.clients[0].params["base.one.bias"]
    )
