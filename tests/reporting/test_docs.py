"""docs/reporting.md, word for word."""

import re
import shlex

import pytest

import report
from flcore.reporting import figures, tables
from support import REPO
from support.results import make_run, make_seeds

TEXT = (REPO / "docs" / "reporting.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)
LINES = [line for language, code in BLOCKS if language == "bash" for line in code.splitlines() if "report.py" in line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with some results."""
    root = tmp_path_factory.mktemp("checkout")
    make_seeds(root / "results", "FedCPD", (0.5, 0.6), local_learning_rate=0.1)
    make_seeds(root / "results", "FedAvg", (0.3, 0.4), local_learning_rate=0.1)
    make_run(root / "results", "FedAvg", dataset="Other", local_learning_rate=0.1)
    return root


@pytest.mark.parametrize("line", LINES)
def test_its_commands_do_what_they_say(folder, line, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    start, _, redirected = line.partition(" > ")
    words = shlex.split(start)
    assert words[:2] == ["python", "scripts/report.py"] and report.main(words[2:]) == 0
    assert "FedCPD" in capsys.readouterr().out
    for flag in {"--out", "--html"} & set(words):
        path = folder / words[words.index(flag) + 1]
        assert list(path.parent.glob(f"{path.stem}*{path.suffix}"))
    assert redirected in ("", "table.tex", "table.csv")


def test_its_python_runs(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    [code] = [code for language, code in BLOCKS if language == "python" and "reporting" in code]
    exec(code, {})
    assert "FedCPD" in capsys.readouterr().out


def test_it_names_every_figure_and_column():
    named = re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)
    assert [name for name in named if not name.startswith("rs_")] == list(figures.FIGURES) == list(report.FIGURES)
    listed = [name for row in re.findall(r"^\| ([\w *%(),]+) \|", TEXT, re.MULTILINE) for name in row.split(", ")]
    assert set(tables.NAMES) <= set(listed)
