"""PFLlib-style clients, hosted: a client with a `train` of its own in place of a rule's hooks.

Such a class is recognised by its `train`, and gets `OwnTraining` as its first base (`adopt`). Nothing else in clients/
knows of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flcore.clients.localrule import Data, LocalRule
from flcore.clients.support.batches import Batches
from flcore.trainmodel.weights import Weights

if TYPE_CHECKING:
    from flcore.clients.clientbase import Client
else:
    Client = object


class OwnTraining(Client):
    """A client that trains ``model``, a module of its own, with its ``optimizer``.

    Several of them run one after another, since they draw from torch's global generator.
    """

    own_training = True
    forward: Any = None
    stackable = parallel = scored_by_rule = False
    passes = 0  # over the training samples so far, each in an order of its own

    @classmethod
    def network(cls, args: Any, x: Tensor) -> Any:
        return None

    def set_up(self, args: Any, forward: Any = None, store: Any = None) -> None:
        self.weights = Weights(args.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.learning_rate)
        self.learning_rate_scheduler = torch.optim.lr_scheduler.ExponentialLR(
            self.optimizer, gamma=args.learning_rate_decay_gamma
        )

    def _place(self, data: Data) -> Data:
        x, y = data
        return x.to(self.device), y.to(self.device)

    def load_train_data(self, batch_size: int | None = None) -> Batches:
        self.passes += 1
        return self._batches(batch_size, self.passes)

    def peek(self, number: int) -> list[Data]:
        passes = self.passes
        batches = super().peek(number)
        self.passes = passes
        return batches

    def _predict(self, x: Tensor) -> Tensor:
        self.model.eval()
        scores: Tensor = self.model(x)
        return scores


def adopt(client_class: Any) -> None:
    """Makes a class with a `train` that is not `LocalRule`'s a client with its own training."""
    if client_class.train is not LocalRule.train and not issubclass(client_class, OwnTraining):
        client_class.__bases__ = (OwnTraining, *client_class.__bases__)
