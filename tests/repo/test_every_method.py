"""What holds for every registered method: a new one is tested here by its registry line, and names what it sends."""

import math

import pytest
import torch

from flcore.registry import METHODS
from support import same_tensors

NAMES = [line.name for line in METHODS]
QUICK = {"FedPA": ["--pa_gen_steps", "4"], "FedHKD": ["--hkd_nu", "0"]}  # nu 0: also classes with few samples travel
SERVER_TRAINING = {"FedGH", "FedTGP", "FedKTL"}

# What a client gets from the second round on, and what it sends. "prototypes" means C rows of so many floats with C
# flags downwards; upwards the rows of the classes held, with C counts of 8 bytes.
MODEL, EXTRACTOR, HEAD = ("base.", "head."), ("base.",), ("head.",)
TRAVELS = {  # weights down, weights up, width of the prototypes
    "Local": ((), (), 0),
    "FedAvg": (MODEL, MODEL, 0),
    "FedProx": (MODEL, MODEL, 0),
    "FedPer": (EXTRACTOR, EXTRACTOR, 0),
    "FedRep": (EXTRACTOR, EXTRACTOR, 0),
    "FedProto": ((), (), 512),
    "FedGH": (HEAD, (), 512),
    "FedALA": (MODEL, MODEL, 0),
    "FedPA": ((*MODEL, "generator."), MODEL, 512),
    "FedProc": ((*EXTRACTOR, "projection.", "classifier."),) * 2 + (256,),
    "FedCRL": (MODEL, MODEL, 512),
    "FedTGP": ((), (), 512),
    "FedHKD": (MODEL, MODEL, 512 + 4),  # a class's mean embedding and prediction
    "FedKTL": ((), (), 4),  # points in the space of the classes, with C flags of a byte; down: see below
    "MOON": (MODEL, MODEL, 0),
    "Ditto": (MODEL, MODEL, 0),
    "FedCP": ((*MODEL, "cpn."),) * 2 + (0,),
    "GPFL": ((*EXTRACTOR, "gce.", "cov."),) * 2 + (0,),
    "FedDBE": (MODEL, MODEL, 0),
    "FedCPD": (EXTRACTOR, EXTRACTOR, 512),
    "FedCPD+": (EXTRACTOR, EXTRACTOR, 512),
}
CLIENTS, CLASSES = 4, 4  # of "Skewed"


@pytest.fixture
def make(make_server):
    """A server of the method whose own training is short."""

    def make_quick(algorithm, *flags, **options):
        server_flags = ["-se", "5"] if algorithm in SERVER_TRAINING else []
        return make_server(algorithm, *server_flags, *QUICK.get(algorithm, []), *flags, **options)

    return make_quick


def size_of(params, prefixes):
    return sum(v.numel() * v.element_size() for name, v in params.items() if prefixes and name.startswith(prefixes))


@pytest.mark.parametrize("algorithm", TRAVELS)
def test_bytes_are_those_of_the_specification(make, algorithm):
    server = make(algorithm, "-gr", "2", dataset="Skewed")
    held = sum(len(client.data[1].unique()) for client in server.clients)
    down, up, width = TRAVELS[algorithm]
    params = server.clients[0].params
    sent, received = CLIENTS * size_of(params, down), CLIENTS * size_of(params, up)
    if width:
        received += held * width * 4 + CLIENTS * CLASSES * (1 if algorithm == "FedKTL" else 8)
    if width and algorithm == "FedKTL":  # an image and its latent vector of 6 numbers for each of the 3 known classes
        sent += CLIENTS * 3 * (20 * 20 + 6) * 4
    elif width and algorithm != "FedGH":
        sent += CLIENTS * (CLASSES * width * 4 + CLASSES)
    server.train()
    assert (server.records["rs_bytes_down"][1], server.records["rs_bytes_up"][1]) == (sent, received)


@pytest.mark.parametrize("algorithm", NAMES)
def test_bytes_count_participants_only(make, algorithm):
    all_join, half = make(algorithm, "-gr", "2"), make(algorithm, "-gr", "2", "-jr", "0.5")
    all_join.train()
    half.train()
    assert half.records["rs_bytes_down"][1] * 2 == all_join.records["rs_bytes_down"][1]


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("flags", [("-jr", "0.3", "-cdr", "0.5"), ("-lbs", "1", "-jr", "0.5")])
def test_runs_with_few_participants_tiny_clients_and_missing_classes(make, algorithm, flags):
    """Nobody holds class 3, and one client has fewer samples than a batch of 10."""
    server = make(algorithm, *flags, dataset="Skewed")
    shapes = [{name: value.shape for name, value in client.state.items()} for client in server.clients]
    server.train()
    assert sum(server.uploaded_weights) == pytest.approx(1)
    assert all(math.isfinite(value) for value in server.rs_test_acc + server.rs_train_loss)
    assert all(value.isfinite().all() for value in server.global_params.values())
    for client, before in zip(server.clients, shapes, strict=True):
        assert {name: value.shape for name, value in client.state.items()} == before
        assert all(value.isfinite().all() for value in (*client.params.values(), *client.state.values()))
        assert client.scores(is_train=False)[0].isfinite().all()


@pytest.mark.parametrize("algorithm", NAMES)
def test_with_one_client_the_average_is_its_upload(make, algorithm):
    server = make(algorithm, "-gr", "2", dataset="Single")
    server.train()
    (upload,) = server.uploaded_models
    averaged = [name for name in upload if name in server.global_params]
    assert bool(averaged) == bool(server.shares and server.method.weights_up)
    for name in averaged:
        assert torch.allclose(server.global_params[name], upload[name], atol=1e-7), name


@pytest.mark.parametrize("algorithm", NAMES)
def test_nobody_shares_memory_that_training_changes(make, algorithm):
    server = make(algorithm, "-gr", "1")
    server.train()
    common = {name: value.clone() for name, value in server.global_params.items()}
    others = [{name: v.clone() for name, v in {**c.params, **c.state}.items()} for c in server.clients[1:]]
    server.clients[0].train()
    assert same_tensors(server.global_params, common)
    for client, other in zip(server.clients[1:], others, strict=True):
        assert same_tensors({**client.params, **client.state}, other)


@pytest.mark.parametrize("algorithm", NAMES)
def test_evaluation_changes_nothing_and_repeats_itself(make, algorithm):
    server = make(algorithm, "-gr", "1", "-jr", "0.5")
    server.train()
    before = [{name: v.clone() for name, v in {**c.params, **c.state}.items()} for c in server.clients]
    modes = [module.training for module in server.clients[0].forward.net.modules()]
    random_state = torch.get_rng_state()
    first, second = server.test_metrics(), server.test_metrics()
    assert str(first) == str(second)  # nan equals nan
    assert torch.equal(torch.get_rng_state(), random_state)
    assert [module.training for module in server.clients[0].forward.net.modules()] == modes
    for client, values in zip(server.clients, before, strict=True):
        assert same_tensors({**client.params, **client.state}, values)
