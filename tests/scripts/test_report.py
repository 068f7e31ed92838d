import json
import subprocess
import sys

import h5py
import numpy as np
import pytest

import report  # noqa: E402 (the folder of scripts is no package)
from flcore.utils.runs.claim import claim_run
from flcore.utils.runs.files import write_h5
from flcore.utils.runs.read import read_run
from support import REPO


def make_run(
    folder, algorithm="FedAvg", dataset="Digits", repeat=0, goal="test", status="finished", arrays=None, **settings
):
    files = claim_run(
        folder, dataset, algorithm, goal, repeat, {"algorithm": algorithm} | settings, say=lambda line: None
    )
    write_h5(files.h5, {"rs_test_acc": [0.1, 0.3, 0.2], "rs_round": [0, 5, 10]} | (arrays or {}))
    files.finish(status)
    return files.h5


def cells(*paths):
    """The table as one dict per row."""
    header, *rows = report.table(report.group_runs([read_run(path) for path in paths]))
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_columns(tmp_path):
    arrays = {
        "rs_test_acc_after": [0.4, 0.5],
        "rs_test_std": [0.0, 0.0, 0.125],
        "rs_worst_decile": [0.0, 0.0, 0.0625],
        "rs_test_auc": [0.5, 0.5, 0.75],
        "rs_forgetting": [float("nan"), 0.1, 0.3],
        "rs_bytes_down": [2e6, 4e6],
        "rs_bytes_up": [1e6, 1e6],
        "rs_seconds": [9.0, 2.0, 2.0],
    }
    slower = arrays | {"rs_seconds": [9.0, 3.0, 3.0]}
    [first, second] = cells(make_run(tmp_path, "FedCPD", arrays=slower), make_run(tmp_path, arrays=arrays))
    assert first == {
        "algorithm": "FedCPD",
        "data set": "Digits",
        "rounds": "10",
        "last A": "20.00",
        "best A*": "30.00 @5",
        "last B": "50.00",
        "std": "12.50",
        "worst 10%": "6.25",
        "AUC": "0.7500",
        "forgetting": "20.00",
        "MB down": "3.00",
        "MB up": "1.00",
        "time": "1.50",
    }
    assert second["time"] == "1.00"  # FedAvg is the measure wherever it stands


def test_pfllibs_own_file_has_dashes_for_what_it_lacks(tmp_path):
    path = tmp_path / "MNIST_FedProto_test_0.h5"
    write_h5(path, {"rs_test_acc": [0.1, 0.5], "rs_test_auc": [], "rs_train_loss": [1.0, 0.5]})
    [row] = cells(path)
    assert (row["rounds"], row["last A"], row["best A*"]) == ("1", "50.00", "50.00 @1")
    rest = {"last B", "std", "worst 10%", "AUC", "forgetting", "MB down", "MB up", "time"}
    assert {name for name, cell in row.items() if cell == "–"} == rest


def test_an_empty_file_is_a_row_of_dashes(tmp_path):
    path = tmp_path / "MNIST_FedProto_test_0.h5"
    write_h5(path, {"rs_test_acc": []})
    assert set(list(cells(path)[0].values())[2:]) == {"–"}


def test_nan_is_passed_over(tmp_path):
    nan = float("nan")
    [row] = cells(make_run(tmp_path, arrays={"rs_test_acc": [nan, 0.25, nan]}))
    assert (row["last A"], row["best A*"]) == ("25.00", "25.00 @5")


def test_repeats_are_averaged_even_if_one_broke_early(tmp_path):
    one = make_run(tmp_path)
    two = make_run(tmp_path, repeat=1, arrays={"rs_test_acc": [0.1, 0.4], "rs_round": [0, 5]})
    [row] = cells(one, two)
    assert row["algorithm"] == "FedAvg x2"
    assert (row["last A"], row["best A*"], row["rounds"]) == ("30.00", "35.00 @5", "10")


def test_an_unfinished_repeat_is_a_row_of_its_own(tmp_path):
    one = make_run(tmp_path)
    two = make_run(tmp_path, repeat=1, status="interrupted", arrays={"rs_test_acc": [0.1, 0.4], "rs_round": [0, 5]})
    rows = cells(one, two)
    assert ["interrupted" in row["algorithm"] for row in rows] == [False, True]
    assert [row["last A"] for row in rows] == ["20.00", "40.00"]


def test_two_settings_of_one_algorithm_are_two_rows(tmp_path):
    rows = cells(make_run(tmp_path, goal="a", lr=0.1), make_run(tmp_path, goal="b", lr=0.2))
    assert [row["algorithm"] for row in rows] == ["FedAvg (a)", "FedAvg (b)"]


def test_differences_name_what_differs_and_nothing_else(tmp_path):
    paths = make_run(tmp_path, goal="a", lr=0.1, data_digest="x"), make_run(tmp_path, goal="b", lr=0.2, data_digest="y")
    rows = report.differences(report.group_runs([read_run(path) for path in paths]))
    assert rows == [
        ["setting", "FedAvg (a)", "FedAvg (b)"],
        ["settings.lr", "0.1", "0.2"],
        ["settings.data_digest", "x", "y"],
    ]


