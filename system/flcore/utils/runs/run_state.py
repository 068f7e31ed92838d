"""The state of a run between two rounds, as JSON and files of tensors: what a checkpoint holds.

The classes of servers and clients name in `remembers` the attributes that last from round to round. A value may be
None, a number, a string, an array, a tensor, a module, an optimizer, or a list, tuple or dict of such. What a round
sets before it reads it is not kept. Random draws need nothing, since their generators are keyed by the round
(seeds.py); only torch's global generators, from which a model's dropout draws, are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flcore.utils.errors import RunError
from flcore.utils.runs.tensor_files import identity, pack, read_tensors, unpack, write_tensors

PIECE = 64 * 2**20  # bytes of tensors in one file, and so in memory beside the run's own
PLAIN = (type(None), bool, int, float, str)


class UnusableError(Exception):
    """Why a checkpoint cannot be used, in words that follow its name."""


def remembered(owner: Any) -> list[str]:
    """The names that the classes of a server or a client declare in `remembers`, the base class first."""
    declared = (vars(one).get("remembers", ()) for one in reversed(type(owner).__mro__))
    return [name for names in declared for name in names]


def capture(server: Any, folder: Path) -> dict[str, Any]:
    """The state as JSON; its tensors are written to files in `folder`."""
    writer = Writer(folder)
    clients = server.lasting_clients()
    shared = {id(client.shared): client.shared for client in clients}  # one message for all, as a rule
    numbers = {key: number for number, key in enumerate(shared)}
    state: dict[str, Any] = {
        "server": {name: writer.encode(getattr(server, name)) for name in remembered(server)},
        "messages": [writer.encode(message) for message in shared.values()],
        "random": writer.encode(_random_states(server.device)),
    }
    state["common_files"] = writer.end_of_common()
    state["clients"] = [
        {name: writer.encode(getattr(client, name)) for name in remembered(client)}
        | {"id": client.id, "shared": numbers[id(client.shared)]}
        for client in clients
    ]
    writer.flush()
    return state | {"number": len(clients), "files": writer.files}


def restore(server: Any, state: Mapping[str, Any], reader: Reader) -> None:
    """Sets what `capture` read. If it turns out wrong half-way, the next one overwrites it, or the run ends."""
    for name in remembered(server):
        set_value(server, name, reader.decode(state["server"][name]))
    messages = [reader.decode(message) for message in state["messages"]]
    random = reader.decode(state["random"])
    if len(state["clients"]) != state["number"]:
        raise ValueError("some clients are missing")
    for saved in state["clients"]:
        client = server.clients[saved["id"]]
        for name in remembered(client):
            set_value(client, name, reader.decode(saved[name]))
        client.shared = messages[saved["shared"]]
    _set_random_states(random, server.device)


def _random_states(device: torch.device) -> list[Tensor]:
    """The states of torch's global generators: the CPU's, and that of a CUDA device, where dropout draws by itself."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _set_random_states(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)


def set_value(owner: Any, name: str, value: Any) -> None:
    """Module, optimizer and parameter take over the value, anything else is replaced by it."""
    present = getattr(owner, name)
    if isinstance(present, (nn.Module, torch.optim.Optimizer)):
        present.load_state_dict(value)
    elif isinstance(present, nn.Parameter):
        with torch.no_grad():
            present.copy_(value)
    elif _layout(present) not in (None, _layout(value)):
        raise UnusableError(f"its {name} have other names or shapes than this run's")
    else:
        setattr(owner, name, value)


def _layout(value: Any) -> Any:
    """Names and shapes of a dict of tensors; None for anything else, and for one that is still empty."""
    if isinstance(value, dict) and value and all(isinstance(item, Tensor) for item in value.values()):
        return {name: item.shape for name, item in value.items()}
    return None


