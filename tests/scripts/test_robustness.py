"""scripts/robustness.py: the tables of docs/robustness.md."""

import re

import robustness
from flcore.utils.errors import DivergedError
from support import REPO


def test_a_table_holds_the_accuracies_of_its_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(robustness, "ATTACKS", {"signflip": ("mean", "median")})
    monkeypatch.setattr(robustness, "RATES", (0, 20))
    flags = ["--algorithms", "FedAvg", "--rounds", "1", "--folder", str(tmp_path)]
    assert robustness.main(flags) == 0
    table = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[1] for row in table] == ["aggregate", "mean", "median"] and table[0][2:] == ["0 %", "20 % |"]
    assert all(re.fullmatch(r"\d+\.\d( \|)?", cell) for row in table[1:] for cell in row[2:])
    assert len(list(tmp_path.glob("*.h5"))) == 4
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.h5")}
    assert robustness.main(flags) == 0  # finished runs are kept
    again = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert again == table and before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.h5")}


def test_a_run_that_diverged_is_a_cell_and_a_mistake_is_none(tmp_path, monkeypatch, capsys):
    def diverge(experiment):
        raise DivergedError("NaN")

    assert robustness.main(["--model", "CNNN", "--folder", str(tmp_path)]) == 2
    assert "CNNN" in capsys.readouterr().err
    monkeypatch.setattr(robustness.Experiment, "run", diverge)
    assert robustness.main(["--algorithms", "FedAvg", "--folder", str(tmp_path)]) == 0
    assert "| FedAvg | mean | diverged | diverged | diverged | diverged |" in capsys.readouterr().out


def test_the_documentation_has_a_row_for_every_aggregation():
    text = (REPO / "docs" / "robustness.md").read_text()
    for aggregates in robustness.ATTACKS.values():
        assert all(f"| {name} |" in text for name in aggregates)
