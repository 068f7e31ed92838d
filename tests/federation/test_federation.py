"""A federation against the loop, in one process: the same numbers, and what bad, lost and late replies do."""

from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch

from flcore.experiment import Experiment
from flcore.federation.letters import Version
from flcore.federation.server import FederatedExperiment
from flcore.registry import METHODS
from flcore.servers.support.uploads import RoundUploads
from flcore.utils.errors import RunError, UsageError
from main import main
from support import SHORT
from support.federation import Inside

QUICK = ("FedCPD", "FedALA")
REST = [
    pytest.param(line.name, marks=pytest.mark.slow)
    for line in METHODS
    if line.name not in QUICK and line.server_class().by_messages
]
CURVES = ("rs_test_acc", "rs_test_auc", "rs_test_acc_after", "rs_train_loss", "rs_client_acc", "rs_client_acc_after")
CURVES += ("rs_bytes_down", "rs_bytes_up", "rs_left_out", "rs_joined")


def words(algorithm, generator_file, *flags):
    needs = ["--generator", str(generator_file), "-nd", "6"] if algorithm == "FedKTL" else []
    short = SHORT.get(algorithm, ())
    return [*f"-algo {algorithm} -data Tiny -m CNN -gr 3 -dev cpu".split(), *needs, *short, *flags]


@pytest.fixture
def runs(data_root, tmp_path, generator_file):
    """``runs("FedCPD", *flags, spoil=...)`` -> a federation's transport and its result."""

    def run(algorithm, *flags, spoil=None):
        argv = words(algorithm, generator_file, *flags)
        transport = Inside(data_root, tmp_path, argv, spoil=spoil)
        return transport, FederatedExperiment.of(argv, transport, writes=False).run().repeats[0].arrays

    return run


@pytest.fixture
def loop(data_root, generator_file):
    def run(algorithm, *flags):
        argv = [*words(algorithm, generator_file, *flags), "-ex", "loop", "--data_dir", str(data_root)]
        return Experiment.from_argv(argv, writes=False).run().repeats[0].arrays

    return run


def assert_equal(arrays, expected):
    for name in CURVES:
        np.testing.assert_array_equal(arrays[name], expected[name], err_msg=name)


@pytest.mark.parametrize("algorithm", [*QUICK, *REST])
def test_a_federation_equals_the_loop_bit_for_bit(runs, loop, algorithm):
    flags = ("-jr", "0.5") if algorithm == "FedCPD" else ()
    assert_equal(runs(algorithm, *flags)[1], loop(algorithm, *flags))


BAD = {  # round and client, what is sent in place of base.conv1.0.weight (32, 1, 5, 5), and what is said of it
    (0, 2): (torch.full((32, 1, 5, 5), torch.nan), "holds base.conv1.0.weight with values that are not finite"),
    (0, 1): (None, "lacks base.conv1.0.weight"),
    (1, 3): (torch.zeros(2, 2), "of shape (2, 2) instead of (32, 1, 5, 5)"),
    (1, 0): (torch.zeros(32, 1, 5, 5, dtype=torch.int64), "of type torch.int64 instead of torch.float32"),
    (2, 2): ("text", "that is no tensor but str"),
}


def bad(tensors, value):
    others = {name: tensor for name, tensor in tensors.items() if name != "base.conv1.0.weight"}
    return others if value is None else others | {"base.conv1.0.weight": value}


def test_bad_replies_are_left_out_by_name_as_in_the_loop(runs, loop, monkeypatch, caplog):
    """And their clients go on from what they were, so that the numbers are those of a loop with the same faults."""
    spoil = {
        where: lambda reply, value=value: replace(reply, tensors=bad(reply.tensors, value))
        for where, (value, _) in BAD.items()
    }
    _, arrays = runs("FedRep", spoil=spoil)
    for (number, client), (_, why) in BAD.items():
        said = [line for line in caplog.messages if line.startswith(f"round {number}: clients [{client}] left out")]
        assert len(said) == 1 and why in said[0]
    assert arrays["rs_left_out"].tolist() == [2, 2, 1]
    real = RoundUploads.upload_of

    def upload_of(self, client):
        upload = real(self, client)
        value = BAD.get((self.server.current_round, client.id))
        return bad(upload, value[0]) if value else upload

    monkeypatch.setattr(RoundUploads, "upload_of", upload_of)
    assert_equal(arrays, loop("FedRep"))


