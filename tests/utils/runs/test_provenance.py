"""What decides a run's numbers, and where they come from."""

import json
import subprocess

import numpy as np
import torch

from flcore import registry
from flcore.utils import cli
from flcore.utils.runs import provenance
from flcore.utils.runs.provenance import run_info, run_settings, settings_digest


def settings_of(*words, data="d1"):
    return run_settings(cli.read(words, registry.find("FedAvg"), registry.METHODS).values, data)


def test_settings_are_what_decides_the_numbers():
    base = settings_of()
    assert (
        settings_of("-go", "x", "-t", "3", "-pv", "1", "--results_dir", "r", "--overwrite", "--num_threads", "2")
        == settings_of("-ex", "loop")
        == base
    )
    assert settings_of("-lr", "0.02") == base | {"local_learning_rate": 0.02}
    assert settings_of(data="d2") == base | {"data_digest": "d2"}


def test_digest_ignores_order_only():
    assert settings_digest({"a": 1, "b": 2}) == settings_digest({"b": 2, "a": 1})
    assert settings_digest({"a": 1, "b": 2}) != settings_digest({"a": 2, "b": 1})
    assert settings_digest({"a": 1}) != settings_digest({"a": "1"})


def test_run_info_is_complete_and_json(tmp_path):
    info = run_info({"evaluation_point": "A", "sizes": np.array([1, 2]), "device": torch.device("cpu")})
    assert json.loads(json.dumps(info, allow_nan=False)) == info
    assert (info["device"], info["evaluation_point"], info["sizes"]) == ("cpu", "A", [1, 2])
    assert info["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert set(info["versions"]) == {"python", "torch", "torchvision", "numpy", "scikit-learn", "h5py"}


def git(folder, *command):
    identity = ["-c", "user.name=n", "-c", "user.email=e@x"]
    subprocess.run(["git", *identity, *command], cwd=folder, check=True, capture_output=True)


def test_the_commit_is_told_in_a_checkout_only(tmp_path, monkeypatch):
    ours = tmp_path / "outer" / "ours"
    (ours / "system").mkdir(parents=True)
    code = ours / "system" / "a.py"
    code.write_text("a = 1\n")
    monkeypatch.setattr(provenance, "REPO", ours)
    assert (run_info()["commit"], run_info()["dirty"]) == (None, None)
    git(tmp_path / "outer", "init")
    git(tmp_path / "outer", "commit", "--allow-empty", "-m", "theirs")
    assert run_info()["commit"] is None  # somebody else's repository around a copy of ours
    git(ours, "init")
    git(ours, "add", "system")
    git(ours, "commit", "-m", "ours")
    assert len(run_info()["commit"]) == 40 and run_info()["dirty"] is False
    code.write_text("a = 2\n")
    assert run_info()["dirty"] is True
    monkeypatch.setenv("PATH", "")
    assert run_info()["commit"] is None  # no git at all
