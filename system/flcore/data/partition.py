"""Who gets how many images of which class.

Every partition is a matrix `counts` (clients x classes), drawn from the class sizes alone, and then dealt out: each
class's images, in order or shuffled, go to the clients in blocks of those sizes. So nothing can get lost or be given
twice, and a draw that leaves a client with too few images costs next to nothing to repeat.

The procedures are PFLlib's (iid, pat, dir, exdir), so that published numbers can be compared. What differs, always:

* No endless loop. PFLlib draws again until every client has enough, for ever if need be; here TRIES draws, then an
  error that names what to change, or `repair`: the best draw, with images moved from the largest to the smallest.
* No 0/0. Where all of a class's Dirichlet weight is on clients that are full already (common with a tiny alpha), one of
  the clients still open gets the class: that is what Dirichlet draws tend to as alpha goes to 0.
* `pat` drops no class. Class c gets floor((c+1) K q / C) - floor(c K q / C) clients, which is PFLlib's number wherever
  K q / C is whole; elsewhere PFLlib rounds up and can run out of clients before it runs out of classes.
* `exdir` ends its draw of the labels too: after TRIES draws the best is mended (PFLlib's condition is met by about one
  in 300,000 draws for 20 clients with 10 of 100 labels each).
* Every client gets at least 2 images, so that it can train and be tested.
"""

import math
from collections.abc import Callable

import numpy as np

from flcore.utils.errors import UsageError

TRIES = 500
MIN_SAMPLES = 2  # one to train and one to test
EXDIR_MIN_SAMPLES = 10  # PFLlib's number for exdir, whatever the batch size


def partition(
    labels: np.ndarray,
    num_clients: int,
    num_classes: int,
    kind: str,
    *,
    rng: np.random.Generator,
    balance: bool = False,
    class_per_client: int | None = None,
    alpha: float = 0.1,
    least: int = MIN_SAMPLES,
    min_samples: int | None = None,
    repair: bool = False,
) -> tuple[list[np.ndarray], int, int]:
    """Splits the images with `labels` (int, in [0, num_classes)) among the clients.

    kind: "iid", "pat", "dir" or "exdir". `class_per_client` is needed by pat and exdir, `alpha` by dir and exdir.
    least: the images every client of `dir` must have, and part of the draw of an unbalanced `pat` or `iid` (PFLlib's
    rule, see `dataset_utils.least_samples`). min_samples: asked for by the user, replaces the minimum of every kind.

    Returns each client's indices into `labels`, the minimum that was kept, and the number of images moved by `repair`.
    Raises UsageError if the settings cannot be met.
    """
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
        if not repair:
            raise UsageError(_too_few(kind, held, minimum))
        moved = move_samples(counts, minimum)
    return deal(labels, counts, kind, rng), minimum, moved


def _best(draw: Callable[[], np.ndarray], minimum: int) -> np.ndarray:
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
    sizes: np.ndarray, num_clients: int, class_per_client: int, balance: bool, least: int, rng: np.random.Generator
) -> np.ndarray:
    """Class after class goes to the first clients, in id order, that hold fewer than `class_per_client` classes.

    A class is shared equally if `balance`; otherwise each of its clients but the last gets a number drawn uniformly
    from [max(share / 10, least / C), share), and the last gets the rest, often most of it: PFLlib's rule.
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
        if balance:
            counts[takers, c] = size // len(takers)
        else:
            high = max(math.ceil(share), 1)
            low = min(math.ceil(max(share / 10, least / num_classes)), high - 1)
            counts[takers, c] = rng.integers(low, high, len(takers))
        counts[takers[-1], c] += size - counts[:, c].sum()
    return counts


def draw_dirichlet(sizes: np.ndarray, assigned: np.ndarray, alpha: float, rng: np.random.Generator) -> np.ndarray:
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


def draw_labels(num_clients: int, num_classes: int, class_per_client: int, rng: np.random.Generator) -> np.ndarray:
    """The first level of `exdir`: bool (clients x classes), `class_per_client` distinct classes for every client.

    Each class gets at least half the mean number of clients, and at least one.
    """
    minimum = max(num_clients * class_per_client // num_classes // 2, 1)

    def draw() -> np.ndarray:
        order = rng.random((num_classes, num_clients)).argsort(0).argsort(0)
        return order < class_per_client

    held = _best(draw, minimum)  # classes x clients
    for label in np.flatnonzero(held.sum(1) < minimum):
        while held[label].sum() < minimum:
            richest = held.sum(1).argmax()
            client = rng.choice(np.flatnonzero(held[richest] & ~held[label]))
            held[richest, client], held[label, client] = False, True
    return held.T


def move_samples(counts: np.ndarray, minimum: int) -> int:
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


def deal(labels: np.ndarray, counts: np.ndarray, kind: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Each client's indices, class by class: shuffled within a class for dir, altogether for exdir, else in order."""
    pieces: list[list[np.ndarray]] = [[] for _ in counts]
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


def _too_few(kind: str, held: np.ndarray, minimum: int) -> str:
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
