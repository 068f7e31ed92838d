"""The reference executor: one client after another. Every other executor is tested against it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from flcore.clients.support.metrics import Metrics, metrics
from flcore.trainmodel.forward import Tensors

FEW_SAMPLES = 64  # scored together; more at a time are no faster on a CPU, and could not be shared among threads


class LoopExecutor:
    name = "loop"
    adds = False

    def receive(self, clients: Sequence[Any], message: Tensors, current_round: int) -> None:
        """Every client takes the round's message."""
        for client in clients:
            client.receive(message, current_round)

    def train(self, clients: Sequence[Any], done: Callable[[], object]) -> None:
        """Trains every client for one round; calls ``done`` after each."""
        for client in clients:
            train_one(client)
            done()

    def test(self, clients: Sequence[Any]) -> list[Metrics]:
        """Test metrics of every client with its present weights."""
        return self.score(units(clients))

    def score(self, units: Sequence[Sequence[Any]]) -> list[Metrics]:
        """The same for clients in `units`, in whose order the results are."""
        return [result for unit in units for result in score_unit(unit)]

    def close(self) -> None:
        pass


def units(clients: Sequence[Any]) -> list[list[Any]]:
    """The clients in the same order, neighbours with the same weights and few samples together.

    A thousand clients of a method without personal weights take a few batches instead of a thousand passes.
    """
    found: list[list[Any]] = []
    for client in clients:
        last = found[-1] if found else []
        samples = client.test_samples + sum(other.test_samples for other in last)
        if last and samples <= FEW_SAMPLES and client.scored_like(last[0]):
            last.append(client)
        else:
            found.append([client])
    return found


def score_unit(unit: Sequence[Any]) -> list[Metrics]:
    """Test metrics of clients that share their weights."""
    if len(unit) == 1:
        return [unit[0].test_metrics()]
    x, labels = zip(*(client.tensors(is_train=False) for client in unit), strict=True)
    scores = unit[0].scores_of(torch.cat(x)).split([len(y) for y in labels])
    return [metrics(own, y) for own, y in zip(scores, labels, strict=True)]


def train_one(client: Any) -> None:
    with named(client):
        client.train()


@contextmanager
def named(client: Any) -> Iterator[None]:
    """An error in the body says whose it is."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while training client {client.id} in round {client.round}")
        raise
