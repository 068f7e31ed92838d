"""One round loop: who takes part, what travels, how it is averaged, what is recorded."""

import copy

import h5py
import numpy as np
import pytest
import torch

from flcore.observers import Observer
from flcore.servers.roundloop import share_of
from flcore.servers.support.evaluation import deciles, mean_auc, per_client, ratio
from flcore.utils.errors import RunError, UsageError
from support import same_tensors, write_dataset


def test_measures_by_hand():
    accuracy = per_client([1, 3, 0, 0], [2, 4, 0, 5])
    assert accuracy[:2].tolist() == [0.5, 0.75] and np.isnan(accuracy[2]) and accuracy[3] == 0
    assert deciles(accuracy) == (0.0, 0.75)
    assert deciles(np.linspace(0.01, 0.2, 20)) == (pytest.approx(0.015), pytest.approx(0.195))
    assert np.isnan(ratio(0, 0))
    assert mean_auc([0.9 * 10, float("nan"), 0.6 * 20], [10, 5, 20]) == pytest.approx(0.7)


def test_fedavg_is_the_sample_weighted_mean_of_what_its_clients_reach(make_server):
    server, alone = make_server("FedAvg", "-gr", "1"), make_server("Local", "-gr", "1")
    server.train()
    alone.train()
    sizes = [23, 12, 7, 31]
    for name, value in server.global_params.items():
        expected = sum(size / 73 * client.params[name] for size, client in zip(sizes, alone.clients, strict=True))
        assert torch.allclose(value, expected, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["FedAvg", "FedRep"])
def test_a_single_client_makes_an_averaging_method_local_training(make_server, algorithm):
    """FedAvg with one client is local SGD; FedRep's is its own two phases, never disturbed by the server."""
    server = make_server(algorithm, dataset="Single")
    client = copy.deepcopy(make_server(algorithm, dataset="Single").clients[0])
    server.train()
    for current_round in range(3):
        client.round = current_round
        client.train()
    for name, value in server.clients[0].params.items():
        assert torch.allclose(value, client.params[name], atol=1e-7), name


def test_local_training_exchanges_nothing(make_server):
    server = make_server("Local")
    start = dict(server.global_params)
    server.train()
    assert server.records["rs_bytes_down"] == server.records["rs_bytes_up"] == [0, 0, 0]
    assert same_tensors(server.global_params, start)


def test_fedrep_keeps_heads_at_home(make_server):
    server = make_server("FedRep")
    start = server.global_params["head.weight"].clone()
    server.train()
    heads = [client.params["head.weight"] for client in server.clients]
    assert torch.equal(server.global_params["head.weight"], start)
    assert all(not torch.equal(head, start) for head in heads)
    assert not torch.equal(heads[0], heads[1])
    assert torch.equal(server.clients[0].params["base.fc1.0.weight"], server.clients[1].params["base.fc1.0.weight"])


def test_the_model_after_the_last_round_is_scored_and_n_rounds_are_n(make_server):
    server = make_server("FedAvg", "-gr", "4")
    server.train()
    assert server.records["rs_round"] == [0, 1, 2, 3, 4]
    assert len(server.rs_test_acc) == len(server.rs_test_auc) == 5
    assert len(server.rs_train_loss) == len(server.records["rs_test_acc_after"]) == 4
    correct = samples = 0
    for client in server.clients:
        hits, number, _ = client.test_metrics()
        correct, samples = correct + hits, samples + number
    assert server.rs_test_acc[-1] == correct / samples
    assert all(client.train_time_cost["num_rounds"] == 4 for client in server.clients)


def test_zero_rounds_score_the_initial_model(make_server):
    server = make_server("FedCPD", "-gr", "0")
    server.train()
    assert len(server.rs_test_acc) == 1 and server.rs_train_loss == []


def test_forgetting_is_b_of_the_round_before_minus_a(make_server):
    server = make_server("FedRep")
    server.train()
    after, forgetting = server.records["rs_test_acc_after"], server.records["rs_forgetting"]
    assert np.isnan(forgetting[0])
    assert forgetting[1:] == [b - a for b, a in zip(after, server.rs_test_acc[1:], strict=True)]


