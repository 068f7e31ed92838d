"""docs/networks.md, word for word."""

import re
import shlex

import pytest

import main
from flcore.experiment import Experiment
from support import REPO, write_dataset

TEXT = (REPO / "docs" / "networks.md").read_text()
CODE, PYTHON, STAGES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
FILE, TORCHVISION = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
PRINTED = re.search(r"```\n(net.py.*?)```", TEXT, re.DOTALL)[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where a user works: net.py, and small data under the names of the page."""
    root = tmp_path_factory.mktemp("user")
    (root / "path" / "to").mkdir(parents=True)
    (root / "path" / "to" / "net.py").write_text(CODE)
    for name, shape in (("Digits", (1, 28, 28)), ("Cifar10", (3, 32, 32))):
        write_dataset(root, name, shape=shape, train=(10, 6), test=(4, 4), classes=10)
    return root


@pytest.mark.parametrize("command", [FILE, TORCHVISION])
def test_its_commands_run_and_say_what_is_printed_there(folder, command, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    words = shlex.split(command)
    flags = [
        "-gr",
        "1",
        "-dev",
        "cpu",
        "-lbs",
        "4",
        "--data_dir",
        str(folder),
        "--results_dir",
        str(folder / "results"),
    ]
    assert words[:2] == ["python", "main.py"] and main.main([*words[2:], *flags]) == 0
    printed = capsys.readouterr().out
    assert command is TORCHVISION or PRINTED in printed


def test_its_python_runs(folder, monkeypatch):
    monkeypatch.chdir(folder)
    names = {}
    exec(CODE, names)
    quick = {"data_dir": str(folder), "results_dir": None, "global_rounds": 1, "device": "cpu"}
    names["Experiment"] = lambda **settings: Experiment(**settings, **quick)
    body = PYTHON.replace("from flcore.experiment import Experiment\n", "")
    assert body.count("Experiment(") == 3
    exec(body, names)


def test_a_network_chooses_its_feature_maps(folder):
    names = {}
    exec(CODE.replace("    def __init__", f"{STAGES}\n    def __init__", 1), names)
    server = Experiment(
        algorithm="FedCPD", dataset="Digits", data_dir=str(folder), device="cpu", model=names["Net"], results_dir=None
    ).server()
    assert server.clients[0].forward.levels == [("conv1", 16), ("conv2.0", 32)]
