"""Five rounds of one algorithm on a tiny ragged data set: the curve that tests/golden/<algorithm>.txt holds."""

import tempfile
from pathlib import Path

import torch

from flcore.experiment import Experiment
from support import REPO, write_dataset, write_generator


def curve(algorithm: str) -> list[list[float]]:
    """Rows of round, accuracy at A, accuracy at B, training loss (the last two end one round earlier)."""
    settings = {"dataset": "Golden", "global_rounds": 5, "join_ratio": 0.75, "device": "cpu", "executor": "loop"}
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(Path(folder), "Golden", labels=[[0, 1], [1], [2, 0], [0, 1, 2]], train=(23, 14, 7, 31))
        if algorithm == "FedKTL":
            settings |= {"generator": write_generator(Path(folder) / "generator.pt"), "noise_dim": 6}
        torch.set_num_threads(1)
        experiment = Experiment(algorithm=algorithm, data_dir=folder, **settings)
        server = experiment.server(model_seed=1, module_seed=0)
        server.train()
    after, loss = server.records["rs_test_acc_after"], server.rs_train_loss
    return [[i, a, *pair] for i, (a, *pair) in enumerate(zip(server.rs_test_acc, after, loss, strict=False))]


def written(rows: list[list[float]]) -> str:
    return "".join(f"{i:.0f} {' '.join(f'{value:.6f}' for value in values)}\n" for i, *values in rows)


def golden_file(algorithm: str) -> Path:
    return REPO / "tests" / "golden" / f"{algorithm}.txt"
