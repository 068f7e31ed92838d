"""Runs that score a sample of the clients: what is trained stays as it was, and nobody else is touched."""

import numpy as np
import pytest

from flcore.registry import METHODS
from flcore.utils.runs.checkpoint import Checkpoints
from support import SHORT, same_tensors
from support.checkpoints import INFO, everything, resumed_after

SAMPLED = ("-jr", "0.5", "--eval_clients", "2")


QUICK = ("FedAvg", "FedCPD", "FedDBE", "FedCRL")
REST = [pytest.param(line.name, marks=pytest.mark.slow) for line in METHODS if line.name not in (*QUICK, "FedALA")]


@pytest.mark.parametrize("algorithm", [*QUICK, *REST])
def test_a_sample_changes_no_training_and_has_the_full_runs_scores(make_server, algorithm):
    """FedALA adapts its weights at every message that a client gets, and so differs: fewer get one."""
    full = make_server(algorithm, "-jr", "0.5", *SHORT.get(algorithm, ()))
    some = make_server(algorithm, *SAMPLED, *SHORT.get(algorithm, ()))
    for server in (full, some):
        server.train()
    assert same_tensors(full.global_params, some.global_params) and full.rs_train_loss == some.rs_train_loss
    [sample] = some.records["rs_scored"]
    for name in ("rs_client_acc", "rs_client_acc_after"):
        assert np.array_equal(np.array(full.records[name])[:, sample], some.records[name])
    correct = np.array([9, 8, 6, 5])[sample]
    assert some.rs_test_acc[-1] == pytest.approx((some.records["rs_client_acc"][-1] * correct).sum() / correct.sum())
    joined = [(number, i) for number, row in enumerate(full.records["rs_joined"]) for i in np.flatnonzero(row)]
    assert some.records["rs_joined_clients"] == joined and "rs_joined" not in some.records


def test_nobody_is_made_who_neither_trains_nor_is_scored(make_server):
    server = make_server("FedRep", "-jr", "0.25", "-gr", "1", "--eval_clients", "1", "-sd", "3")
    server.train()
    used = {0, *server.records["rs_scored"][0].tolist(), *(i for _, i in server.records["rs_joined_clients"])}
    used |= {client.id for client in server.selected_clients}  # of the last round, which only scores
    assert server.clients.present.keys() <= used < set(range(4)) and len(server.clients) == 4


def test_between_rounds_only_what_is_personal_stays(make_server):
    kept = {}
    for algorithm in ("FedAvg", "FedRep"):
        server = make_server(algorithm, "-jr", "0.5", "--eval_clients", "1", "-gr", "4")
        server.train()
        server.clients.rest()
        away = server.clients.present.keys() - set(server.clients.staying)
        kept[algorithm] = away
        assert not any(server.clients[i]._tensors or server.clients[i].shared for i in away)
    assert not kept["FedAvg"] and kept["FedRep"]  # the heads of those that took part


@pytest.mark.parametrize("flags", [(), ("--state_dir", "states", "--state_cache", "1")])
def test_a_resumed_run_ends_with_the_same_numbers(make_server, tmp_path, monkeypatch, flags):
    monkeypatch.chdir(tmp_path)

    def make(resume):
        server = make_server("FedCPD", *SAMPLED, "-gr", "4", *flags)
        server.checkpoints = Checkpoints(tmp_path / "run.h5", INFO, 1, resume, lambda line: None)
        return server

    whole = make_server("FedCPD", *SAMPLED, "-gr", "4")
    whole.train()
    resumed = resumed_after(make, 2)
    assert everything(resumed)[0] == everything(whole)[0]
    for i in whole.clients.present:
        assert same_tensors(whole.clients[i].state, resumed.clients[i].state)
