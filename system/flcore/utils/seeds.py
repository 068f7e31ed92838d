"""The only maker of random generators.

Convention: a generator is keyed by (seed, repeat, round, client, purpose), for example
`torch_generator(args.seed, repeat, round, client.id, "batches")`. Whatever a draw does not depend on is left out:
`numpy_generator(args.seed, repeat, round, "selection")`. Every key has a stream of its own, so an added evaluation,
client or purpose moves no other draw.
"""

import hashlib
import operator
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def _sequence(seed: int, *key: int | str) -> np.random.SeedSequence:
    # SeedSequence takes only non-negative integers and pads them with zeros, so that [1] and [1, 0] are one stream. The
    # digest of the written key takes strings too and keeps all keys apart; a string's length in front tells "1" from 1.
    parts = [f"{len(item)}:{item}" if isinstance(item, str) else str(operator.index(item)) for item in (seed, *key)]
    return np.random.SeedSequence(int.from_bytes(hashlib.sha256(",".join(parts).encode()).digest(), "big"))


def numpy_generator(seed: int, *key: int | str) -> np.random.Generator:
    """A numpy generator for (seed, *key); the same key gives the same stream on every machine."""
    return np.random.default_rng(_sequence(seed, *key))


def torch_generator(seed: int, *key: int | str) -> torch.Generator:
    """A torch generator on the CPU for (seed, *key); draw there and move the result, so that devices agree."""
    state = int(_sequence(seed, *key).generate_state(1, np.uint64)[0])
    return torch.Generator().manual_seed(state % 2**63)


def seed_everything(seed: int) -> None:
    """Seeds the global generators of python, numpy and torch (all devices).

    Our own code draws from keyed generators; this is for models' initial weights and for PFLlib code copied in.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)  # numpy's global generator takes 32 bits
    torch.manual_seed(seed)


@contextmanager
def isolated() -> Iterator[None]:
    """The body may seed and draw as it likes: afterwards all global generators are as they were."""
    states = random.getstate(), np.random.get_state()
    cards = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    with torch.random.fork_rng(cards):
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
