"""PFLlib's pairs are imported with what they need, run, and go without a trace."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import flcore
import main
from flcore import registry
from pairs import command
from support import REPO

DOUBLE = REPO / "tests" / "pfllib_double"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Imported pairs lie in a folder of the test."""
    folder = tmp_path / "imported"
    monkeypatch.setattr(registry, "IMPORTED", folder)
    monkeypatch.setattr(registry, "METHODS", list(registry.METHODS))
    monkeypatch.setattr(flcore, "__path__", [*flcore.__path__, str(tmp_path)])
    for name in [name for name in sys.modules if name.startswith("flcore.imported")]:
        monkeypatch.delitem(sys.modules, name)
    yield folder
    for name in [name for name in sys.modules if name.startswith("flcore.imported")]:
        del sys.modules[name]


@pytest.fixture
def checkout(tmp_path):
    return Path(shutil.copytree(DOUBLE, tmp_path / "PFLlib", ignore=shutil.ignore_patterns("__pycache__")))


def bring(*words):
    status = command.main(list(map(str, words)))
    registry.METHODS[:] = [*registry.OURS, *registry.imported()]
    return status


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_pair_comes_with_its_helpers_under_a_name_of_its_own(place, checkout, capsys):
    assert bring(checkout, "Odd", "FedRep") == 0
    assert set(map(str, files(place))) == {
        *(f"Odd/{name}" for name in ("serverodd.py", "clientodd.py", "oddoptimizer.py", "oddhelper.py", "card.json")),
        *(f"FedRep/{name}" for name in ("serverrep.py", "clientrep.py", "card.json")),
    }
    server = (place / "Odd" / "serverodd.py").read_text()
    assert "from flcore.imported.Odd.clientodd import clientOdd" in server
    assert "from flcore.servers.serverbase import Server" in server
    assert "from flcore.imported.Odd.oddoptimizer import HalfSGD" in (place / "Odd" / "clientodd.py").read_text()
    heads = {method.name: method.head for method in registry.imported()}
    assert heads == {"Odd": "cut", "PFLlib-FedRep": "split"}
    assert "imported FedRep as -algo PFLlib-FedRep (network: split)" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [(), ("-nnc", "1", "-ften", "1")])
@pytest.mark.parametrize("algorithm", ["Odd", "PFLlib-FedRep", "PFLlib-FedAvg", "PFLlib-Local"])
def test_an_imported_pair_runs(place, checkout, data_root, tmp_path, monkeypatch, algorithm, flags):
    assert bring(checkout, "--all") == 0
    work = tmp_path / "somewhere" / "here"
    work.mkdir(parents=True)
    monkeypatch.chdir(work)
    words = ["-algo", algorithm, "-data", "Tiny", "-gr", "2", "-dev", "cpu", "--data_dir", data_root]
    assert main.main([*map(str, [*words, "--results_dir", tmp_path / "results", *flags])]) == 0
    with h5py.File(tmp_path / "results" / f"Tiny_{algorithm}_test_0.h5") as file:
        assert len(file["rs_test_acc"]) == 3 and np.isfinite(file["rs_test_acc"][:]).all()
    assert not list(work.parent.glob("results")), "the pair wrote results by itself"


def test_removing_leaves_nothing(place, checkout, capsys):
    before = files(place.parent)
    assert bring(checkout, "--all", "--dry-run") == 0 and not place.exists()
    assert bring(checkout, "--all") == 0 and bring(checkout, "Odd") == 0  # again: the same
    assert registry.find("Odd").server_class()
    assert bring("--remove", "Odd") == 0 and not (place / "Odd").exists()
    assert [method.name for method in registry.imported()] == ["PFLlib-FedAvg", "PFLlib-FedRep", "PFLlib-Local"]
    assert bring("--remove", "FedAvg", "FedRep", "Local") == 0
    assert files(place.parent) == before and not place.exists()


