"""PFLlib-style pairs, copied into our tree as they are, run there."""

import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest

from support import REPO

DOUBLE = REPO / "tests" / "pfllib_double" / "system" / "flcore"
PAIRS = {
    "FedAvg": ("clients/clientavg.py", "servers/serveravg.py"),
    "FedRep": ("clients/clientrep.py", "servers/serverrep.py"),
}


@pytest.fixture
def tree_with_pair(tmp_path):
    def make(algorithm):
        shutil.copytree(REPO / "system", tmp_path / "system", ignore=shutil.ignore_patterns("__pycache__", "models"))
        for name in PAIRS[algorithm]:
            shutil.copy(DOUBLE / name, tmp_path / "system" / "flcore" / name)
        return tmp_path

    return make


@pytest.mark.parametrize("algorithm", PAIRS)
@pytest.mark.parametrize("flags", [("-jr", "0.5", "-cdr", "0.5"), ("-nnc", "1", "-ften", "1", "-ld", "True")])
def test_a_pfllib_pair_runs_unmodified(tree_with_pair, data_root, algorithm, flags):
    tree = tree_with_pair(algorithm)
    command = [
        sys.executable,
        "main.py",
        "-algo",
        algorithm,
        "-data",
        "Tiny",
        "-gr",
        "12",
        "-lr",
        "0.05",
        "-dev",
        "cpu",
    ]
    command += ["--data_dir", data_root, "--results_dir", tree / "results", *flags]
    done = subprocess.run(list(map(str, command)), cwd=tree / "system", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "brings its own round loop" in done.stdout and "Best accuracy." in done.stdout
    with h5py.File(tree / "results" / f"Tiny_{algorithm}_test_0.h5") as file:
        accuracy, loss = file["rs_test_acc"][:], file["rs_train_loss"][:]
    assert len(accuracy) == len(loss) == 13 and np.isfinite(loss).all()
    assert loss[-1] < loss[0]


def test_a_pfllib_pair_and_ours_do_the_same_mathematics(make_server, pfllib_pair):
    """FedAvg as PFLlib writes it, on our bases, and FedAvg as a rule: the same weights from the same batches."""
    ours = make_server("FedAvg", "-gr", "2", dataset="Single")
    theirs = pfllib_pair.FedAvg(ours.args, 0)
    for client in (*ours.clients, *theirs.clients):
        x, y = client.data
        client.load_train_data = lambda x=x, y=y: [(x[:10], y[:10]), (x[10:20], y[10:20])]
    ours.train()
    theirs.global_rounds = 1  # PFLlib trains one round more than it is asked for
    theirs.save_global_model = lambda: None
    theirs.train()
    for name, value in theirs.global_model.state_dict().items():
        assert abs(value - ours.global_params[name]).max() < 1e-6
