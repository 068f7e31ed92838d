"""Random numbers that a network draws while it trains, such as dropout's: keyed, and the same in every executor.

torch draws them from one generator for the whole process, so that they would depend on which client trains first.
Inside `drawing` they come from the client's own generator of the round instead.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from flcore.trainmodel.forward import Forward

Take = Callable[[Sequence[int]], Tensor]  # a shape -> so many numbers, uniform in [0, 1)

SMALLEST = 1e-7  # of a uniform number that becomes a normal one


class Answers(TorchFunctionMode):
    """In the body torch's functions that draw random numbers take them from ``take``; see `ANSWERS`."""

    def __init__(self, take: Take) -> None:
        super().__init__()
        self.take = take

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = ANSWERS.get(func)
        return answer(self.take, *args, **(kwargs or {})) if answer else func(*args, **(kwargs or {}))


@contextmanager
def drawing(forward: Forward, generators: Sequence[torch.Generator], index: Tensor | None = None) -> Iterator[None]:
    """In the body ``forward`` draws from the generator of the client that it runs for.

    Args:
        generators: one a client.
        index: under vmap over several clients, the number of the one at work, a scalar mapped over; None: the first.
    """
    if not forward.draws:
        yield
        return

    def take(shape: Sequence[int]) -> Tensor:
        if index is None:
            return torch.rand(shape, generator=generators[0])
        numbers = torch.stack([torch.rand(shape, generator=generator) for generator in generators])
        return numbers.to(index.device).index_select(0, index.view(1))[0]

    forward.answers = partial(Answers, take)
    try:
        yield
    finally:
        forward.answers = nullcontext


def _dropout(take: Take, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _dropped(take, x, x.shape, p, inplace) if training else x


def _dropout_of_channels(
    unbatched: int, take: Take, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Of all channels of all samples x (B, C, ...); an x of ``unbatched`` axes is a single sample (C, ...)."""
    axes = 1 if x.dim() == unbatched else 2
    shape = (*x.shape[:axes], *[1] * (x.dim() - axes))
    return _dropped(take, x, shape, p, inplace) if training else x


def _dropped(take: Take, x: Tensor, shape: Sequence[int], p: float, inplace: bool) -> Tensor:
    kept = (take(shape).to(x.device) >= p).to(x.dtype) * (1 / (1 - p) if p < 1 else 0)
    return x.mul_(kept) if inplace else x * kept


def _bernoulli(take: Take, x: Tensor, p: Any = None, **options: Any) -> Tensor:
    """``x`` holds the probabilities, or, as in the method that works in place, all are ``p``."""
    return (take(x.shape).to(x.device) < (x if p is None else p)).to(x.dtype)


def _like(kind: Callable[[Tensor], Tensor], take: Take, x: Tensor, **options: Any) -> Tensor:
    return kind(take(x.shape)).to(options.get("device") or x.device, options.get("dtype") or x.dtype)


def _new(kind: Callable[[Tensor], Tensor], take: Take, *size: Any, **options: Any) -> Tensor:
    shape = options.get("size") or (size if not size or isinstance(size[0], int) else size[0])
    return kind(take(shape)).to(options.get("device"), options.get("dtype"))


def _uniform(numbers: Tensor) -> Tensor:
    return numbers


def _normal(numbers: Tensor) -> Tensor:
    return torch.erfinv(2 * numbers.clamp_min(SMALLEST) - 1) * 2**0.5


ANSWERS: dict[Any, Callable[..., Tensor]] = {
    F.dropout: _dropout,
    torch.dropout: lambda take, x, p, train: _dropout(take, x, p, train),
    F.dropout1d: partial(_dropout_of_channels, 2),
    F.dropout2d: partial(_dropout_of_channels, 0),
    F.dropout3d: partial(_dropout_of_channels, 4),
    torch.bernoulli: _bernoulli,
    Tensor.bernoulli: _bernoulli,
    Tensor.bernoulli_: lambda take, x, p=0.5, **options: _bernoulli(take, x, p),
    torch.rand_like: partial(_like, _uniform),
    torch.randn_like: partial(_like, _normal),
    torch.rand: partial(_new, _uniform),
    torch.randn: partial(_new, _normal),
}