def test_std_and_mean_are_those_of_the_stored_rows(make_server):
    server = make_server("FedAvg")
    server.train()
    for row, mean, std in zip(
        *(server.records[f"rs_{n}"] for n in ("client_acc", "test_mean", "test_std")), strict=True
    ):
        assert mean == pytest.approx(np.mean(row)) and std == pytest.approx(np.std(row))
    sizes = np.array([9, 8, 6, 5])
    assert server.rs_test_acc[-1] == pytest.approx((server.records["rs_client_acc"][-1] * sizes).sum() / 28)


def test_evaluation_moves_nothing(make_server):
    often, seldom = make_server("FedCPD", "-gr", "4"), make_server("FedCPD", "-gr", "4", "-eg", "3")
    often.train()
    seldom.train()
    assert seldom.records["rs_round"] == [0, 3, 4]
    assert same_tensors(often.global_params, seldom.global_params)
    assert often.rs_test_acc[-1] == seldom.rs_test_acc[-1]


@pytest.mark.parametrize("algorithm", ["Local", "FedAvg", "FedRep", "FedCPD"])
def test_same_seed_same_curve_other_seed_other_curve(make_server, algorithm):
    def losses(*flags):
        server = make_server(algorithm, "-jr", "0.5", "-rjr", *flags)
        server.train()
        return server.rs_train_loss

    assert losses() == losses()
    assert losses() != losses("-sd", "1")


def test_participants_are_drawn_by_round_and_absent_ones_keep_their_heads(make_server):
    server = make_server("FedRep", "-jr", "0.5", "-gr", "6")
    chosen = []
    for server.current_round in range(6):
        chosen.append({client.id for client in server.select_clients()})
    assert all(len(ids) == 2 for ids in chosen) and len(set(map(frozenset, chosen))) > 1
    server.global_rounds = 1
    heads = [client.params["head.weight"] for client in server.clients]
    server.train()
    for client, head in zip(server.clients, heads, strict=True):
        assert torch.equal(client.params["head.weight"], head) == (client.id not in chosen[0])


def test_who_joined_is_recorded(make_server):
    server = make_server("FedAvg", "-jr", "0.5")
    server.train()
    assert [row.tolist() for row in server.records["rs_joined"]][-1] == [
        int(client.id in server.uploaded_ids) for client in server.clients
    ]
    assert [row.sum() for row in server.records["rs_joined"]] == [2] * 3


def test_at_least_one_client_joins_and_arrives(make_server):
    server = make_server("FedAvg", "-jr", "0.01", "-cdr", "0.9")
    server.train()
    assert len(server.selected_clients) == 1 and len(server.uploaded_ids) == 1


def test_dropped_uploads_do_not_count_and_weights_sum_to_one(make_server):
    server = make_server("FedAvg", "-cdr", "0.5")
    server.train()
    assert len(server.uploaded_ids) == 2
    assert sum(server.uploaded_weights) == pytest.approx(1)
    assert server.records["rs_bytes_up"][0] * 2 == server.records["rs_bytes_down"][0]


@pytest.mark.parametrize(
    ("rate", "join", "lost"), [("0.3", "1", 1), ("0.9", "0.5", 1), ("0.75", "1", 3), ("0.2", "1", 0)]
)
def test_the_share_of_the_uploads_that_is_lost_is_rounded_down_and_who_lost_is_recorded(make_server, rate, join, lost):
    """Of 4 or 2 participants: 1.2, 1.8, 3 and 0.8."""
    server = make_server("FedAvg", "-cdr", rate, "-jr", join, "-gr", "2", model="MLR")
    server.train()
    assert [row.sum() for row in server.records["rs_lost"]] == [lost] * 2
    joined = set(np.flatnonzero(server.records["rs_joined"][-1]))
    assert joined - set(server.uploaded_ids) == set(np.flatnonzero(server.records["rs_lost"][-1]))


def test_no_two_participants_share_memory_that_anybody_changes(make_server):
    server = make_server("FedRep", "-gr", "1")
    server.train()
    before = {name: value.clone() for name, value in server.global_params.items()}
    model = server.clients[0].model  # PFLlib's way: a private module
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert same_tensors(server.global_params, before)
    assert not torch.equal(server.clients[0].params["base.fc1.0.bias"], server.clients[1].params["base.fc1.0.bias"])


