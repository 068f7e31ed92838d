"""What users of such frameworks ran into, where no other test holds it. docs/faq.md answers the rest."""

import h5py
import numpy as np
import pytest
import torch

import main
from flcore import registry
from flcore.data import reading
from flcore.data.partition import partition
from flcore.trainmodel.build import build_model
from support import write_dataset


@pytest.fixture
def run(tmp_path):
    """``run("-algo", "FedAvg", sizes...)`` -> the arrays of a run on a data set with these sizes."""

    def call(*flags, algorithm="FedAvg", **sizes):
        write_dataset(tmp_path, **sizes)
        folder = tmp_path / "results"
        words = ["-data", "Tiny", "--data_dir", tmp_path, "--results_dir", folder, "-algo", algorithm, *flags]
        assert main.main([str(word) for word in words]) == 0
        with h5py.File(next(folder.glob(f"Tiny_{algorithm}_*.h5"))) as file:
            return {name: values[:] for name, values in file.items()}

    return call


def test_the_saved_model_has_the_last_accuracy(run, tmp_path):
    last = run("-gr", "2")["rs_test_acc"][-1]
    model = build_model("CNN", (1, 20, 20), 4)
    saved = torch.load(tmp_path / "results" / "Tiny_FedAvg_test_0.pt", weights_only=True)
    model.load_state_dict({name.removeprefix("base.").replace("head.", "fc."): v for name, v in saved.items()})
    tests = [reading.DataSet("Tiny", tmp_path).tensors(i, is_train=False) for i in range(4)]
    x, y = map(torch.cat, zip(*tests, strict=True))
    with torch.no_grad():
        assert float((model(x).argmax(1) == y).double().mean()) == pytest.approx(last, abs=1e-6)


def test_files_are_read_once_whatever_the_number_of_rounds(run, monkeypatch):
    reads, original = [], reading.load_npz
    monkeypatch.setattr(reading, "load_npz", lambda path: reads.append(path) or original(path))
    run("-gr", "4", "-m", "MLR")
    assert len(set(reads)) == 8 and len(reads) <= 8 + 2  # the first is looked at for its shape, and checked


def test_a_run_shorter_than_its_evaluation_gap_has_both_ends(run):
    arrays = run("-gr", "1", "-eg", "5", "-m", "MLR")
    assert arrays["rs_round"].tolist() == [0, 1] and len(arrays["rs_test_acc"]) == 2


def test_many_clients_and_a_tiny_alpha_end_with_every_image_dealt_once():
    y = np.arange(2000) % 10
    own, _, _ = partition(y, 50, 10, "dir", alpha=0.01, min_samples=10, repair=True)
    assert sorted(np.concatenate(own)) == list(range(2000)) and min(map(len, own)) >= 10


TINY = {"train": (0, 1, 9, 11), "test": (0, 1, 20, 20)}


@pytest.mark.parametrize("algorithm", ["FedAvg", "FedRep", "FedProto", "FedGH", "FedALA", "FedCPD"])
def test_clients_below_a_batch_and_without_any_sample(run, algorithm, capsys):
    arrays = run("-gr", "2", "-jr", "0.5", "-se", "2", algorithm=algorithm, **TINY)
    assert np.isfinite(arrays["rs_test_acc"]).all()
    assert np.isnan(arrays["rs_client_acc"][:, 0]).all() and np.isfinite(arrays["rs_client_acc"][:, 1:]).all()
    assert "clients [0] have too few samples" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("algorithm", [line.name for line in registry.METHODS])
def test_tiny_clients_with_every_algorithm(run, algorithm, generator_file):
    needs = ["--generator", str(generator_file), "-nd", "6"] if algorithm == "FedKTL" else []
    quick = [word for flag in ("-se", "--pa_gen_steps") for word in (flag, "2")]
    arrays = run("-gr", "3", *needs, *quick, algorithm=algorithm, **TINY)
    assert np.isfinite(arrays["rs_test_acc"]).all()


@pytest.mark.parametrize("algorithm", ["FedProto", "FedGH", "FedCPD"])
def test_one_client_a_round_with_a_class_of_its_own_each(run, algorithm):
    """With prototypes of this round's client alone nobody else could be right: 0.25 at most."""
    sizes = {"train": (20,) * 4, "test": (10,) * 4, "labels": [[0], [1], [2], [3]]}
    arrays = run("-gr", "8", "-jr", "0.25", "-se", "10", algorithm=algorithm, **sizes)
    assert np.isfinite(arrays["rs_test_acc"]).all() and arrays["rs_test_acc"][-1] > 0.25


def test_a_prototype_method_has_a_true_first_point(run):
    """Without a prototype yet the head predicts; no invented 0."""
    arrays = run("-gr", "1", algorithm="FedProto", train=(30,) * 4, test=(50,) * 4)
    assert arrays["rs_test_acc"][0] > 0
