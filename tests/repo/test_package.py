"""What is installed, cited and checked out."""

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

import flcore
from support import REPO


def test_the_version_stands_in_one_place():
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    assert re.fullmatch(r"\d+\.\d+\.\d+", flcore.__version__)
    assert project["project"]["dynamic"] == ["version"] and "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "flcore.__version__"}
    citation = (REPO / "CITATION.cff").read_text()
    assert not re.search(r"^version:", citation, re.MULTILINE)


def test_the_paper_is_cited_as_in_the_readme():
    citation = (REPO / "CITATION.cff").read_text()
    (doi,) = re.findall(r"^ +doi: (\S+)$", citation, re.MULTILINE)
    assert doi == "10.24963/ijcai.2025/612" and f"doi {doi}" in " ".join((REPO / "README.md").read_text().split())
    assert re.findall(r"family-names: (\w+)", citation) == ["Jin", "Xu", "Wang", "Hsieh", "Wu", "Lin"]


def test_nothing_edits_the_search_path():
    """`import flcore` works because it is installed; what stands beside a script is found because it stands there."""
    files = [path for top in ("system", "dataset", "scripts", "tests") for path in (REPO / top).rglob("*.py")]
    edits = re.compile(r"sys\.path(?:\.(?:append|insert|extend)|\s*\+?=|\[)")
    allowed = {"test_package.py", "sources.py"}  # the second for as long as a user's network imports its neighbours
    assert not [path for path in files if edits.search(path.read_text()) and path.name not in allowed]


def test_every_command_bears_what_surrounds_it():
    """A lost terminal, signs it lacks, a notebook's MPLBACKEND: `console.prepare`."""
    files = [path for top in ("scripts", "dataset", "system") for path in (REPO / top).glob("*.py")]
    commands = [path for path in files if "sys.exit(main(" in path.read_text() and path.name != "install_plugin.py"]
    assert len(commands) > 5
    assert not [path.name for path in commands if "    console.prepare()\n" not in path.read_text()]


def test_flcore_is_importable_from_anywhere_and_nothing_else_of_ours_is(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = "import sys, flcore.federation.node, importlib.util as u; print("
    code += "[n for n in ('utils', 'main') if u.find_spec(n)], sys.modules.keys() & {'ray', 'flwr'})"  # engines: lazily
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("[] set()\n", 0), done.stderr


def test_a_pfllib_checkouts_own_flcore_comes_first(tmp_path):
    """PFLlib's `flcore` is a folder without __init__.py beside its main.py; ours is installed where that runs."""
    (tmp_path / "flcore" / "servers").mkdir(parents=True)
    (tmp_path / "flcore" / "servers" / "serveravg.py").write_text("WHOSE = 'PFLlib'\n")
    (tmp_path / "main.py").write_text("from flcore.servers.serveravg import WHOSE\nprint(WHOSE)\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("PFLlib\n", 0), done.stderr


@pytest.mark.skipif(not shutil.which("git"), reason="git is needed")
def test_scripts_end_their_lines_in_lf_in_every_checkout(tmp_path):
    """A clone with core.autocrlf, as git on Windows sets it, still runs setup.sh."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    shutil.copytree(REPO / "scripts", origin / "scripts")
    shutil.copytree(REPO / "tests" / "corpus", origin / "tests" / "corpus")
    shutil.copy(REPO / ".gitattributes", origin)
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "core.autocrlf=true"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], cwd=origin, check=True, capture_output=True)
    subprocess.run([*git, "clone", "-q", "-c", "core.autocrlf=true", origin, clone], check=True, capture_output=True)
    for path in (clone / "scripts").rglob("*.sh"):
        assert b"\r" not in path.read_bytes(), path
    for path in (REPO / "tests" / "corpus").iterdir():
        assert (clone / "tests" / "corpus" / path.name).read_bytes() == path.read_bytes(), path
