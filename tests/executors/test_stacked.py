"""The stacked executor against the loop, for every registered algorithm; what it cannot stack; its pure parts."""

import pytest
import torch
from torch import nn

from flcore.executors import stacked as module
from flcore.executors.loop import LoopExecutor
from flcore.executors.stack import each, packs, schedule, stack, unstack
from flcore.executors.stacked import StackedExecutor, budget, bytes_needed
from flcore.registry import METHODS
from flcore.utils.errors import UsageError
from support import SHORT, same_tensors

pytestmark = pytest.mark.filterwarnings("error:There is a performance drop")  # vmap's fallback to a loop

NAMES = [line.name for line in METHODS]


@pytest.mark.parametrize(
    ("lengths", "stretches"),
    [([5, 3, 3, 0], [(3, 3), (2, 1)]), ([2, 2], [(2, 2)]), ([0, 0], []), ([], []), ([4, 1], [(1, 2), (3, 1)])],
)
def test_live_clients_are_a_prefix(lengths, stretches):
    assert schedule(lengths) == stretches
    assert sum(steps * live for steps, live in schedule(lengths)) == sum(lengths)  # no step is masked away


def test_stacking_puts_clients_first_and_unstacking_copies():
    clients = [{"w": torch.full((2,), float(i)), "n": torch.tensor(i)} for i in range(3)]
    stacked = stack(clients)
    assert stacked["w"].shape == (3, 2) and stacked["n"].tolist() == [0, 1, 2]
    one = unstack(stacked, 1)
    assert same_tensors(one, clients[1])
    stacked["w"].zero_()
    assert one["w"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([2, 3, 2, 2], [[1, 0], [2, 3]]),  # three of at most 3 samples would be 9 rows
        ([9, 1, 8], [[0], [2], [1]]),  # large ones alone
        ([4, 1, 2], [[0, 2], [1]]),  # 1 filled up to 4 would be filling for the most part
        ([1] * 5, [[0, 1, 2], [3, 4]]),  # no more than three clients
        ([0, 0, 1], [[2], [0], [1]]),
        ([], []),
    ],
)
def test_small_clients_share_a_pass(sizes, expected):
    assert packs(sizes, 8, 3) == expected


def test_each_client_gets_the_results_of_its_own_tensors():
    calls = []

    def function(params, state, x):
        calls.append(None)
        return x @ params["w"] + params["b"] + state["s"]

    torch.manual_seed(0)
    params = [{"w": torch.randn(3, 2), "b": (torch.ones(2), torch.randn(2))[i > 0]} for i in range(4)]
    common = torch.randn(2)
    states = [{"s": common} for _ in params]
    data = [torch.randn(size, 3) for size in (3, 2, 600, 3)]
    results = each(function, params, states, data, most_clients=9)
    assert len(calls) == 3  # two passes of the third client, one of the others
    for own, state, x, result in zip(params, states, data, results, strict=True):
        torch.testing.assert_close(result, function(own, state, x))


# ---- against the loop ------------------------------------------------------------------------------------------------


def trained(server, executor):
    """Per client what a round of local training by ``executor`` gives; the clients are as before afterwards."""
    before = [(client.params, client.state, client.train_loss) for client in server.clients]
    finished = []
    executor.train(server.clients, lambda: finished.append(None))
    assert len(finished) == len(server.clients)
    after = [(client.params, client.state, client.upload, client.train_loss) for client in server.clients]
    for client, (params, state, train_loss) in zip(server.clients, before, strict=True):
        client.params, client.state, client.train_loss = params, state, train_loss
    return after


def distance(some, others):
    """|some - others| / |others| in the Euclidean norm over all tensors; whole numbers must be equal.

    Over all, since in single precision a ReLU or a maximum may tip over and move one small tensor further.
    """
    assert some.keys() == others.keys()
    real = [name for name, value in others.items() if value.is_floating_point()]
    assert all(torch.equal(some[name], others[name]) for name in others.keys() - set(real))
    apart = sum(float((some[name] - others[name]).square().sum()) for name in real)
    return (apart / max(sum(float(others[name].square().sum()) for name in real), 1e-12)) ** 0.5


def assert_same_training(server, *executors, within=1e-5):
    expected = trained(server, LoopExecutor())
    for executor in executors:
        for ours, loops in zip(trained(server, executor), expected, strict=True):
            for some, others in zip(ours[:3], loops[:3], strict=True):
                assert distance(some, others) <= within
            assert ours[3] == (pytest.approx(loops[3][0], rel=within), loops[3][1])


def in_second_round(make_server, algorithm, *flags, **where):
    """A server that has trained a round and sent its second download: now there are teachers and prototypes."""
    server = make_server(algorithm, "-gr", "1", *SHORT.get(algorithm, ()), *flags, **where)
    server.train()
    return server


