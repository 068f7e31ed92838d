"""What an executor is: it runs many clients, and alone decides how many of them at the same time."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from flcore.clients.support.metrics import Metrics
from flcore.trainmodel.forward import Tensors


class Executor(Protocol):
    """Every executor's results are the loop's: bitwise, or up to float rounding where it says so.

    Attributes:
        name: what ``-ex`` takes.
        adds: whether trained weights of which only the sum is needed can stay where they were trained: it has
            `train_there` and `sums` then.
    """

    name: str
    adds: bool

    def receive(self, clients: Sequence[Any], message: Tensors, current_round: int) -> None:
        """Every client takes the round's message."""

    def train(self, clients: Sequence[Any], done: Callable[[], object]) -> None:
        """Trains every client for one round; calls ``done`` after each."""

    def test(self, clients: Sequence[Any]) -> list[Metrics]:
        """Test metrics of every client, in their order, with its present weights."""

    def close(self) -> None:
        """Ends what it has begun, such as threads, when a run is over."""