def test_a_client_without_a_reply_is_left_out_and_in_no_mean(runs, caplog):
    _, arrays = runs("FedAvg", spoil={(1, 3): lambda reply: "no answer"})
    accuracy, sizes = arrays["rs_client_acc"][1], np.array([9, 8, 6])
    assert np.isnan(accuracy).tolist() == [False, False, False, True]
    assert arrays["rs_test_acc"][1] == pytest.approx((accuracy[:3] * sizes).sum() / sizes.sum())
    assert arrays["rs_left_out_clients"].tolist() == [[1, 3]]
    assert "round 1: no reply that can be used: client 3: no answer" in caplog.text


def test_without_any_reply_the_run_ends(runs):
    with pytest.raises(RunError, match="round 1: no client has answered"):
        runs("FedAvg", spoil={(1, i): lambda reply: "no answer" for i in range(4)})


def test_a_reply_that_is_lost_is_made_again_the_same(runs):
    """The server names the version to go on from, so a client that has trained already takes it back."""
    transport, _ = runs("FedCPD")
    order = transport.orders[2][1]
    assert order.base == Version(1, True)
    first, again = (transport.node(1).answer(order) for _ in range(2))
    assert (first.correct_after, first.loss) == (again.correct_after, again.loss)
    assert all(torch.equal(first.tensors[name], again.tensors[name]) for name in first.tensors)
    assert {name.split(".")[0] for name in first.tensors} == {"base", "prototypes", "counts"}  # nothing that is its own


def test_a_training_that_was_refused_is_taken_back(runs):
    transport, _ = runs("FedRep", spoil={(1, 0): lambda reply: replace(reply, sound=False)})
    assert [orders[0].base for orders in transport.orders] == [
        Version(-1, False),
        Version(0, True),
        Version(1, False),
        Version(2, True),
    ]


def test_a_client_that_lost_its_folder_begins_anew_and_the_run_says_so(runs, caplog):
    transport, _ = runs("FedRep")
    for file in transport.folder.glob("state-1/**/state.json"):
        file.unlink()
    assert transport.answer(1, transport.orders[3][1]).fresh
    assert not transport.answer(0, transport.orders[3][0]).fresh


def test_the_folder_of_a_client_holds_two_versions_and_no_other_client(runs):
    transport, _ = runs("FedCPD")
    found = sorted(path.name for path in (transport.folder / "state-2" / "repeat-0" / "client-2").iterdir())
    assert found == ["round-000002", "round-000003"]
    assert not (transport.folder / "state-2" / "repeat-0" / "client-1").exists()


def test_results_are_the_files_of_every_run(data_root, tmp_path, generator_file):
    """With the loop's settings and digest of the data, so that tables put both side by side as the same."""
    argv = [*words("FedRep", generator_file), "--results_dir", str(tmp_path / "results")]
    transport = Inside(data_root, tmp_path, argv)
    mine = FederatedExperiment.of(argv, transport).run().repeats[0]
    flags = "-go loop -ex loop --data_dir".split()
    theirs = Experiment.from_argv([*argv, *flags, str(data_root)]).run().repeats[0]
    with h5py.File(mine.path) as one, h5py.File(theirs.path) as other:
        assert one["rs_test_acc"][:].tolist() == other["rs_test_acc"][:].tolist()
    assert mine.info["settings"] == theirs.info["settings"]
    assert (mine.info["arguments"]["executor"], mine.info["status"]) == ("flower", "finished")


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("-algo FedDBE", "FedDBE cannot be a federation"),
        ("-algo FedAvg --label_noise 0.1", "--label_noise is for runs on one machine"),
        ("-algo FedAvg --resume True", "--resume is for runs on one machine"),
    ],
)
def test_what_a_federation_cannot_do_is_refused(flags, why):
    with pytest.raises(UsageError, match=why):
        FederatedExperiment.of(flags.split(), None)


def test_asked_for_it_main_says_what_to_install_and_to_run(capsys):
    assert main(["-ex", "flower"]) == 2
    assert "pip install 'flwr[simulation]>=1.42', then flwr run examples/flower" in capsys.readouterr().err


def test_another_number_of_clients_than_their_data_set_has_is_refused(runs):
    with pytest.raises(UsageError, match="-nc 3, but the clients' data set has 4; leave -nc out"):
        runs("FedAvg", "-nc", "3")


def test_a_node_without_its_files_says_which(data_root, tmp_path):
    transport = Inside(data_root, tmp_path, "-algo FedAvg -data Tiny -dev cpu".split())
    (transport.data[1] / "Tiny" / "test" / "1.npz").unlink()
    with pytest.raises(UsageError, match=r"1.npz is not there: a node needs config.json and its client's two files"):
        transport.node(1).member()
