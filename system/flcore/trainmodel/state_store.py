"""Clients' personal tensors on disk (``--state_dir``), with a bounded number of clients in memory."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flcore.utils.errors import RunError, UsageError
from flcore.utils.locks import lock
from flcore.utils.runs.tensor_files import identity, pack, read_tensors, unpack, write_tensors

PREFIX = "client-states-"


class StateStore:
    """A folder of its own in ``parent``, removed when the run ends; what a killed run left goes at the next start.

    Safe for threads. A file holds only what no other client shares: the last download stays in memory, once for all.

    Args:
        parent: the folder ``--state_dir``.
        most: clients in memory, at least 1.

    Raises:
        UsageError: the folder cannot be written to.
    """

    def __init__(self, parent: Path | str, most: int) -> None:
        self.most = most
        self.lock = threading.RLock()
        self.present: OrderedDict[int, Shelf] = OrderedDict()  # the last one was used last
        try:
            Path(parent).mkdir(parents=True, exist_ok=True)
            new = Path(tempfile.mkdtemp(prefix=".new-", dir=parent))
            self._owner = open(new / ".lock", "w")  # noqa: SIM115 (open as long as the folder is in use)
            locked = lock(self._owner)
            self.folder = new.rename(Path(parent) / f"{PREFIX}{new.name.removeprefix('.new-')}")  # others see it locked
        except OSError as error:
            raise UsageError(f"--state_dir {parent} cannot be written to: {error.strerror}") from None
        self.close = weakref.finalize(self, _remove, self.folder, self._owner)
        if locked:  # without locks nobody knows whether another run still uses its folder
            for other in Path(parent).glob(f"{PREFIX}*"):
                _remove_if_abandoned(other)

    def shelf(self, number: int, common: Callable[[], Iterable[Tensor]]) -> Shelf:
        """The place of one client; ``common`` gives the tensors that others hold too."""
        return Shelf(self, number, common)

    def use(self, shelf: Shelf) -> None:
        """Brings a client's tensors into memory, and those of the one unused for longest to disk."""
        self.present[shelf.number] = shelf
        self.present.move_to_end(shelf.number)
        shelf.fetch()
        while len(self.present) > self.most:
            number, oldest = next(iter(self.present.items()))
            oldest.put_away()  # if that fails, the client stays
            del self.present[number]


class Shelf(MutableMapping[str, dict[str, Tensor]]):
    """One client's groups of tensors, "weights" and "state"; they are replaced, never changed in place."""

    def __init__(self, store: StateStore, number: int, common: Callable[[], Iterable[Tensor]]) -> None:
        self.store, self.number, self._common = store, number, common
        self._path = store.folder / f"{number}.safetensors"
        self._groups: dict[str, dict[str, Any]] = {}  # a tensor that is away is its name in the file
        self._written: dict[str, Tensor] = {}  # what the file holds, while it is in memory too
        self._layout: dict[str, tuple[torch.device, list[int] | None]] = {}  # of each tensor in the file

    def __getitem__(self, group: str) -> dict[str, Tensor]:
        with self.store.lock:
            self.store.use(self)
            return self._groups[group]

    def __setitem__(self, group: str, tensors: dict[str, Tensor]) -> None:
        with self.store.lock:
            self._groups[group] = tensors
            self.store.use(self)

    def __delitem__(self, group: str) -> None:
        with self.store.lock:
            del self._groups[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def fetch(self) -> None:
        away = {value for group in self._groups.values() for value in group.values() if isinstance(value, str)}
        if not away:
            return
        try:
            stored = read_tensors(self._path.read_bytes())
        except OSError as error:
            raise RunError(f"--state_dir: {self._path} cannot be read ({error.strerror}); start again") from None
        for name, (device, order) in self._layout.items():
            self._written[name] = unpack(stored[name].to(device), order)
        for name, group in self._groups.items():
            self._groups[name] = {
                key: self._written[value] if isinstance(value, str) else value for key, value in group.items()
            }

    def put_away(self) -> None:
        common = {identity(tensor) for tensor in self._common()}
        names = {identity(tensor): name for name, tensor in self._written.items()}
        own = {
            identity(tensor): tensor
            for group in self._groups.values()
            for tensor in group.values()
            if identity(tensor) not in common
        }
        if own.keys() != names.keys():
            names = {key: str(number) for number, key in enumerate(own)}
            packed = {names[key]: (tensor.device, *pack(tensor)) for key, tensor in own.items()}
            self._layout = {name: (device, order) for name, (device, _, order) in packed.items()}
            try:
                write_tensors(self._path, {name: stored for name, (_, stored, _) in packed.items()})
            except OSError as error:
                raise RunError(
                    f"--state_dir: {self._path} cannot be written: {error.strerror}; make room or name another folder"
                ) from None
        for name, group in self._groups.items():
            self._groups[name] = {
                key: names[identity(value)] if identity(value) in own else value for key, value in group.items()
            }
        self._written = {}


def _remove(folder: Path, owner: Any) -> None:
    owner.close()
    shutil.rmtree(folder, ignore_errors=True)


def _remove_if_abandoned(folder: Path) -> None:
    try:
        with open(folder / ".lock", "r+") as owner:
            if lock(owner):
                shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # in use, or gone
        return
