"""Puts the two code folders on the path, as running from system/ and dataset/ does, and makes tiny data sets."""

import importlib.util
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

REPO = Path(__file__).resolve().parents[1]
for folder in ("system", "dataset"):
    sys.path.insert(0, str(REPO / folder))


# flags with which methods whose server or clients take many steps take few
SHORT = {
    "FedPA": ("--pa_steps", "5", "--pa_gen_steps", "4"),
    "FedGH": ("--server_epochs", "4"),
    "FedTGP": ("--server_epochs", "4"),
    "FedKTL": ("--server_epochs", "4"),
}


def write_dataset(
    root, name="Tiny", shape=(1, 20, 20), train=(23, 12, 7, 31), test=(9, 8, 6, 5), labels=None, classes=4
):
    """Writes a data set in PFLlib's format: one blob a class; ``labels[i]`` are the classes that client i holds."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, *shape))
    statistic = []
    for part, sizes in (("train", train), ("test", test)):
        (root / name / part).mkdir(parents=True, exist_ok=True)
        for i, size in enumerate(sizes):
            y = rng.choice(labels[i] if labels else classes, size)
            x = (centres[y] + 0.5 * rng.normal(size=(size, *shape))).astype(np.float32)
            data = np.array({"x": x, "y": y.astype(np.int64)}, dtype=object)
            np.savez_compressed(root / name / part / f"{i}.npz", data=data)
            if part == "train":
                statistic.append([[int(c), int((y == c).sum())] for c in np.unique(y)])
    config = {
        "num_clients": len(train),
        "num_classes": classes,
        "non_iid": labels is not None,
        "balance": False,
        "partition": "test",
        "Size of samples for labels in clients": statistic,
        "alpha": 0.1,
        "batch_size": 10,
    }
    (root / name / "config.json").write_text(json.dumps(config))
    return root / name


@pytest.fixture(scope="session")
def data_root(tmp_path_factory):
    """Data sets used by many tests: ragged sizes, one client below a batch of 10."""
    root = tmp_path_factory.mktemp("dataset")
    write_dataset(root, "Tiny")
    write_dataset(root, "Skewed", labels=[[0, 1], [1], [2, 0], [0, 1, 2]])  # nobody holds class 3
    write_dataset(root, "Single", train=(25,), test=(10,))
    write_dataset(root, "Colour", shape=(3, 32, 32), train=(8, 6, 5, 4), test=(4, 4, 4, 4))
    return root


def write_generator(file):
    """For FedKTL: latent vectors of six numbers -> grey images of 8 x 8, as TorchScript."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Tanh(), torch.nn.Unflatten(1, (1, 8, 8)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of torch advise against TorchScript
        torch.jit.trace(net, torch.zeros(1, 6)).save(str(file))
    return file


@pytest.fixture(scope="session")
def generator_file(tmp_path_factory):
    return write_generator(tmp_path_factory.mktemp("generator") / "tiny.pt")


@pytest.fixture
def make_server(data_root, generator_file, monkeypatch):
    """``make_server("FedCPD", "-gr", "2", dataset="Tiny", executor=...)`` -> a server ready to train."""
    import main
    from flcore.executors.loop import LoopExecutor
    from flcore.trainmodel.build import build_model, split_head
    from utils import data_utils
    from utils.seeds import seed_everything

    monkeypatch.setattr(data_utils, "ROOT", data_root)
    torch.set_num_threads(1)

    def make(algorithm, *flags, dataset="Tiny", executor=None, model="CNN", device="cpu"):
        needs = ["--generator", str(generator_file), "-nd", "6"] if algorithm == "FedKTL" else []
        args, line, server_class = main.read_arguments(
            ["-algo", algorithm, "-data", dataset, "-gr", "3", "--data_dir", str(data_root), *needs, *flags]
        )
        args.device, args.repeat = torch.device(device), 0
        main.use_data(args)
        seed_everything(7)
        args.model = split_head(build_model(model, args.shape, args.num_classes)).to(args.device)
        server = server_class(args, 0)
        server.executor = executor or LoopExecutor()
        return server

    return make


@pytest.fixture
def pfllib_pair(monkeypatch):
    """A PFLlib-style server's module, with its client: written for the double's bases, on ours here."""

    def load(name):
        path = REPO / "tests" / "pfllib_double" / "system" / "flcore" / name
        spec = importlib.util.spec_from_file_location(f"double_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    pair = load("servers/serveravg.py")
    monkeypatch.setattr(pair, "clientAVG", load("clients/clientavg.py").clientAVG)
    return pair


def same_tensors(first, second):
    """Whether two dicts of tensors are equal bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
