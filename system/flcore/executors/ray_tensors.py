"""Tensors on their way between the driver and an actor of Ray: what the other side has already goes as a reference.

Both sides know the messages of the server, by a number each, and of every client the tensors that it had after the last
call. `Table` is the driver's view of the latter: it keeps no tensor alive, and tells which ones are not used any more.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flcore.trainmodel.forward import Tensors
from flcore.utils.runs.tensor_files import identity, pack, unpack

HELD = -1  # in place of a message's number: what the client had before
Key = tuple[int, str]  # number of a message, or HELD, and the tensor's name there
Reference = Key | int  # or the index of a tensor that travels along
Known = Mapping[Any, Key]  # by `identity`
Groups = Mapping[str, Tensors]  # "params" and "state"


class Packed(NamedTuple):
    """A tensor as its bytes, which Ray does not copy, with what else makes it."""

    content: NDArray[np.uint8]
    dtype: torch.dtype
    shape: tuple[int, ...]
    order: list[int] | None

    @classmethod
    def of(cls, tensor: Tensor) -> Packed:
        stored, order = pack(tensor)
        return cls(stored.reshape(-1).view(torch.uint8).numpy(), stored.dtype, tuple(stored.shape), order)

    def tensor(self, device: Any) -> Tensor:
        """In memory as torch allocates it: the last bit of a product may depend on that."""
        stored = torch.empty(self.content.shape, dtype=torch.uint8)
        stored.numpy()[:] = self.content
        return unpack(stored.view(self.dtype).view(self.shape).to(device), self.order)


class Parcel(NamedTuple):
    """Groups of tensors as references, and the tensors that travel along, each once."""

    groups: dict[str, dict[str, Reference]]
    content: list[Packed]

    @classmethod
    def of(cls, groups: Groups, known: Iterable[Known]) -> Parcel:
        """known: what the other side has; the first that holds a tensor counts."""
        tables, content, sent = list(known), list[Packed](), dict[Any, int]()

        def refer(tensor: Tensor) -> Reference:
            key = identity(tensor)
            for table in tables:
                if key in table:
                    return table[key]
            if key not in sent:
                sent[key] = len(content)
                content.append(Packed.of(tensor))
            return sent[key]

        refs = {group: {n: refer(value) for n, value in tensors.items()} for group, tensors in groups.items()}
        return cls(refs, content)

    def opened(self, find: Callable[[int, str], Tensor], device: Any) -> dict[str, Tensors]:
        """The groups of tensors; ``find`` gives the referred ones."""
        came = [packed.tensor(device) for packed in self.content]
        return {
            group: {n: came[ref] if isinstance(ref, int) else find(*ref) for n, ref in refs.items()}
            for group, refs in self.groups.items()
        }

    def own(self, groups: Groups) -> dict[str, Tensor]:
        """Of the ``groups`` that this was made of, or opened to, the client's own tensors, by names that both sides
        give them: what is not in a message."""
        return {
            f"{group}.{n}": groups[group][n]
            for group in ("params", "state")
            for n, ref in self.groups[group].items()
            if isinstance(ref, int) or ref[0] == HELD
        }


def known_as(number: int, tensors: Tensors) -> dict[Any, Key]:
    return {identity(value): (number, name) for name, value in tensors.items()}


class Table:
    """What an actor holds of each client, as far as the driver still uses it.

    Attributes:
        gone: of each client the names of tensors that the actor can drop.
    """

    def __init__(self) -> None:
        self.held: dict[int, dict[str, weakref.ref[Tensor]]] = {}
        self.gone: dict[int, set[str]] = {}

    def known(self, client: int) -> dict[Any, Key]:
        alive = ((name, reference()) for name, reference in self.held.get(client, {}).items())
        return {identity(tensor): (HELD, name) for name, tensor in alive if tensor is not None}

    def update(self, client: int, own: Mapping[str, Tensor]) -> None:
        """The actor holds these now, and nothing else of the client."""
        gone: set[str] = set()
        self.held[client] = {
            name: weakref.ref(tensor, lambda _, name=name: gone.add(name))  # type: ignore[misc]
            for name, tensor in own.items()
        }
        self.gone[client] = gone

    def forget(self, client: int) -> None:
        """The client has moved to another actor."""
        self.gone[client] = set(self.held.pop(client, ()))  # until the actor is told

    def take_gone(self) -> dict[int, set[str]]:
        found = {client: set(names) for client, names in self.gone.items() if names}
        for client, names in found.items():
            self.gone[client] -= names
            left = {name: one for name, one in self.held.get(client, {}).items() if name not in names}
            if left:
                self.held[client] = left
            else:
                self.held.pop(client, None)
                del self.gone[client]
        return found
