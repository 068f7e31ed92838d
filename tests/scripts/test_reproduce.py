"""reproduce.py: which runs a table needs, what becomes of them, and the page that is made of the records."""

import importlib

import numpy as np
import pytest

from flcore.experiment import Experiment
from flcore.utils.errors import UsageError
from flcore.utils.runs.provenance import run_settings
from flcore.utils.runs.read import Run, read_run
from support import REPO


@pytest.fixture
def reproduce(monkeypatch):
    monkeypatch.syspath_prepend(REPO / "scripts")
    return importlib.import_module("reproduce")


@pytest.mark.parametrize(
    ("name", "preset", "runs"),
    [
        ("table1", "paper", 6 * 11 * 3),
        ("table1", "quick", 6 * 11 + 2 * 11),  # two seeds more of one data set
        ("table2", "quick", 4 * 11),
        ("table3", "smoke", 8 + 2),
        ("fig2", "quick", 7 * 3),
        ("clients", "paper", 4 * 7),
        ("participation", "smoke", 3 * 6),
    ],
)
def test_a_plan_has_its_runs(reproduce, name, preset, runs):
    plan = reproduce.read_plan(name, preset)
    assert len(plan.cells) == len({str(cell.settings) for cell in plan.cells}) == runs
    assert [cell.settings["seed"] for cell in plan.cells] == sorted(cell.settings["seed"] for cell in plan.cells)


def test_every_plan_of_every_size_can_be_run(reproduce):
    for preset in reproduce.PRESETS:
        for name in reproduce.NAMES:
            for cell in reproduce.read_plan(name, preset).cells:
                Experiment(**cell.settings)


def test_data_sets_are_named_for_what_they_are(reproduce):
    from reproduction.plan import recipe_of

    cells = {cell.settings["dataset"]: cell for cell in reproduce.read_plan("clients", "quick").cells}
    assert list(cells) == [f"Cifar100-dir0.1{n}-quick" for n in ("-nc10", "", "-nc50", "-nc100")]
    assert cells["Cifar100-dir0.1-nc50-quick"].data == {
        **{"name": "Cifar100", "partition": "dir", "alpha": 0.1, "num_clients": 50, "fraction": 0.05},
    }
    assert recipe_of("Cifar100-pat20", 20, {})["classes_per_client"] == 20
    assert recipe_of("Cifar100-pat20", 20, {"name": "Digits"})["classes_per_client"] == 10  # it has no more
    with pytest.raises(UsageError, match="named as Cifar100-dir0.1"):
        recipe_of("Cifar100", 20, {})


def test_tables_share_their_runs(reproduce):
    settings = {
        name: {str(cell.settings) for cell in reproduce.read_plan(name, "quick").cells} for name in reproduce.NAMES
    }
    assert settings["comm"] | settings["fairness"] | settings["fig4"] < settings["table1"]
    assert len(settings["table3"] | settings["fig2"]) == 11 * 3  # the figure has FedAvg more
    assert len(settings["table3"] - settings["table1"]) == 7 * 3  # FedRep, FedCPD and FedCPD+ are there already


def run_of(cell, a, b, tmp_path):
    """A finished run of a cell, with these last accuracies in percent."""
    experiment = Experiment(**cell.settings)
    settings = {name: experiment.values[name] for name in experiment.used} | {"num_classes": 100, "shape": [3, 32, 32]}
    settings |= {"dataset": cell.settings["dataset"], "device": "cpu", "model": "CNN"}
    arrays = {"round": [0, 1], "test_acc": [0.1, a / 100], "test_acc_after": [b / 100], "bytes_down": [8e6]}
    info = {"status": "finished", "settings": run_settings(settings, "0"), "commit": "0123456789", "versions": {}}
    path = tmp_path / f"{cell.row}.h5"
    return Run(
        path,
        {f"rs_{k}": np.array(v) for k, v in arrays.items()},
        info,
        settings["dataset"],
        experiment.method.name,
        "g",
        0,
    )


def texts(table):
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


