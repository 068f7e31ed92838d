"""Results as data frames: what stands in which row, and which runs belong together."""

import json

import numpy as np
import pandas as pd
import pytest

from flcore import reporting
from flcore.experiment import Experiment
from flcore.reporting.frames import clients_of, rounds_of
from flcore.utils.errors import UsageError
from flcore.utils.runs.files import write_h5
from flcore.utils.runs.read import read_run
from support import REPO
from support.results import make_run, make_seeds

NAN = float("nan")


def groups(*paths):
    """The groups of these runs, as lists of seed and repeat."""
    runs = reporting.load_runs(*paths)
    return [list(zip(own["seed"], own["repeat"], strict=True)) for _, own in runs.groupby("group")]


def test_a_round_has_its_own_numbers_and_what_the_rounds_before_cost():
    arrays = {
        "rs_test_acc": [0.1, 0.3, 0.5],
        "rs_round": [0, 2, 3],  # -eg 2, and the last one, which trains nothing
        "rs_train_loss": [4.0, 2.0],
        "rs_bytes_down": [10, 20, 30],
        "rs_bytes_up": [1, 2, 3],
        "rs_seconds": [8, 4, 4],
    }
    rounds = rounds_of(arrays)
    assert list(rounds.index) == [0, 1, 2, 3]
    np.testing.assert_equal(rounds["test_acc"].to_numpy(), [0.1, NAN, 0.3, 0.5])
    np.testing.assert_equal(rounds["train_loss"].to_numpy(), [4.0, NAN, 2.0, NAN])
    np.testing.assert_equal(rounds["bytes_up"].to_numpy(), [1, 2, 3, NAN])
    np.testing.assert_equal(rounds["bytes_before"].to_numpy(), [0, 11, 33, 66])
    np.testing.assert_equal(rounds["seconds_before"].to_numpy(), [0, 8, 12, 16])


def test_pfllibs_own_file_has_its_evaluations_counted():
    rounds = rounds_of({"rs_test_acc": [0.1, 0.5], "rs_test_auc": [], "rs_train_loss": [1.0, 0.5]})
    assert rounds["test_acc"].to_dict() == {0: 0.1, 1: 0.5}
    assert rounds["bytes_before"].isna().all() and rounds["test_auc"].isna().all()


@pytest.mark.parametrize("rounds", [3, [3], [0, 0], [1, 0], [0, NAN], [0, np.inf], [0, 1e300], [-1, 0], [0.5, 1]])
def test_rounds_that_cannot_be_are_counted(rounds):
    assert list(rounds_of({"rs_test_acc": [0.1, 0.5], "rs_round": rounds}).index) == [0, 1]


def test_clients_have_a_row_a_round():
    table = clients_of(
        {"rs_client_acc": [[0.1, NAN], [0.3, 0.4]], "rs_client_acc_after": [[0.2, 0.5]], "rs_round": [0, 5]}
    )
    assert table[["round", "client"]].to_numpy().tolist() == [[0, 0], [0, 1], [5, 0], [5, 1]]
    np.testing.assert_equal(table["test_acc"].to_numpy(), [0.1, NAN, 0.3, 0.4])
    np.testing.assert_equal(table["test_acc_after"].to_numpy(), [0.2, 0.5, NAN, NAN])


def test_a_folder_is_loaded_with_one_row_a_round_a_run_or_a_client(tmp_path):
    make_seeds(tmp_path / "a", "FedCPD", local_learning_rate=0.1)
    make_seeds(tmp_path / "b" / "c", "FedAvg", (0.5,), local_learning_rate=0.1)
    rounds = reporting.load(tmp_path)
    assert len(rounds) == 4 * 3 and rounds["run"].nunique() == 4
    last = rounds[rounds["round"] == 2].set_index(["algorithm", "seed"])["test_acc"]
    assert last.to_dict() == {("FedCPD", 0): 0.2, ("FedCPD", 1): 0.3, ("FedCPD", 2): 0.4, ("FedAvg", 0): 0.5}
    runs = reporting.load_runs(tmp_path)
    assert runs.groupby("algorithm")["test_acc"].mean().to_dict() == pytest.approx({"FedAvg": 0.5, "FedCPD": 0.3})
    assert set(runs["settings.local_learning_rate"]) == {0.1} and set(runs["bytes_down"]) == {2e6}
    clients = reporting.load_clients(tmp_path)
    assert len(clients) == 4 * 3 * 2
    assert clients.query("algorithm == 'FedAvg' and round == 2")["test_acc"].tolist() == pytest.approx([0.4, 0.6])


def test_what_cannot_be_used_is_a_warning_and_nothing_at_all_an_error(tmp_path):
    make_run(tmp_path)
    (tmp_path / "MNIST_FedAvg_test_0.h5").write_bytes(b"junk")
    with pytest.warns(UserWarning, match="MNIST_FedAvg_test_0.h5 is not a readable"):
        assert len(reporting.load_runs(tmp_path)) == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="there is no result file in"):
        reporting.load(tmp_path / "empty")


def test_columns_belong_to_the_clients_that_were_scored():
    table = clients_of({"rs_client_acc": [[0.1, 0.2]], "rs_round": [0], "rs_scored": [[3, 8]]})
    assert table["client"].tolist() == [3, 8]


