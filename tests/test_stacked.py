"""The stacked executor against the loop, for every registered algorithm; what it cannot stack; its pure parts."""

import pytest
import torch
from conftest import same_tensors

from flcore.executors.loop import LoopExecutor
from flcore.executors.stack import schedule, stack, unstack
from flcore.executors.stacked import StackedExecutor
from flcore.registry import ALGORITHMS

pytestmark = pytest.mark.filterwarnings("error:There is a performance drop")  # vmap's fallback to a loop

NAMES = [line.name for line in ALGORITHMS]
FAST = {"FedPA": ("--pa_gen_steps", "4"), "FedGH": ("--server_epochs", "4"), "FedTGP": ("--server_epochs", "4")}


def assert_close(stacked, loop, name=""):
    """Within 1e-5 of the largest element of the tensor, or exactly for whole numbers."""
    if loop.is_floating_point():
        scale = loop.abs().max().clamp_min(1e-3).item() if loop.numel() else 1.0
        torch.testing.assert_close(stacked, loop, rtol=0, atol=1e-5 * scale, msg=lambda text: f"{name}: {text}")
    else:
        assert torch.equal(stacked, loop), name


def same_round(make_server, algorithm, *flags, sizes=(None,), rounds=2, **where):
    """Trains servers by loop and stacked; each round of the second starts from the loop's numbers."""
    loop = make_server(algorithm, *flags, **where)
    others = [make_server(algorithm, *flags, executor=StackedExecutor(size), **where) for size in sizes]
    for server in (loop, *others):
        server.train()
    for server in others:
        for one, other in zip(server.clients, loop.clients, strict=True):
            assert one.params.keys() == other.params.keys() and one.state.keys() == other.state.keys()
            for name, value in other.params.items():
                assert_close(one.params[name], value, name)
            for name, value in other.state.items():
                assert_close(one.state[name], value, name)
            for name, value in other.upload.items():
                assert_close(one.upload[name], value, name)
            assert one.train_loss[0] == pytest.approx(other.train_loss[0], rel=1e-5)
            assert one.train_loss[1] == other.train_loss[1]
            assert one.train_time_cost["num_rounds"] == other.train_time_cost["num_rounds"]
    return loop, others


@pytest.mark.parametrize("algorithm", NAMES)
def test_stacked_equals_the_loop(make_server, capsys, algorithm):
    same_round(make_server, algorithm, "-gr", "1", *FAST.get(algorithm, ()), sizes=(None,), dataset="Skewed")
    assert "stacked:" not in capsys.readouterr().out
