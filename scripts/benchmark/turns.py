"""Contestants run in turns, and ratios are taken turn by turn."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmark.contestants import Contestant, Timing

Json = dict[str, Any]


@dataclass
class Measured:
    """The counted turns of one contestant."""

    contestant: Any
    timings: list[Timing] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        return [timing.round for timing in self.timings]

    @property
    def training(self) -> list[float]:
        return [timing.training for timing in self.timings]

    def summary(self) -> Json:
        label = {"algorithm": self.contestant.algorithm, "executor": self.contestant.executor}
        return label | {"seconds": self.seconds, "median_seconds": statistics.median(self.seconds)}


def take_turns(
    contestants: Sequence[Contestant], repetitions: int, between: Callable[[], object] = lambda: None
) -> list[Measured]:
    """Runs one round of each contestant in turn, ``repetitions`` times after a first turn that does not count."""
    measured = [Measured(contestant) for contestant in contestants]
    for turn in range(repetitions + 1):
        for one in measured:
            timing = one.contestant.round()
            if turn:
                one.timings.append(timing)
            name = f"{one.contestant.algorithm}, {one.contestant.executor}"
            print(f"  {f'turn {turn}/{repetitions}' if turn else 'warm-up'}  {name}: {timing.round:.3f} s", flush=True)
        if turn:
            between()
    return measured


def ratio(first: Sequence[float], second: Sequence[float]) -> float:
    """The median of first / second, turn by turn."""
    return statistics.median(a / b for a, b in zip(first, second, strict=True))
