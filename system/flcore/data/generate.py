"""Makes a data set: loads the images, splits them among clients and writes PFLlib's files.

    generate("Cifar100", num_clients=20, alpha=0.1)

A generate_<Name>.py is the same as a command (`command`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flcore.data.partition import (
    ALPHA,
    KINDS,
    MIN_SAMPLES,
    SEED,
    TRAIN_RATIO,
    Images,
    gather,
    partition,
    split_data,
)
from flcore.data.reading import Config, DataSet
from flcore.data.sources import KNOWN, load
from flcore.data.writing import is_made, pfllib_settings, write_dataset
from flcore.hyperparams import Setting, declared, setting
from flcore.utils.errors import UsageError, did_you_mean
from flcore.utils.paths import DATASET
from flcore.utils.seeds import numpy_generator

ALPHAS = {"dir": ALPHA, "exdir": 100.0}  # PFLlib's number for dir and its advice for exdir
USUAL_ALPHAS = ", ".join(f"{alpha:g} for {kind}" for kind, alpha in ALPHAS.items())


@dataclass(frozen=True)
class Recipe:
    """Which images a data set has, and who gets which of them. The settings are flags of the generators' commands too.

    Raises:
        UsageError: a value is out of range, two contradict each other, or the source is missing.
    """

    name: str  # of the images, a key of `sources.KNOWN`
    partition: str = setting(
        "dir",
        "iid; pat, few classes a client; dir, Dirichlet shares; exdir, Dirichlet shares of few classes",
        choices=KINDS,
    )
    balance: bool = setting(False, "equal shares of a class, for iid and pat")
    num_clients: int = setting(20, "number of clients", least=1, short="-nc")
    alpha: float | None = setting(
        None, f"of Dirichlet: the smaller, the more unequal ({USUAL_ALPHAS})", type=float, above=0
    )
    classes_per_client: int | None = setting(
        None, "of each client, for pat and exdir (PFLlib's number: 2, of Cifar100 10)", type=int, least=1
    )
    train_ratio: float = setting(TRAIN_RATIO, "part of each client's images to train on", above=0, below=1)
    seed: int = setting(SEED, "another seed, another split", least=0)
    fraction: float = setting(1.0, "take a random part of the images", above=0, most=1)
    min_samples: int | None = setting(
        None,
        "images that each client must get (PFLlib's: 40 or half the mean for dir, 10 for exdir; 2 otherwise)",
        type=int,
        least=MIN_SAMPLES,
    )
    repair: bool = setting(False, "reach the minimum by moving images from the largest clients if need be")
    source: Path | None = setting(
        None, "official files, .npz with x and y, or a folder of images (found or fetched)", type=str
    )

    def __post_init__(self) -> None:
        if self.name not in KNOWN:
            raise UsageError(f"there are no images {self.name!r}: known are {', '.join(sorted(KNOWN))}")
        for name, one in self.declared().items():
            try:
                object.__setattr__(self, name, one.check(getattr(self, name)))
            except ValueError as error:
                raise UsageError(f"--{name} {error}") from None
        if self.balance and self.partition in ALPHAS:
            raise UsageError(f"balance contradicts {self.partition}, which shares by Dirichlet")
        most = KNOWN[self.name].num_classes
        if self.classes_per_client is not None and self.classes_per_client > most:
            raise UsageError(f"--classes_per_client must be at most {most}, not {self.classes_per_client}")
        if self.source is not None:
            source = Path(self.source).expanduser().resolve()
            if not source.exists():
                raise UsageError(f"--source {source} is missing")
            object.__setattr__(self, "source", source)

    @classmethod
    def declared(cls) -> dict[str, Setting]:
        """The settings by name, as flags."""
        return declared(cls)

    def unused(self) -> list[str]:
        """The settings that are given but do not matter for this partition."""
        unused = [] if self.partition in ALPHAS else ["alpha"]
        unused += [] if self.partition in ("pat", "exdir") else ["classes_per_client"]
        return [name for name in unused if getattr(self, name) is not None]

    @property
    def dirichlet(self) -> float:
        """The alpha in effect; PFLlib's config.json has one for iid and pat too."""
        usual = ALPHAS.get(self.partition, ALPHA)
        return usual if self.alpha is None or self.partition not in ALPHAS else self.alpha

    @property
    def classes(self) -> int | None:
        """The classes per client in effect; None where any client may hold any class."""
        if self.partition not in ("pat", "exdir"):
            return None
        return self.classes_per_client or KNOWN[self.name].class_per_client

    def words(self) -> list[str]:
        """The settings other than the defaults, as the command takes them, without the number of clients."""
        balance = "balance" if self.balance else "-"
        words = ["iid", balance, "-"] if self.partition == "iid" else ["noniid", balance, self.partition]
        words = [] if words == ["noniid", "-", "dir"] else words
        own, usual = (
            vars(recipe) | {"alpha": recipe.dirichlet, "classes_per_client": recipe.classes}
            for recipe in (self, Recipe(self.name, self.partition))
        )
        for name in ("alpha", "classes_per_client", "train_ratio", "seed", "fraction", "min_samples", "source"):
            if own[name] != usual[name]:
                words += [f"--{name}", str(own[name])]
        return words + (["--repair"] if self.repair else [])

    def pfllib_settings(self) -> dict[str, Any]:
        """What PFLlib's config.json says of these settings."""
        noniid = self.partition != "iid"
        kind = self.partition if noniid else None
        return pfllib_settings(self.num_clients, noniid, self.balance, kind, self.dirichlet)


