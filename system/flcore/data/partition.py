"""Who gets how many images of which class, and which of them are to train on.

Every partition is a matrix `counts` (clients x classes), drawn from the class sizes alone, and then dealt out: each
class's images, in order or shuffled, go to the clients in blocks of those sizes. So nothing can get lost or be given
twice, and a draw that leaves a client with too few images costs next to nothing to repeat.

The procedures are PFLlib's (iid, pat, dir, exdir), so that published numbers can be compared. What differs, always:

* No endless loop. PFLlib draws again until every client has enough, for ever if need be; here TRIES draws, then an
  error that names what to change, or `repair`: the best draw, with images moved from the largest to the smallest. A
  draw that lacks little (at most MENDED of all images) is mended without being asked, so that small sets have no seeds
  that fail; the number of images moved is told.
* No 0/0. Where all of a class's Dirichlet weight is on clients that are full already (common with a tiny alpha), one of
  the clients still open gets the class: that is what Dirichlet draws tend to as alpha goes to 0.
* `pat` drops no class. Class c gets floor((c+1) K q / C) - floor(c K q / C) clients, which is PFLlib's number wherever
  K q / C is whole; elsewhere PFLlib rounds up and can run out of clients before it runs out of classes.
* `exdir` ends its draw of the labels too: after TRIES draws the best is mended (PFLlib's condition is met by about one
  in 300,000 draws for 20 clients with 10 of 100 labels each).
* Every client gets at least 2 images, so that it can train and be tested.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flcore.data.writing import ALPHA, BATCH_SIZE, Images, Statistic
from flcore.utils.errors import UsageError
from flcore.utils.seeds import numpy_generator

Integers = NDArray[np.int_]
Booleans = NDArray[np.bool_]

KINDS = ("iid", "pat", "dir", "exdir")
TRAIN_RATIO = 0.75  # the part of each client's images to train on
SEED = 1
TRIES = 500
MIN_SAMPLES = 2  # one to train and one to test
MENDED = 0.05  # the part of all images that is moved without `repair`
EXDIR_MIN_SAMPLES = 10  # PFLlib's number for exdir, whatever the batch size


def partition(
    labels: NDArray[Any],
    num_clients: int,
    num_classes: int,
    kind: str,
    *,
    balance: bool = False,
    class_per_client: int | None = None,
    alpha: float = ALPHA,
    train_ratio: float = TRAIN_RATIO,
    seed: int = SEED,
    min_samples: int | None = None,
    repair: bool = False,
) -> tuple[list[Integers], int, int]:
    """Splits the images with `labels` (whole numbers in [0, num_classes)) among the clients.

    kind: one of KINDS. `class_per_client` is needed by pat and exdir, `alpha` by dir and exdir.
    train_ratio: matters for PFLlib's minimum, see `least_samples`. min_samples: replaces the minimum of every kind.

    Returns each client's indices into `labels`, the minimum that was kept, and the number of images moved to reach it.
    Raises UsageError if the settings cannot be met.
    """
    if kind not in KINDS:
        raise UsageError(f"the partition is {', '.join(KINDS[:-1])} or {KINDS[-1]}, not {kind!r}")
    rng, least = numpy_generator(seed, "partition"), least_samples(len(labels), num_clients, train_ratio)
    sizes = np.bincount(labels, minlength=num_classes)
    minimum = min_samples or {"dir": max(least, MIN_SAMPLES), "exdir": EXDIR_MIN_SAMPLES}.get(kind, MIN_SAMPLES)
    if minimum * num_clients > sizes.sum():
        raise UsageError(_too_small(sizes.sum(), num_clients, minimum))
    slots = class_per_client if kind in ("pat", "exdir") else num_classes
    if slots is None or not 1 <= slots <= num_classes:
        raise UsageError(f"{kind!r} needs 1 to {num_classes} classes per client (--classes_per_client), not {slots}")
    if num_clients * slots < num_classes:
        raise UsageError(
            f"{num_clients} clients with {slots} classes each cannot hold {num_classes} classes: take at least "
            f"{-(-num_classes // num_clients)} --classes_per_client, or {-(-num_classes // slots)} clients"
        )

    if kind == "dir":
        everyone = np.ones((num_clients, num_classes), bool)
        counts = _best(lambda: draw_dirichlet(sizes, everyone, alpha, rng), minimum)
    elif kind == "exdir":
        assigned = draw_labels(num_clients, num_classes, slots, rng)
        counts = _best(lambda: draw_dirichlet(sizes, assigned, alpha, rng), minimum)
    else:
        counts = draw_pathological(sizes, num_clients, slots, balance, least, rng)

    held = counts.sum(1)
    moved = 0
    if held.min() < minimum:
        if not repair and np.maximum(minimum - held, 0).sum() > MENDED * len(labels):
            raise UsageError(_too_few(kind, held, minimum))
        moved = move_samples(counts, minimum)
    return deal(labels, counts, kind, rng), minimum, moved


def least_samples(num_samples: int, num_clients: int, train_ratio: float = TRAIN_RATIO) -> int:
    """PFLlib's minimum for every client of `dir`: room for one test batch, or half the mean if that is less.

    It is also part of the draw of an unbalanced `pat` or `iid`.
    """
    return int(min(BATCH_SIZE / (1 - train_ratio), num_samples / num_clients / 2))


def _best(draw: Callable[[], NDArray[Any]], minimum: int) -> NDArray[Any]:
    """The first of TRIES draws in which every row adds up to `minimum`; if there is none, the one that lacks least."""
    best, fewest = np.empty(0), np.inf
    for _ in range(TRIES):
        counts = draw()
        lacking = np.maximum(minimum - counts.sum(1), 0).sum()
        if lacking < fewest:
            best, fewest = counts, lacking
        if not lacking:
            break
    return best


def draw_pathological(
    sizes: Integers, num_clients: int, class_per_client: int, balance: bool, least: int, rng: np.random.Generator
) -> Integers:
    """Class after class goes to the first clients, in id order, that hold fewer than `class_per_client` classes.

    A class is shared equally if `balance`; otherwise each of its clients but the last gets a number drawn uniformly
    from [max(share / 10, least / C), share), and the last gets the rest, often most of it: PFLlib's rule. Of a class
    with fewer than two images a client the shares are equal, and random clients get one more.
    """
    num_classes = len(sizes)
    counts = np.zeros((num_clients, num_classes), int)
    room = np.full(num_clients, class_per_client)
    places = num_clients * class_per_client
    for c, size in enumerate(sizes):
        slots = (c + 1) * places // num_classes - c * places // num_classes
        takers = np.flatnonzero(room)[:slots]
        room[takers] -= 1
        share = size / len(takers)
        if share < 2:  # too few for PFLlib's rule, by which one client would get them all
            counts[takers, c] = size // len(takers)
            counts[rng.choice(takers, size % len(takers), replace=False), c] += 1
        elif balance:
            counts[takers, c] = size // len(takers)
        else:
            high = max(math.ceil(share), 1)
            low = min(math.ceil(max(share / 10, least / num_classes)), high - 1)
            counts[takers, c] = rng.integers(low, high, len(takers))
        counts[takers[-1], c] += size - counts[:, c].sum()
    return counts


def draw_dirichlet(sizes: Integers, assigned: Booleans, alpha: float, rng: np.random.Generator) -> Integers:
    """Class after class is cut in proportions ~ Dirichlet(alpha), without the clients that already hold N / K images.

    assigned: bool (clients x classes), who may hold which class. Where all of them are full, they share the class.
    """
    counts = np.zeros(assigned.shape, int)
    held = np.zeros(len(assigned), int)
    for c in np.flatnonzero(sizes):
        still_open = assigned[:, c] & (held < sizes.sum() / len(assigned))
        if not still_open.any():
            still_open = assigned[:, c]
        share = rng.dirichlet(np.full(len(assigned), alpha)) * still_open
        if not 0 < share.sum() < np.inf:  # also where a tiny alpha gives NaN
            share = np.zeros(len(assigned))
            share[rng.choice(np.flatnonzero(still_open))] = 1
        cuts = (np.cumsum(share / share.sum()) * sizes[c]).astype(int)
        cuts[np.flatnonzero(share)[-1] :] = sizes[c]  # what rounding left over
        counts[:, c] = np.diff(cuts, prepend=0)
        held += counts[:, c]
    return counts


def draw_labels(num_clients: int, num_classes: int, class_per_client: int, rng: np.random.Generator) -> Booleans:
    """The first level of `exdir`: bool (clients x classes), `class_per_client` distinct classes for every client.

    Each class gets at least half the mean number of clients, and at least one.
    """
    minimum = max(num_clients * class_per_client // num_classes // 2, 1)

    def draw() -> Booleans:
        order = rng.random((num_classes, num_clients)).argsort(0).argsort(0)
        return order < class_per_client

    held = _best(draw, minimum)  # classes x clients
    for label in np.flatnonzero(held.sum(1) < minimum):
        while held[label].sum() < minimum:
            richest = held.sum(1).argmax()
            client = rng.choice(np.flatnonzero(held[richest] & ~held[label]))
            held[richest, client], held[label, client] = False, True
    return held.T


def move_samples(counts: Integers, minimum: int) -> int:
    """Moves images, one by one, from the largest to the too small clients in `counts`; returns how many.

    A client that has images gets more of its own classes as long as another client can spare some.
    """
    held = counts.sum(1)
    moved = 0
    for poor in np.flatnonzero(held < minimum):
        while held[poor] < minimum:
            spare = counts * (held > minimum)[:, None]
            own = spare * (counts[poor] > 0)
            spare = own if own.any() else spare
            rich = np.where(spare.any(1), held, -1).argmax()
            c = spare[rich].argmax()
            counts[rich, c] -= 1
            counts[poor, c] += 1
            held[rich] -= 1
            held[poor] += 1
            moved += 1
    return moved


def deal(labels: Integers, counts: Integers, kind: str, rng: np.random.Generator) -> list[Integers]:
    """Each client's indices, class by class: shuffled within a class for dir, altogether for exdir, else in order."""
    pieces: list[list[Integers]] = [[] for _ in counts]
    for c in range(counts.shape[1]):
        indices = np.flatnonzero(labels == c)
        if kind in ("dir", "exdir"):
            rng.shuffle(indices)
        for client, piece in enumerate(np.split(indices, np.cumsum(counts[:-1, c]))):
            pieces[client].append(piece)
    clients = [np.concatenate(piece) for piece in pieces]
    if kind == "exdir":
        for indices in clients:
            rng.shuffle(indices)
    return clients


