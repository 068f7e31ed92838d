"""The command, on a tiny run."""

import csv
import json

import pytest

import convergence  # noqa: E402 (the folder of scripts is no package)


@pytest.fixture
def command(data_root):
    """`command("--points", "2")` -> exit code, on the tiny data set."""

    def run(*flags):
        return convergence.main(
            ["-algo", "FedCPD", "-data", "Tiny", "--data_dir", str(data_root), "-dev", "cpu", "--power", "1"]
            + ["-gr", "3", "--watch", "2", "--points", "2", *flags]
        )

    return run


def test_a_run(command, tmp_path, capsys):
    assert command("--out", str(tmp_path / "rows.csv")) == 0
    said = capsys.readouterr().out
    assert "VACUOUS in 4 of 4 cases" in " ".join(said.split())
    assert "S / E G^2" in said
    rows = list(csv.DictReader((tmp_path / "rows.csv").open()))
    assert [(row["round"], row["client"]) for row in rows] == [("1", "0"), ("1", "1"), ("2", "0"), ("2", "1")]
    for each in rows:
        assert float(each["S"]) <= float(each["E_G2"])
        assert float(each["change_round"]) <= float(each["theorem1"])
        assert each["largest_rate_derived"] == ""


def test_json_also_says_where_the_numbers_come_from(command, tmp_path):
    assert command("-gr", "2", "--cpd_tau", "0.5", "--out", str(tmp_path / "rows.json")) == 0
    content = json.loads((tmp_path / "rows.json").read_text())
    assert len(content["rows"]) == 2 and content["rows"][0]["tau"] == 0.5
    assert content["settings"]["cpd_tau"] == 0.5 and "commit" in content
    assert any("VACUOUS" in paragraph for paragraph in content["findings"])


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["-algo", "FedRep"], "the statement is FedCPD's"),
        (["-gr", "1"], "it takes a second round"),
        (["--points", "0"], "at least 1"),
        (["--out", "rows.txt"], "must end in .csv or .json"),
        (["--cpd_tau", "0"], "--cpd_tau"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(command, flags, reason, capsys):
    try:
        code = command(*flags)
    except SystemExit as stop:  # a flag's own check
        code = stop.code
    assert code == 2
    said = capsys.readouterr().err
    assert reason in said and "Traceback" not in said
