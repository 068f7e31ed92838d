"""What is run for a table or figure at one size: experiments/<name>.toml with a preset of experiments/presets.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flcore import registry
from flcore.data.generate import generate
from flcore.data.sources import KNOWN
from flcore.sweep import Settings, combinations, runs_in
from flcore.utils.cli import read_toml
from flcore.utils.errors import UsageError
from flcore.utils.paths import REPO

FOLDER = REPO / "experiments"
NAMES = ("table1", "table2", "table3", "fig2", "fig4", "fairness", "clients", "participation", "comm", "search")
PRESETS = ("smoke", "quick", "paper")
USUAL_CLIENTS = 20
DATASET = re.compile(r"(?P<images>\w+)-(?P<kind>dir|pat)(?P<value>[\d.]+)")  # Cifar100-dir0.1


@dataclass(frozen=True)
class Cell:
    """One run of a plan: where it stands in the table, its settings, and the data set that it needs.

    row, column: a method and what the table's columns tell apart, in words.
    settings: as a sweep takes them, with the name of the data set's folder.
    data: what `generate` takes for that data set.
    """

    row: str
    column: str
    settings: Settings
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Plan:
    """A table or figure at one size.

    show: the columns of `flcore.reporting.tables` that it tells.
    figure: the name of a figure of `flcore.reporting.figures`, or empty.
    published: by how many points the paper's FedCPD leads the second best, by column.
    """

    name: str
    preset: str
    about: str
    show: list[str]
    cells: list[Cell]
    figure: str = ""
    published: Mapping[str, float] = field(default_factory=dict)


def read_plan(name: str, preset: str) -> Plan:
    """The plan of a table or figure (a name of `NAMES`) at the size of a preset, the first seed's cells first."""
    path = FOLDER / f"{name}.toml"
    content, common = read_toml(path), read_toml(FOLDER / "presets.toml")[preset]
    own, data = common.pop("of", {}), common.pop("data", {})
    columns, about, show = content.pop("columns", ""), content.pop("about"), content.pop("show")
    figure, published = content.pop("figure", ""), content.pop("published", {})
    cells = []
    for told in runs_in(content, path):
        dataset = told["dataset"]
        images = _parsed(dataset)["images"]
        row = told.pop("label", "") or words(told["algorithm"], told)
        for settings in combinations({**common, **own.get(images, {}), **own.get(dataset, {}), **told}):
            recipe = recipe_of(dataset, settings["num_clients"], data)
            folder = "-".join([dataset, *_clients(settings["num_clients"]), preset])
            column = dataset if columns == "dataset" else str(settings[columns]) if columns else ""
            cells.append(Cell(row, column, settings | {"dataset": folder, "goal": preset}, recipe))
    cells.sort(key=lambda cell: cell.settings["seed"])
    return Plan(name, preset, about, show, cells, figure, published)


def words(algorithm: str, settings: Mapping[str, Any]) -> str:
    """A method with those of its own settings that are other than its defaults: ``FedCPD, cpd_tau 0.5``."""
    own = registry.find(algorithm).settings_class()
    known = own.declared() if own else {}
    changed = {name: settings[name] for name in known if settings.get(name, known[name].default) != known[name].default}
    return ", ".join([algorithm, *(f"{name} {value}" for name, value in changed.items())])


def _clients(number: int) -> list[str]:
    return [] if number == USUAL_CLIENTS else [f"nc{number}"]


def _parsed(dataset: str) -> re.Match[str]:
    found = DATASET.fullmatch(dataset)
    if not found:
        raise UsageError(f"{dataset}: a data set here is named as Cifar100-dir0.1 or Cifar100-pat10")
    return found


def recipe_of(dataset: str, num_clients: int, data: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a data set, such as Cifar10-dir0.5 (Dirichlet 0.5) or Cifar100-pat20 (20 classes a client)."""
    found = _parsed(dataset)
    recipe = {"name": found["images"], "partition": found["kind"], "num_clients": num_clients, **data}
    if found["kind"] == "dir":
        return recipe | {"alpha": float(found["value"])}
    return recipe | {"classes_per_client": min(int(found["value"]), KNOWN[recipe["name"]].num_classes)}


def make_data(cells: list[Cell], root: Path, sources: Mapping[str, Path], say: Any = print) -> None:
    """Makes the data sets that are not there yet, in `root`; `sources`: files of the images by their names.

    Raises:
        UsageError, RunError: as `generate`.
    """
    for folder, data in {cell.settings["dataset"]: cell.data for cell in cells}.items():
        if not (root / folder / "config.json").exists():
            own: dict[str, Any] = {"source": sources[data["name"]]} if data["name"] in sources else {}
            say(str(generate(**data, **own, out=root / folder, say=say)))
