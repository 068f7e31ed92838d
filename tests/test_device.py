"""Everything on a device that is not the CPU, with a pretended one (`pretended_device`): it ends with a CPU's numbers."""

import numpy as np
import pytest
import torch
from conftest import same_tensors
from pretended_device import OnDevice, pretended_device

from flcore.executors.loop import LoopExecutor
from flcore.executors.stacked import StackedExecutor
from flcore.registry import ALGORITHMS
from flcore.trainmodel.models import FedAvgCNN

NAMES = [line.name for line in ALGORITHMS]
SHORT = {
    "FedPA": ("--pa_steps", "5", "--pa_gen_steps", "4"),
    "FedGH": ("--server_epochs", "3"),
    "FedTGP": ("--server_epochs", "3"),
    "FedKTL": ("--server_epochs", "3"),
}
EXECUTORS = (LoopExecutor, StackedExecutor)
TIMES = {"rs_seconds"}  # the only records that differ from run to run


def outcome(server):
    """The numbers of a run that is over, all on the CPU, by name."""
    found = {name: np.array(getattr(server, name)) for name in ("rs_test_acc", "rs_test_auc", "rs_train_loss")}
    found |= {name: np.array(values) for name, values in server.records.items() if name not in TIMES}
    owned = {"server": server.global_params}
    for client in server.clients:
        owned |= {f"params {client.id}": client.params, f"state {client.id}": client.state}
    return found | {
        f"{owner} {name}": value.detach().cpu().numpy() for owner, group in owned.items() for name, value in group.items()
    }


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


@pytest.fixture
def assert_same_on_device(make_server, monkeypatch):
    """A run on the pretended device ends with the numbers of one on the CPU, and did take place there."""
    monkeypatch.setattr(FedAvgCNN, "layout", None)  # only of a CPU: it changes the last bit

    def compare(algorithm, *flags, executor=LoopExecutor, dataset="Skewed", **options):
        flags = ("-gr", "2", *SHORT.get(algorithm, ()), *flags)
        expected = make_server(algorithm, *flags, executor=executor(), dataset=dataset, **options)
        expected.train()
        with pretended_device() as device:
            server = make_server(algorithm, *flags, executor=executor(), dataset=dataset, device=device, **options)
            server.train()
            assert_same(outcome(server), outcome(expected))
            groups = [server.global_params, server.last_message]
            groups += [group for client in server.clients for group in (client.params, client.state, client.upload)]
            real = [value for group in groups for value in group.values() if value.is_floating_point()]
            assert real and all(isinstance(value, OnDevice) for value in real)
        return server

    return compare


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("algorithm", NAMES)
def test_every_method(assert_same_on_device, capsys, algorithm, executor):
    assert_same_on_device(algorithm, executor=executor)
    assert "stacked:" not in capsys.readouterr().out  # nothing fell back to the loop
