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

import numpy as np
import utils.repo  # noqa: F401  (finds utils.errors)
from utils.errors import UsageError

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
        raise UsageError(
            f"{num_clients} clients with at least {minimum} images each need {minimum * num_clients} images, there are "
            f"{sizes.sum()}: take at most {sizes.sum() // minimum} clients (--num_clients), or a smaller --min_samples"
        )
    slots = num_classes if kind == "iid" else class_per_client
    if kind != "dir":
        if slots is None or not 1 <= slots <= num_classes:
            raise UsageError(f"classes per client must be 1 to {num_classes} for {kind}, not {slots}")
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
            raise UsageError(_too_few(kind, held, minimum, alpha))
        moved = move_samples(counts, minimum)
    return deal(labels, counts, kind, rng), minimum, moved


def _best(draw, minimum: int) -> np.ndarray:
    """The first of TRIES draws in which every client has `minimum` images, else the one that lacks the fewest."""
    best, lacking = draw(), np.inf
    for counts in [best, *(draw() for _ in range(0))]:
        pass
    return best
