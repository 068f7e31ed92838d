"""Runs are kept as records, and the document is made of them."""

import importlib
import json

import pytest

from flcore.experiment import Experiment
from support import REPO


@pytest.fixture
def records(monkeypatch):
    monkeypatch.syspath_prepend(REPO / "experiments")
    return importlib.import_module("records")


def test_the_document_is_what_the_records_make(records):
    assert records.PAGE.read_text() == records.filled(records.PAGE.read_text(), records.all_records())


def test_a_table_has_the_best_run_first(records):
    common = {"seed": 0, "commit": "0123456789", "evaluated_on": "validation", "round": [0, 30, 60, 90]}
    given = {"algorithm": "FedCPD", "dataset": "D", "goal": "b", "cpd_tau": 0.5}
    better = {**common, "name": "b", "given": given, "A": [0, 0.1, 0.2, 0.5], "B": [0, 0.1, 0.25]}
    worse = {**common, "name": "a", "given": {"algorithm": "FedRep"}, "A": [0, 0.1, 0.2, 0.3], "B": [0, 0.1, 0.2]}
    page = "before\n<!-- records: validation -->old<!-- end -->\nafter"
    lines = records.filled(page, [worse, better]).splitlines()
    assert lines[0] == "before" and lines[-1] == "after" and "old" not in "".join(lines)
    assert lines[3] == "| run | A, round 30 | A, round 60 | A, round 90 | B, round 60 | commit |"
    assert "FedCPD `--cpd_tau 0.5`" in lines[5] and lines[5].endswith("| 10.0 | 20.0 | 50.0 | 25.0 | 0123456 |")
    assert lines[6].startswith("| [FedRep]") and lines[6].endswith("| 10.0 | 20.0 | 30.0 | 20.0 | 0123456 |")


def test_a_finished_run_becomes_a_record(records, data_root, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    settings = {"dataset": "Tiny", "data_dir": str(data_root), "results_dir": str(tmp_path / "results"), "seed": 3}
    result = Experiment(algorithm="FedRep", global_rounds=2, goal="ours", plocal_epochs=2, **settings).run()
    path = str(result.paths[0]["results"])
    assert records.main(["add", path, "--evaluated_on", "test"]) == 0
    kept = json.loads((tmp_path / "ours.json").read_text())
    assert kept["A"] == pytest.approx(result.test_acc, abs=1e-5) and kept["B"] == pytest.approx(
        result.test_acc_after, abs=1e-5
    )
    assert kept["seed"] == 3 and kept["evaluated_on"] == "test"
    wanted = {
        "algorithm": "FedRep",
        "dataset": "Tiny",
        "goal": "ours",
        "global_rounds": 2,
        "seed": 3,
        "plocal_epochs": 2,
    }
    assert kept["given"] == wanted and records.setting(kept) == "FedRep `--plocal_epochs 2`"
    assert records.main(["add", str(tmp_path / "missing.h5"), "--evaluated_on", "test"]) == 2
    assert "there is no result file" in capsys.readouterr().err