def test_auto_break_stops_after_the_patience(make_server):
    server = make_server("FedAvg", "-gr", "50", "-ab", "-tc", "2")
    assert not server.check_done([[0.1, 0.3, 0.2]], top_cnt=2)
    assert server.check_done([[0.1, 0.3, 0.2, 0.3]], top_cnt=2)
    assert not server.check_done([[0.1, 0.3, 0.2, 0.31]], top_cnt=2)
    assert server.check_done([[0.1, 0.2, 0.2, 0.2]], top_cnt=3, div_value=0.01)
    server.test_metrics = lambda: ([0, 1, 2, 3], [9, 8, 6, 5], [3] * 4, [1.0] * 4)  # never better than at first
    server.train()
    assert server.records["rs_round"] == [0, 1, 2]


def test_new_clients_join_after_training(make_server):
    server = make_server("FedRep", "-nnc", "1", "-ften", "2", "-jr", "1")
    assert server.num_clients == 3
    server.train()
    assert [client.id for client in server.new_clients] == [3]
    assert len(server.records["rs_new_acc"]) == 2
    base = server.global_params["base.fc1.0.weight"]
    assert not torch.equal(server.new_clients[0].params["base.fc1.0.weight"], base)  # fine-tuned


def test_few_shot_keeps_that_many_of_each_class(make_server):
    server = make_server("FedAvg", "-fs", "2")
    for client in server.clients:
        counts = torch.bincount(client.data[1], minlength=4)
        assert counts.max() <= 2 and client.train_samples == int(counts.sum())


def test_batchnorm_statistics_are_averaged_too(make_server):
    server = make_server("FedAvg", "-gr", "1", "-lbs", "4", dataset="Colour", model="ResNet18")
    server.train()
    name = "base.layer1.0.bn1.running_mean"
    assert torch.count_nonzero(server.global_params[name]) > 0
    assert all(torch.equal(client.params[name], server.global_params[name]) for client in server.clients)
    assert server.global_params["base.bn1.num_batches_tracked"] == 2


def test_result_file_has_pfllibs_keys_and_ours(make_server, tmp_path):
    server = make_server("FedCPD", result_path=tmp_path / "run.h5")
    server.train()
    with h5py.File(tmp_path / "run.h5") as file:
        assert file["rs_test_acc"][:].tolist() == server.rs_test_acc
        assert {"rs_test_auc", "rs_train_loss", "rs_test_acc_after", "rs_forgetting", "rs_bytes_up"} <= set(file)
        assert file["rs_client_acc"].shape == (4, 4) and file["rs_client_acc_after"].shape == (3, 4)


