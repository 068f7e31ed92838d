"""Makes a data set: loads the samples, splits them among clients and writes PFLlib's files.

    generate("Cifar100", num_clients=20, alpha=0.1)
    generate("Birds", source="~/birds", image_size="64x64")

A generate_<Name>.py is the same as a command, and generate.py that for a source of one's own (`command`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flcore.data.partition import KINDS, MIN_SAMPLES, SEED, TRAIN_RATIO, Integers, gather, partition, split_data
from flcore.data.reading import STATISTIC, Config, DataSet
from flcore.data.samples import Array, Samples, limits_of, printable, scaled, unusual
from flcore.data.sources import KNOWN, Reading, load, source_digest
from flcore.data.writing import ALPHA, Images, making, pfllib_settings, write_dataset
from flcore.hyperparams import Setting, declared, setting
from flcore.utils import interrupt
from flcore.utils.errors import UsageError, did_you_mean
from flcore.utils.paths import DATASET
from flcore.utils.seeds import numpy_generator

NUM_CLIENTS = 20
NATURAL = "natural"  # one client a user
ALPHAS = {"dir": ALPHA, "exdir": 100.0}  # PFLlib's number for dir and its advice for exdir
USUAL_ALPHAS = ", ".join(f"{alpha:g} for {kind}" for kind, alpha in ALPHAS.items())


@dataclass(frozen=True)
class Recipe:
    """Which samples a data set has, and who gets which of them. The settings are flags of the generators' commands too.

    Raises:
        UsageError: a value is out of range, two contradict each other, or the source is missing.
    """

    name: str  # of the images: a key of `sources.KNOWN`, or any other with a source
    partition: str = setting(
        "dir",
        "iid; pat, few classes a client; dir, Dirichlet shares; exdir, Dirichlet shares of few classes; natural, one "
        "client a user",
        choices=(*KINDS, NATURAL),
    )
    balance: bool = setting(False, "equal shares of a class, for iid and pat")
    num_clients: int | None = setting(
        None, f"number of clients ({NUM_CLIENTS}; for natural as many as users)", type=int, least=1, short="-nc"
    )
    alpha: float | None = setting(
        None, f"of Dirichlet: the smaller, the more unequal ({USUAL_ALPHAS})", type=float, above=0
    )
    classes_per_client: int | None = setting(
        None, "of each client, for pat and exdir (PFLlib's number: a tenth, at least 2)", type=int, least=1
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
    repair: bool = setting(False, "reach the minimum by moving images from the largest clients, however many")
    source: Path | None = setting(
        None, "a folder of images or official files, .npz, .npy, CSV or Parquet (found or fetched)", type=Path
    )
    label_column: str | None = setting(None, "of a table: the column of labels (label or y)", type=str)
    user_column: str | None = setting(None, "of a table: the column of users, for natural", type=str)
    user_folders: bool = setting(False, "folders are <user>/<class>/, for natural")
    image_size: str | None = setting(
        None,
        "resize images to HxW pixels",
        type=str,
        pattern=r"[1-9]\d*x[1-9]\d*",
        words="height x width, such as 32x48",
    )
    standardise: bool = setting(False, "mean 0 and deviation 1 for every column, or every channel of images")

    def __post_init__(self) -> None:
        for name, one in self.declared().items():
            try:
                object.__setattr__(self, name, one.check(getattr(self, name)))
            except ValueError as error:
                raise UsageError(f"--{name} {error}") from None
        if self.balance and self.partition in (*ALPHAS, NATURAL):
            raise UsageError(f"balance contradicts {self.partition}, which does not share equally")
        if self.partition == NATURAL and not (self.user_folders or self.user_column):
            raise UsageError("the partition natural needs --user_folders, or --user_column NAME")
        if self.partition == NATURAL and self.num_clients is not None:
            raise UsageError("the partition natural has one client a user: leave --num_clients out")
        if self.partition != NATURAL and self.num_clients is None:
            object.__setattr__(self, "num_clients", NUM_CLIENTS)
        if self.source is not None:
            source = self.source.resolve()
            if not source.exists():
                raise UsageError(f"--source {source} is missing")
            object.__setattr__(self, "source", source)
        elif self.label_column or self.user_column or self.user_folders:
            raise UsageError(
                "--label_column, --user_column and --user_folders tell how to read a --source, which is missing"
            )
        elif self.name not in KNOWN:
            raise UsageError(
                f"there are no images {self.name!r}: known are {', '.join(sorted(KNOWN))}; others need a --source"
            )
        else:
            most = KNOWN[self.name].num_classes
            if self.classes_per_client is not None and self.classes_per_client > most:
                raise UsageError(f"--classes_per_client must be at most {most}, not {self.classes_per_client}")
            if self.classes_per_client == usual_classes(most):
                object.__setattr__(self, "classes_per_client", None)
        if self.alpha == ALPHAS.get(self.partition):
            object.__setattr__(self, "alpha", None)

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

    def classes(self, num_classes: int) -> int | None:
        """The classes per client in effect; None where any client may hold any class."""
        if self.partition not in ("pat", "exdir"):
            return None
        return self.classes_per_client or usual_classes(num_classes)

    @property
    def reading(self) -> Reading:
        """How the source is read."""
        height, _, width = (self.image_size or "").partition("x")
        size = (int(height), int(width)) if self.image_size else None
        return Reading(size, self.label_column, self.user_column, self.user_folders, self.standardise)

    @property
    def generator(self) -> str:
        """The name of the program in dataset/ that makes it."""
        return f"generate_{self.name}.py" if self.name in KNOWN else "generate.py"

    def words(self) -> list[str]:
        """The settings other than the defaults, as the command takes them, without the number of clients."""
        balance = "balance" if self.balance else "-"
        words = ["iid", balance, "-"] if self.partition == "iid" else ["noniid", balance, self.partition]
        words = [] if words == ["noniid", "-", "dir"] else words
        for name, one in self.declared().items():
            value = getattr(self, name)
            if name not in ("partition", "balance", "num_clients", *self.unused()) and value != one.default:
                words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return words

    def pfllib_settings(self) -> dict[str, Any]:
        """What PFLlib's config.json says of these settings."""
        noniid = self.partition != "iid"
        kind = self.partition if noniid else None
        return pfllib_settings(self.num_clients or 0, noniid, self.balance, kind, self.dirichlet)