def test_the_last_accuracy_of_a_client_is_its_last_number_mean_over_seeds(tmp_path):
    one = make_run(tmp_path, seed=0, goal="a", arrays={"rs_client_acc": [[0.1, 0.2, NAN], [0.3, NAN, NAN]]})
    two = make_run(tmp_path, seed=1, goal="b", arrays={"rs_client_acc": [[0.5, 0.4, NAN]]})
    found = reporting.read_results([one, two])[0].last_of_clients([0, 1])
    np.testing.assert_allclose(found, [0.4, 0.3, NAN])


def test_what_a_terminal_would_obey_is_nowhere(tmp_path):
    evil = "\x1b[2J"
    paths = [make_run(tmp_path, goal=str(n), **{f"set{evil}": f"{evil}{n}"}) for n in range(2)]
    write_h5(tmp_path / f"My{evil}_FedAvg_test_0.h5", {"rs_test_acc": [0.5]})
    runs = reporting.load_runs(tmp_path)
    assert len(runs) == len(paths) + 1
    assert all(text.isprintable() for name in ("dataset", "label", "goal") for text in runs[name])


# ---- the same run with another seed


def test_runs_that_differ_in_seed_repeat_and_goal_alone_are_one_group(tmp_path):
    make_seeds(tmp_path, accuracies=(0.1, 0.2, 0.3))
    assert groups(tmp_path) == [[(0, 0), (1, 0), (2, 0)]]
    for repeat in (1, 2):
        make_run(tmp_path, goal="s0", repeat=repeat, seed=0)
    assert groups(tmp_path) == [[(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)]]
    make_seeds(tmp_path / "elsewhere", accuracies=(0.4,), first=3)
    assert len(groups(tmp_path)) == 1


def test_other_settings_are_another_group_named_for_what_differs(tmp_path):
    make_seeds(tmp_path, accuracies=(0.1, 0.2), local_learning_rate=0.1)
    make_seeds(tmp_path, accuracies=(0.1, 0.2), first=5, local_learning_rate=0.2)
    assert set(reporting.load(tmp_path)["label"]) == {"FedAvg (lr=0.1)", "FedAvg (lr=0.2)"}
    assert groups(tmp_path) == [[(0, 0), (1, 0)], [(5, 0), (6, 0)]]


def test_many_different_settings_are_named_by_the_goal(tmp_path):
    make_run(tmp_path, goal="small", a=1, b=1, c=1)
    make_run(tmp_path, goal="large", a=2, b=2, c=2)
    assert set(reporting.load(tmp_path)["label"]) == {"FedAvg (large)", "FedAvg (small)"}


def test_the_same_seed_twice_is_no_second_seed(tmp_path):
    for folder in ("old", "new"):
        make_seeds(tmp_path / folder, accuracies=(0.1, 0.2))
    assert groups(tmp_path) == [[(0, 0), (1, 0)]] * 2
    assert set(reporting.load(tmp_path)["label"]) == {"FedAvg (new)", "FedAvg (old)"}
    make_run(tmp_path / "third", goal="x", seed=0)
    make_run(tmp_path / "third", goal="y", seed=0, lr=1)
    path = make_run(tmp_path / "third", goal="z", seed=0)
    assert groups(path.parent) == [[(0, 0)]] * 3  # the one with other settings, and two of the same


def test_an_unfinished_run_is_a_group_of_its_own(tmp_path):
    make_seeds(tmp_path, accuracies=(0.1, 0.2))
    make_seeds(tmp_path, accuracies=(0.3,), first=2, status="interrupted")
    runs = reporting.load_runs(tmp_path)
    assert runs.groupby("group")["status"].first().tolist() == ["finished", "interrupted"]


def test_files_without_settings_belong_together_by_folder_and_goal(tmp_path):
    for name in ("MNIST_FedProto_a_0", "MNIST_FedProto_a_1", "MNIST_FedProto_b_0"):
        write_h5(tmp_path / f"{name}.h5", {"rs_test_acc": [0.5]})
    assert reporting.load_runs(tmp_path).groupby("label").size().to_dict() == {"FedProto (a)": 2, "FedProto (b)": 1}


@pytest.mark.parametrize("seed", ["text", -1, 2**70, [1], None, 1.5])
def test_a_seed_that_is_none_is_missing(tmp_path, seed):
    path = make_run(tmp_path)
    info = path.with_suffix(".run.json")
    info.write_text(json.dumps(json.loads(info.read_text()) | {"seed": seed}))
    assert reporting.load_runs(path)["seed"].isna().all()


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
    assert set(reporting.load(tmp_path / "My_Data_FedRep_test_0.h5")["dataset"]) == {"My_Data"}  # ours are known


def test_nothing_to_join_is_no_error():
    assert clients_of({}).empty and rounds_of({}).empty


@pytest.mark.parametrize("written", [True, False])
def test_a_result_just_made_has_the_same_frame_as_its_files(tmp_path, data_root, written):
    settings = {"algorithm": "FedRep", "dataset": "Tiny", "model": "MLR", "global_rounds": 2, "times": 2, "seed": 3}
    made = Experiment(**settings, data_dir=str(data_root), results_dir=str(tmp_path) if written else None).run().frame
    assert made[["run", "repeat", "round"]].to_numpy().tolist() == [[r, r, t] for r in range(2) for t in range(3)]
    assert set(made["algorithm"]) == {"FedRep"} and set(made["seed"]) == {3} and made["test_acc"].notna().all()
    if written:
        pd.testing.assert_frame_equal(made, reporting.load(tmp_path))
