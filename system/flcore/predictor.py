"""A client's personal predictor: images in, classes out, by the method's own `local_predict`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from flcore.clients.clientbase import Client, laid_out
from flcore.data.samples import scaled
from flcore.servers.support.predictors import Kept
from flcore.trainmodel.forward import PASS_BATCH, Forward
from flcore.utils.errors import UsageError


@dataclass(frozen=True)
class Network:
    """What all clients' predictors of a run have in common.

    Args:
        rule: the class of its clients.
        forward: the network.
        hp: the rule's settings.
        shape: of one sample.
        class_names: by label.
        device: where it runs.
    """

    rule: type[Client]
    forward: Forward
    hp: Any
    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    device: torch.device


@dataclass(frozen=True)
class Predictor:
    """One client's model. Images are numpy arrays or tensors (n, ...) as its data set's files hold them: floats, or
    pixels of type uint8 or uint16, which are scaled to [-1, 1] as everywhere."""

    client: int
    network: Network
    kept: Kept

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.network.class_names

    def scores(self, images: ArrayLike | Tensor) -> Tensor:
        """Scores (n, num_classes), the largest wins: the method's logits, or minus its distances to prototypes.

        Raises:
            UsageError: the images are not of the shape that the model was trained on.
        """
        network, array = self.network, np.asarray(images)
        if array.shape[1:] != network.shape or array.dtype.kind not in "biuf":
            raise UsageError(
                f"images must be numbers of shape (n, {', '.join(map(str, network.shape))}), not {array.dtype} "
                f"{array.shape}"
            )
        x = laid_out(torch.from_numpy(scaled(array)).to(network.device), network.forward.net)
        network.forward.set_training(())
        with torch.no_grad():
            parts = [
                network.rule.local_predict(
                    *(network.forward, self.kept["params"], part, self.kept["shared"], self.kept["state"], network.hp)
                )
                for part in (x.split(PASS_BATCH) if len(x) else ())
            ]
        return torch.cat(parts).cpu() if parts else torch.zeros(0, len(network.class_names))

    def predict(self, images: ArrayLike | Tensor) -> NDArray[np.int64]:
        """The labels (n,)."""
        return np.asarray(self.scores(images).argmax(1), dtype=np.int64)

    def predict_proba(self, images: ArrayLike | Tensor) -> NDArray[np.float64]:
        """The softmax of the scores (n, num_classes); of a method that scores by distance no more than a ranking."""
        return np.asarray(self.scores(images).double().softmax(1))

    def embeddings(self, images: ArrayLike | Tensor) -> NDArray[np.float32]:
        """What the extractor behind the scores makes of the images (n, K)."""
        found: list[Tensor] = []
        net = self.network.forward.net
        bases = [module for name, module in net.named_modules() if name.split(".")[-1] == "base"]
        hooks = [base.register_forward_hook(lambda _, inputs, output: found.append(output)) for base in bases]
        try:
            self.scores(images)
        finally:
            for hook in hooks:
                hook.remove()
        return np.concatenate([np.asarray(part.cpu()) for part in found])


class Predictors:
    """The predictors of all clients of a run; nothing is read or built before one is asked for.

    Args:
        find: gives the network, and every client's tensors.
    """

    def __init__(self, find: Callable[[], tuple[Network, Mapping[int, Kept]]]) -> None:
        self._find = find
        self._found: tuple[Network, Mapping[int, Kept]] | None = None

    def __getitem__(self, client: int) -> Predictor:
        self._found = self._found or self._find()
        network, clients = self._found
        if client not in clients:
            known = sorted(clients)
            words = f"{known[0]} to {known[-1]}" if known[-1] < len(known) else ", ".join(map(str, known[:10]))
            raise UsageError(f"client {client}: there are models of the clients {words}")
        return Predictor(client, network, clients[client])


def confusion(predicted: NDArray[np.int64], true: NDArray[np.int64], num_classes: int) -> NDArray[np.int64]:
    """The number of samples of each class (rows) that were taken for each class (columns)."""
    counts = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(counts, (true, predicted), 1)
    return counts