def usual_classes(num_classes: int) -> int:
    """PFLlib's classes per client: 2 of 10, 10 of 100, 20 of 200."""
    return max(num_classes // 10, min(2, num_classes))


@dataclass(frozen=True)
class Summary:
    """A data set as it is on disk: its folder, its config.json, and whether it was made just now."""

    folder: Path
    config: Config
    made: bool

    def __str__(self) -> str:
        if not self.made:
            return f"{self.folder}: already there with these settings, nothing to do"
        statistic, config = self.config[STATISTIC], self.config
        sizes, held = [sum(count for _, count in own) for own in statistic], [len(own) for own in statistic]
        absent = config["num_classes"] - len({label for own in statistic for label, _ in own})
        moved = config["repaired"]
        samples = "images" if len(config["shape"]) == 3 else "samples"
        return (
            f"{self.folder}: {sum(sizes)} {samples} in {len(sizes)} clients ({config['partition'] or 'iid'}); "
            f"a client has {min(sizes)} to {max(sizes)} {samples} of {min(held)} to {max(held)} classes"
            + (f"; {moved} {samples} were moved to clients with fewer than {config['min_samples']}" if moved else "")
            + (f"; {absent} of the {config['num_classes']} classes have none" if absent else "")
        )


def generate(
    name: str, out: Path | None = None, force: bool = False, say: Callable[[str], object] = print, **settings: Any
) -> Summary:
    """Makes data set `name` with these settings, the fields of `Recipe`, unless it is there with the same ones.

    out: the data set's folder; by default that of the `DataSet`, so dataset/<name> of this checkout for a plain name.
    force: make it in any case.

    Raises:
        UsageError: the settings cannot be met, the source is not one, or the folder holds another data set.
        RunError: the download or a write failed.
    """
    known = Recipe.declared()
    for each in settings:
        if each not in known:
            raise UsageError(f"{each}: no such setting of a data set." + did_you_mean(each, known))
    return make(Recipe(str(name), **settings), out or DataSet(name).folder, force, say)


def make(recipe: Recipe, out: Path, force: bool = False, say: Callable[[str], object] = print) -> Summary:
    """`generate` for settings that are checked already; of several processes one makes it, and the others wait."""
    with making(out, say):
        return _make(recipe, out, force, say)


def _make(recipe: Recipe, out: Path, force: bool, say: Callable[[str], object]) -> Summary:
    data = DataSet(out.name, out.parent)
    digest = None if recipe.source is None else source_digest(recipe.source)
    if data.exists():
        reason = "" if force else _reason(data, recipe, digest)
        if reason is None:
            return Summary(out, data.config(), made=False)
        say(f"{out}: making it again{reason}")

    samples = load(recipe.name, recipe.source, DATASET / recipe.name / "rawdata", say, recipe.reading)
    say("; ".join([f"{recipe.source or recipe.name}: {samples}", *samples.notes]))
    interrupt.check(f"{out} is as it was before")
    if warning := unusual(limits_of(samples.x)):
        say(f"note: {warning} --standardise brings them to mean 0 and deviation 1")
    if recipe.fraction < 1:
        count = max(round(recipe.fraction * len(samples.y)), 1)
        chosen = numpy_generator(recipe.seed, "fraction").choice(len(samples.y), count, replace=False)
        samples = samples.take(np.sort(chosen))
    num_classes = len(samples.class_names)
    own: dict[str, Any] = {}
    if recipe.partition == NATURAL:
        minimum, moved = recipe.min_samples or MIN_SAMPLES, 0
        clients, own["users"] = _by_user(samples, minimum, say)
    else:
        clients, minimum, moved = partition(
            samples.y,
            recipe.num_clients or NUM_CLIENTS,
            num_classes,
            recipe.partition,
            balance=recipe.balance,
            class_per_client=recipe.classes(num_classes),
            alpha=recipe.dirichlet,
            train_ratio=recipe.train_ratio,
            seed=recipe.seed,
            min_samples=recipe.min_samples,
            repair=recipe.repair,
        )
    indices, labels, statistic = gather(np.arange(len(samples.y)), samples.y, clients)
    train, test = split_data(indices, labels, train_ratio=recipe.train_ratio, seed=recipe.seed)
    settings = recipe.pfllib_settings() | {
        "num_clients": len(clients),
        "class_per_client": recipe.classes(num_classes),
        "train_ratio": recipe.train_ratio,
        "seed": recipe.seed,
        "fraction": recipe.fraction,
        "source": None if recipe.source is None else str(recipe.source),
        "source_digest": digest,
        "min_samples": minimum,
        "repaired": moved,
        "generator": recipe.generator,
        "arguments": recipe.words(),
        "class_names": list(samples.class_names),
    }
    if samples.moments:
        own["standardised"] = list(samples.moments)

    def content(part: Images) -> Images:
        return {"x": scaled(samples.x[part["x"]]), "y": part["y"]}  # one client at a time

    config = write_dataset(out, map(content, train), map(content, test), num_classes, statistic, settings | own)
    return Summary(out, config, made=True)


def _reason(data: DataSet, recipe: Recipe, digest: str | None) -> str | None:
    """Why the data set that is there is made again; None if it is the one that is asked for.

    Raises:
        UsageError: it is another one, which is never replaced unless told so.
    """
    beside = f"--name {data}-2" if data.root.resolve() == DATASET else f"--out {data.folder}-2"
    ways = f"--force replaces it, {beside} (or another name) makes this one beside it"
    try:
        config = data.config()
    except UsageError as error:
        raise UsageError(f"{data.folder} holds something that is no finished data set ({error}): {ways}") from None
    if "arguments" not in config:
        raise UsageError(f"{data.folder} holds a data set that another tool made: {ways}")
    wanted = {"generator": recipe.generator, "arguments": recipe.words()} | recipe.pfllib_settings()
    if not recipe.num_clients:
        del wanted["num_clients"]
    if any(config.get(key, value) != value for key, value in wanted.items()):
        made = data.command() or " ".join([*config["arguments"], "--num_clients", str(config["num_clients"])])
        raise UsageError(f"{data.folder} holds another partition ({made}): {ways}")
    try:
        damage = data.problem() or data.digest() and ""
    except UsageError as error:
        damage = str(error)
    if damage:
        return f", since {damage}"
    return ", since the source has changed" if config.get("source_digest", digest) != digest else None


def _by_user(samples: Samples, minimum: int, say: Callable[[str], object]) -> tuple[list[Integers], list[str]]:
    """The partition natural: the samples of each user who has enough, and the users' names."""
    if samples.users is None:
        raise UsageError("the source tells no users")
    counts = np.bincount(samples.users, minlength=len(samples.user_names))
    chosen: Array = np.flatnonzero(counts >= minimum)
    if not len(chosen):
        raise UsageError(f"no user has {minimum} samples: the largest has {counts.max()}")
    if few := np.flatnonzero(counts < minimum).tolist():
        names = ", ".join(printable(samples.user_names[user]) for user in few[:5])
        say(f"left out: {len(few)} users with fewer than {minimum} samples ({names}{', ...' * (len(few) > 5)})")
    return [np.flatnonzero(samples.users == user) for user in chosen], [samples.user_names[user] for user in chosen]