def gather(
    x: NDArray[Any], y: NDArray[Any], clients: Sequence[Integers]
) -> tuple[list[NDArray[Any]], list[NDArray[Any]], Statistic]:
    """The images, the labels and the class counts of clients that hold these indices."""
    labels = [y[indices] for indices in clients]
    counted = [np.unique(own, return_counts=True) for own in labels]
    statistic = [list(zip(values.tolist(), counts.tolist(), strict=True)) for values, counts in counted]
    return [x[indices] for indices in clients], labels, statistic


def split_data(
    x: Sequence[NDArray[Any]], y: Sequence[NDArray[Any]], *, train_ratio: float = TRAIN_RATIO, seed: int = SEED
) -> tuple[list[Images], list[Images]]:
    """Splits each client's images at random: (train, test), each a list by client.

    floor(train_ratio * n) of n images are for training, but at least one for training and one for testing; a single
    image is for training.
    """
    train, test = [], []
    for client, (images, labels) in enumerate(zip(x, y, strict=True)):
        count = len(labels)
        order = numpy_generator(seed, "split", client).permutation(count)
        cut = max(min(math.floor(train_ratio * count), count - 1), 1)
        train.append({"x": images[order[:cut]], "y": labels[order[:cut]]})
        test.append({"x": images[order[cut:]], "y": labels[order[cut:]]})
    return train, test


def _too_small(images: int, num_clients: int, minimum: int) -> str:
    ways = ["more images (--fraction, --source)"]
    if images // num_clients >= MIN_SAMPLES:
        ways.insert(0, f"--min_samples {images // num_clients}")
    if images >= minimum:
        ways.insert(0, f"at most {images // minimum} clients (--num_clients)")
    return (
        f"{num_clients} clients with at least {minimum} images each need {minimum * num_clients} images, there are "
        f"{images}: take {' or '.join(ways)}"
    )


def _too_few(kind: str, held: Integers, minimum: int) -> str:
    lowest = held.min()
    found = f"none of {TRIES} draws of {kind!r} gives" if kind in ("dir", "exdir") else f"{kind!r} does not give"
    ways = ["fewer clients (--num_clients)"]
    if kind in ("dir", "exdir"):
        ways.append("a larger --alpha")
    if lowest >= MIN_SAMPLES:
        ways.append(f"--min_samples {lowest}")
    return (
        f"{found} each of {len(held)} clients {minimum} images (the smallest gets {lowest}): "
        f"take {', '.join(ways)}, or --repair, which moves images from the largest to the smallest clients"
    )
