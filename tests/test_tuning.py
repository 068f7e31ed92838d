"""Settings are chosen on validation data; the study goes on, and gives a command."""

import re
import shlex

import pytest

import tune
from flcore.experiment import Experiment
from flcore.tuning import read_plan
from flcore.utils.errors import UsageError

FILE = """
algorithm = "FedProx"
dataset = "Tiny"
data_dir = "{data_root}"
device = "cpu"
executor = "loop"
model = "MLR"
global_rounds = 1

[tune]
local_learning_rate = [0.05, 1e-9]
mu = {{ low = 0.1, high = 1.0, log = true }}
"""


@pytest.fixture
def file(tmp_path, data_root):
    path = tmp_path / "tune.toml"
    path.write_text(FILE.format(data_root=data_root))
    return path


def test_the_best_settings_are_found_on_validation_data_and_a_study_goes_on(file, capsys, monkeypatch):
    pytest.importorskip("optuna")
    read = []
    tensors = Experiment.run
    monkeypatch.setattr(
        Experiment, "run", lambda self, *args: read.append(self.values["validation"]) or tensors(self, *args)
    )
    assert tune.main([str(file), "--trials", "2"]) == 0
    assert tune.main([str(file), "--trials", "4"]) == 0
    printed = capsys.readouterr().out
    assert read == [0.2] * 4 and "[1/2]" in printed and "[3/4]" in printed and "[2/4]" not in printed
    scores = {float(rate): float(score) for rate, score in re.findall(r"rate=(\S+) .*accuracy (\S+)\n", printed)}
    command = printed.splitlines()[-1]
    assert "validation" not in command and command.startswith("python main.py --algorithm FedProx")
    best = Experiment.from_argv(shlex.split(command)[2:]).values["local_learning_rate"]
    assert scores[best] == max(scores.values())
    file.write_text(file.read_text().replace("global_rounds = 1", "global_rounds = 2"))
    assert tune.main([str(file), "--trials", "4"]) == 2
    assert "is a study of other settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[tune]", "", "local_learning_rate has several|a table \\[tune\\]"),
        ("mu = ", "um = ", "um: no such setting"),
        ("low = 0.1", "low = 2.0", "low must be below high"),
        ("low = 0.1", "low = -0.5", "both above 0"),
        ("[0.05, 1e-9]", "[-1.0]", "local_learning_rate: must be above 0"),
        ("[tune]", "validation = 0.0\n[tune]", "the test data are not for choosing"),
        ("[tune]", "mu = 0.1\n[tune]", "mu is in \\[tune\\], and has a value outside"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_told_before_any_run(file, old, new, message):
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(UsageError, match=message):
        read_plan(file)