def assert_same_in_double_precision(server, *executors):
    """The same with all that local training reads in double precision: no rounding to hide behind."""

    def double(tensors):
        return {name: value.double() if value.is_floating_point() else value for name, value in tensors.items()}

    shared = double(server.clients[0].shared)
    for client in server.clients:
        x, y = client.data
        client._tensors = {True: (x.double(), y)}
        client.params, client.state, client.shared = double(client.params), double(client.state), shared
    torch.set_default_dtype(torch.float64)
    try:
        assert_same_training(server, *executors, within=1e-11)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("algorithm", NAMES)
def test_stacked_equals_the_loop(make_server, caplog, algorithm):
    """Ragged sizes, a client below a batch, missing classes. FedKTL's scale of 64 makes rounding larger."""
    server = in_second_round(make_server, algorithm, dataset="Skewed")
    assert_same_training(server, StackedExecutor(), within=1e-4 if algorithm == "FedKTL" else 1e-5)
    assert_same_in_double_precision(server, StackedExecutor(2))
    assert "stacked:" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "flags"), [("FedCPD", ("-lbs", "5", "--cpd_width", "8")), ("FedCP", ("-ls", "2", "-ld", "-lbs", "3"))]
)
def test_every_chunk_size_gives_the_same(make_server, caplog, algorithm, flags):
    server = in_second_round(make_server, algorithm, *flags)
    assert_same_training(server, *map(StackedExecutor, (1, 2, 3, "auto")))
    assert "stacked:" not in caplog.text


@pytest.mark.slow
def test_batchnorm_moves_as_in_the_loop(make_server, caplog):
    server = make_server("FedRep", "-lbs", "4", "-lr", "0.001", dataset="Colour", model="ResNet18")
    server.current_round, server.selected_clients = 0, server.clients
    server.send_models()
    assert_same_in_double_precision(server, StackedExecutor())
    params, counter = trained(server, StackedExecutor())[0][0], "base.bn1.num_batches_tracked"
    assert params[counter] == 2 and params["base.bn1.running_mean"].abs().max() > 0
    assert "stacked:" not in caplog.text


def test_a_whole_run_and_its_records(make_server):
    flags = ("-gr", "2", "-jr", "0.5", "-cdr", "0.5")
    loop, stacked = (make_server("FedCPD", *flags, executor=ex) for ex in (LoopExecutor(), StackedExecutor()))
    loop.train()
    stacked.train()
    assert distance(stacked.global_params, loop.global_params) < 1e-4
    assert stacked.rs_train_loss == pytest.approx(loop.rs_train_loss, rel=1e-4)
    for name in ("rs_bytes_up", "rs_bytes_down"):
        assert stacked.records[name] == loop.records[name]
    for one, other in zip(stacked.clients, loop.clients, strict=True):
        rounds = other.train_time_cost["num_rounds"]
        assert one.train_time_cost["num_rounds"] == rounds
        assert (one.train_time_cost["total_cost"] > 0) == (rounds > 0)


def test_clients_do_not_keep_the_stack_alive(make_server):
    server = make_server("FedCPD", "-gr", "1", executor=StackedExecutor())
    server.train()
    for client in server.clients:
        for value in [*client.params.values(), *client.state.values()]:
            assert value.untyped_storage().nbytes() == value.nbytes and not value.requires_grad


@pytest.mark.parametrize("algorithm", NAMES)
def test_scored_together_as_one_by_one(make_server, monkeypatch, caplog, algorithm):
    """After a download and after training: at A many methods' clients have some weights in common."""
    server = in_second_round(make_server, algorithm, dataset="Skewed", model="DNN")
    alone, passes, stacked = LoopExecutor(), [], StackedExecutor()
    monkeypatch.setattr(module, "each", lambda *how: passes.append(None) or each(*how))
    for _ in ("A", "B"):
        for ours, loops in zip(stacked.test(server.clients), alone.test(server.clients), strict=True):
            assert ours[:2] == loops[:2] and ours[2] == pytest.approx(loops[2], abs=0.01, nan_ok=True)
        alone.train(server.clients, lambda: None)
    assert len(passes) == 2 and "stacked:" not in caplog.text


def test_an_evaluation_that_cannot_be_stacked_runs_in_the_loop(make_server, monkeypatch, caplog):
    server = in_second_round(make_server, "FedRep")
    expected = LoopExecutor().test(server.clients)
    monkeypatch.setattr(module, "each", lambda *how: 1 / 0)
    assert StackedExecutor().test(server.clients) == expected
    assert "the evaluation of FedRep cannot be stacked (division by zero); run in the loop" in caplog.text


def test_a_client_without_samples_gets_back_what_it_had(make_server):
    server = make_server("FedRep")
    server.current_round, server.selected_clients = 0, server.clients
    server.send_models()
    empty = server.clients[1]
    empty._tensors[True] = tuple(part[:0] for part in empty.data)
    before = empty.params
    after = trained(server, StackedExecutor())
    assert same_tensors(after[1][0], before) and after[1][3] == (0.0, 0)
    assert not same_tensors(after[0][0], before)


