"""PFLlib-style clients, hosted: a client with a `train` of its own in place of a rule's hooks.

Such a class is recognised by its `train`, and gets `OwnTraining` as its first base (`adopt`). Nothing else in clients/
knows of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from flcore.clients.localrule import Data, LocalRule
from flcore.clients.support.batches import Batches
from flcore.clients.support.items import load_item, save_item
from flcore.trainmodel.forward import Tensors
from flcore.trainmodel.weights import Weights

if TYPE_CHECKING:
    from flcore.clients.clientbase import Client
else:
    Client = object


class PFLlibMethods:
    """Names of PFLlib's `Client` that only code of PFLlib's kind uses."""

    id: int
    device: Any
    save_folder_name: str
    params: Tensors
    weights: Weights

    @property
    def model(self) -> nn.Module:
        """The weights as a module; asking for it gives the client a private copy (see `Weights`)."""
        return self.weights.module

    @model.setter
    def model(self, module: nn.Module) -> None:
        self.weights.module = module

    def train_metrics(self) -> tuple[float, int]:
        """Sum of the cross-entropy over all training samples, and their number."""
        client: Any = self
        scores, y = client.scores(is_train=True)
        return float(nn.functional.cross_entropy(scores, y, reduction="sum")) if len(y) else 0.0, len(y)

    def set_parameters(self, model: nn.Module) -> None:
        """Takes over all parameters and buffers of ``model``, or of a part of the network: its parameters in order."""
        given, own = model.state_dict(), self.params
        if not given.keys() <= own.keys():
            names = [name for name, _ in self.weights.net.named_parameters()]
            given = dict(zip(names, (value.detach() for value in model.parameters()), strict=False))
        self.params = {**own, **{name: value.clone() for name, value in given.items()}}

    def clone_model(self, model: nn.Module, target: nn.Module) -> None:
        """Copies the parameters of ``model`` into ``target``."""
        self.update_parameters(target, list(model.parameters()))

    def update_parameters(self, model: nn.Module, new_params: Any) -> None:
        with torch.no_grad():
            for old, new in zip(model.parameters(), new_params, strict=False):
                old.copy_(new)

    def save_item(self, item: Any, item_name: str, item_path: str | None = None) -> None:
        save_item(item, Path(item_path or self.save_folder_name) / f"client_{self.id}_{item_name}.pt")

    def load_item(self, item_name: str, item_path: str | None = None) -> Any:
        return load_item(Path(item_path or self.save_folder_name) / f"client_{self.id}_{item_name}.pt", self.device)


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

    @property
    def idle(self) -> bool:
        return len(self.load_train_data()) == 0

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
