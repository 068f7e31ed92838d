"""Participants that go wrong: values that are not finite, slow and absent clients, wrong labels, attacks."""

import dataclasses

import numpy as np
import pytest
import torch

from flcore import registry
from flcore.executors.loop import LoopExecutor
from flcore.executors.threads import ThreadsExecutor
from flcore.registry import METHODS, find
from flcore.servers.messages import is_finite, message_bytes
from flcore.servers.support import faults
from flcore.utils.errors import RunError, UsageError
from flcore.utils.seeds import numpy_generator, torch_generator
from support import same_tensors, write_dataset
from support.poison import NAN, poison_message, poison_training

NAMES = [line.name for line in METHODS]


@pytest.fixture(scope="module")
def hard(data_root):
    """Client 0 has one sample, 1 one class, and no two hold the same classes; batches of ten do not fit."""
    write_dataset(data_root, "Hard", labels=[[0], [1], [2, 0], [0, 1, 2]], train=(1, 12, 7, 31))
    return "Hard"


def note_restored(server, client):
    """Whether the client is, after each round's training, what it was before it."""
    same, train_clients = [], server.train_clients

    def noting():
        before = dict(client.params), client.state, client.upload
        train_clients()
        after = client.params, client.state, client.upload
        same.append(all(same_tensors(one, other) for one, other in zip(before, after, strict=True)))

    server.train_clients = noting
    return same


def all_finite(server):
    clients = [value for c in server.clients for value in (*c.params.values(), *c.state.values())]
    return faults.not_finite(server) == [] and is_finite(clients)


