"""The methods: one card each. Adding one = clientX.py, serverX.py and a card here."""

import importlib
import json
import logging
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flcore.hyperparams import Setting, Settings
from flcore.utils.errors import RunError, UsageError, did_you_mean

PARTS = {"base.": "extractor", "head.": "head"}
ALL = ("",)  # prefixes of all weights
IMPORTED = Path(__file__).resolve().parent / "imported"  # of PFLlib's pairs

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Method:
    """What is known of a method without running it. The weights that travel are its server's ``shares``.

    Args:
        name: what -algo takes, in any case.
        server: module:class, imported only when chosen. Its ``rule`` is the client's half, which has the settings.
        paper: authors, where published.
        prototypes: what the uploaded class means are called, under ``prototypes`` with ``counts``; empty: it has none.
        prototypes_down: whether the global ones are sent to the clients.
        weights_up: whether clients send the shared weights back.
        extras: prefixes of the names of what else they send; an upload with another name in it is not used.
        down, once: what else the server sends, and what travels once, in words.
        parts: what the method's own modules, or the network's parts, are called, by the prefix of their weights.
        keeps: what a client keeps from round to round beside the weights that do not travel, in words.
        means_only: prefixes of the weights of which the server reads the mean over the uploads, never a single one;
            a large round then needs no memory for each client's.
        averages: whether the server takes means of uploads, which --aggregate can replace.
        noise_refusal: why its prototypes cannot take --proto_noise; empty: they can.
        by_rounds: what depends on the planned number of rounds (``-gr``), in words, so that a run cannot go on with a
            larger one; empty: nothing.
        ignores: names of common flags that have no effect on it.
        reconstruction: written without the paper's text or code; tables of results say so.
        head: what becomes of the network's last layer: "split" from the extractor, which every rule needs; for PFLlib's
            pairs also "whole", left where it is, or "cut" off and gone.
    """

    name: str
    server: str
    paper: str
    prototypes: str = ""
    prototypes_down: bool = True
    weights_up: bool = True
    extras: tuple[str, ...] = ()
    down: str = ""
    once: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)
    keeps: str = ""
    means_only: tuple[str, ...] = ()
    averages: bool = True
    noise_refusal: str = ""
    by_rounds: str = ""
    ignores: tuple[str, ...] = ()
    reconstruction: bool = False
    head: str = "split"

    def server_class(self) -> Any:
        """The server's class.

        Raises:
            RunError: its module cannot be imported; the message says why and where.
        """
        module, name = self.server.split(":")
        try:
            return getattr(importlib.import_module(module), name)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}, line {last.lineno}"
            raise RunError(
                f"{self.name} cannot be used, since {module} cannot be imported: "
                f"{type(error).__name__}: {error} ({where})"
            ) from error

    def settings_class(self) -> type[Settings] | None:
        """The dataclass of the method's settings; None for a PFLlib-style pair, which reads what it likes."""
        rule = self.server_class().rule
        settings: type[Settings] | None = rule and rule.settings
        return settings

    def settings(self) -> dict[str, Setting]:
        """The method's settings by name; empty for a PFLlib-style pair."""
        settings = self.settings_class()
        return settings.declared() if settings else {}

    def problem(self) -> str | None:
        """Why the method cannot be used; None if it can."""
        try:
            self.server_class()
        except RunError as error:
            return str(error)
        return None

    # ---- in words ----------------------------------------------------------------------------------------------------

    def sends(self) -> str:
        """What travels in a round, both ways unless it says otherwise; from the server's ``shares`` and this card."""
        shares = self.server_class().shares
        whole = "" in shares or (PARTS.keys() <= set(shares) and not PARTS.keys() & self.parts.keys())
        weights = ["all weights"] if whole else []
        covered = PARTS if weights else ()
        weights += [self.part(prefix) for prefix in shares if prefix and prefix not in covered]
        both = weights if self.weights_up else []
        down = [] if self.weights_up else weights
        up: list[str] = []
        if self.prototypes:
            (both if self.prototypes_down else up).append(self.prototypes)
        down += [self.down] if self.down else []
        found = [", ".join(both)]
        once = [self.once] if self.once else []
        found += [f"{way}: {', '.join(what)}" for way, what in (("down", down), ("up", up), ("once", once)) if what]
        return "; ".join(part for part in found if part) or "nothing"

    def stays(self) -> str:
        """What a client keeps from round to round: the network's parts that do not travel, and what the card says."""
        shares = self.server_class().shares
        kept = [self.part(prefix) for prefix in PARTS if not prefix.startswith(shares)]
        words = ["all weights"] if len(kept) == len(PARTS) else kept
        return ", ".join([*words, *([self.keeps] if self.keeps else [])]) or "nothing"

    def part(self, prefix: str) -> str:
        """What the weights under ``prefix`` are called."""
        return self.parts.get(prefix) or PARTS.get(prefix) or prefix.rstrip(".")