def test_what_was_edited_is_not_touched(place, checkout, capsys):
    assert bring(checkout, "Odd") == 0
    with (place / "Odd" / "clientodd.py").open("a") as file:
        file.write("# mine\n")
    kept = files(place)
    assert bring("--remove", "Odd") == 1 and bring(checkout, "Odd") == 1 and files(place) == kept
    assert "clientodd.py was edited" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("Od",), "no such method. Did you mean Odd?"),
        ((), "name the methods"),
        (("Odd", "--all"), "name the methods"),
        (("--remove", "FedMTL"), "FedMTL: it is not imported. There are: none"),
    ],
)
def test_mistakes_are_one_line(place, checkout, capsys, words, problem):
    assert bring(*(() if "--remove" in words else (checkout,)), *words) == 2
    said = capsys.readouterr().err
    assert problem in said and "Traceback" not in said and not place.exists()


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("utils/oddhelper.py", None, "oddhelper.py: No such file"),
        ("utils/oddhelper.py", "import utils.data_utils\n", "`import utils.data_utils` cannot be adapted"),
        ("flcore/clients/clientodd.py", "def f(:\n", "clientodd.py, line 1: invalid syntax"),
        ("main.py", "print()\n", "there is no chain of `if args.algorithm == ...`"),
    ],
)
def test_a_pair_that_cannot_be_read_is_refused_whole(place, checkout, capsys, file, text, problem):
    path = checkout / "system" / file
    path.unlink() if text is None else path.write_text(text)
    assert bring(checkout, "FedAvg", "Odd") == 2 and not place.exists()
    assert problem in capsys.readouterr().err


def test_a_folder_that_is_no_checkout(place, tmp_path, capsys):
    assert bring(tmp_path, "Odd") == 2 and "is not a PFLlib checkout" in capsys.readouterr().err


def test_a_broken_pair_leaves_the_others_alone(place, checkout, caplog, capsys):
    helper = checkout / "system" / "utils" / "oddhelper.py"
    helper.write_text("import package_that_nobody_has\n" + helper.read_text())
    assert bring(checkout, "Odd", "FedAvg") == 0
    assert "needs what is not installed: package_that_nobody_has" in capsys.readouterr().out
    assert "No module named 'package_that_nobody_has' (oddhelper.py, line 1)" in registry.table()
    (place / "FedAvg" / "card.json").write_text("{")
    assert [method.name for method in registry.imported()] == ["Odd"]
    assert "import the method again" in caplog.text


@pytest.mark.slow
def test_all_methods_of_a_real_checkout(tmp_path, data_root):
    """The 40 methods of PFLlib d832e76, in a copy of our tree."""
    root = os.environ.get("PFLLIB_ROOT")
    if not root:
        pytest.skip("PFLLIB_ROOT names no PFLlib checkout")
    shutil.copytree(REPO / "system", tmp_path / "system", ignore=shutil.ignore_patterns("__pycache__", "models"))
    shutil.copytree(REPO / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "system")}

    def run(*words):
        done = subprocess.run(
            [sys.executable, *map(str, words)], cwd=tmp_path / "system", env=environment, capture_output=True, text=True
        )
        return done.returncode

    assert run(tmp_path / "scripts" / "import_pair.py", root, "--all") == 0
    cards = [json.loads(path.read_text()) for path in tmp_path.glob("system/flcore/imported/*/card.json")]
    assert len(cards) == 40
    common = ["-data", "Tiny", "-gr", "1", "-dev", "cpu", "-lbs", "5", "-bt", "1", "--data_dir", data_root]
    failed = {
        name
        for name in sorted(card["method"]["name"] for card in cards)
        if run("main.py", "-algo", name, *common, "--results_dir", tmp_path / "results")
    }
    # FedAS calls a method that PFLlib does not have; FedPAC needs cvxpy
    assert failed <= {"FedAS", "FedPAC"}