class Writer:
    """Turns values into JSON and puts their tensors into files; a tensor that occurs often is written once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[dict[str, Any]] = []  # digest, and number of the first tensor
        self._count = self._first = self._size = 0
        self._pending: dict[str, Tensor] = {}
        # The tensors themselves are kept beside their numbers: memory that is freed may be used again.
        self._known: dict[Any, tuple[Tensor, Any]] = {}
        self._common: dict[Any, tuple[Tensor, Any]] | None = None

    def encode(self, value: Any) -> Any:
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray):
            return {"array": self._tensor(torch.from_numpy(value.copy()))}
        if isinstance(value, (nn.Module, torch.optim.Optimizer)):
            return self.encode(value.state_dict())
        if isinstance(value, Mapping):
            return {"dict": [[self.encode(key), self.encode(item)] for key, item in value.items()]}
        if isinstance(value, list) and _are_rows(value):
            return {"rows": self._tensor(torch.from_numpy(np.stack(value)))}
        if isinstance(value, (list, tuple)):
            return {type(value).__name__: [self.encode(item) for item in value]}
        raise RunError(f"a checkpoint cannot hold a {type(value).__name__}")

    def _tensor(self, tensor: Tensor) -> dict[str, Any]:
        known = self._known.get(identity(tensor))
        if known:
            return known[1]  # type: ignore[no-any-return]
        stored, order = pack(tensor)
        encoded: dict[str, Any] = {"cpu" if tensor.device.type == "cpu" else "tensor": self._count}
        if order is not None:
            encoded["order"] = order
        self._pending[str(self._count)] = stored
        self._count += 1
        self._known[identity(tensor)] = tensor, encoded
        self._size += stored.nbytes
        if self._size >= PIECE:
            self.flush()
        return encoded

    def flush(self) -> None:
        if self._pending:
            path = self.folder / _piece(len(self.files))
            self.files.append({"sha256": write_tensors(path, self._pending, sync=True), "first": self._first})
        self._pending, self._size, self._first = {}, 0, self._count
        if self._common is not None:
            self._known = dict(self._common)

    def end_of_common(self) -> int:
        """What was encoded so far stays known; returns the number of files that hold it."""
        self._common = dict(self._known)
        self.flush()
        return len(self.files)


class Reader:
    """The opposite of `Writer`. All files are checked at once; in memory are the common ones and one other.

    Args:
        folder, files, common: as written.
        device: where the tensors belong.
    """

    def __init__(self, folder: Path, files: list[dict[str, Any]], common: int, device: Any) -> None:
        self.folder, self.files, self.common, self.device = folder, files, common, device
        self._open: dict[int, dict[int, Tensor]] = {}
        self._stored: dict[int, dict[str, Tensor]] = {}  # likewise, before somebody asked for them
        for number, file in enumerate(files):
            if hashlib.sha256((folder / _piece(number)).read_bytes()).hexdigest() != file["sha256"]:
                raise UnusableError(f"{_piece(number)} is damaged (its digest differs)")

    def decode(self, value: Any) -> Any:
        if isinstance(value, PLAIN):
            return value
        for kind, device in (("cpu", "cpu"), ("tensor", self.device)):
            if kind in value:
                return self._tensor(value[kind], value.get("order"), device)
        [(kind, content)] = value.items()
        if kind == "dict":
            return {self.decode(key): self.decode(item) for key, item in content}
        if kind in ("list", "tuple"):
            items = [self.decode(item) for item in content]
            return items if kind == "list" else tuple(items)
        array = self.decode(content).numpy()
        return list(array) if kind == "rows" else array

    def _tensor(self, number: int, order: list[int] | None, device: Any) -> Tensor:
        piece = max(i for i, file in enumerate(self.files) if file["first"] <= number)
        if piece not in self._open:
            for other in [i for i in self._open if i >= self.common]:
                del self._open[other], self._stored[other]
            self._open[piece] = {}
            self._stored[piece] = read_tensors((self.folder / _piece(piece)).read_bytes())
        tensors = self._open[piece]
        if number not in tensors:  # all its owners share one object
            tensors[number] = unpack(self._stored[piece].pop(str(number)).to(device), order)
        return tensors[number]


def _are_rows(values: list[Any]) -> bool:
    """Whether they can be one array: at least one, all arrays of one type and shape."""
    kinds = {(value.dtype, value.shape) if isinstance(value, np.ndarray) else None for value in values}
    return len(kinds) == 1 and None not in kinds


def _piece(number: int) -> str:
    return f"tensors-{number}.safetensors"
