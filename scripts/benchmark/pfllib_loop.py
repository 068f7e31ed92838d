"""A stand-in for PFLlib's own round, to compare with where no checkout of it is at hand.

Written from a description of what PFLlib does (docs/performance.md), not from its source: clients one after another,
each with a network and an optimizer of its own; the .npz read from disk for every training and again for every
evaluation; a list of single samples that a DataLoader collates; batches of the training's size at evaluation, and a
further pass over the training set for its loss; weights copied and averaged tensor by tensor. A round is send,
evaluate, train, receive, aggregate. The mathematics is that of our own executors: a test feeds both the same batches.
"""

import copy
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import label_binarize
from torch import Tensor, nn
from torch.utils.data import DataLoader

from flcore.trainmodel.prototypes import (
    aggregate_prototypes,
    class_prototypes,
    prototype_alignment_loss,
    prototype_contrastive_loss,
)
from flcore.utils.errors import UsageError

Samples = list[tuple[Tensor, Tensor]]


def can_run(values: Mapping[str, Any]) -> bool:
    """Whether the stand-in knows the algorithm: FedAvg, FedRep, and FedCPD without feature distillation."""
    return values["algorithm"] in ("FedAvg", "FedRep") or (values["algorithm"] == "FedCPD" and values["cpd_fd"] == 0)


class LoopClient:
    """One participant: FedAvg, or with ``args.algorithm`` FedRep and FedCPD a head of its own."""

    def __init__(self, args: Any, id: int) -> None:
        self.args, self.id, self.folder = args, id, args.dataset.folder.resolve()
        self.model = copy.deepcopy(args.model)
        self.phases = [("", args.local_epochs)]
        if args.algorithm != "FedAvg":
            self.phases = [("head.", args.plocal_epochs), ("base.", args.local_epochs)]
        self.optimizers = {
            part: torch.optim.SGD(self.moving(part), lr=args.local_learning_rate) for part, _ in self.phases
        }
        self.loss = nn.CrossEntropyLoss()
        # Read once with our checks, since `read` runs whatever a pickle holds.
        self.train_samples, test_samples = (len(args.dataset.tensors(id, is_train)[1]) for is_train in (True, False))
        if not test_samples:
            raise UsageError(f"client {id} of {args.dataset} has no test samples, and PFLlib's loop needs some")
        self.prototypes: tuple[Tensor, Tensor] | None = None  # the global ones (C, K), and which are seen (C,)

    def moving(self, part: str) -> list[Tensor]:
        return [value for name, value in self.model.named_parameters() if name.startswith(part)]

    def read(self, is_train: bool) -> Samples:
        """The file as a list of (image, label)."""
        with np.load(self.folder / ("train" if is_train else "test") / f"{self.id}.npz", allow_pickle=True) as file:
            data = file["data"].tolist()
        return list(zip(torch.tensor(data["x"]).float(), torch.tensor(data["y"]).long(), strict=True))

    def load(self, is_train: bool, whole: bool = False) -> DataLoader[Any]:
        """Batches in random order; an incomplete one is dropped from the training set unless ``whole``."""
        drop = is_train and not whole
        return DataLoader(self.read(is_train), self.args.batch_size, shuffle=True, drop_last=drop)  # type: ignore[arg-type]

    def receive(self, model: nn.Module, shares: str) -> None:
        for (name, new), own in zip(model.named_parameters(), self.model.parameters(), strict=True):
            if name.startswith(shares):
                own.data = new.data.clone()

    def train(self) -> None:
        batches = self.load(is_train=True)
        self.model.train()
        for part, epochs in self.phases:
            for name, value in self.model.named_parameters():
                value.requires_grad = name.startswith(part)
            for _ in range(epochs):
                for x, y in batches:
                    loss = self.objective(x.to(self.args.device), y.to(self.args.device), part)
                    self.optimizers[part].zero_grad()
                    loss.backward()
                    self.optimizers[part].step()

    def objective(self, x: Tensor, y: Tensor, part: str) -> Tensor:
        z = self.model.base(x)
        loss = self.loss(self.model.head(z), y)
        if part == "base." and self.prototypes:
            alignment = prototype_alignment_loss(z, y, *self.prototypes)
            contrast = prototype_contrastive_loss(z, y, *self.prototypes, self.args.cpd_tau)
            loss = loss + self.args.cpd_align * alignment + self.args.cpd_contrast * contrast
        return loss

    def own_prototypes(self) -> tuple[Tensor, Tensor]:
        """After training: the mean embedding of each class (C, K), and its samples (C,)."""
        self.model.eval()
        with torch.no_grad():
            found = [(self.model.base(x.to(self.args.device)), y) for x, y in self.load(is_train=True, whole=True)]
        z, y = (torch.cat(column) for column in zip(*found, strict=True))
        return class_prototypes(z, y.to(z.device), self.args.num_classes)

    def test_metrics(self) -> tuple[int, int, float]:
        self.model.eval()
        scores, labels = [], []
        with torch.no_grad():
            for x, y in self.load(is_train=False):
                scores.append(self.model(x.to(self.args.device)).cpu().numpy())
                labels.append(y.numpy())
        score, y = np.concatenate(scores), np.concatenate(labels)
        classes = self.args.num_classes
        hot = label_binarize(y, classes=np.arange(classes + (classes == 2)))[:, :classes]
        return int((score.argmax(1) == y).sum()), len(y), roc_auc_score(hot, score, average="micro")

    def train_metrics(self) -> tuple[float, int]:
        self.model.eval()
        total, count = 0.0, 0
        with torch.no_grad():
            for x, y in self.load(is_train=True):
                x, y = x.to(self.args.device), y.to(self.args.device)
                total += self.loss(self.model(x), y).item() * len(y)
                count += len(y)
        return total, count


