"""Fixtures that tests share; what is no fixture lies in support/."""

import pytest
import torch

from support import REPO, load_module, write_dataset, write_generator


@pytest.fixture(scope="session")
def data_root(tmp_path_factory):
    """Data sets used by many tests: ragged sizes, one client below a batch of 10."""
    root = tmp_path_factory.mktemp("dataset")
    write_dataset(root, "Tiny")
    write_dataset(root, "Skewed", labels=[[0, 1], [1], [2, 0], [0, 1, 2]])  # nobody holds class 3
    write_dataset(root, "Single", train=(25,), test=(10,))
    write_dataset(root, "Colour", shape=(3, 32, 32), train=(8, 6, 5, 4), test=(4, 4, 4, 4))
    return root


@pytest.fixture(scope="session")
def generator_file(tmp_path_factory):
    return write_generator(tmp_path_factory.mktemp("generator") / "tiny.pt")


@pytest.fixture
def make_server(data_root, generator_file, caplog):
    """``make_server("FedCPD", "-gr", "2", dataset="Tiny", executor=...)`` -> a server ready to train.

    Further arguments are fields of the run's context.
    """
    from flcore.executors.loop import LoopExecutor
    from flcore.experiment import Experiment

    torch.set_num_threads(1)
    caplog.set_level("INFO", "flcore")

    def make(algorithm, *flags, dataset="Tiny", executor=None, model="CNN", device="cpu", **context):
        needs = ["--generator", str(generator_file), "-nd", "6"] if algorithm == "FedKTL" else []
        words = f"-algo {algorithm} -data {dataset} -m {model} -gr 3 -ex loop -dev cpu".split()
        experiment = Experiment.from_argv([*words, "--data_dir", str(data_root), *needs, *flags])
        seeds = {"model_seed": 7, "module_seed": 0}
        server = experiment.server(device=torch.device(device), **(seeds | context))
        server.executor = executor or LoopExecutor()
        return server

    return make


@pytest.fixture
def pfllib_pair(monkeypatch):
    """A PFLlib-style server's module, with its client: written for the double's bases, on ours here."""

    flcore = REPO / "tests" / "pfllib_double" / "system" / "flcore"
    pair = load_module(flcore / "servers" / "serveravg.py")
    monkeypatch.setattr(pair, "clientAVG", load_module(flcore / "clients" / "clientavg.py").clientAVG)
    return pair
