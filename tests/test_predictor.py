"""The trained models of a run: of every method, from memory and from files, they predict what the table says."""

import numpy as np
import pytest

from flcore.data.reading import DataSet
from flcore.experiment import Experiment
from flcore.registry import METHODS
from flcore.saved import data_of, load_result
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