@dataclass(frozen=True)
class Summary:
    """A data set as it is on disk: its folder, its config.json, and whether it was made just now."""

    folder: Path
    config: Config
    made: bool

    def __str__(self) -> str:
        if not self.made:
            return f"{self.folder}: already there with these settings, nothing to do"
        statistic, config = self.config["Size of samples for labels in clients"], self.config
        sizes, held = [sum(count for _, count in own) for own in statistic], [len(own) for own in statistic]
        absent = config["num_classes"] - len({label for own in statistic for label, _ in own})
        moved = config["repaired"]
        return (
            f"{self.folder}: {sum(sizes)} images in {config['num_clients']} clients ({config['partition'] or 'iid'}); "
            f"a client has {min(sizes)} to {max(sizes)} images of {min(held)} to {max(held)} classes"
            + (f"; {moved} images were moved to clients with fewer than {config['min_samples']}" if moved else "")
            + (f"; {absent} of the {config['num_classes']} classes have no image" if absent else "")
        )


def generate(
    name: str, out: Path | None = None, force: bool = False, say: Callable[[str], object] = print, **settings: Any
) -> Summary:
    """Makes data set `name` with these settings, the fields of `Recipe`, unless it is there with the same ones.

    out: the data set's folder; by default that of the `DataSet`, so dataset/<name> of this checkout for a plain name.
    force: make it in any case.

    Raises:
        UsageError: the settings cannot be met, or the source is not one.
        RunError: the download or a write failed.
    """
    known = Recipe.declared()
    for each in settings:
        if each not in known:
            raise UsageError(f"{each}: no such setting of a data set." + did_you_mean(each, known))
    return make(Recipe(str(name), **settings), out or DataSet(name).folder, force, say)


def make(recipe: Recipe, out: Path, force: bool = False, say: Callable[[str], object] = print) -> Summary:
    """`generate` for settings that are checked already."""
    arguments = recipe.words()
    if not force and is_made(out, recipe.pfllib_settings() | {"arguments": arguments}):
        return Summary(out, DataSet(out.name, out.parent).config(), made=False)
    if (out / "config.json").exists():
        say(f"{out}: making it again" + ("" if force else ", since it is damaged or has other settings"))

    num_classes = KNOWN[recipe.name].num_classes
    x, y = load(recipe.name, recipe.source, DATASET / recipe.name / "rawdata", say)
    if recipe.fraction < 1:
        count = max(round(recipe.fraction * len(y)), 1)
        chosen = np.sort(numpy_generator(recipe.seed, "fraction").choice(len(y), count, replace=False))
        x, y = x[chosen], y[chosen]
    clients, minimum, moved = partition(
        y,
        recipe.num_clients,
        num_classes,
        recipe.partition,
        balance=recipe.balance,
        class_per_client=recipe.classes,
        alpha=recipe.dirichlet,
        train_ratio=recipe.train_ratio,
        seed=recipe.seed,
        min_samples=recipe.min_samples,
        repair=recipe.repair,
    )
    images, labels, statistic = gather(x, y, clients)
    train, test = split_data(images, labels, train_ratio=recipe.train_ratio, seed=recipe.seed)
    settings = recipe.pfllib_settings() | {
        "class_per_client": recipe.classes,
        "train_ratio": recipe.train_ratio,
        "seed": recipe.seed,
        "fraction": recipe.fraction,
        "source": None if recipe.source is None else str(recipe.source),
        "min_samples": minimum,
        "repaired": moved,
        "arguments": arguments,
    }
    config = write_dataset(out, map(_normalised, train), map(_normalised, test), num_classes, statistic, settings)
    return Summary(out, config, made=True)


def _normalised(data: Images) -> Images:
    """PFLlib's transform: pixels 0..255 to float32 in [-1, 1]."""
    pixels: NDArray[Any] = data["x"].astype(np.float32)
    return {"x": (pixels / 255 - 0.5) / 0.5, "y": data["y"]}
