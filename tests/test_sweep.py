"""Many runs from one file: which they are, what they leave, and what happens to those that fail."""

import re
import signal
import subprocess
import sys
import time

import pytest

from flcore.sweep import cells_of, read_sweep
from flcore.utils.errors import UsageError
from flcore.utils.runs.read import read_run
from support import REPO

FILE = """
dataset = "Tiny"
data_dir = "{data_root}"
results_dir = "{results}"
device = "cpu"
global_rounds = 1

[[runs]]
algorithm = ["FedAvg", "Local"]

[[runs]]
algorithm = "FedProx"
mu = [0.1, 0.5]

[[runs]]
algorithm = "FedKTL"
generator = "{generator}"
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        (tmp_path / "sweep.toml").write_text(text)
        return tmp_path / "sweep.toml"

    return write


def test_lists_are_combined_and_tables_are_runs_of_their_own(write):
    common = 'seed = [0, 1]\nlocal_epochs = 2\n[[runs]]\nalgorithm = "FedAvg"\n'
    runs = read_sweep(write(common + '[[runs]]\nalgorithm = "FedCPD"\ncpd_align = [1.0, 5.0]\n'))
    assert [tuple(run.values()) for run in runs] == [
        *[(0, 2, "FedAvg"), (1, 2, "FedAvg")],
        *[(0, 2, "FedCPD", 1.0), (0, 2, "FedCPD", 5.0), (1, 2, "FedCPD", 1.0), (1, 2, "FedCPD", 5.0)],
    ]
    assert [cell.words for cell in cells_of(runs)][-1] == "seed=1 algorithm=FedCPD cpd_align=5.0"
    assert read_sweep(write("mu = 0.1")) == [{"mu": 0.1}]


def test_the_quick_start_has_five_methods_and_three_seeds():
    runs = read_sweep(REPO / "examples" / "quickstart.toml")
    pairs = {(run["algorithm"], run["seed"]) for run in runs}
    assert len(cells_of(runs)) == len(pairs) == 15 and ("FedCPD", 2) in pairs
    assert {run["data_dir"] for run in runs} == {"results/quickstart/data"}  # where quickstart.sh makes it


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = [", "sweep.toml"),
        ("seed = []", "seed is an empty list"),
        ("[grid]\nseed = 1", r"\[grid\] means nothing here"),
        ("runs = 3", r"under \[\[runs\]\]"),
        ("seed = [0, 1]\nlocal_epoch = 1", "seed=0: local_epoch: no such setting. Did you mean local_epochs"),
        ('algorithm = ["FedAvg", "FedAwg"]', "FedAwg"),
    ],
)
def test_a_file_that_cannot_be_meant_is_told_before_any_run(write, text, message):
    with pytest.raises(UsageError, match=message):
        cells_of(read_sweep(write(text)))


def start(path, *flags):
    words = [sys.executable, str(REPO / "scripts" / "sweep.py"), str(path), *(flags or ("--processes", "2"))]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=path.parent)


@pytest.mark.slow
def test_a_sweep_runs_what_is_missing_and_names_what_failed(write, data_root, tmp_path):
    file = write(FILE.format(data_root=data_root, results=tmp_path / "results", generator=tmp_path / "none.pt"))
    for before in (0, 4):
        process = start(file)
        printed, error = process.communicate(timeout=120)
        assert process.returncode == 1, error
        assert f"4 of 5 runs are finished ({before} were before), 1 failed" in printed
        assert re.search(r"failed: algorithm=FedKTL .*none.pt: there is no such file", printed)
        assert len(list((tmp_path / "results").glob("*.h5"))) == 4


@pytest.mark.slow
def test_an_end_in_the_middle_loses_nothing(write, data_root, tmp_path):
    text = FILE.split("[[runs]]")[0].replace("global_rounds = 1", "global_rounds = 100000\nseed = [0, 1, 2]")
    process = start(write(text.format(data_root=data_root, results=tmp_path / "results", generator="")))
    while not list((tmp_path / "results").glob("*.h5")):
        assert process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command goes on with the rest" in error


@pytest.mark.slow
def test_on_ray_the_runs_are_the_same(write, data_root, tmp_path):
    pytest.importorskip("ray")
    curves = []
    for where in ("ray", "here"):
        text = FILE.split('\n[[runs]]\nalgorithm = "FedKTL"')[0].format(data_root=data_root, results=tmp_path / where)
        flags = ("--ray", "--cores", "0.5") if where == "ray" else ()
        process = start(write(text), *flags)
        printed, error = process.communicate(timeout=300)
        assert process.returncode == 0 and "4 of 4 runs are finished (0 were before), 0 failed" in printed, error
        runs = [read_run(path) for path in (tmp_path / where).glob("*.h5")]
        # by settings: which of two runs of one method has the plain name is a matter of which ends first
        curves.append(
            {(run.algorithm, run.info["settings"].get("mu")): run.arrays["rs_train_loss"].tolist() for run in runs}
        )
    assert len(curves[0]) == 4 and curves[0] == curves[1]
    assert len({tuple(curve) for curve in curves[0].values()}) == 3  # FedAvg and Local begin alike


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--ray", "--processes", "2"), "not --processes"),
        (("--ray", "--cores", "0"), "--cores above 0"),
        (("--gpus", "1"), "are for --ray"),
    ],
)
def test_flags_of_a_ray_sweep_that_contradict_each_other(write, flags, said):
    process = start(write('algorithm = "FedAvg"'), *flags)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2 and said in error
