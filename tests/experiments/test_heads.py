"""A head in closed form on the extractors of finished runs."""

import importlib

import pytest

from flcore.experiment import Experiment
from support import REPO


@pytest.fixture
def heads(monkeypatch):
    monkeypatch.syspath_prepend(REPO / "experiments")
    return importlib.import_module("heads")


@pytest.fixture
def finished(data_root, tmp_path):
    """``finished("FedRep")`` -> the file of a run of one round."""

    def run(algorithm):
        settings = {"algorithm": algorithm, "dataset": "Tiny", "data_dir": data_root, "device": "cpu"}
        return Experiment(**settings, global_rounds=1, results_dir=tmp_path).run().repeats[0].path

    return run


def test_of_fedcpd_plus_it_is_the_own_head(heads, finished):
    path = finished("FedCPD+")
    found = heads.scores(path, 1.0)
    first = heads.read_run(path).accuracy[0]
    assert found.solved == pytest.approx(found.own) and found.untrained == pytest.approx(100 * first)


def test_of_another_method_it_is_as_good_as_fedcpd_plus_before_training(heads, finished):
    assert heads.scores(finished("FedRep"), 1.0).untrained == heads.scores(finished("FedCPD+"), 1.0).untrained


def test_what_has_no_models_is_told(heads, finished, capsys):
    path = finished("FedRep")
    path.with_suffix(".models").rename(path.with_suffix(".gone"))
    assert heads.main([str(path)]) == 2 and "no trained models" in capsys.readouterr().err
