"""scripts/install_plugin.py: on small made-up checkouts with a stand-in pair, then the real pair in PFLlib's double."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import plugin.checkout
import plugin.command
import plugin.edit
from support import REPO

DOUBLE = REPO / "tests" / "pfllib_double"

# PFLlib's programs find their own `flcore` first
PFLLIBS_OWN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}

SERVER = """class {name}:
    def __init__(self, args, times):
        print("{name}", args.model, times)

    def train(self):
        print("trained")
"""
CPD = (
    SERVER.format(name="FedCPD")
    + """
    @staticmethod
    def add_args(parser):
        parser.add_argument("--cpd_fd", type=float, default=1.0)

    @staticmethod
    def split_head(model):
        return f"split {model}"
"""
)
MAIN = """#!/usr/bin/env python
import argparse
from flcore.servers.serveravg import FedAvg
from flcore.servers.serverlocal import (
    Local,
)

TEXT = '''
else:
'''


def run(args):
    for i in range(args.times):
        if args.model == "CNN":
            args.model = "cnn"

        # select algorithm
        if args.algorithm == "FedAvg":
            server = FedAvg(args, i)

        elif args.algorithm == "Local":
            server = Local(args, i)

        # elif args.algorithm == "Other":
        #     server = Other(args, i)

        else:
            raise NotImplementedError

        server.train()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--algorithm")
    parser.add_argument("--model", default="CNN")
    parser.add_argument("--times", type=int, default=1)

    args = parser.parse_args()
    run(args)
"""
MODULE_LEVEL = """import argparse
from flcore.servers.serveravg import FedAvg
flags = argparse.ArgumentParser()
flags.add_argument('--algorithm')
cfg = flags.parse_args(); cfg.model = 'cnn'
repeat = 0
if cfg.algorithm == 'FedAvg':
    trainer = FedAvg(cfg, repeat)
if 'Local' == cfg.algorithm: trainer = FedAvg(cfg, repeat)
trainer.train()
"""
ENDS_WITH_CHAIN = """import argparse
from flcore.servers.serveravg import FedAvg
p = argparse.ArgumentParser()
p.add_argument('--algorithm')
a, _ = p.parse_known_args()
a.model = 'cnn'
for i in range(1):
  if a.algorithm == "FedAvg": s = FedAvg(a, i)
  elif a.algorithm == "Local":
    s = FedAvg(
      a, i)  # the end"""

ELSE = "        else:\n            raise NotImplementedError\n"
FORMS = {
    "pfllib": MAIN.encode(),
    "crlf": MAIN.replace("\n", "\r\n").encode(),
    "no final line end": MAIN.rstrip().encode(),
    "tabs": MAIN.replace("    ", "\t").encode(),
    "single quotes": MAIN.replace("'''", '"""').replace('"', "'").encode(),
    "bom": b"\xef\xbb\xbf" + MAIN.replace("\n", "\r\n").encode(),
    "latin-1": ("# -*- coding: latin-1 -*-\n# \xe9t\xe9\n" + MAIN).encode("latin-1"),
    "wide characters, form feed": MAIN.replace("# select", "\x0c# \u9078\u629e\u2028").encode(),
    "no else": MAIN.replace(ELSE, "").encode(),
    "ifs in a row": MAIN.replace(ELSE, "").replace("\n        elif", "\n        if").encode(),
    "one-line else": MAIN.replace("else:\n            raise", "else: raise").encode(),
    "module level": MODULE_LEVEL.encode(),
    "ends with the chain": ENDS_WITH_CHAIN.encode(),
    "ends with the chain, crlf": ENDS_WITH_CHAIN.replace("\n", "\r\n").encode(),
}


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.fixture
def ours(tmp_path, monkeypatch):
    """A stand-in for our own system folder: the files to copy."""
    folder = tmp_path / "ours" / "system"
    for name in plugin.checkout.FILES:
        write(folder / name, CPD.encode() if name.endswith("servercpd.py") else f"# {name}\n".encode())
    monkeypatch.setattr(plugin.checkout, "OURS", folder)
    return folder


