"""Every algorithm has its parts, and a wrong name gets the right answer."""

import pytest

from flcore import registry
from flcore.clients.localrule import LocalRule
from flcore.utils.errors import UsageError
from support import REPO

FLCORE = REPO / "system" / "flcore"


@pytest.mark.parametrize("line", registry.METHODS, ids=lambda line: line.name)
def test_every_line_names_a_server_with_a_documented_pair(line):
    server = line.server_class()
    assert server.__name__ == line.name.replace("-", "_")
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
    with pytest.raises(UsageError, match=r"Did you mean FedAvg\?.*Local, FedAvg, FedProx, .*, FedCPD\."):
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
    assert printed.strip() in (REPO / "docs" / "algorithms.md").read_text(), "python scripts/write_docs.py rewrites it"
    assert "| FedCPD |" in printed and "--cpd_tau 0.1" in printed
