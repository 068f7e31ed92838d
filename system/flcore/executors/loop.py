"""The reference executor: one client after another. Every other executor is tested against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Metrics = tuple[int, int, float]  # correct predictions, samples, AUC


class LoopExecutor:
    name = "loop"

    def train(self, clients: Sequence[Any], done: Callable[[], object]) -> None:
        """Trains every client for one round; calls ``done`` after each."""
        for client in clients:
            train_one(client)
            done()

    def test(self, clients: Sequence[Any]) -> list[Metrics]:
        """Test metrics of every client with its present weights."""
        return [client.test_metrics() for client in clients]


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
