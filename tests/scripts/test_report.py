"""The command: what it prints and writes, and how it ends."""

import os
import pty
import shlex
import subprocess
import sys

import h5py
import pytest

import report
from flcore.experiment import Experiment
from flcore.reporting import figures, provenance, read_results
from flcore.utils.runs.files import write_h5
from support import REPO
from support.results import make_run, make_seeds


def run_report(*words, **environment):
    command = [sys.executable, str(REPO / "scripts" / "report.py"), *map(str, words)]
    return subprocess.run(
        command, capture_output=True, env=os.environ | environment, encoding="utf-8", errors="replace"
    )


def test_differences_name_what_differs_and_nothing_else(tmp_path):
    paths = make_run(tmp_path, goal="a", lr=0.1, data_digest="x"), make_run(tmp_path, goal="b", lr=0.2, data_digest="y")
    table, lines = provenance.differences(read_results(list(paths))[0])
    assert table.header == ["setting", "FedAvg (lr=0.1, data_digest=x)", "FedAvg (lr=0.2, data_digest=y)"]
    rows = [[cell.text for cell in row] for row in table.rows]
    assert rows == [["settings.lr", "0.1", "0.2"], ["settings.data_digest", "x", "y"]] and lines == []


def test_the_command_of_a_run_makes_it_again(data_root, tmp_path):
    flags = ["-algo", "FedRep", "-data", "Tiny", "-m", "MLR", "-gr", "1", "-lr", "0.05", "-ld", "-sd", "4", "-t", "2"]
    flags += ["-go", "two words", "-pls", "3", "--data_dir", str(data_root), "--results_dir", str(tmp_path / "a b")]
    first = Experiment.from_argv(flags)
    first.run()
    results, _ = read_results([tmp_path / "a b"])
    assert figures.partition(results).axes[0].collections  # the data set is found, and still the same
    for run in results.files:
        command = provenance.command_of(run)
        assert command.startswith("python main.py --algorithm FedRep --dataset Tiny --data_dir ")
        again = Experiment.from_argv(shlex.split(command)[2:])
        assert again.values == first.values and set(again.given) == set(first.given)


