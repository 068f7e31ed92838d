"""Many clients' tensors as one, with the clients as the first axis. Pure functions."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import vmap

from flcore.trainmodel.forward import PASS_BATCH, Tensors


def stack(clients: Sequence[Tensors]) -> Tensors:
    """One dict of tensors (N, ...) from those of N clients, which have the same names and shapes."""
    return {name: torch.stack([tensors[name] for tensors in clients]) for name in clients[0]}


def unstack(stacked: Tensors, index: int) -> Tensors:
    """One client's tensors: copies, so that nobody keeps the whole stack alive."""
    return {name: value[index].clone() for name, value in stacked.items()}


def schedule(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Stretches (steps, live clients) for clients of ``lengths`` steps, longest first: the live ones are a prefix.

    [5, 3, 3, 0] -> [(3, 3), (2, 1)]: three steps of the first three clients, then two of the first alone.
    """
    stretches, done = [], 0
    for live in range(len(lengths), 0, -1):
        if lengths[live - 1] > done:
            stretches.append((lengths[live - 1] - done, live))
            done = lengths[live - 1]
    return stretches


def packs(sizes: Sequence[int], most_samples: int, most_clients: int) -> list[list[int]]:
    """Which clients of ``sizes`` samples are computed in one pass, filled up to the largest; that one comes first.

    A pack holds at most ``most_clients`` and, filled up, ``most_samples``, unless it is one client alone; at most half
    of it is filling.
    """
    found: list[list[int]] = []
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        pack = found[-1] if found else []
        largest = sizes[pack[0]] if pack else 0
        if (
            0 < len(pack) < most_clients
            and (len(pack) + 1) * largest <= most_samples
            and 2 * sizes[i] >= max(largest, 1)
        ):
            pack.append(i)
        else:
            found.append([i])
    return found


def each(
    function: Callable[[Tensors, Tensors, Tensor], Tensor],
    params: Sequence[Tensors],
    states: Sequence[Tensors],
    data: Sequence[Tensor],
    most_clients: int,
) -> list[Tensor]:
    """``function(params, state, x)`` of every client, x (n, ...) -> (n, ...) with n > 0, in few passes.

    Clients with many samples have passes of their own, those with few share one. A tensor that all clients of a pass
    have in common is not repeated.

    Args:
        function: of one client; it treats every sample by itself.
    """
    found: list[Tensor] = [torch.empty(0)] * len(data)
    for pack in packs([len(x) for x in data], PASS_BATCH, most_clients):
        if len(pack) == 1:
            (i,) = pack
            found[i] = torch.cat([function(params[i], states[i], x) for x in torch.split(data[i], PASS_BATCH)])
            continue
        (own, own_dims), (state, state_dims) = (stack_own([tensors[i] for i in pack]) for tensors in (params, states))
        x = torch.nn.utils.rnn.pad_sequence([data[i] for i in pack], batch_first=True)
        results = vmap(function, (own_dims, state_dims, 0))(own, state, x)
        for i, result in zip(pack, results, strict=True):
            found[i] = result[: len(data[i])]
    return found


def stack_own(clients: Sequence[Tensors]) -> tuple[Tensors, dict[str, int | None]]:
    """The clients' tensors stacked, and each one's axis for vmap; one that all have in common as it is, and None."""
    first = clients[0]
    dims = {name: None if all(tensors[name] is first[name] for tensors in clients) else 0 for name in first}
    own = stack([{name: tensors[name] for name in first if dims[name] == 0} for tensors in clients])
    return {name: own.get(name, first[name]) for name in first}, dims
