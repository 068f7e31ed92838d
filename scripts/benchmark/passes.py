"""The forward and backward passes of a round by themselves: their time and their floating-point operations."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmark.contestants import Ours, Timing, synchronized


class Pass(NamedTuple):
    """One forward (and backward) pass. Those of one kind and shape take the same operations."""

    kind: str  # training or evaluation
    shape: tuple[Any, ...]
    run: Callable[[], object]


def passes(client: Any) -> Iterator[Pass]:
    """All passes of one client's round, on its own batches and its present weights, to be run one by one."""
    hp = client.round_hp()
    params = {name: value.clone() for name, value in client.params.items()}
    x, y = client.data
    batches, draws = client.load_train_data(), client.draws()
    for number, phase in enumerate(client.phases(hp)):
        loss_of = phase.loss or client.local_loss
        moving = {name: params[name].requires_grad_() for name in client.moving(phase)}
        if phase.on_features:
            yield Pass("training", ("features", len(y)), partial(client.forward.in_batches, params, x))

        def step(x: torch.Tensor, y: torch.Tensor, state: Any, moving: Any = moving, loss_of: Any = loss_of) -> None:
            loss = loss_of(client.forward, params, x, y, client.shared, state, hp)
            torch.autograd.grad(loss, list(moving.values()), allow_unused=True)

        for x_batch, y_batch, state in list(client.steps(phase, params, batches, draws, hp)):
            yield Pass("training", (number, len(y_batch)), partial(step, x_batch, y_batch, state))
        for value in moving.values():
            value.requires_grad_(False)
    end = partial(client.local_end, client.forward, params, client.data, client.shared, client.state, hp)
    yield Pass("training", ("end", len(y)), end)
    for _ in ("A", "B"):
        yield Pass("evaluation", (client.test_samples,), partial(client.scores, is_train=False))


class Bare:
    """Only the passes of a round, in turns with the rounds of ``ours``."""

    executor = "passes alone"

    def __init__(self, ours: Ours) -> None:
        self.ours, self.algorithm = ours, ours.algorithm

    def round(self) -> Timing:
        device, seconds = self.ours.device, dict.fromkeys(("training", "evaluation"), 0.0)
        torch.set_num_threads(self.ours.num_threads)
        for client in self.ours.server.clients:
            for one in passes(client):
                started = synchronized(device)
                one.run()
                seconds[one.kind] += synchronized(device) - started
        return Timing(sum(seconds.values()), seconds["training"])


def operations(ours: Ours) -> dict[str, int]:
    """Floating-point operations of one round, by the kind of pass, after at least one round was run."""
    known: dict[tuple[Any, ...], int] = {}
    total = Counter[str]()
    for client in ours.server.clients:
        for one in passes(client):
            key = (one.kind, one.shape)
            if key not in known:
                with FlopCounterMode(display=False) as counter:
                    one.run()
                known[key] = counter.get_total_flops()
            total[one.kind] += known[key]
    return dict(total)


def matmul_rate(threads: int, device: torch.device) -> float:
    """The machine's own peak: GFLOP/s of the best of ten products of large float32 matrices."""
    torch.set_num_threads(threads)
    size = 1024 if device.type == "cpu" else 8192
    a, b = torch.rand(2, size, size, device=device)
    best = float("inf")
    for _ in range(10):
        started = synchronized(device)
        torch.mm(a, b)
        best = min(best, synchronized(device) - started)
    return 2 * size**3 / best / 1e9
