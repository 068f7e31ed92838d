"""Every algorithm has its parts, and a wrong name gets the right answer."""

import subprocess
import sys
import types

import pytest

from flcore import registry
from flcore.clients.localrule import LocalRule
from flcore.servers.serverbase import Server
from flcore.utils import cli
from flcore.utils.errors import RunError, UsageError
from support import REPO, load_module

FLCORE = REPO / "system" / "flcore"


@pytest.mark.parametrize("line", registry.METHODS, ids=lambda line: line.name)
def test_every_line_names_a_server_with_a_documented_pair(line):
    server = line.server_class()
    assert server.__name__ == line.name.replace("-", "_").replace("+", "Plus")
    assert server.rule is not None
    suffix = line.server.split(":")[0].removeprefix("flcore.servers.server")
    for path in (FLCORE / "servers" / f"server{suffix}.py", FLCORE / "clients" / f"client{suffix}.py"):
        assert path.read_text().startswith('"""'), path
    assert line.paper


def test_every_pair_has_a_line():
    known = {line.server.split(":")[0].removeprefix("flcore.servers.server") for line in registry.METHODS}
    for kind in ("clients/client", "servers/server"):
        folder, prefix = kind.split("/")
        found = {path.stem.removeprefix(prefix) for path in (FLCORE / folder).glob(f"{prefix}*.py")}
        assert found - {"base"} == known


def test_names_in_any_case_and_the_nearest_one():
    assert registry.find("fedcpd").name == "FedCPD"
    with pytest.raises(UsageError, match=r"Did you mean FedAvg\?.*Local, FedAvg, FedProx, .*, FedCPD, FedCPD\+\."):
        registry.find("FedAvgg")


def test_hooks_keep_the_contracts_signatures():
    import inspect

    for line in registry.METHODS:
        module = line.server.split(":")[0].replace("servers.server", "clients.client")
        client = next(
            value
            for name, value in vars(__import__(module, fromlist=["x"])).items()
            if name.startswith("client") and inspect.isclass(value)
        )
        for name in (name for name in vars(client) if name.startswith("local_")):
            assert isinstance(vars(client)[name], staticmethod)
            ours, contract = (list(inspect.signature(getattr(c, name)).parameters) for c in (client, LocalRule))
            assert ours == contract, (client, name)


def test_a_methods_own_default_holds_until_the_flag_is_typed(make_server):
    assert make_server("FedProx").hp.mu == make_server("FedProx").clients[0].hp.mu == 0.1
    assert make_server("FedProx", "-mu", "0").hp.mu == 0
    assert make_server("MOON").hp.mu == 1


def test_the_list_of_algorithms_is_the_documented_one(capsys):
    import main

    assert main.main(["--list"]) == 0
    printed = capsys.readouterr().out
    written = (REPO / "docs" / "algorithms.md").read_text()
    page = load_module(REPO / "scripts" / "write_docs.py").page()
    assert printed.strip() in written and page == written, "python scripts/write_docs.py rewrites it"
    assert "| FedCPD |" in printed and "--cpd_tau 0.1" in printed


# ---- what travels and what stays, in words ---------------------------------------------------------------------------

TRAVELS = {
    "Local": ("nothing", "all weights"),
    "FedAvg": ("all weights", "nothing"),
    "FedRep": ("extractor", "head"),
    "FedProto": ("class prototypes", "all weights"),
    "FedGH": ("down: head; up: class prototypes", "extractor"),
    "FedPA": ("all weights, class prototypes; down: generator", "nothing"),
    "FedProc": ("extractor, projection, classifier, class centres", "idle head"),
    "FedKTL": ("down: an image and its latent vector for each class; up: class prototypes", "all weights"),
    "FedCP": ("extractor, mixed head, policy network", "head"),
    "GPFL": ("extractor, class embeddings, conditional valve", "head"),
    "FedDBE": ("all weights; once: mean embedding", "bias of the embedding"),
    "Ditto": ("all weights", "personal model"),
    "FedCPD": ("extractor, class prototypes", "head, attention and fusion modules, previous extractor"),
    "FedCPD+": ("extractor, class prototypes", "head, head in closed form"),
}


@pytest.mark.parametrize("name", TRAVELS)
def test_what_travels_and_what_stays(name):
    method = registry.find(name)
    assert (method.sends(), method.stays()) == TRAVELS[name]


@pytest.mark.parametrize(
    ("shares", "sends", "stays"),
    [
        (("",), "all weights", "nothing"),
        (("base.",), "extractor", "head"),
        (("head.",), "head", "extractor"),
        ((), "nothing", "all weights"),
        (("base.", "adapter."), "extractor, adapter", "head"),
    ],
)
def test_a_new_method_is_listed_by_what_it_shares(monkeypatch, shares, sends, stays):
    module = types.ModuleType("servernew")
    module.New = type("New", (Server,), {"shares": shares})
    monkeypatch.setitem(sys.modules, "servernew", module)
    method = registry.Method("New", "servernew:New", "an example")
    assert (method.sends(), method.stays()) == (sends, stays)


# ---- methods are imported only when chosen ---------------------------------------------------------------------------


def test_only_the_chosen_method_is_imported():
    program = """
import sys
from flcore import registry
from flcore.experiment import Experiment
Experiment.from_argv(["-algo", "FedRep", "-lam", "1", "-gr", "3"])
Experiment(algorithm="FedAvg", mu=1.0)
loaded = {name.split(".server")[-1] for name in sys.modules if name.startswith("flcore.servers.server")}
sys.exit(loaded != {"base", "avg", "rep"} and str(loaded))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """A method whose module fails at its second line."""
    (tmp_path / "serverbroken.py").write_text("from flcore.servers.serverbase import Server\nServer.nothing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        registry, "METHODS", [registry.Method("Broken", "serverbroken:Broken", "nobody"), *registry.METHODS]
    )
    yield "Broken"
    sys.modules.pop("serverbroken", None)


def test_a_broken_method_is_named_and_leaves_the_others_alone(broken, capsys):
    import main

    assert main.main(["--list"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[2].startswith("| Broken | nobody | Broken cannot be used, since serverbroken cannot be imported: Attr")
    assert "(serverbroken.py, line 2)" in rows[2] and rows[-1].startswith("| FedCPD+ |")
    found = cli.read(["-algo", "FedAvg", "--cpd_fd", "0"], registry.find("FedAvg"), registry.METHODS)
    assert found.notes == ("note: --cpd_fd has no effect on FedAvg",)
    for words in (["--help"], ["-algo", "FedRep", "--help"]):
        with pytest.raises(SystemExit) as end:
            main.main(words)
        assert end.value.code == 0
    assert "--plocal_epochs" in capsys.readouterr().out


def test_choosing_a_broken_method_ends_with_the_reason(broken, capsys):
    import main

    assert main.main(["-algo", broken]) == RunError.exit_code
    error = capsys.readouterr().err
    assert "has no attribute 'nothing' (serverbroken.py, line 2)" in error and "Traceback" not in error