# ---- what runs in the loop -------------------------------------------------------------------------------------------


def test_dropout_runs_in_the_loop_and_says_so_once(make_server, caplog):
    server = make_server("FedAvg", "-gr", "2", executor=StackedExecutor())
    server.clients[0].forward.net.base.conv2.append(nn.Dropout(0.5))
    server.train()
    said = [message for message in caplog.messages if message.startswith("stacked:")]
    assert len(said) == 1 and "FedAvg cannot be stacked" in said[0] and "run in the loop" in said[0]
    assert all(client.train_loss[1] for client in server.clients if client.train_samples >= 10)


def test_a_rule_may_say_that_it_cannot_be_stacked(make_server, caplog, monkeypatch):
    server = in_second_round(make_server, "FedRep")
    monkeypatch.setattr(type(server.clients[0]), "stackable", False)
    expected, ours = trained(server, LoopExecutor()), trained(server, StackedExecutor())
    assert all(same_tensors(one[0], other[0]) for one, other in zip(expected, ours, strict=True))
    assert caplog.text.count("stacked: the rule of FedRep") == 1


def test_what_fails_together_is_run_one_by_one(make_server, caplog, monkeypatch):
    """Such as a stack that is too large after all. Nothing is lost: the clients' weights were not touched."""
    server = in_second_round(make_server, "FedRep")
    expected = trained(server, LoopExecutor())

    def too_large(self, members):
        raise torch.OutOfMemoryError("out of memory")

    executor = StackedExecutor(2)
    for client in server.clients:
        executor._size([(client, client.load_train_data())])  # the trial works
    monkeypatch.setattr(module.Stack, "__init__", too_large)
    ours = trained(server, executor)
    assert all(same_tensors(one[0], other[0]) for one, other in zip(expected, ours, strict=True))
    assert "out of memory" in caplog.text


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_memory_of_a_client_by_hand(make_server):
    """MLR with C classes on F pixels: (F + 1) * C weights. Stack, copy, two sets of gradients: four times 4 bytes."""
    server = make_server("FedAvg", model="MLR")
    server.current_round, server.selected_clients = 0, server.clients
    server.send_models()
    client = server.clients[0]
    weights = 4 * (400 + 1) * 4
    inputs, log_softmax = 4 * 10 * 400, 4 * 10 * 4
    needed = bytes_needed(client, client.load_train_data())
    kept = (needed - 4 * weights) / 2
    assert inputs + log_softmax <= kept <= 1.2 * (inputs + log_softmax)


def test_an_estimate_changes_nothing(make_server):
    server = in_second_round(make_server, "FedCP", dataset="Skewed")
    client = server.clients[0]
    before = {name: value.clone() for name, value in {**client.params, **client.state}.items()}
    first = client.load_train_data()
    bytes_needed(client, first)
    assert same_tensors({**client.params, **client.state}, before)
    assert torch.equal(first.order(), client.load_train_data().order())


def test_the_budget_sets_the_chunks(make_server, monkeypatch):
    server = in_second_round(make_server, "FedRep", "-lbs", "5")
    client = server.clients[0]
    one = bytes_needed(client, client.load_train_data()) + sum(
        part.nbytes for part in max((c.data for c in server.clients), key=lambda data: len(data[1]))
    )
    seen = []
    original = module.Stack.__init__

    def look(self, members):
        seen.append(len(members))
        original(self, members)

    monkeypatch.setattr(module.Stack, "__init__", look)
    for bytes_there, chunks in ((3 * one, [1, 3, 1]), (1, [1, 1, 1, 1, 1]), (2**40, [1, 4])):
        monkeypatch.setattr(module, "budget", lambda device, free=bytes_there: free)
        seen.clear()
        trained(server, StackedExecutor())
        assert seen == chunks  # the first is the trial


def test_the_budget_on_a_cpu_has_a_cap():
    assert 0 < budget(torch.device("cpu")) <= module.CPU_BUDGET


def test_the_command_runs_it_and_its_size_does_not_change_a_runs_name(data_root, tmp_path):
    import main
    from flcore.experiment import Experiment

    common = ["-algo", "FedRep", "-data", "Tiny", "-gr", "1", "--data_dir", str(data_root)]
    flags = [*common, "-ex", "stacked", "--stack_size", "3"]
    assert main.main([*flags, "--results_dir", str(tmp_path)]) == 0
    assert (tmp_path / "Tiny_FedRep_test_0.h5").exists()
    plain, stacked = (Experiment.from_argv(given).context().settings for given in (common, flags))
    assert plain == stacked


@pytest.mark.parametrize("size", ["0", "-1", "many"])
def test_a_stack_needs_a_size(size):
    from flcore.experiment import Experiment

    with pytest.raises(UsageError, match="--stack_size: must be 1 or more or auto"):
        Experiment.from_argv(["--stack_size", size])
