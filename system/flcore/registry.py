"""The algorithms: one line each. Adding one = clientX.py, serverX.py and a line here."""

from __future__ import annotations

import argparse
import difflib
import importlib
from typing import Any, NamedTuple

from utils.errors import UsageError


class Algorithm(NamedTuple):
    name: str  # what -algo takes, in any case
    server: str  # module:class, imported only when chosen
    head_split: bool  # wrap the model as base and head (every rule needs it; a PFLlib pair may not)
    paper: str


ALGORITHMS = [
    Algorithm("Local", "flcore.servers.serverlocal:Local", True, "no communication"),
    Algorithm("FedAvg", "flcore.servers.serveravg:FedAvg", True, "McMahan et al., AISTATS 2017"),
    Algorithm("FedRep", "flcore.servers.serverrep:FedRep", True, "Collins et al., ICML 2021"),
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
    return {action.dest: action.default for action in parser._actions}


def table() -> str:
    """All algorithms as a Markdown table: what `main.py --list` prints and docs/algorithms.md holds."""
    rows = ["| -algo | paper | travels | stays at the client | flags and defaults |", "|---|---|---|---|---|"]
    for algorithm in ALGORITHMS:
        server = server_class(algorithm)
        flags = {**(server.uses or {}), **own_flags(server)}
        listed = ", ".join(f"`--{name} {value}`" for name, value in flags.items()) or "-"
        rows.append(f"| {algorithm.name} | {algorithm.paper} | {server.sends} | {server.keeps} | {listed} |")
    return "\n".join(rows)
