"""Five rounds of one algorithm on a tiny ragged data set: the curve that tests/golden/<algorithm>.txt holds."""

import tempfile
from pathlib import Path

import torch

from flcore.executors.loop import LoopExecutor
from flcore.trainmodel.build import build_model, split_head
from flcore.utils.seeds import seed_everything
from support import REPO, write_dataset, write_generator


def curve(algorithm: str) -> list[list[float]]:
    """Rows of round, accuracy at A, accuracy at B, training loss (the last two end one round earlier)."""
    with tempfile.TemporaryDirectory() as folder:
        return _curve(algorithm, folder)


def _curve(algorithm: str, folder: str) -> list[list[float]]:
    write_dataset(Path(folder), "Golden", labels=[[0, 1], [1], [2, 0], [0, 1, 2]], train=(23, 14, 7, 31))
    flags = ["-algo", algorithm, "-data", "Golden", "-gr", "5", "-jr", "0.75", "--data_dir", folder]
    if algorithm == "FedKTL":
        flags += ["--generator", str(write_generator(Path(folder) / "generator.pt")), "-nd", "6"]
    import main

    args, _, server_class = main.read_arguments(flags)
    args.device, args.repeat = torch.device("cpu"), 0
    main.use_data(args)
    torch.set_num_threads(1)
    seed_everything(1)
    args.model = split_head(build_model("CNN", args.shape, args.num_classes))
    server = server_class(args, 0)
    server.executor = LoopExecutor()
    server.train()
    after, loss = server.records["rs_test_acc_after"], server.rs_train_loss
    return [[i, a, *pair] for i, (a, *pair) in enumerate(zip(server.rs_test_acc, after, loss, strict=False))]


def written(rows: list[list[float]]) -> str:
    return "".join(f"{i:.0f} {' '.join(f'{value:.6f}' for value in values)}\n" for i, *values in rows)


def golden_file(algorithm: str) -> Path:
    return REPO / "tests" / "golden" / f"{algorithm}.txt"