def test_a_table_shows_the_lead_beside_the_papers(reproduce, tmp_path):
    plan = reproduce.read_plan("table1", "quick")
    here = {("FedCPD", 0): (31, 30), ("FedCPD", 1): (33, 32), ("FedRep", 0): (28, 31), ("FedRep", 1): (29, 33)}
    here |= {("FedCPD+", 0): (30.5, 36), ("FedCPD+", 1): (30.5, 38)}
    others = {(row, 0): (20, 21) for row in {cell.row for cell in plan.cells} - {"FedCPD", "FedCPD+", "FedRep"}}
    runs = []
    for cell in plan.cells:
        numbers = (here | others).get((cell.row, cell.settings["seed"]))
        there = numbers if cell.column == "Cifar100-dir0.1" else None
        runs.append(run_of(cell, *there, tmp_path) if there else None)
    assert reproduce.records.found(plan.cells, [run for run in runs if run]) == runs
    at_a, at_b = reproduce.tables(plan, runs)
    assert at_a.header[:3] == ["last A", "Cifar100-dir0.1", "Cifar100-pat10"]
    assert texts(at_a)["FedCPD"][:2] == ["32.00 ± 1.41", "–"] and texts(at_a)["FedAvg"][:2] == ["20.00", "–"]
    assert texts(at_a)["FedCPD's lead"][:2] == ["+3.50", "–"]  # (31 - 28 + 33 - 29) / 2
    assert texts(at_b)["FedCPD's lead"][0] == "-1.00"
    assert texts(at_a)["FedCPD+'s lead"][0] == "+2.00" and texts(at_b)["FedCPD+'s lead"][0] == "+5.00"
    assert texts(at_a)["the paper's"] == ["+4.90", "+4.58", "+0.76", "+0.10", "+0.04", "+0.15"]
    marks = {row[0].text: row[1].mark for row in at_a.rows}
    assert marks["FedCPD"] == "best" and marks["FedCPD+"] == "second"
    assert "| **32.00 ± 1.41** | – |" in reproduce.as_markdown(at_a) and reproduce.as_text(at_a)


def test_a_run_with_another_setting_is_none_of_a_cells(reproduce, tmp_path):
    cells = reproduce.read_plan("table3", "quick").cells[:8]
    runs = [run_of(cell, 20, 20, tmp_path) for cell in cells]
    assert reproduce.records.found(cells, runs[::-1]) == runs
    runs[7].info["settings"]["cpd_tau"] = 0.5
    assert reproduce.records.found(cells, runs)[7] is None
    runs[0].info["settings"]["validation"] = 0.2  # which runs without it do not name
    assert reproduce.records.found(cells, runs)[0] is None


def test_a_finished_run_is_kept_as_a_record(reproduce, data_root, tmp_path):
    settings = {"dataset": "Tiny", "data_dir": str(data_root), "results_dir": str(tmp_path / "results"), "seed": 3}
    result = Experiment(algorithm="FedRep", global_rounds=2, goal="ours", plocal_epochs=2, **settings).run()
    path = result.paths[0]["results"]
    (record,) = reproduce.records.keep([path], tmp_path)
    kept, run = reproduce.records.run_of(record), read_run(path)
    assert kept.arrays["rs_test_acc"] == pytest.approx(result.test_acc, abs=1e-5)
    assert kept.arrays["rs_test_acc_after"] == pytest.approx(result.test_acc_after, abs=1e-5)
    assert kept.info["settings"] == run.info["settings"] and kept.info["commit"] == run.info["commit"]
    assert kept.algorithm == "FedRep" and record.name == "Tiny_FedRep_ours_0.json"
    table = reproduce.of_runs([kept])
    assert (
        table.rows[0][0].text == "FedRep, plocal_epochs 2"
        and table.rows[0][3].text == f"{100 * result.test_acc[-1]:.1f}"
    )


def test_the_page_is_what_the_records_make(reproduce):
    page = reproduce.PAGE.read_text(encoding="utf-8")
    assert reproduce.filled(page) == page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table1", "--processes", "0"], "--processes 0"),
        (["table1", "--source", "Cifar100=/nowhere"], "--source Cifar100=/nowhere"),
        (["keep", "/nowhere.h5"], "there is no result file /nowhere.h5"),
    ],
)
def test_a_users_mistake_is_told(reproduce, words, said, capsys):
    assert reproduce.main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_figure_at_the_smallest_size(reproduce, tmp_path, capsys):
    """Data sets, estimate, runs, table and figure; a second time everything is there."""
    words = ["fig2", "--preset", "smoke", "--processes", "2"]
    words += ["--data_dir", str(tmp_path / "dataset"), "--results_dir", str(tmp_path / "results")]
    assert reproduce.main(words) == 0
    said = capsys.readouterr().out
    assert "7 runs to be made: their training takes about 0 h 00 min in 2 processes" in said
    assert "7 of 7 runs are finished (0 were before), 0 failed" in said
    assert (tmp_path / "results" / "fig2.svg").exists()
    table = said[said.index("last B") :]
    assert len([line for line in table.splitlines() if line.startswith("Fed")]) == 8 and "–" not in table
    assert reproduce.main(words) == 0
    said = capsys.readouterr().out
    assert "0 runs to be made" in said and "(7 were before)" in said and said.endswith(table)
