"""The clients of a run: how one is made, and, where few of many are in use, where the others are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from flcore.servers.support import faults
from flcore.utils.seeds import numpy_generator

Data = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Maker:
    """Makes any client of a run from what is known before the first round, in this process or in another one.

    Args:
        args: the run's arguments.
        client_class: the client's half of the method.
        attackers, train_slow, send_slow: of each client; those that join after training are not in them.
    """

    args: Any
    client_class: Any
    attackers: Sequence[bool]
    train_slow: Sequence[bool]
    send_slow: Sequence[bool]

    def data(self, i: int, is_train: bool) -> Data:
        """Client i's samples; the training labels are wrong where --label_noise or --attack labelflip ask for it."""
        args = self.args
        x, y = args.dataset.tensors(i, is_train, args.few_shot)
        if is_train and args.label_noise:
            draw = numpy_generator(args.seed, args.repeat, i, "label noise")
            y = faults.noisy_labels(y, args.label_noise, args.num_classes, draw)
        if is_train and args.attack == "labelflip" and i < len(self.attackers) and self.attackers[i]:
            y = faults.flipped_labels(y, args.num_classes)
        return x, y

    def make(self, i: int, network: Callable[[Tensor], Any], store: Any = None) -> Any:
        """Client i with its data.

        Args:
            network: the network that the clients of a rule share, for samples like those that it gets; or None.
            store: of the clients' own tensors.
        """
        train, test = self.data(i, True), self.data(i, False)
        return self.client_class(
            self.args,
            id=i,
            train_samples=len(train[1]),
            test_samples=len(test[1]),
            train_slow=i < len(self.train_slow) and self.train_slow[i],
            send_slow=i < len(self.send_slow) and self.send_slow[i],
            train_data=train,
            test_data=test,
            source=self,
            forward=network(train[0]),
            store=store,
        )


class ManyClients(Sequence[Any]):
    """The clients 0 .. number - 1 of a run that scores only some of them (``--eval_clients``).

    A client is made when it is asked for. Between rounds (`rest`) all but a few let go of their data, and of those that
    keep no tensors of their own nothing is left: they are made anew. So memory and time follow the participants.

    Args:
        make: of an index.
        staying: clients that are used in every round.
    """

    def __init__(self, number: int, make: Callable[[int], Any], staying: Collection[int]) -> None:
        self.number, self.make, self.staying = number, make, staying
        self.present: dict[int, Any] = {}
        self.awake: set[int] = set()  # asked for since the last rest

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.number))]
        i = range(self.number)[index]
        if i not in self.present:
            self.present[i] = self.make(i)
        self.awake.add(i)
        return self.present[i]

    def rest(self) -> None:
        for i in self.awake.difference(self.staying):
            if not self.present[i].rest():
                del self.present[i]
        self.awake = set()
