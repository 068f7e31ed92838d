"""Several clients at once on a CPU: a pool of workers with one intra-op thread each, bitwise equal to the loop."""

import copy
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from flcore.clients.support.metrics import Metrics
from flcore.executors.loop import LoopExecutor, score_unit, train_one
from flcore.utils.machine import usable_cores


class ThreadsExecutor(LoopExecutor):
    """Clients start longest first, so that no worker is left alone with a long one at the end.

    A rule is a pure function, so clients do not disturb each other; only the network that lends its structure must not
    be shared between workers, and each has a copy. Clients that are not ``parallel`` run in the loop.
    """

    name = "threads"

    def __init__(self, num_workers: int | None = None) -> None:
        self.num_workers = num_workers or usable_cores()
        self._pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="client")
        self._own = threading.local()

    def train(self, clients: Sequence[Any], done: Callable[[], object]) -> None:
        if not all(client.parallel for client in clients):
            return super().train(clients, done)
        longest_first = sorted(clients, key=lambda client: -client.train_samples)
        alone = [[client] for client in longest_first]
        for _ in self._pool.map(self._with_own_network(lambda unit: train_one(*unit)), alone):
            done()

    def score(self, units: Sequence[Sequence[Any]]) -> list[Metrics]:
        if not all(client.parallel for unit in units for client in unit):
            return super().score(units)
        scored = self._pool.map(self._with_own_network(score_unit), units)
        return [result for unit in scored for result in unit]

    def close(self) -> None:
        self._pool.shutdown()

    def _with_own_network(self, work: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
        """``work`` on clients that share a network, with a copy of it that is the worker's own."""

        def run(unit: Sequence[Any]) -> Any:
            shared = unit[0].forward
            if getattr(self._own, "source", None) is not shared:
                self._own.source, self._own.forward = shared, copy.deepcopy(shared)
            for client in unit:
                client.forward = self._own.forward
            try:
                return work(unit)
            finally:
                for client in unit:
                    client.forward = shared

        return run
