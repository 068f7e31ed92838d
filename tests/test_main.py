"""The command line, as a user types it: exit codes, messages, result files."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys

import h5py
import pytest

from flcore.experiment import Experiment
from support import REPO, write_dataset


@pytest.fixture
def run(data_root, tmp_path):
    def call(*flags, data="Tiny", root=data_root):
        command = [sys.executable, "main.py", "-data", data, "--data_dir", root, "--results_dir", tmp_path, "-gr", "2"]
        command = [str(word) for word in (*command, "-dev", "cpu", *flags)]
        return subprocess.run(command, cwd=REPO / "system", capture_output=True, text=True, timeout=120)

    return call


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-algo", "FedAvgg"), ["no such algorithm", "FedAvg?", "FedCPD"]),
        (("-m", "CNNN"), ["no such model", "CNN"]),
        (("-ncl", "5"), ["-ncl 5", "4 classes"]),
        (("-jr", "5"), ["-jr", "at most 1"]),
        (("-gr", "-1"), ["-gr"]),
        (("-ld", "flase"), ["True or False"]),
        (("-nc", "9"), ["Tiny", "4"]),
        (("-nnc", "4"), ["-nnc 4"]),
        (("-dev", "cuda:7"), ["no CUDA device"]),
        (("-algo", "FedCPD", "--cpd_tau", "0"), ["--cpd_tau", "above 0"]),
        (("-algo", "FedCPD", "--cpd_fd", "-1"), ["--cpd_fd", "0 or more"]),
        (("-algo", "FedCPD", "--cpd_fd", "nan"), ["--cpd_fd"]),
    ],
)
def test_a_mistake_exits_with_2_and_says_what_is_wrong(run, flags, words):
    done = run(*flags)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_an_unknown_data_set_is_refused_with_a_hint(run):
    done = run(data="NoSuch")
    assert done.returncode == 2 and "NoSuch" in done.stderr and "Traceback" not in done.stderr


def test_a_run_leaves_its_results_and_what_made_them(run, tmp_path):
    done = run("-algo", "fedcpd", "-lam", "3", "-vs", "9")
    assert done.returncode == 0, done.stderr
    assert "has no effect on FedCPD" in done.stderr and "no effect yet" in done.stderr
    assert "Best accuracy." in done.stdout and "Average time cost per round." in done.stdout
    with h5py.File(tmp_path / "Tiny_FedCPD_test_0.h5") as file:
        assert len(file["rs_test_acc"]) == len(file["rs_test_auc"]) == 3
    info = json.loads((tmp_path / "Tiny_FedCPD_test_0.run.json").read_text())
    assert info["status"] == "finished" and info["settings"]["seed"] == 0 and info["wall_time_s"] > 0
    assert info["versions"]["torch"] and info["settings"]["data_digest"]


def test_other_settings_never_overwrite_and_repeats_get_a_number_each(run, tmp_path):
    assert run("-t", "2").returncode == 0
    first = (tmp_path / "Tiny_FedAvg_test_0.h5").read_bytes()
    assert run("-lr", "0.1").returncode == 0
    assert (tmp_path / "Tiny_FedAvg_test_0.h5").read_bytes() == first
    names = {path.name.split("_test")[1] for path in tmp_path.glob("*.h5")}
    assert {"_0.h5", "_1.h5"} < names and len(names) == 3
    with h5py.File(tmp_path / "Tiny_FedAvg_test_0.h5") as one, h5py.File(tmp_path / "Tiny_FedAvg_test_1.h5") as two:
        assert one["rs_train_loss"][0] != two["rs_train_loss"][0]  # another initial model and other batches


def test_a_flag_without_effect_does_not_make_other_settings(run, tmp_path):
    assert run().returncode == 0
    done = run("-lam", "7", "--cpd_tau", "3", "-ex", "loop", "--reuse")
    assert done.returncode == 0 and "reused" in done.stdout
    assert len(list(tmp_path.glob("*.h5"))) == 1


def test_repeats_end_with_pfllibs_summary(run):
    done = run("-t", "2")
    assert "std for best accuracy" in done.stdout and "mean for best accuracy" in done.stdout


def test_number_of_clients_and_classes_come_from_the_data_set(run):
    assert "4 clients" in run("-gr", "0").stdout


def test_broken_data_names_the_file(run, tmp_path):
    root = tmp_path / "broken"
    folder = write_dataset(root)
    (folder / "train" / "2.npz").write_bytes(b"not a zip")
    done = run(root=root)
    assert done.returncode == 2 and "2.npz" in done.stderr and "Traceback" not in done.stderr


def test_divergence_is_a_failure_with_a_hint(run, tmp_path):
    done = run("-lr", "1e9", "-algo", "FedCPD")
    assert done.returncode == 1 and "diverged in round 0" in done.stderr and "Traceback" not in done.stderr
    assert json.loads((tmp_path / "Tiny_FedCPD_test_0.run.json").read_text())["status"] == "failed"


def test_a_refused_run_leaves_no_name_taken(run, tmp_path):
    assert run("-algo", "FedKTL").returncode == 2  # needs a generator
    assert not list(tmp_path.glob("*FedKTL*"))


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_its_rounds(data_root, tmp_path, kind):
    command = [sys.executable, "main.py", "-data", "Tiny", "--data_dir", data_root, "--results_dir", tmp_path]
    command = [str(word) for word in (*command, "-gr", "100000", "-dev", "cpu")]
    process = subprocess.Popen(
        command,
        cwd=REPO / "system",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # also where the caller ignores it
    )
    try:
        while "round    2/" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(kind)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130 and "the rounds so far are in" in errors
    with h5py.File(tmp_path / "Tiny_FedAvg_test_0.h5") as file:
        assert len(file["rs_test_acc"]) >= 3
    assert json.loads((tmp_path / "Tiny_FedAvg_test_0.run.json").read_text())["status"] == "interrupted"


def test_data_that_change_during_a_run_stop_it(data_root, tmp_path, monkeypatch, capsys):
    import main
    from flcore.data.reading import DataSet

    digests = iter(["one", "two"])
    monkeypatch.setattr(DataSet, "digest", lambda data: next(digests))
    assert main.main(["-data", "Tiny", "--data_dir", str(data_root), "--results_dir", str(tmp_path), "-gr", "1"]) == 1
    assert "was changed" in capsys.readouterr().err


@pytest.mark.slow
def test_fedcpd_on_digits_gives_the_same_curve_again(run, tmp_path):
    """The embedded data set is made on the way, since it is not there yet."""
    root = tmp_path / "data"
    root.mkdir()
    flags = ("-algo", "FedCPD", "-gr", "4")
    for goal in ("first", "second"):
        done = run(*flags, "-go", goal, data="Digits", root=root)
        assert done.returncode == 0, done.stderr
    other = run(*flags, "-go", "other", "-sd", "1", data="Digits", root=root)
    assert other.returncode == 0, other.stderr
    curves = {}
    for goal in ("first", "second", "other"):
        with h5py.File(next(tmp_path.glob(f"Digits_FedCPD_{goal}*.h5"))) as file:
            curves[goal] = {
                name: file[name][:].tolist() for name in ("rs_test_acc", "rs_train_loss", "rs_test_acc_after")
            }
    assert curves["first"] == curves["second"] != curves["other"]
    assert curves["first"]["rs_train_loss"][-1] < 4 and curves["first"]["rs_test_acc"][-1] > 0.2


def test_a_bare_command_says_what_to_type(capsys):
    import main

    assert main.main([]) == 2
    printed = capsys.readouterr().out
    commands = re.findall(r"^  (python .*?)(?:   |$)", printed, re.MULTILINE)
    assert len(commands) == 4 and "Methods: Local, FedAvg" in printed and "Digits" in printed
    for command in commands[:2]:
        Experiment.from_argv(command.split()[2:])


def test_names_and_folders_of_every_kind(data_root, tmp_path, monkeypatch, capsys):
    import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    data = "Meine Daten [v2] größe"
    shutil.copytree(data_root / "Tiny", tmp_path / "home" / "in [x]" / data)
    words = ["-data", data, "-go", "Ziel 1/2 [ü]", "-m", "MLR", "-gr", "1", "-dev", "cpu", "-t", "2"]
    assert main.main([*words, "--data_dir=~/in [x]", "--results_dir", "out (1) é", "--log=~/l o g/a.log"]) == 0
    printed, names = capsys.readouterr().out, {path.name for path in (tmp_path / "out (1) é").iterdir()}
    assert "mean for best accuracy: " in printed and (tmp_path / "home" / "l o g" / "a.log").exists()
    for ending in (".h5", ".pt", ".run.json"):
        assert {f"Meine-Daten-v2-größe_FedAvg_Ziel-1-2-ü_{repeat}{ending}" for repeat in range(2)} < names
    assert not (tmp_path / "~").exists()
    info = json.loads((tmp_path / "out (1) é" / "Meine-Daten-v2-größe_FedAvg_Ziel-1-2-ü_0.run.json").read_text())
    assert info["arguments"]["results_dir"] == str(tmp_path / "out (1) é") and info["dataset"] == data


def test_a_lost_terminal_does_not_end_the_training(data_root, tmp_path):
    """As in `main.py ... | head -1`, with a character set that lacks a sign."""
    words = ["main.py", "-data", "Tiny", "-m", "MLR", "-gr", "40", "--data_dir", data_root, "--results_dir", tmp_path]
    done = subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=REPO / "system",
        env=os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "nonsense", "MPLBACKEND": "module://nowhere"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    lines = []
    while not lines or not lines[-1].startswith(b"round"):
        lines.append(done.stdout.readline())
    done.stdout.close()
    errors = done.stderr.read()
    assert done.wait(timeout=100) == 0 and b"Traceback" not in errors and b"(Broken pipe)" in errors
    assert b" +- " in lines[-1] and b"?" not in lines[-1]
    with h5py.File(tmp_path / "Tiny_FedAvg_test_0.h5") as file:
        assert len(file["rs_test_acc"]) == 41


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs a limit of the files' size")
def test_a_full_disk_is_one_line_and_what_was_written_stays_whole(data_root, tmp_path):
    """The limit lets the results through, and not the model: 144 kB."""
    words = ["main.py", "-data", "Tiny", "-m", "DNN", "-gr", "1", "--data_dir", data_root, "--results_dir", tmp_path]
    limit = resource.RLIMIT_FSIZE
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=REPO / "system",
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(limit, (50_000, resource.getrlimit(limit)[1])),
    )
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("error: ")
    assert "Tiny_FedAvg_test_0.pt cannot be written (File too large)" in done.stderr and "Traceback" not in done.stderr
    with h5py.File(tmp_path / "Tiny_FedAvg_test_0.h5") as file:
        assert len(file["rs_test_acc"]) == 2
    assert not [path.name for path in tmp_path.iterdir() if "Tiny_FedAvg_test_0.pt" in path.name]