def test_the_command_prints_a_table_and_writes_a_picture(tmp_path):
    paths = [make_run(tmp_path, repeat=repeat) for repeat in range(2)]
    paths += [make_run(tmp_path, "Local", dataset="Other", arrays={"rs_test_acc_after": [0.4, 0.5]})]
    done = run_report(*paths, "--out", tmp_path / "new" / "curves.png", "--differences")
    assert (done.returncode, done.stderr) == (0, "")
    assert "20.00 ± 0.00" in done.stdout and "settings.algorithm  FedAvg  Local" in done.stdout
    assert (tmp_path / "new" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_several_figures_get_their_names(tmp_path, capsys):
    paths = [str(path) for path in make_seeds(tmp_path)]
    assert report.main([*paths, "--out", str(tmp_path / "f.svg"), "--figure", "clients, seconds"]) == 0
    assert {path.name for path in tmp_path.glob("*.svg")} == {"f-clients.svg", "f-seconds.svg"}
    capsys.readouterr()
    assert report.main([*paths, "--out", str(tmp_path / "all.pdf"), "--figure", "all"]) == 0
    assert len(list(tmp_path.glob("all-*.pdf"))) == 5
    assert "partition: left out, " in capsys.readouterr().out  # there is no data set


@pytest.mark.parametrize("name", ["c.jpg", "c", "c.png.gz"])
def test_another_suffix_is_refused_before_anything_is_read(tmp_path, capsys, name):
    assert report.main([str(tmp_path / "missing.h5"), "--out", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert ".png, .pdf, .svg" in error and "missing" not in error and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--figure curves,nothing --out c.png", "--figure nothing: there are curves"),
        ("--figure clients", "--out FILE says where"),
        ("--columns nothing", "--columns nothing: there are last A"),
        ("--format csv --differences", "second table"),
        ("--out c.png --figure partition", "no run.json|tells where"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    write_h5(tmp_path / "a_b_c_0.h5", {"rs_test_acc": [0.5]})
    assert report.main(["a_b_c_0.h5", *words.split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and all(word in error for word in message.split("|"))


@pytest.mark.parametrize("kind", ["csv", "latex", "markdown"])
def test_what_is_piped_into_a_file_is_the_table_alone(tmp_path, kind):
    path = make_run(tmp_path)
    done = run_report(path, "--format", kind, "--out", tmp_path / "c.png", "--html", tmp_path / "r.html")
    assert done.returncode == 0 and done.stderr.splitlines() == [
        f"curves: {tmp_path}/c.png",
        f"page: {tmp_path}/r.html",
    ]
    starts = {
        "csv": ("algorithm,", "FedAvg,"),
        "latex": ("\\", "algorithm &", "FedAvg &", "%"),
        "markdown": ("|", "Accuracies"),
    }[kind]
    lines = done.stdout.splitlines()
    assert lines[0].startswith(starts[0]) and (kind == "markdown" or all(line.startswith(starts) for line in lines))


def test_the_page_is_written(tmp_path, capsys):
    assert report.main([str(make_run(tmp_path)), "--html", str(tmp_path / "r.html")]) == 0
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_a_home_folder_is_expanded(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    make_run(tmp_path / "results")
    assert report.main(["~/results", "--out", "~/c.svg"]) == 0
    assert (tmp_path / "c.svg").exists()


@pytest.mark.parametrize("encoding", ["ascii", "gbk", "latin-1", "utf-8"])
def test_signs_that_a_terminal_lacks_are_replaced(tmp_path, encoding):
    make_seeds(tmp_path, "FedCRL", (0.2, 0.3))  # its name gets a dagger
    command = [sys.executable, str(REPO / "scripts" / "report.py"), str(tmp_path), "--differences"]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode(encoding)
    assert {"ascii": "FedCRL+ ", "gbk": "FedCRL+ ", "latin-1": "FedCRL+ ", "utf-8": "FedCRL† "}[encoding] in shown
    assert ("25.00 +- 7.07" if encoding == "ascii" else "25.00 ± 7.07") in shown and "?" not in shown


def test_a_terminal_shows_the_best_bold(tmp_path):
    make_seeds(tmp_path, "FedRep", (0.5,))
    make_seeds(tmp_path, "FedAvg", (0.4,))
    parent, child = pty.openpty()
    command = [sys.executable, str(REPO / "scripts" / "report.py"), str(tmp_path)]
    subprocess.run(command, stdout=child, check=True)
    shown = os.read(parent, 100_000)
    os.close(parent), os.close(child)
    assert b"\x1b[1m50.00\x1b[0m" in shown and b"\x1b[4m40.00\x1b[0m" in shown


def test_a_damaged_file_is_named_with_exit_code_2(tmp_path):
    path = tmp_path / "MNIST_FedAvg_test_0.h5"
    path.write_bytes(b"junk")
    done = run_report(path)
    assert done.returncode == 2 and path.name in done.stderr and "Traceback" not in done.stderr


def test_the_good_ones_among_bad_files_are_shown(tmp_path):
    good = make_run(tmp_path)
    junk, foreign, bare = (tmp_path / f"MNIST_FedAvg_{name}_0.h5" for name in ("junk", "foreign", "bare"))
    junk.write_bytes(b"junk")
    write_h5(foreign, {"weights": [1.0]})
    write_h5(bare, {"rs_test_acc": [0.5]})
    with h5py.File(bare, "a") as file:
        file["rs_seconds"] = "text"
    bare.with_suffix(".run.json").write_text('{"algorithm": "FedAvg"}')  # the rest comes from the name
    done = run_report(junk, good, foreign, bare, tmp_path / "missing.h5", "--columns", "last A")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[2:4]] == ["FedAvg", "FedAvg"]
    problems = done.stderr.splitlines()
    assert len(problems) == 3 and all(line.startswith("report: ") for line in problems)
    assert junk.name in problems[0] and foreign.name in problems[1] and "missing.h5" in problems[2]


def test_a_folder_means_its_files(tmp_path):
    paths = make_run(tmp_path, "FedCPD"), make_run(tmp_path / "a" / "b")
    (tmp_path / "empty").mkdir()
    found, problems = read_results([tmp_path, paths[0], tmp_path / "empty"])
    assert {run.path for run in found.files} == set(paths) and len(found.files) == 2
    assert problems == [f"there is no result file in {tmp_path / 'empty'}"]
    assert run_report(tmp_path / "empty").returncode == 2


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    command = [sys.executable, str(REPO / "scripts" / "report.py"), str(make_run(tmp_path))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()  # as `| head -0` does
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait()
