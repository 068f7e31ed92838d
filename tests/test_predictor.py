"""The trained models of a run: of every method, from memory and from files, they predict what the table says."""

import numpy as np
import pytest
import torch

from flcore.data.reading import DataSet
from flcore.experiment import Experiment
from flcore.registry import METHODS
from flcore.saved import data_of, load_result
from flcore.servers.support.predictors import Models
from flcore.utils.errors import UsageError
from flcore.utils.runs.read import read_run
from support import SHORT

CLIENTS = range(4)  # of "Skewed"


@pytest.fixture
def run(data_root, generator_file):
    def run(algorithm, results_dir, **settings):
        words = dict(zip(*[iter(SHORT.get(algorithm, ()))] * 2, strict=True))
        own = {name.removeprefix("--"): int(value) for name, value in words.items()}
        if algorithm == "FedKTL":
            own |= {"generator": str(generator_file), "noise_dim": 6}
        common = {"dataset": "Skewed", "data_dir": str(data_root), "device": "cpu", "executor": "loop", "eval_gap": 1}
        settings = {"algorithm": algorithm, "global_rounds": 1, **common, **own, **settings}
        return Experiment(results_dir=results_dir and str(results_dir), **settings).run()

    return run


def accuracies(result, data):
    """Of every client, by its own model."""
    test = [data.read(i, is_train=False) for i in CLIENTS]
    return [np.mean(result.client(i).predict(own["x"]) == own["y"]) for i, own in zip(CLIENTS, test, strict=True)]


@pytest.mark.parametrize("algorithm", [method.name for method in METHODS])
def test_the_models_give_the_accuracy_in_the_table(run, algorithm, data_root, tmp_path):
    made = run(algorithm, tmp_path)
    path = made.paths[0]["results"]
    np.testing.assert_array_equal(accuracies(load_result(path), DataSet("Skewed", data_root)), made.client_accuracies)
    np.testing.assert_array_equal(accuracies(made, data_of(read_run(path))), made.client_accuracies)


def test_what_clients_share_is_stored_once(run, tmp_path):
    """FedAvg's clients have the same weights; FedRep's have heads of their own (512 x 4 weights and 4 biases)."""

    def size(algorithm):
        folder = run(algorithm, tmp_path / algorithm).paths[0]["models"]
        return sum(file.stat().st_size for file in folder.glob("*.safetensors"))

    weights = 32 * 26 + 64 * 801 + 512 * 257 + 4 * 513
    assert 0 <= size("FedAvg") - 4 * weights < 3000  # a header, too
    assert 0 <= size("FedRep") - 4 * (weights + 3 * 4 * 513) < 5000


def test_without_files_they_are_in_memory(run, data_root):
    made = run("FedCPD", None)
    np.testing.assert_array_equal(accuracies(made, DataSet("Skewed", data_root)), made.client_accuracies)
    images = DataSet("Skewed", data_root).read(0)["x"]
    likely = made.client(0).predict_proba(images)
    np.testing.assert_allclose(likely.sum(1), 1)
    np.testing.assert_array_equal(likely.argmax(1), made.client(0).predict(images))
    assert made.client(0).embeddings(images).shape == (len(images), 512)


def test_of_many_clients_those_are_kept_that_are_scored(run, tmp_path, data_root):
    made = run("FedRep", tmp_path, eval_clients=2)
    kept = list(Models(made.repeats[0].path, torch.device("cpu")))
    with pytest.raises(UsageError, match=f"there are models of the clients {kept[0]}, {kept[1]}"):
        made.client(min(set(CLIENTS) - set(kept)))
    scores = [DataSet("Skewed", data_root).read(i, is_train=False) for i in kept]
    right = [np.mean(made.client(i).predict(own["x"]) == own["y"]) for i, own in zip(kept, scores, strict=True)]
    np.testing.assert_array_equal(right, made.client_accuracies)


def test_no_models_where_none_are_wanted(run, tmp_path):
    made = run("FedAvg", tmp_path, save_models="none")
    assert "models" not in made.paths[0]
    with pytest.raises(UsageError, match="save_models is none"):
        made.client(0)


def test_validation_takes_a_part_of_the_training_data_and_no_test_data(run, data_root):
    """The training parts have 23, 12, 7 and 31 samples, of which 18, 9, 5 and 24 stay."""
    data = DataSet("Skewed", data_root)
    part = DataSet(data)
    part.validation = 0.2
    for client, kept in zip(CLIENTS, (18, 9, 5, 24), strict=True):
        own, rest, whole = part.read(client)["x"], part.read(client, is_train=False)["x"], data.read(client)["x"]
        assert len(own) == kept
        assert {x.tobytes() for x in (*own, *rest)} == {x.tobytes() for x in whole} and len(own) + len(rest) == len(
            whole
        )
    made = run("FedAvg", None, validation=0.2)
    np.testing.assert_array_equal(accuracies(made, part), made.client_accuracies)
    assert made.settings["validation"] == 0.2 and "validation" not in run("FedAvg", None, global_rounds=0).settings
