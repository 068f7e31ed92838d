"""What server and nodes write to each other, and how it goes into Flower's records and comes out of them.

Tensors travel in an `ArrayRecord` under their names, everything else in a `ConfigRecord`. A letter from outside is
looked at before it is believed: its numbers here, its tensors in servers/messages.py (`defect`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from flcore.federation import flower
from flcore.trainmodel.forward import Tensors

TENSORS, NUMBERS = "tensors", "numbers"  # names of the two records
KINDS = {"int": int, "float": float, "bool": bool, "str": str, "list[int]": list}


class Version(NamedTuple):
    """The state of a client: after which round's download, and whether it has trained in that round."""

    round: int
    trained: bool


INITIAL = Version(-1, False)


@dataclass(frozen=True)
class Member:
    """What a node tells of its client before the first round."""

    client: int
    train_samples: int
    test_samples: int
    idle: bool  # too few samples for a single step
    num_clients: int
    num_classes: int
    shape: list[int]  # of one sample
    train_digest: str  # sha256 of its files
    test_digest: str

    def problem(self) -> str:
        sound = min(self.train_samples, self.test_samples, self.client) >= 0 < min(self.num_clients, self.num_classes)
        return "" if sound and self.client < self.num_clients else f"it cannot be: {self}"


@dataclass(frozen=True)
class Order:
    """A round's message to a client."""

    repeat: int
    round: int
    train: bool
    score: bool  # after training, too
    base_round: int  # the version of the client that the server knows of, to go on from
    base_trained: bool
    tensors: Tensors = field(repr=False)

    @property
    def base(self) -> Version:
        return Version(self.base_round, self.base_trained)

    def problem(self) -> str:
        return ""


@dataclass(frozen=True)
class Reply:
    """A client's answer to an `Order`: its own scores, how it has trained, and what it uploads."""

    round: int
    samples: int  # of its test
    correct: int  # at A, after the download
    auc: float
    correct_after: int  # at B, after training; as at A for one that is not scored there
    auc_after: float
    loss: float  # of the training: sum over samples
    loss_samples: int
    sound: bool  # all that it came out with is finite
    fresh: bool  # the state to go on from was gone
    tensors: Any = field(repr=False)

    def problem(self) -> str:
        if not 0 <= max(self.correct, self.correct_after) <= self.samples or min(self.correct, self.correct_after) < 0:
            return f"it claims {self.correct} and {self.correct_after} of {self.samples} test samples"
        if any(not (math.isnan(auc) or 0 <= auc <= 1) for auc in (self.auc, self.auc_after)):
            return f"it claims an AUC of {self.auc:g} and {self.auc_after:g}"
        return "" if self.loss_samples >= 0 else f"it claims a loss over {self.loss_samples} samples"


Letter = TypeVar("Letter", Member, Order, Reply)


def to_records(letter: Member | Order | Reply) -> Any:
    """The letter as Flower's `RecordDict`."""
    app = flower("app")
    values = {each.name: getattr(letter, each.name) for each in fields(letter)}
    tensors = values.pop(TENSORS, {})
    arrays = {name: app.Array(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()}
    return app.RecordDict({NUMBERS: app.ConfigRecord(values), TENSORS: app.ArrayRecord(arrays)})


def from_records(kind: type[Letter], content: Any) -> Letter:
    """The opposite of `to_records`.

    What is no tensor stays what it is; whoever uses the tensors looks at them.

    Raises:
        ValueError: it is no letter of this ``kind``, or its numbers cannot be.
    """
    try:
        numbers, arrays = dict(content[NUMBERS]), dict(content[TENSORS])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"it has no records {NUMBERS} and {TENSORS}") from None
    wanted = {each.name: KINDS[str(each.type)] for each in fields(kind) if each.name != TENSORS}
    for name, its in wanted.items():
        if type(numbers.get(name)) is not its:
            raise ValueError(f"its {name} is {numbers.get(name)!r}, not of type {its.__name__}")
    if unknown := numbers.keys() - wanted.keys():
        raise ValueError(f"it holds {', '.join(sorted(unknown))}, which is unknown")
    values: dict[str, Any] = numbers
    if kind is not Member:
        values = values | {TENSORS: {name: _tensor(array) for name, array in arrays.items()}}
    letter = kind(**values)
    if problem := letter.problem():
        raise ValueError(problem)
    return letter


def _tensor(array: Any) -> Tensor | Any:
    """The tensor that an `Array` holds; what holds none, as it came."""
    try:
        return torch.from_numpy(array.numpy().copy())
    except Exception:  # whatever a stranger's bytes make numpy say
        return array