@pytest.fixture
def checkout(tmp_path):
    """A small PFLlib-like checkout."""
    root = tmp_path / "PFLlib"
    write(root / "README.md", b"read me\r\n")
    write(root / "system/main.py", MAIN.encode())
    (root / "system/main.py").chmod(0o755)
    write(root / "system/flcore/clients/clientbase.py", b"class Client(object):\n    pass\n")
    write(root / "system/flcore/servers/serverbase.py", b"class Server(object):\n    pass\n")
    write(root / "system/flcore/servers/serveravg.py", SERVER.format(name="FedAvg").encode())
    write(root / "system/flcore/servers/serverlocal.py", SERVER.format(name="Local").encode())
    write(root / "system/flcore/trainmodel/models.py", b"class BaseHeadSplit:\n    pass\n")
    return root


def tree(root: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its content and mode, hidden ones too."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mode) for path in files}


def command(checkout: Path, *flags: str) -> int:
    return plugin.command.main([str(checkout), *flags])


def run_main(checkout: Path, *flags: str) -> str:
    line = [sys.executable, "main.py", *flags]
    done = subprocess.run(line, cwd=checkout / "system", capture_output=True, text=True, timeout=60, env=PFLLIBS_OWN)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- installing and taking out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_main_runs_fedcpd_and_comes_back_byte_for_byte(form, checkout, ours, capsys):
    (checkout / "system/main.py").write_bytes(FORMS[form])
    before = tree(checkout)

    assert command(checkout) == 0
    after = tree(checkout)
    added = {f"system/{name}" for name in plugin.checkout.FILES} | {"system/.fedcpd-plugin.json"}
    assert set(after) - set(before) == added
    assert [name for name in before if before[name] != after[name]] == ["system/main.py"]
    assert after["system/main.py"][1] == before["system/main.py"][1]  # still executable
    assert {name: after[f"system/{name}"][0] for name in plugin.checkout.FILES} == {
        name: (ours / name).read_bytes() for name in plugin.checkout.FILES
    }
    assert run_main(checkout, "--algorithm", "FedCPD", "--cpd_fd", "0").startswith("FedCPD split cnn 0\n")
    assert run_main(checkout, "--algorithm", "FedAvg").startswith("FedAvg cnn 0\n")

    capsys.readouterr()
    assert command(checkout / "system") == 0
    assert "up to date" in capsys.readouterr().out
    assert tree(checkout) == after

    assert command(checkout, "--uninstall") == 0
    assert tree(checkout) == before
    assert not list(checkout.rglob("*cpd*.pyc"))
    assert command(checkout, "--uninstall") == 0
    assert "not installed" in capsys.readouterr().out
    assert tree(checkout) == before


def test_the_lines_stand_where_pfllib_users_look_for_them(checkout, ours):
    assert command(checkout) == 0
    lines = (checkout / "system/main.py").read_text().splitlines()
    code = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    at = code.index("from flcore.servers.servercpd import FedCPD")
    assert code[at - 1] == ")"  # the end of the last import
    at = code.index("FedCPD.add_args(parser)")
    assert code[at + 1] == "args = parser.parse_args()"
    at = lines.index('        elif args.algorithm == "FedCPD":')
    assert lines[at + 1 : at + 5] == [
        "            args.model = FedCPD.split_head(args.model)",
        "            server = FedCPD(args, i)",
        "        " + plugin.edit.END,
        "        else:",
    ]


def test_line_ends_are_those_of_the_file(checkout, ours):
    (checkout / "system/main.py").write_bytes(FORMS["crlf"])
    assert command(checkout) == 0
    content = (checkout / "system/main.py").read_bytes()
    assert content.count(b"\n") == content.count(b"\r\n") > FORMS["crlf"].count(b"\r\n")


def test_edits_of_main_after_the_installation_survive(checkout, ours):
    main = checkout / "system/main.py"
    assert command(checkout) == 0
    main.write_text(main.read_text().replace("# select algorithm", "# choose one"))
    assert command(checkout, "--uninstall") == 0
    assert main.read_text() == MAIN.replace("# select algorithm", "# choose one")


def test_update_replaces_adds_and_removes(checkout, ours, monkeypatch, capsys):
    before = tree(checkout)
    assert command(checkout) == 0
    (ours / "flcore/trainmodel/cpd.py").write_text("# newer\n")
    write(ours / "flcore/trainmodel/extra.py", b"# extra\n")
    newer = tuple(n for n in plugin.checkout.FILES if not n.endswith("roundloop.py")) + ("flcore/trainmodel/extra.py",)
    monkeypatch.setattr(plugin.checkout, "FILES", newer)
    capsys.readouterr()
    assert command(checkout) == 0
    assert "update" in capsys.readouterr().out
    system = checkout / "system"
    assert (system / "flcore/trainmodel/cpd.py").read_text() == "# newer\n"
    assert (system / "flcore/trainmodel/extra.py").read_text() == "# extra\n"
    assert not (system / "flcore/servers/roundloop.py").exists()
    assert command(checkout, "--uninstall") == 0
    assert tree(checkout) == before


def test_a_lost_block_is_put_back(checkout, ours):
    assert command(checkout) == 0
    complete = tree(checkout)
    main = checkout / "system/main.py"
    main.write_text(
        main.read_text().replace(f"    {plugin.edit.BEGIN}\n    FedCPD.add_args(parser)\n    {plugin.edit.END}\n", "")
    )
    assert tree(checkout) != complete
    assert command(checkout) == 0
    assert tree(checkout) == complete


def test_dry_run_writes_nothing_and_shows_everything(checkout, ours, capsys):
    before = tree(checkout)
    assert command(checkout, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert tree(checkout) == before
    assert '+        elif args.algorithm == "FedCPD":' in shown
    assert all(f"would copy to {checkout / 'system' / name}" in shown for name in plugin.checkout.FILES)

    assert command(checkout) == 0
    installed = tree(checkout)
    capsys.readouterr()
    assert command(checkout, "--uninstall", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert tree(checkout) == installed
    assert "-    FedCPD.add_args(parser)" in shown
    assert shown.count("would remove") == len(plugin.checkout.FILES) + 1


# ---- refusing --------------------------------------------------------------------------------------------------------

BRANCH = '        elif args.algorithm == "Local":\n            server = Local(args, i)\n'
REFUSED = {
    "no import of a server": MAIN.replace("flcore.servers", "methods"),
    "import inside try": MAIN.replace(
        "from flcore.servers.serveravg", "try:\n    from flcore.servers.serveravg"
    ).replace("from flcore.servers.serverlocal import (\n    Local,\n)", "except ImportError: pass"),
    "no parse_args": MAIN.replace("parser.parse_args()", "get_args(parser)"),
    "parser without a name": MAIN.replace("parser.parse_args()", "argparse.ArgumentParser().parse_args()"),
    "parse_args twice": MAIN.replace("    run(args)", "    args = parser.parse_args()\n    run(args)"),
    "parse_args behind another statement": MAIN.replace("    args = parser", "    x = 1; args = parser"),
    "no chain": MAIN.replace("args.algorithm", "args.method"),
    "servers made otherwise": MAIN.replace("(args, i)", "(args)"),
    "a table instead of a chain": MAIN.replace("server = FedAvg(args, i)", "kind = FedAvg").replace(BRANCH, ""),
    "two chains": MAIN + "\nif args.algorithm == 'FedAvg':\n    server = FedAvg(args, 0)\n",
    "not Python": MAIN + "\ndef broken(:\n",
    "another FedCPD": MAIN.replace("FedAvg", "FedCPD"),
    "half by hand": MAIN.replace("    args = parser", "    FedCPD.add_args(parser)\n    args = parser"),
}


@pytest.mark.parametrize("form", REFUSED)
def test_an_unknown_main_is_left_alone_and_the_lines_are_shown(form, checkout, ours, capsys):
    (checkout / "system/main.py").write_text(REFUSED[form])
    before = tree(checkout)
    for flags in ([], ["--dry-run"]):
        assert command(checkout, *flags) == 1
        message = capsys.readouterr().err
        assert tree(checkout) == before
        assert "left untouched" in message
        for line in (
            "from flcore.servers.servercpd import FedCPD",
            "FedCPD.add_args(parser)",
            'elif args.algorithm == "FedCPD":',
            "args.model = FedCPD.split_head(args.model)",
            "server = FedCPD(args, i)",
        ):
            assert line in message


def test_a_main_completed_by_hand_gets_the_files_only(checkout, ours, capsys):
    main = checkout / "system/main.py"
    main.write_text(REFUSED["two chains"])
    before = tree(checkout)
    edited = (
        REFUSED["two chains"]
        .replace(
            "from flcore.servers.serveravg",
            "from flcore.servers.servercpd import FedCPD\nfrom flcore.servers.serveravg",
        )
        .replace("    args = parser", "    FedCPD.add_args(parser)\n    args = parser")
        .replace(BRANCH, BRANCH + BRANCH.replace("Local", "FedCPD"))
    )
    main.write_text(edited)
    assert command(checkout) == 0
    assert "by hand" in capsys.readouterr().out
    assert main.read_text() == edited
    assert all((checkout / "system" / name).exists() for name in plugin.checkout.FILES)

    installed = tree(checkout)
    assert command(checkout, "--uninstall") == 1
    assert tree(checkout) == installed
    main.write_text(REFUSED["two chains"])
    assert command(checkout, "--uninstall") == 0
    assert tree(checkout) == before


def test_blocks_in_a_main_that_became_unknown_are_left_alone(checkout, ours, capsys):
    before = tree(checkout)
    assert command(checkout) == 0
    main = checkout / "system/main.py"
    second_chain = "\nif args.algorithm == 'FedAvg':\n    server = FedAvg(args, 0)\n"
    main.write_text(main.read_text() + second_chain)
    (ours / "flcore/trainmodel/cpd.py").write_text("# newer\n")
    edited = main.read_text()
    assert command(checkout) == 0
    assert main.read_text() == edited
    assert (checkout / "system/flcore/trainmodel/cpd.py").read_text() == "# newer\n"
    assert command(checkout, "--uninstall") == 0
    main.write_text(main.read_text().removesuffix(second_chain))
    assert tree(checkout) == before


@pytest.mark.parametrize("marker", ["BEGIN", "END"])
def test_damaged_markers_are_left_alone(marker, checkout, ours, capsys):
    assert command(checkout) == 0
    main = checkout / "system/main.py"
    main.write_text(main.read_text().replace(f"        {getattr(plugin.edit, marker)}\n", "", 1))
    before = tree(checkout)
    for flags in ([], ["--uninstall"]):
        assert command(checkout, *flags) == 1
        assert "no partner" in capsys.readouterr().err
        assert tree(checkout) == before


@pytest.mark.parametrize("name", plugin.checkout.FILES)
def test_a_foreign_file_is_never_overwritten(name, checkout, ours, capsys):
    write(checkout / "system" / name, b"# somebody else's\n")
    before = tree(checkout)
    assert command(checkout) == 1
    assert name in capsys.readouterr().err
    assert tree(checkout) == before
    assert command(checkout, "--uninstall") == 0
    assert tree(checkout) == before


def test_something_else_under_a_file_name_is_refused(checkout, ours, capsys):
    (checkout / "system" / plugin.checkout.FILES[0]).mkdir()
    assert command(checkout) == 1
    assert "not a file" in capsys.readouterr().err


def test_an_edited_copy_is_kept(checkout, ours, capsys):
    before = tree(checkout)
    assert command(checkout) == 0
    edited = checkout / "system" / "flcore/clients/clientcpd.py"
    edited.write_text("# my own experiment\n")
    installed = tree(checkout)
    assert command(checkout) == 1
    assert "edited" in capsys.readouterr().err
    assert tree(checkout) == installed

    assert command(checkout, "--uninstall") == 1
    assert str(edited) in capsys.readouterr().err
    assert edited.read_text() == "# my own experiment\n"
    edited.unlink()
    assert tree(checkout) == before


def test_a_damaged_manifest_is_refused(checkout, ours, capsys):
    for content in (b"{", b"[]", b'{"files": 3}', b"\xff"):
        (checkout / "system/.fedcpd-plugin.json").write_bytes(content)
        assert command(checkout) == 1
        assert "damaged" in capsys.readouterr().err


# ---- failing half-way ------------------------------------------------------------------------------------------------


class Failing:
    """Calls the real function, except that the call number `at` fails."""

    def __init__(self, function, at, error):
        self.function, self.at, self.error, self.calls = function, at, error, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return self.function(*args, **kwargs)


@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("step", ["replace", "stage"])
def test_a_failing_write_leaves_everything_as_it_was(at, step, checkout, ours, monkeypatch, capsys):
    before = tree(checkout)
    full = OSError(28, "No space left on device")
    with monkeypatch.context() as patch:
        if step == "replace":
            patch.setattr(os, "replace", Failing(os.replace, at, full))
        else:
            failing = Failing(Path.write_bytes, at, full)
            patch.setattr(Path, "write_bytes", lambda self, content: failing(self, content))
        assert command(checkout) == 1
    message = capsys.readouterr().err
    assert "No space left" in message and "as it was" in message
    assert tree(checkout) == before


@pytest.mark.parametrize("at", range(1, 8))
def test_an_interrupted_update_leaves_everything_as_it_was(at, checkout, ours, monkeypatch):
    assert command(checkout) == 0
    for name in plugin.checkout.FILES:
        (ours / name).write_text("# newer\n")
    (checkout / "system/main.py").write_text(MAIN)
    before = tree(checkout)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", Failing(os.replace, at, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            command(checkout)
    assert tree(checkout) == before


@pytest.mark.parametrize("name", [*plugin.checkout.FILES, ".fedcpd-plugin.json"])
def test_a_failing_removal_leaves_everything_as_it_was(name, checkout, ours, monkeypatch):
    assert command(checkout) == 0
    before = tree(checkout)
    unlink = Path.unlink

    def refuse(path, missing_ok=False):
        if path == checkout / "system" / name:
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        assert command(checkout, "--uninstall") == 1
    assert tree(checkout) == before


# ---- the wrong path --------------------------------------------------------------------------------------------------


def test_wrong_paths_exit_2_and_say_what_is_missing(checkout, ours, tmp_path, capsys):
    assert command(tmp_path / "nowhere") == 2
    assert "no such folder" in capsys.readouterr().err
    (checkout / "system/flcore/servers/serverbase.py").unlink()
    (checkout / "system/flcore/trainmodel/models.py").write_text("class LocalModel:\n    pass\n")
    assert command(checkout) == 2
    message = capsys.readouterr().err
    assert "serverbase.py" in message and "BaseHeadSplit" in message and "clientbase.py" not in message
    with pytest.raises(SystemExit) as stop:
        plugin.command.main([])
    assert stop.value.code == 2


def test_the_command_needs_nothing_installed(checkout):
    """Neither torch nor flcore: a user of PFLlib runs it with the Python at hand."""
    line = [sys.executable, "-S", str(REPO / "scripts" / "install_plugin.py"), str(checkout), "--dry-run"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=PFLLIBS_OWN)
    assert done.returncode == 0, done.stderr
    assert "would copy to" in done.stdout


def test_our_own_tree_is_not_a_target(checkout, monkeypatch, capsys):
    monkeypatch.setattr(plugin.checkout, "OURS", (checkout / "system").resolve())
    before = tree(checkout)
    for flags in ([], ["--uninstall"]):
        assert command(checkout, *flags) == 2
        assert "this framework itself" in capsys.readouterr().err
        assert tree(checkout) == before


# ---- the real pair ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", plugin.checkout.FILES)
def test_copied_files_import_only_what_pfllib_has(name):
    pfllib = {"flcore.clients.clientbase", "flcore.servers.serverbase", "flcore.trainmodel.models"}
    copied = {file.removesuffix(".py").replace("/", ".") for file in plugin.checkout.FILES}
    imported = set()
    for node in ast.walk(ast.parse((REPO / "system" / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module or "")
    outside = {
        module for module in imported if module.split(".")[0] not in sys.stdlib_module_names | {"torch", "numpy"}
    }
    assert outside <= pfllib | copied


def test_a_server_from_before_may_2023_is_refused(tmp_path, capsys):
    root = tmp_path / "PFLlib"
    shutil.copytree(DOUBLE, root, ignore=shutil.ignore_patterns("__pycache__"))
    base = root / "system/flcore/servers/serverbase.py"
    text = base.read_text()
    assert "def set_clients(self, clientObj):" in text
    base.write_text(text.replace("def set_clients(self, clientObj):", "def set_clients(self, args, clientObj):"))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert plugin.command.main([str(root)]) == 1
    assert "as before May 2023" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_docs_list_what_is_copied():
    text = (REPO / "docs" / "plugin.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(flcore/\S+)` \|", text, re.MULTILINE)) == sorted(plugin.checkout.FILES)


def test_the_double_offers_no_more_than_pfllib():
    surface = json.loads((REPO / "tests/repo/pfllib_surface.json").read_text(encoding="utf-8"))
    for name, file in (("Client", "clients/clientbase.py"), ("Server", "servers/serverbase.py")):
        tree = ast.parse((DOUBLE / "system/flcore" / file).read_text(encoding="utf-8"))
        (base,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
        methods = {
            node.name: [a.arg for a in node.args.args] for node in base.body if isinstance(node, ast.FunctionDef)
        }
        attributes = {
            node.attr
            for node in ast.walk(base)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
        }
        listed = surface[file.split("/")[1].removesuffix(".py")][name]
        expected = {method: [a for a in args if a[0] != "*"] for method, args in listed["methods"].items()}
        assert {m: args for m, args in methods.items() if m[0] != "_" or m == "__init__"} == expected
        assert attributes == set(listed["attributes"])


@pytest.fixture(scope="module")
def pfllib(tmp_path_factory):
    """The double with the real pair installed, and a data set of four clients and one newcomer in PFLlib's format."""
    root = tmp_path_factory.mktemp("double") / "PFLlib"
    shutil.copytree(DOUBLE, root, ignore=shutil.ignore_patterns("__pycache__"))
    assert plugin.command.main([str(root)]) == 0
    rng = np.random.default_rng(0)
    pictures = rng.uniform(-0.5, 0.5, (4, 3, 32, 32))  # one for each class
    for i in range(5):
        for part, size in (("train", 20), ("test", 8)):
            y = np.resize([i % 4, (i + 1) % 4], size).astype(np.int64)  # two classes a client
            x = (pictures[y] + rng.normal(0, 0.1, (size, 3, 32, 32))).astype(np.float32)
            path = root / "dataset" / "TinyCifar100" / part / f"{i}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(path, data=np.array({"x": x, "y": y}, dtype=object))
    return root


def train(
    root: Path, algorithm: str, *flags: str, start=("main.py",), **environment: str
) -> tuple[dict[str, np.ndarray], str]:
    """Runs main.py for rounds 0, 1, 2; returns the result file's curves and what was printed."""
    base = ["-data", "TinyCifar100", "-ncl", "10", "-nc", "4", "-gr", "2", "-dev", "cpu", "-lbs", "5", "-lr", "0.05"]
    done = subprocess.run(
        [sys.executable, *start, "-algo", algorithm, *base, *flags],
        cwd=root / "system", capture_output=True, text=True, timeout=300, env=PFLLIBS_OWN | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with h5py.File(root / "results" / f"TinyCifar100_{algorithm}_test_0.h5") as file:
        return {key: file[key][:] for key in file}, done.stdout


def test_fedcpd_trains_with_pfllibs_own_bases(pfllib):
    curves, _ = train(pfllib, "FedCPD")
    assert len(curves["rs_test_acc"]) == len(curves["rs_train_loss"]) == 3
    assert np.isfinite(curves["rs_test_acc"]).all() and np.isfinite(curves["rs_train_loss"]).all()
    assert curves["rs_train_loss"][2] < curves["rs_train_loss"][0]


@pytest.mark.slow
def test_without_its_parts_it_is_pfllibs_fedrep(pfllib):
    """One batch holds all of a client's samples, so the shuffling (never seeded in PFLlib) does not matter."""
    flags = ("-lbs", "20", "-ls", "2", "-pls", "3", "-lr", "0.05")
    rep, _ = train(pfllib, "FedRep", *flags)
    cpd, _ = train(pfllib, "FedCPD", *flags, "--cpd_fd", "0", "--cpd_align", "0", "--cpd_contrast", "0")
    np.testing.assert_allclose(cpd["rs_train_loss"], rep["rs_train_loss"], rtol=1e-4)
    assert rep["rs_train_loss"][2] < rep["rs_train_loss"][0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ("--cpd_fd", "0"),
        ("--cpd_align", "0"),
        ("--cpd_contrast", "0"),
        ("--cpd_proto_weighting", "count"),
        ("-jr", "0.5"),
        ("-cdr", "0.5"),
        ("-ld", "True"),
        ("-fs", "3", "-lbs", "2"),
    ],
    ids=" ".join,
)
def test_pfllibs_flags_work_with_fedcpd(pfllib, flags):
    curves, _ = train(pfllib, "FedCPD", *flags)
    assert len(curves["rs_test_acc"]) == 3
    assert np.isfinite(curves["rs_test_acc"]).all() and np.isfinite(curves["rs_train_loss"]).all()


@pytest.mark.slow
def test_on_a_device_it_computes_what_it_does_on_a_cpu(pfllib, tmp_path):
    """The device is a pretended one. Again one batch holds all samples of a client."""
    flags = ("-lbs", "20", "-ls", "2", "-nnc", "1", "-ften", "1")
    expected, _ = train(pfllib, "FedCPD", *flags)
    root = shutil.copytree(pfllib, tmp_path / "PFLlib")
    code = (root / "system" / "main.py").read_text()
    (root / "system" / "main.py").write_text(code.replace(', choices=["cpu", "cuda"]', ""))
    script = """
import runpy
from support.pretended_device import pretended_device
with pretended_device():
    runpy.run_path("main.py", run_name="__main__")
"""
    curves, _ = train(root, "FedCPD", *flags, "-dev", "lazy:0", start=("-c", script), PYTHONPATH=str(REPO / "tests"))
    np.testing.assert_allclose(curves["rs_train_loss"], expected["rs_train_loss"], rtol=1e-4)


@pytest.mark.slow
def test_new_clients_are_scored_after_the_training(pfllib):
    _, printed = train(pfllib, "FedCPD", "-nnc", "1", "-ften", "1")
    assert printed.count("Averaged Test Accuracy") == 4  # three rounds and the newcomer
    assert printed.rindex("Averaged Test Accuracy") > printed.index("Best accuracy")


@pytest.mark.slow
def test_auto_break_ends_early(pfllib):
    # Without learning the first value stays the best: the second one exhausts a patience of 1 evaluation.
    curves, _ = train(pfllib, "FedCPD", "-gr", "9", "-lr", "0", "-ab", "True", "-tc", "1")
    assert len(curves["rs_test_acc"]) == 2


@pytest.mark.slow
def test_pfllibs_own_algorithms_still_work(pfllib):
    for algorithm in ("FedAvg", "Local"):
        curves, _ = train(pfllib, algorithm)
        assert len(curves["rs_test_acc"]) == 3