@pytest.mark.parametrize(
    ("algorithm", "executor"),
    [(name, LoopExecutor()) for name in NAMES] + [(name, ThreadsExecutor(2)) for name in ("FedCPD", "FedDBE", "FedPA")],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_client_with_nan_is_left_out_restored_and_comes_back(make_server, hard, algorithm, executor):
    server = make_server(algorithm, dataset=hard, executor=executor)
    poison_training(server.clients[2], {0})
    poison_message(server.clients[3], {1})
    restored = note_restored(server, server.clients[2])
    uploads = []
    take = server.take
    server.take = lambda clients, messages: (uploads.append([c.id for c in clients]), take(clients, messages))
    server.train()
    sends = algorithm != "Local"
    assert uploads == [[0, 1, 3], [0, 1, 2] if sends else [0, 1, 2, 3], [0, 1, 2, 3]]
    assert restored == [True, False, False]
    assert server.records["rs_left_out"] == [1, int(sends), 0]
    assert server.records["rs_left_out_clients"] == [(0, 2), (1, 3)][: 1 + sends]
    assert all_finite(server) and np.isfinite(server.rs_test_acc).all() and np.isfinite(server.rs_train_loss).all()
    assert sum(server.uploaded_weights) == pytest.approx(1)


def test_the_weights_of_those_that_remain_sum_to_one(make_server):
    server = make_server("FedAvg", "-gr", "1")
    poison_message(server.clients[1], {0}, float("inf"))
    server.train()
    assert server.uploaded_ids == [0, 2, 3]
    assert server.uploaded_weights == [23 / 61, 7 / 61, 31 / 61]


def test_a_run_without_the_bad_client_gives_the_same_global_weights(make_server):
    bad, without = make_server("FedAvg", "-gr", "1"), make_server("FedAvg", "-gr", "1")
    poison_training(bad.clients[1], {0})
    without.select_clients = lambda: [client for client in without.clients if client.id != 1]
    bad.train()
    without.train()
    assert same_tensors(bad.global_params, without.global_params)


def test_a_private_module_is_restored_too(make_server):
    """As PFLlib's code makes one by asking for ``client.model``: it is then changed in place."""
    server = make_server("FedRep", "-gr", "1")
    client = server.clients[1]
    head = client.model.head.weight.detach().clone()
    poison_training(client, {0})
    server.train()
    assert torch.equal(client.params["head.weight"], head)


def test_a_personal_part_alone_can_be_bad(make_server):
    """Ditto's loss and upload are those of the global copy."""
    server = make_server("Ditto", "-gr", "2")
    client, train = server.clients[1], server.clients[1].train

    def bad():
        train()
        if client.round == 0:
            client.params = {n: v * NAN if n.startswith("personal.") else v for n, v in client.params.items()}

    client.train = bad
    server.train()
    assert server.records["rs_left_out_clients"] == [(0, 1)] and all_finite(server)


def test_feddbe_agrees_without_a_bad_client(make_server):
    bad, without = make_server("FedDBE", "-gr", "0"), make_server("FedDBE", "-gr", "0")
    poison_training(bad.clients[1], {0})
    bad.train()
    del without.clients[1]
    expected = without.agree()
    assert torch.equal(bad.consensus, expected)


def test_a_server_in_pfllibs_style_leaves_a_bad_model_out(make_server, pfllib_pair, caplog):
    server = pfllib_pair.FedAvg(make_server("FedAvg").args, 0)
    server.selected_clients = server.clients
    with torch.no_grad():
        server.clients[1].model.head.bias[0] = NAN
    server.receive_models()
    assert server.uploaded_ids == [0, 2, 3] and sum(server.uploaded_weights) == pytest.approx(1)
    assert "clients [1] left out" in caplog.text


def test_on_nan_stop_ends_the_run_at_once(make_server):
    server = make_server("FedCPD", "--on_nan", "stop")
    poison_message(server.clients[3], {1})
    with pytest.raises(
        RunError,
        match=r"diverged in round 1: clients \[3\]: their upload holds .* not finite .*-lr than 0.01.*result file",
    ):
        server.train()


class NoFiles:
    """Checkpoints that are only counted."""

    every, latest = 1, None

    def begin(self, server):
        return 0

    def round_done(self, server, done):
        self.latest = done


def test_a_round_in_which_all_are_bad_ends_the_run_and_names_the_last_checkpoint(make_server):
    server = make_server("FedCPD")
    server.checkpoints = NoFiles()
    for client in server.clients:
        poison_training(client, {1})
    with pytest.raises(
        RunError, match=r"round 1: no participant is left.*\[0, 1, 2, 3\]. The last checkpoint holds 1 rounds .*T"
    ):
        server.train()
    server = make_server("FedCPD")
    for client in server.clients:
        poison_message(client, {1})
    with pytest.raises(RunError, match=r"round 1: no upload can be used"):
        server.train()


@pytest.mark.parametrize(("algorithm", "what"), [("FedGH", "weights"), ("FedTGP", "network")])
def test_a_server_that_diverges_by_itself_ends_the_run(make_server, algorithm, what):
    server = make_server(algorithm, "-slr", "1e38")
    with pytest.raises(RunError, match=f"round 0: the server's .*{what}.* not finite after the aggregation"):
        server.train()


def test_scores_that_are_not_finite_are_no_hits(make_server):
    server = make_server("FedAvg", "-gr", "0")
    client = server.clients[0]
    client.params = {**client.params, "head.bias": torch.tensor([NAN, 0.0, 0.0, 0.0])}  # argmax would be 0
    assert client.test_metrics()[0] == 0


# ---- absent clients --------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("algorithm", NAMES)
def test_a_client_that_vanishes_keeps_what_is_its_own_and_comes_back(make_server, hard, algorithm):
    server = make_server(algorithm, "-gr", "6", "-eg", "6", dataset=hard)
    present = {0: [0, 1, 2], 5: [0, 2]}  # 1 is away from round 1 to round 5; nobody trains but 0
    server.select_clients = lambda: [server.clients[i] for i in present.get(server.current_round, [0, 2])]
    server.clients[1].absent = []
    receive, client = server.clients[1].receive, server.clients[1]

    def noting(message, current_round):
        receive(message, current_round)
        client.absent.append(client.state)

    client.receive = noting
    server.train()
    if algorithm != "FedALA":  # which adapts at every download
        assert all(same_tensors(state, client.absent[1]) for state in client.absent[2:])
    del server.select_clients, client.receive
    server.global_rounds = 1  # the state is five rounds old
    server.train()
    assert all_finite(server) and client.id in server.uploaded_ids


# ---- slow clients ----------------------------------------------------------------------------------------------------


def test_slow_clients_are_exactly_so_many_and_cost_simulated_time(make_server, caplog):
    server = make_server("FedAvg", "-ls", "1", "-tsr", "0.5", "-ssr", "0.25", "-gr", "2")
    assert sum(server.train_slow_clients) == 2 and sum(server.send_slow_clients) == 1
    assert [client.train_slow for client in server.clients] == server.train_slow_clients
    assert "slow in training: clients" in caplog.text
    server.train()
    megabytes = 2 * message_bytes(server.shared_weights()) / 1.25e6  # down and up, at 10 Mbit/s
    expected = max(
        samples / 1000 * (5 if training else 1) + megabytes * (5 if sending else 1)
        for samples, training, sending in zip(
            (23, 12, 7, 31), server.train_slow_clients, server.send_slow_clients, strict=True
        )
    )
    assert server.records["rs_simulated_seconds"] == pytest.approx([expected] * 2)


def test_work_counts_all_phases_and_the_steps_of_fedpa(make_server):
    def work(*words):
        return faults.training_samples(make_server(*words).clients[0])  # 23 samples, batches of 10

    assert work("FedAvg", "-ls", "3") == 69
    assert work("FedRep", "-ls", "3", "-pls", "2") == 23 * 5
    assert work("FedPA", "--pa_steps", "7") == 70
    assert work("FedAvg", "-ls", "0") == 0


def test_uploads_after_the_limit_do_not_count(make_server):
    flags = ("Local", "-gr", "1", "-tsr", "0.5")  # no traffic: 0.023, 0.012, 0.007, 0.031 s, two of them five times
    server = make_server(*flags, "-tth", "0.05")
    server.train()
    slow = server.train_slow_clients
    late = [i for i, samples in enumerate((23, 12, 7, 31)) if samples * (5 if slow[i] else 1) > 50]
    assert late
    assert server.uploaded_ids == [i for i in range(4) if i not in late]
    assert server.records["rs_simulated_seconds"] == [0.05] and server.records["rs_late"] == [len(late)]
    server = make_server(*flags)  # PFLlib's default of 10000 s leaves nobody out
    server.train()
    assert server.records["rs_late"] == [0]


@pytest.mark.parametrize("algorithm", ["FedAvg", "FedTGP", "FedKTL", "FedCPD"])
def test_a_round_in_which_all_are_late_changes_nothing_at_the_server(make_server, algorithm):
    server = make_server(algorithm, "-ts", "-tth", "1e-6", "-gr", "2")
    start = dict(server.global_params)
    server.train()
    assert server.records["rs_late"] == [4, 4] and server.uploaded_models == []
    assert same_tensors(server.global_params, start)


# ---- labels ----------------------------------------------------------------------------------------------------------


def test_label_noise_replaces_exactly_its_share_by_other_classes():
    y = torch.arange(1000) % 4
    noisy = faults.noisy_labels(y, 0.3, 4, numpy_generator(0, "test"))
    assert int((noisy != y).sum()) == 300 and noisy.min() == 0 and noisy.max() == 3
    assert all(70 < int(((noisy - y) % 4 == shift).sum()) < 130 for shift in (1, 2, 3))
    assert torch.equal(faults.noisy_labels(torch.zeros(9).long(), 0.5, 1, numpy_generator(0)), torch.zeros(9).long())


def test_labels_are_changed_where_the_clients_train_and_nowhere_else(make_server):
    clean, noisy = make_server("FedAvg"), make_server("FedAvg", "--label_noise", "0.5")
    flipped = make_server("FedAvg", "--attack", "labelflip", "--attack_rate", "0.5")
    assert sum(flipped.participation.attackers) == 2
    for one, other, third in zip(clean.clients, noisy.clients, flipped.clients, strict=True):
        assert int((one.data[1] != other.data[1]).sum()) == one.train_samples // 2
        expected = 3 - one.data[1] if flipped.participation.attackers[one.id] else one.data[1]
        assert torch.equal(third.data[1], expected)
        for test in (other.tensors(is_train=False), third.tensors(is_train=False)):
            assert torch.equal(one.tensors(is_train=False)[1], test[1])


# ---- attacks ---------------------------------------------------------------------------------------------------------


def test_signflip_by_hand():
    message = {
        "w": torch.tensor([3.0, 1.0]),
        "n": torch.tensor(7),
        "prototypes": torch.tensor([[2.0], [4.0], [9.0]]),
        "counts": torch.tensor([1, 1, 0]),
    }
    received = {
        "w": torch.tensor([1.0, 1.0]),
        "prototypes": torch.tensor([[1.0], [50.0], [1.0]]),
        "seen": torch.tensor([True, False, True]),
    }
    sent = faults.attacked(message, received, "signflip", 4.0, torch_generator(0))
    assert sent["w"].tolist() == [1 - 4 * 2, 1]
    assert sent["n"] == 7 and sent["counts"].tolist() == [1, 1, 0]
    # from the global prototype; from 0, as there is none; not held
    assert sent["prototypes"].tolist() == [[1 - 4 * 1], [-4 * 4], [9]]
    assert message["w"].tolist() == [3, 1]


def test_noise_is_as_long_as_the_update_times_the_scale():
    message, received = {"w": torch.full((10000,), 3.0)}, {"w": torch.full((10000,), 1.0)}
    sent = faults.attacked(message, received, "noise", 4.0, torch_generator(0))
    noise = sent["w"] - message["w"]
    assert noise.norm() == pytest.approx(4 * 2 * 100, rel=0.03) and abs(noise.mean()) < 0.3
    still = faults.attacked(received, received, "noise", 4.0, torch_generator(0))
    assert torch.equal(still["w"], received["w"])


def test_the_average_under_signflip_is_the_one_computed_by_hand(make_server):
    honest = make_server("FedAvg", "-gr", "1")
    attacked = make_server("FedAvg", "-gr", "1", "--attack", "signflip", "--attack_rate", "0.25", "--attack_scale", "2")
    start = dict(honest.global_params)
    honest.train()
    attacked.train()
    assert sum(attacked.participation.attackers) == 1
    for name, value in attacked.global_params.items():
        updates = [client[name] - start[name] for client in honest.uploaded_models]
        signs = [-2 if bad else 1 for bad in attacked.participation.attackers]
        mean = sum(n / 73 * sign * update for n, sign, update in zip((23, 12, 7, 31), signs, updates, strict=True))
        assert torch.allclose(value, start[name] + mean, atol=1e-6)


def test_accuracy_over_those_that_do_not_attack_is_recorded(make_server):
    server = make_server("FedRep", "--attack", "noise", "--attack_rate", "0.5")
    server.train()
    benign = [client for client in server.clients if not server.participation.attackers[client.id]]
    hits = sum(client.test_metrics()[0] for client in benign)
    assert server.records["rs_benign_acc"][-1] == hits / sum(client.test_samples for client in benign)
    assert server.records["rs_attackers"][0].tolist() == [int(bad) for bad in server.participation.attackers]
    assert "rs_benign_acc" not in make_server("FedRep").records


def test_attackers_are_drawn_anew_by_seed_and_repeat_but_not_by_method():
    first = [faults.chosen(20, 0.2, numpy_generator(seed, 0, "attackers")) for seed in range(5)]
    assert all(sum(who) == 4 for who in first) and len({tuple(who) for who in first}) > 1
    assert sum(faults.chosen(10, 0.3, numpy_generator(0))) == 3  # although 0.3 * 10 is a little less than 3


@pytest.mark.long
@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize(
    ("attack", "aggregate"), [("signflip", "krum"), ("noise", "trimmed"), ("labelflip", "median"), ("noise", "mean")]
)
def test_every_method_runs_to_its_end_under_attack(make_server, algorithm, attack, aggregate):
    flags = ("--attack", attack, "--attack_rate", "0.25", "--aggregate", aggregate, "--label_noise", "0.1")
    server = make_server(algorithm, *flags, "-eg", "3")
    server.train()
    assert all_finite(server) and len(server.records["rs_benign_acc"]) == 2


# ---- uploads that cannot be used -------------------------------------------------------------------------------------

WEIGHT = "base.conv1.0.weight"
DEFECTS = {
    f"lacks {WEIGHT}": lambda sent: {name: value for name, value in sent.items() if name != WEIGHT},
    f"holds {WEIGHT} of shape": lambda sent: sent | {WEIGHT: sent[WEIGHT][:1]},
    f"holds {WEIGHT} of type torch.float64": lambda sent: sent | {WEIGHT: sent[WEIGHT].double()},
    f"holds {WEIGHT} with values that are not finite": lambda sent: sent | {WEIGHT: sent[WEIGHT] / 0},
    "holds extra, which": lambda sent: sent | {"extra": torch.ones(2)},
    "holds prototypes of shape": lambda sent: sent | {"prototypes": sent["prototypes"][:, :7]},
    "lacks counts": lambda sent: {name: value for name, value in sent.items() if name != "counts"},
    "is no dict of tensors": lambda sent: list(sent.values()),
}


def spoil_message(client, how, bad_rounds=(0,)):
    message = client.message
    client.message = lambda shares: how(message(shares)) if client.round in bad_rounds else message(shares)


@pytest.mark.parametrize("reason", DEFECTS)
def test_an_upload_with_a_defect_is_left_out_by_name(make_server, hard, caplog, reason):
    server = make_server("FedCPD", "-gr", "2", dataset=hard)
    spoil_message(server.clients[1], DEFECTS[reason])
    restored = note_restored(server, server.clients[1])
    taken, take = [], server.take
    server.take = lambda clients, messages: (taken.append([c.id for c in clients]), take(clients, messages))
    server.train()
    assert f"round 0: clients [1] left out, their upload {reason}" in caplog.text
    assert taken == [[0, 2, 3], [0, 1, 2, 3]] and server.records["rs_left_out"] == [1, 0]
    assert restored == [False, False] and all_finite(server)  # it trained; what it had is put back with the upload


def test_two_defects_have_a_line_each(make_server, hard, caplog):
    server = make_server("FedCPD", "-gr", "1", dataset=hard)
    for i, reason in ((0, "lacks counts"), (2, "is no dict of tensors"), (3, "lacks counts")):
        spoil_message(server.clients[i], DEFECTS[reason])
    server.train()
    printed = caplog.text
    assert "clients [0, 3] left out, their upload lacks counts" in printed
    assert "clients [2] left out, their upload is no dict of tensors but list" in printed
    assert server.uploaded_ids == [1]


def test_what_every_client_sends_undeclared_is_the_methods_mistake(make_server):
    server = make_server("FedAvg", "-gr", "1")
    for client in server.clients:
        spoil_message(client, lambda sent: sent | {"control.w": torch.ones(2)})
    with pytest.raises(RunError, match=r"^FedAvg: every client's upload holds control.w, which .* `extras`"):
        server.train()


def test_what_a_method_declares_arrives(make_server):
    server = make_server("FedAvg", "-gr", "1")
    server.method = dataclasses.replace(server.method, extras=("control.",))
    for client in server.clients:
        spoil_message(client, lambda sent: sent | {"control.w": torch.ones(2)})
    spoil_message(server.clients[3], lambda sent: sent | {"control.w": torch.ones(3)})
    server.train()
    assert server.uploaded_ids == [0, 1, 2] and all("control.w" in upload for upload in server.uploaded_models)


def test_noise_is_refused_where_more_goes_up_than_it_covers(make_server, monkeypatch):
    card = dataclasses.replace(find("FedProto"), extras=("statistics.",))
    monkeypatch.setattr(registry, "METHODS", [card])
    with pytest.raises(UsageError, match="--proto_noise with FedProto: its clients also send statistics.,"):
        make_server("FedProto", "--proto_noise", "1")
