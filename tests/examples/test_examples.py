"""The programs in examples/ do what they say."""

import json
import re
import runpy
import shutil
import subprocess
import sys

import numpy as np
import pytest

from flcore.data.reading import DataSet
from flcore.experiment import Experiment
from support import REPO

EXAMPLES = REPO / "examples"
NEW_METHOD = {
    "clientrepprox.py": "system/flcore/clients",
    "serverrepprox.py": "system/flcore/servers",
    "test_repprox.py": "tests/clients",
}


def test_fedavg_by_hand_is_fedavg(data_root):
    by_hand = runpy.run_path(str(EXAMPLES / "fedavg_by_hand.py"))["fedavg"](DataSet("Tiny", data_root), rounds=3)
    settings = {"dataset": "Tiny", "data_dir": str(data_root), "global_rounds": 3, "device": "cpu"}
    program = Experiment(algorithm="FedAvg", executor="loop", results_dir=None, **settings).run()
    np.testing.assert_array_equal(by_hand, program.test_acc)


@pytest.mark.slow
def test_from_python(capsys):
    runpy.run_path(str(EXAMPLES / "from_python.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(r"FedRep: A 0\.\d{4} after 5 rounds\nFedCPD: A 0\.\d{4} after 5 rounds\n", printed)
    assert re.search(r"stopped after round \d", printed)


@pytest.mark.slow
def test_own_network(capsys):
    runpy.run_path(str(EXAMPLES / "own_network.py"))["main"](rounds=2)
    printed = re.findall(r"(\w+) with EdgeNet: A (0\.\d{4}) after 2 rounds", capsys.readouterr().out)
    assert [name for name, _ in printed] == ["FedRep", "FedCPD"] and min(float(value) for _, value in printed) > 0.5


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    namespace = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), namespace)
    assert namespace["results"].keys() == {"FedAvg", "FedRep", "FedCPD"}


@pytest.mark.slow
def test_the_whole_way(tmp_path):
    """Files of a generated data set, a study, nine runs, a table, figures and predictions; in a folder with a space."""
    pytest.importorskip("optuna")
    folder = tmp_path / "a way"
    words = [sys.executable, str(EXAMPLES / "whole_way.py"), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "9 of 9 runs are finished" in done.stdout and "\\bottomrule" in done.stdout
    assert "best of 4: validation accuracy" in done.stdout and "client 0: " in done.stdout
    made = {"curves.pdf", "report.html", "predictions.csv", "tune.db"}
    assert made <= {path.name for path in folder.iterdir() if path.stat().st_size}
    assert len(list((folder / "results").glob("*.models"))) == 9
    assert len((folder / "predictions.csv").read_text().splitlines()) == 13


def test_the_readme_shows_the_new_method_as_it_is():
    readme = (REPO / "README.md").read_text()
    for name in ("clientrepprox.py", "serverrepprox.py", "card.txt"):
        assert f"```python\n{(EXAMPLES / 'new_method' / name).read_text()}```" in readme, name


@pytest.mark.slow
def test_following_the_readme_leaves_the_suite_green(tmp_path):
    """The steps of "Add a method" in a copy of the project, then the tests that watch over all methods."""
    listed = subprocess.run(["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if (REPO / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPO / name, tmp_path / name)
    for name, folder in NEW_METHOD.items():
        shutil.copy(EXAMPLES / "new_method" / name, tmp_path / folder)
    registry = tmp_path / "system" / "flcore" / "registry.py"
    card = (EXAMPLES / "new_method" / "card.txt").read_text()
    registry.write_text(registry.read_text().replace("METHODS = [\n", "METHODS = [\n" + card))

    def run(*command):
        path = {"PYTHONPATH": str(tmp_path / "system"), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, env=path)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    run("tests/update_golden.py", "FedRepProx", "--because", "it is new")
    golden = (tmp_path / "tests" / "golden" / "FedRepProx.txt").read_text()
    assert golden == (EXAMPLES / "new_method" / "FedRepProx.txt").read_text()
    run("scripts/write_docs.py")
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "-k", "RepProx or repprox or algorithms or pair",
        "tests/test_registry.py", "tests/repo", "tests/executors", "tests/clients/test_repprox.py",
    )  # fmt: skip


def test_an_array_of_slurm_runs_every_method_with_every_seed(tmp_path):
    """With stand-ins for Slurm's commands; a Ray cluster in a job is only read."""
    (tmp_path / "srun").write_text('#!/usr/bin/env bash\necho "$PWD: $@"\n')
    (tmp_path / "srun").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(REPO)}
    runs = set()
    for index in range(8):
        command = ["bash", EXAMPLES / "slurm" / "sweep.sh", "-data", "Digits"]
        done = subprocess.run(
            command, env=environment | {"SLURM_ARRAY_TASK_ID": str(index)}, capture_output=True, text=True, check=True
        )
        where, words = done.stdout.strip().split(": ")
        assert where == str(REPO / "system")
        Experiment.from_argv(words.split()[2:])
        runs.add(re.search(r"-algo (\w+) -sd (\d)", words).groups())
    assert runs == {(name, seed) for name in ("FedCPD", "FedRep", "FedAvg", "Local") for seed in "01"}
    subprocess.run(["bash", "-n", EXAMPLES / "slurm" / "ray.sh"], check=True)