def test_model_file_can_be_loaded_again_and_holds_no_objects(make_server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.h5"
    server, again = make_server("FedAvg", "-gr", "1", result_path=path), make_server("FedAvg", result_path=path)
    server.train()
    trained = server.global_params  # FedAvg shares all of it
    assert again.model_exists() and not same_tensors(again.global_params, trained)
    again.load_model()
    assert same_tensors(again.global_params, trained)
    server.save_item({"list": [1, 2]}, "thing")
    assert server.load_item("thing") == {"list": [1, 2]}


@pytest.mark.parametrize(("algorithm", "kept"), [("Local", 0), ("FedRep", 6), ("FedCPD", 8)])
def test_model_file_holds_what_the_clients_got_last(make_server, tmp_path, algorithm, kept):
    server = make_server(algorithm, "-gr", "1", result_path=tmp_path / "run.h5")
    server.train()
    assert (tmp_path / "run.pt").exists() == bool(kept)
    if kept:
        loaded = torch.load(tmp_path / "run.pt", weights_only=True)
        assert len(loaded) == kept and "head.weight" not in loaded
        assert torch.equal(loaded["base.fc1.0.bias"], server.clients[0].params["base.fc1.0.bias"])


@pytest.mark.parametrize("algorithm", ["FedRep", "FedCPD"])
def test_a_model_without_weights_in_its_extractor_trains_its_head(make_server, algorithm):
    server = make_server(algorithm, model="MLR")
    server.train()
    assert all(np.isfinite(server.rs_train_loss)) and server.rs_train_loss[-1] < server.rs_train_loss[0]


@pytest.mark.parametrize(("flags", "round_", "curve"), [((), 1, 2), (("--on_nan", "stop"), 0, 1)])
def test_divergence_stops_the_run_and_names_client_and_round(make_server, tmp_path, flags, round_, curve):
    """At first one client only; with the others' weights in round 1, all."""
    server = make_server("FedAvg", "-lr", "1e9", *flags, result_path=tmp_path / "run.h5")
    with pytest.raises(RunError, match=rf"diverged in round {round_}: .*clients \[.*3\].*-lr"):
        server.train()
    with h5py.File(tmp_path / "run.h5") as file:
        assert len(file["rs_test_acc"]) == curve


def test_what_cannot_be_trained_or_tested_is_refused(make_server, data_root):
    with pytest.raises(UsageError, match="-lbs 1: this model has BatchNorm"):
        make_server("FedAvg", "-lbs", "1", dataset="Colour", model="ResNet18")
    write_dataset(data_root, "Untested", test=(0, 0, 0, 0))
    with pytest.raises(UsageError, match="no client of Untested has test samples"):
        make_server("FedAvg", dataset="Untested")


def test_a_client_without_test_samples_is_left_out_of_the_mean(make_server, data_root):
    write_dataset(data_root, "Partly", test=(5, 0, 5, 5))
    server = make_server("FedCPD", dataset="Partly")
    server.train()
    assert np.isnan(server.records["rs_client_acc"][0][1]) and np.isfinite(server.rs_test_acc).all()


def test_shares_are_exact_where_floating_point_is_not():
    assert share_of(10, 1 - 0.8) == 2 and share_of(100, 0.29) == 29 and share_of(4, 0.01) == 1


def test_a_client_that_made_no_step_weighs_nothing(make_server, data_root, caplog):
    write_dataset(data_root, "Thin", shape=(3, 32, 32), train=(8, 1, 0, 4), test=(4, 4, 4, 4))
    server = make_server("FedAvg", "-gr", "1", "-lbs", "4", dataset="Thin", model="ResNet18")
    assert "clients [1, 2] have too few samples" in caplog.text
    server.train()
    assert server.uploaded_weights == [8 / 12, 0, 0, 4 / 12]


def test_rounds_one_by_one_are_those_of_a_run(make_server):
    whole, steps = (make_server("FedRep", "-gr", "3") for _ in range(2))
    whole.train()
    seen = []
    for number in steps.each_round():
        seen.append((number, len(steps.rs_test_acc), len(steps.Budget)))
    assert seen == [(0, 1, 1), (1, 2, 2), (2, 3, 3)]
    assert steps.rs_test_acc == whole.rs_test_acc and len(whole.rs_test_acc) == 4  # and the model after the last round


class Watcher(Observer):
    """An observer that ends the training after the round ``last``."""

    def __init__(self, last=None):
        self.last, self.seen = last, []

    def on_round(self, record):
        self.seen.append(record)
        return record["round"] == self.last


def test_observers_hear_of_each_trained_round(make_server):
    server = make_server("FedAvg", "-eg", "2")
    server.observers = [Watcher()]
    server.train()
    seen = server.observers[0].seen
    assert [record["round"] for record in seen] == [0, 1, 2]
    assert ["test_acc" in record for record in seen] == [True, False, True]
    assert [record["test_acc"] for record in seen[::2]] == server.rs_test_acc[:2]  # the last one trains nothing
    assert [record["test_acc_after"] for record in seen[::2]] == server.records["rs_test_acc_after"]
    assert [record["bytes_up"] for record in seen] == server.records["rs_bytes_up"]


def test_an_observer_may_end_the_training_and_the_others_still_hear(make_server, tmp_path):
    """As after ``-ab``: the model is sent out and scored once more, and all files are written."""
    server = make_server("FedAvg", "-gr", "9", result_path=tmp_path / "run.h5")
    whole = make_server("FedAvg", "-gr", "2")
    server.observers = [Watcher(last=1), Watcher()]
    server.train()
    whole.train()
    assert [len(one.seen) for one in server.observers] == [2, 2]
    assert server.records["rs_round"] == [0, 1, 2] and server.rs_test_acc == whole.rs_test_acc
    assert same_tensors(server.global_params, whole.global_params)
    assert (tmp_path / "run.pt").exists()