def run_report(*words):
    command = [sys.executable, str(REPO / "scripts" / "report.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_command_prints_a_table_and_writes_a_picture(tmp_path):
    paths = [make_run(tmp_path, repeat=repeat) for repeat in range(2)]
    paths += [make_run(tmp_path, "Local", dataset="Other", arrays={"rs_test_acc_after": [0.4, 0.5]})]
    done = run_report(*paths, "--out", tmp_path / "new" / "curves.png", "--differences")
    assert (done.returncode, done.stderr) == (0, "")
    assert "FedAvg x2" in done.stdout and "settings.algorithm  FedAvg  Local" in done.stdout
    assert (tmp_path / "new" / "curves.png").read_bytes().startswith(b"\x89PNG")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("algorithm") and len(lines[2]) <= len(lines[1])


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
    done = run_report(junk, good, foreign, bare, tmp_path / "missing.h5")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[2:4]] == ["FedAvg", "FedAvg"]
    problems = done.stderr.splitlines()
    assert len(problems) == 3 and all(line.startswith("report: ") for line in problems)
    assert junk.name in problems[0] and foreign.name in problems[1] and "missing.h5" in problems[2]


def test_a_folder_means_its_files(tmp_path):
    paths = make_run(tmp_path, "FedCPD"), make_run(tmp_path / "a" / "b")
    (tmp_path / "empty").mkdir()
    runs, problems = report.read_runs([tmp_path, paths[0], tmp_path / "empty"])
    assert {run.path for run in runs} == set(paths) and len(runs) == 2
    assert problems == [f"there is no result file in {tmp_path / 'empty'}"]
    assert run_report(tmp_path / "empty").returncode == 2


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    command = [sys.executable, str(REPO / "scripts" / "report.py"), str(make_run(tmp_path))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()  # as `| head -0` does
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait()


ALGORITHMS = json.loads((REPO / "tests" / "repo" / "pfllib_surface.json").read_text())["algorithms"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("My_Data_FedAvg_test_0", ("My_Data", "FedAvg", "test", 0)),
        ("My_Data_LG-FedAvg_a_b_12", ("My_Data", "LG-FedAvg", "a_b", 12)),
        ("MNIST_FedAvg_FedRep_test_1", ("MNIST", "FedAvg", "FedRep_test", 1)),
        ("MNIST_New_My_goal_1", ("MNIST", "New", "My_goal", 1)),
    ],
)
def test_names_of_data_sets_may_hold_underscores(tmp_path, name, parts):
    write_h5(tmp_path / f"{name}.h5", {})
    run = read_run(tmp_path / f"{name}.h5", ALGORITHMS)
    assert (run.dataset, run.algorithm, run.goal, run.repeat) == parts
    write_h5(tmp_path / "My_Data_FedRep_test_0.h5", {"rs_test_acc": [0.5]})
    assert report.read_runs([tmp_path / "My_Data_FedRep_test_0.h5"])[0][0].dataset == "My_Data"  # ours are known


@pytest.mark.parametrize("last", [float("nan"), float("inf"), 1.0])
def test_a_diverged_run_is_marked(tmp_path, last):
    paths = [
        make_run(tmp_path, arrays={"rs_train_loss": [float("nan"), 1.0]}, status="interrupted"),
        make_run(tmp_path, repeat=1, arrays={"rs_train_loss": [1.0, last]}, status="interrupted"),
    ]
    marks = "interrupted" if last == 1 else "diverged, interrupted"
    assert cells(*paths)[0]["algorithm"] == f"FedAvg x2 [{marks}]"


def test_uploads_left_out_are_told(tmp_path):
    arrays = {"rs_train_loss": [2.0, 1.0], "rs_left_out": [0, 3]}
    paths = [make_run(tmp_path, arrays=arrays), make_run(tmp_path, repeat=1, arrays=arrays)]
    assert cells(*paths)[0]["algorithm"] == "FedAvg x2 [6 uploads left out]"


def test_a_reconstruction_is_marked_with_a_footnote(tmp_path):
    paths = make_run(tmp_path, "FedCRL"), make_run(tmp_path)
    assert [row["algorithm"] for row in cells(*paths)] == ["FedCRL†", "FedAvg"]
    assert "† reconstructed" in run_report(*paths).stdout
    assert "†" not in run_report(paths[1]).stdout


@pytest.mark.parametrize("heights", [[1.0, 1.0, 1.0], [0.0, 50.0, 100.0], [99.0, 99.5, 100.0]])
def test_labels_do_not_overlap(heights):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots()
    panel.set_ylim(0, 100)
    report._label_ends(panel, [(height, str(number), "black") for number, height in enumerate(heights)])
    placed = [text.get_position()[1] for text in panel.texts]
    plt.close(figure)
    assert np.diff(placed).min() > 4.7  # 4.8 % of the height is the gap asked for
    assert np.mean(placed) == pytest.approx(np.mean(heights), abs=0.1)
