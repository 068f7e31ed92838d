"""What tests share: tiny data sets, comparisons, shortened runs."""

import importlib.util
import json
import warnings
from pathlib import Path

import numpy as np
import torch

REPO = Path(__file__).resolve().parents[2]

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


def write_generator(file):
    """For FedKTL: latent vectors of six numbers -> grey images of 8 x 8, as TorchScript."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Tanh(), torch.nn.Unflatten(1, (1, 8, 8)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of torch advise against TorchScript
        torch.jit.trace(net, torch.zeros(1, 6)).save(str(file))
    return file


def load_module(path):
    """The module in a file that no import finds."""
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same_tensors(first, second):
    """Whether two dicts of tensors are equal bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
