"""The algorithms: one line each. Adding one = clientX.py, serverX.py and a line here."""

from __future__ import annotations

import argparse
import difflib
import importlib
from typing import Any, NamedTuple

from flcore.utils.errors import UsageError


class Algorithm(NamedTuple):
    name: str  # what -algo takes, in any case
    server: str  # module:class, imported only when chosen
    head_split: bool  # wrap the model as base and head (every rule needs it; a PFLlib pair may not)
    paper: str


ALGORITHMS = [
    Algorithm("Local", "flcore.servers.serverlocal:Local", True, "no communication"),
    Algorithm("FedAvg", "flcore.servers.serveravg:FedAvg", True, "McMahan et al., AISTATS 2017"),
    Algorithm("FedProx", "flcore.servers.serverprox:FedProx", True, "Li et al., MLSys 2020"),
    Algorithm("FedPer", "flcore.servers.serverper:FedPer", True, "Arivazhagan et al., arXiv 2019"),
    Algorithm("FedRep", "flcore.servers.serverrep:FedRep", True, "Collins et al., ICML 2021"),
    Algorithm("FedProto", "flcore.servers.serverproto:FedProto", True, "Tan et al., AAAI 2022"),
    Algorithm("FedGH", "flcore.servers.servergh:FedGH", True, "Yi et al., ACM MM 2023"),
    Algorithm("FedALA", "flcore.servers.serverala:FedALA", True, "Zhang et al., AAAI 2023"),
    Algorithm("FedPA", "flcore.servers.serverpa:FedPA", True, "Jiang et al., TDSC 2024"),
    Algorithm("FedProc", "flcore.servers.serverproc:FedProc", True, "Mu et al., FGCS 2023"),
    Algorithm("FedCRL", "flcore.servers.servercrl:FedCRL", True, "Huang et al., 2024, reconstructed from the abstract"),
    Algorithm("FedTGP", "flcore.servers.servertgp:FedTGP", True, "Zhang et al., AAAI 2024"),
    Algorithm("FedHKD", "flcore.servers.serverhkd:FedHKD", True, "Chen et al., ICLR 2023"),
    Algorithm("FedKTL", "flcore.servers.serverktl:FedKTL", True, "Zhang et al., CVPR 2024"),
    Algorithm("MOON", "flcore.servers.servermoon:MOON", True, "Li et al., CVPR 2021"),
    Algorithm("Ditto", "flcore.servers.serverditto:Ditto", True, "Li et al., ICML 2021"),
    Algorithm("FedCP", "flcore.servers.servercp:FedCP", True, "Zhang et al., KDD 2023"),
    Algorithm("GPFL", "flcore.servers.servergpfl:GPFL", True, "Zhang et al., ICCV 2023"),
    Algorithm("FedDBE", "flcore.servers.serverdbe:FedDBE", True, "Zhang et al., NeurIPS 2023"),
    Algorithm("FedCPD", "flcore.servers.servercpd:FedCPD", True, "Jin et al., IJCAI 2025"),
]


def find(name: str) -> Algorithm:
    """The algorithm called ``name``; UsageError with the nearest name and the whole list otherwise."""
    known = {algorithm.name.lower(): algorithm for algorithm in ALGORITHMS}
    if name.lower() in known:
        return known[name.lower()]
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f" Did you mean {known[near[0]].name}?" if near else ""
    raise UsageError(f"-algo {name}: no such algorithm.{hint} There are: {', '.join(a.name for a in ALGORITHMS)}.")


def server_class(algorithm: Algorithm) -> Any:
    module, name = algorithm.server.split(":")
    return getattr(importlib.import_module(module), name)


def own_flags(server: Any) -> dict[str, Any]:
    """The flags that a method brings along, each with its default."""
    parser = argparse.ArgumentParser(add_help=False)
    if hasattr(server, "add_args"):
        server.add_args(parser)
    return vars(parser.parse_args([]))


def table() -> str:
    """All algorithms as a Markdown table: what `main.py --list` prints and docs/algorithms.md holds."""
    rows = ["| -algo | paper | travels | stays at the client | flags and defaults |", "|---|---|---|---|---|"]
    for algorithm in ALGORITHMS:
        server = server_class(algorithm)
        flags = {**(server.uses or {}), **own_flags(server)}
        listed = ", ".join(f"`--{name} {value}`" for name, value in flags.items()) or "-"
        rows.append(f"| {algorithm.name} | {algorithm.paper} | {server.sends} | {server.keeps} | {listed} |")
    return "\n".join(rows)
