"""The trained models of a run: of every client what its `local_predict` reads, and nothing else.

Beside `<run>.h5` a folder `<run>.models` holds `models.json` and the tensors, those that clients have in common once.
Which tensors those are is not declared: `local_predict` runs once, and what an operation has read is kept. So a
method's teachers, masks and moments stay out, and its heads, personal modules and prototypes are in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flcore.trainmodel.forward import Tensors
from flcore.utils.errors import RunError, UsageError
from flcore.utils.runs.files import models_folder, whole_folder, write_json
from flcore.utils.runs.run_state import Reader, UnusableError, Writer
from flcore.utils.runs.status import read_info
from flcore.utils.runs.tensor_files import identity
from flcore.utils.safe_load import load_json

GROUPS = ("params", "shared", "state")  # what `local_predict` is given
FORMAT = 1

Names = Mapping[str, list[str]]  # of the tensors of each group
Kept = dict[str, Tensors]  # the tensors of each group


class _Reads(TorchDispatchMode):
    """Notes in `memory` where the tensors lie that operations in the body read."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = tree_leaves((args, kwargs or {}))
        self.memory.update(leaf.untyped_storage().data_ptr() for leaf in leaves if isinstance(leaf, Tensor))
        return func(*args, **(kwargs or {}))


def read_by(client: Any) -> Names:
    """The names of the tensors that the client's `local_predict` reads; another client of the rule reads the same."""
    kept = {group: getattr(client, group) for group in GROUPS}
    sample = torch.zeros(1, *client.tensors(is_train=True)[0].shape[1:], device=client.device)
    with _Reads() as reads:
        client.scores_of(sample)
    return {
        group: [name for name, value in tensors.items() if value.untyped_storage().data_ptr() in reads.memory]
        for group, tensors in kept.items()
    }


def in_memory(server: Any) -> dict[int, Kept]:
    """The models of all clients that are scored, without files."""
    clients = server.evaluation.clients
    names = read_by(clients[0])
    return {client.id: kept_of(client, names) for client in clients}


def kept_of(client: Any, names: Names) -> Kept:
    tensors = {group: getattr(client, group) for group in GROUPS}
    return {group: {name: tensors[group][name] for name in own} for group, own in names.items()}


def has_predictors(server: Any) -> bool:
    """Whether its clients are scored by `local_predict` alone, so that this is all that a prediction takes."""
    return bool(server.clients) and all(client.scored_by_rule for client in server.evaluation.clients)


def write(server: Any, h5: Path, run: Mapping[str, Any], **about: Any) -> None:
    """Writes the models of a server's clients, as far as they are scored, beside its result file.

    Args:
        run: what tells the run from others, see `read`.
        about: what else `models.json` is to hold.

    Raises:
        RunError: the disk is full, or the folder cannot be written to.
    """
    folder = models_folder(h5)
    clients = server.evaluation.clients
    names = read_by(clients[0])
    try:
        with whole_folder(folder) as temporary:
            writer = Writer(temporary)
            last = {identity(value) for group in kept_of(clients[-1], names).values() for value in group.values()}
            for group in kept_of(clients[0], names).values():
                writer.encode([value for value in group.values() if identity(value) in last])
            common = writer.end_of_common()
            each = {client.id: writer.encode(kept_of(client, names)) for client in clients}
            writer.flush()
            content = {"format": FORMAT, "run": dict(run), **about, "clients": each}
            write_json(temporary / "models.json", content | {"common_files": common, "files": writer.files})
    except OSError as error:
        raise RunError(f"{folder} cannot be written ({error.strerror or error}); the result itself is kept") from None


class Models(Mapping[int, Kept]):
    """The models beside a result file, by client.

    Args:
        h5: the result file.
        device: where the tensors belong.

    Attributes:
        about: what `models.json` holds.

    Raises:
        UsageError: there are none, they are damaged, or they belong to another run than the run.json beside them.
    """

    def __init__(self, h5: Path, device: torch.device) -> None:
        folder = models_folder(h5)
        info = read_info(h5.with_suffix(".run.json"))
        if not (folder / "models.json").is_file():
            why = "it was made with --save_models none"
            if info.get("status") not in ("finished", None):
                why = f"the run is {info['status']}"
            raise UsageError(
                f"{h5} has no trained models beside it ({folder.name}/models.json): {why}, or they were moved"
            )
        self.about: dict[str, Any] = load_json(folder / "models.json")
        try:
            if self.about["format"] != FORMAT:
                raise UnusableError(f"they have the format {self.about['format']}, this version reads {FORMAT}")
            if other := [key for key, value in self.about["run"].items() if info.get(key) != value]:
                raise UnusableError(f"they are another run's (its {other[0]} differs)")
            self._reader = Reader(folder, self.about["files"], self.about["common_files"], device)
            self._clients = {int(client): kept for client, kept in self.about["clients"].items()}
        except UnusableError as error:
            raise UsageError(f"{folder} cannot be used: {error}") from None
        except FileNotFoundError as error:
            raise UsageError(f"{folder} cannot be used: {Path(error.filename).name} is missing") from None
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UsageError(f"{folder} cannot be used: models.json is damaged") from None

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def __getitem__(self, client: int) -> Kept:
        kept: Kept = self._reader.decode(self._clients[client])
        return kept