class PFLlibLoop:
    """The server. ``args`` are those of a run, see `RunContext`."""

    def __init__(self, args: Any) -> None:
        if args.client_drop_rate or args.learning_rate_decay or args.few_shot:
            raise UsageError("the stand-in for PFLlib's loop knows neither -cdr nor -ld nor -fs: leave them out")
        self.args = args
        self.global_model = copy.deepcopy(args.model)
        self.shares = "" if args.algorithm == "FedAvg" else "base."
        self.clients = [LoopClient(args, i) for i in range(args.num_clients)]
        self.prototypes: tuple[Tensor, Tensor] | None = None

    def round(self) -> float:
        """One round; returns its seconds."""
        started = time.perf_counter()
        for client in self.clients:
            client.receive(self.global_model, self.shares)
            client.prototypes = self.prototypes
        self.evaluate()
        uploads = []
        for client in self.clients:
            client.train()
            if self.args.algorithm == "FedCPD":
                uploads.append(client.own_prototypes())
        self.aggregate()
        if uploads:
            prototypes, counts = (torch.stack(column) for column in zip(*uploads, strict=True))
            previous, seen = self.prototypes or (None, None)
            self.prototypes = aggregate_prototypes(prototypes, counts, previous, seen, self.args.cpd_proto_weighting)
        return time.perf_counter() - started

    def evaluate(self) -> None:
        """Accuracy and AUC on the test sets, then the loss on the training sets."""
        correct, samples, _ = zip(*(client.test_metrics() for client in self.clients), strict=True)
        losses, counts = zip(*(client.train_metrics() for client in self.clients), strict=True)
        self.accuracy, self.train_loss = sum(correct) / sum(samples), sum(losses) / max(sum(counts), 1)

    def aggregate(self) -> None:
        total = sum(client.train_samples for client in self.clients)
        average = copy.deepcopy(self.clients[0].model)
        shared = [name for name, _ in average.named_parameters() if name.startswith(self.shares)]
        for name in shared:
            average.get_parameter(name).data.zero_()
        for client in self.clients:
            for name in shared:
                own = client.model.get_parameter(name).data.clone()
                average.get_parameter(name).data += own * (client.train_samples / total)
        self.global_model = average