METHODS = [
    Method("Local", "flcore.servers.serverlocal:Local", "no communication", averages=False),
    Method("FedAvg", "flcore.servers.serveravg:FedAvg", "McMahan et al., AISTATS 2017", means_only=ALL),
    Method("FedProx", "flcore.servers.serverprox:FedProx", "Li et al., MLSys 2020", means_only=ALL),
    Method("FedPer", "flcore.servers.serverper:FedPer", "Arivazhagan et al., arXiv 2019", means_only=ALL),
    Method("FedRep", "flcore.servers.serverrep:FedRep", "Collins et al., ICML 2021", means_only=ALL),
    Method(
        *("FedProto", "flcore.servers.serverproto:FedProto", "Tan et al., AAAI 2022"),
        prototypes="class prototypes",
        means_only=ALL,
    ),
    Method(
        *("FedGH", "flcore.servers.servergh:FedGH", "Yi et al., ACM MM 2023"),
        prototypes="class prototypes",
        prototypes_down=False,
        weights_up=False,
        averages=False,
    ),
    Method(
        *("FedALA", "flcore.servers.serverala:FedALA", "Zhang et al., AAAI 2023"),
        keeps="all weights, aggregation weights of the top layers",
        means_only=ALL,
    ),
    Method(
        *("FedPA", "flcore.servers.serverpa:FedPA", "Jiang et al., TDSC 2024"),
        prototypes="class prototypes",
        down="generator",
        means_only=("base.",),
        ignores=("local_epochs",),
    ),
    Method(
        *("FedProc", "flcore.servers.serverproc:FedProc", "Mu et al., FGCS 2023"),
        prototypes="class centres",
        parts={"head.": "idle head"},
        means_only=ALL,
        by_rounds="its loss goes from contrast to cross-entropy with t/T",
    ),
    Method(
        *("FedCRL", "flcore.servers.servercrl:FedCRL", "Huang et al., 2024, reconstructed from the abstract"),
        prototypes="class representations",
        keeps="all weights, contrastive loss",
        means_only=ALL,
        reconstruction=True,
    ),
    Method(
        *("FedTGP", "flcore.servers.servertgp:FedTGP", "Zhang et al., AAAI 2024"),
        prototypes="class prototypes",
        means_only=ALL,
        averages=False,
    ),
    Method(
        *("FedHKD", "flcore.servers.serverhkd:FedHKD", "Chen et al., ICLR 2023"),
        prototypes="mean embedding and prediction of each class",
        means_only=ALL,
        noise_refusal="it uploads mean predictions as well, which with noise are no probabilities any more.",
    ),
    Method(
        *("FedKTL", "flcore.servers.serverktl:FedKTL", "Zhang et al., CVPR 2024"),
        prototypes="class prototypes",
        prototypes_down=False,
        down="an image and its latent vector for each class",
        averages=False,
    ),
    Method(
        "MOON", "flcore.servers.servermoon:MOON", "Li et al., CVPR 2021", keeps="previous extractor", means_only=ALL
    ),
    Method("Ditto", "flcore.servers.serverditto:Ditto", "Li et al., ICML 2021", keeps="personal model", means_only=ALL),
    Method(
        *("FedCP", "flcore.servers.servercp:FedCP", "Zhang et al., KDD 2023"),
        parts={"head.": "mixed head", "cpn.": "policy network"},
        keeps="head",
        means_only=ALL,
    ),
    Method(
        *("GPFL", "flcore.servers.servergpfl:GPFL", "Zhang et al., ICCV 2023"),
        parts={"gce.": "class embeddings", "cov.": "conditional valve"},
        means_only=ALL,
    ),
    Method(
        *("FedDBE", "flcore.servers.serverdbe:FedDBE", "Zhang et al., NeurIPS 2023"),
        once="mean embedding",
        keeps="bias of the embedding",
        means_only=ALL,
    ),
    Method(
        *("FedCPD", "flcore.servers.servercpd:FedCPD", "Jin et al., IJCAI 2025"),
        prototypes="class prototypes",
        keeps="attention and fusion modules, previous extractor",
        means_only=ALL,
    ),
    Method(
        *("FedCPD+", "flcore.servers.servercpdplus:FedCPDPlus", "ours: docs/fedcpd.md"),
        prototypes="class prototypes",
        keeps="head in closed form",
        means_only=ALL,
    ),
]


def imported() -> list[Method]:
    """The methods that scripts/import_pair.py has brought in, a folder each with its card."""
    found = []
    for path in sorted(IMPORTED.glob("[!.]*/card.json")):
        try:
            found.append(Method(**json.loads(path.read_text(encoding="utf-8"))["method"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning(f"{path} cannot be read ({error}); import the method again")
    return found


OURS = tuple(METHODS)
METHODS += imported()


def find(name: str) -> Method:
    """The method called ``name``; UsageError with the nearest name and the whole list otherwise."""
    for method in METHODS:
        if method.name.lower() == name.lower():
            return method
    names = [method.name for method in METHODS]
    raise UsageError(f"-algo {name}: no such algorithm.{did_you_mean(name, names)} There are: {', '.join(names)}.")


def table() -> str:
    """All methods as a Markdown table: what `main.py --list` prints and docs/algorithms.md holds."""
    rows = ["| -algo | paper | travels | stays at the client | flags and defaults |", "|---|---|---|---|---|"]
    for method in METHODS:
        if problem := method.problem():
            rows.append(f"| {method.name} | {method.paper} | {problem} | | |")
            continue
        flags = ", ".join(f"`--{name} {one.default}`" for name, one in method.settings().items()) or "-"
        rows.append(f"| {method.name} | {method.paper} | {method.sends()} | {method.stays()} | {flags} |")
    return "\n".join(rows)
