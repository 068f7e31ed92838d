"""The client's half of a federation: one client with its own partition and its own folder, and no other's."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flcore.data.reading import DataSet, sha256
from flcore.experiment import Experiment
from flcore.federation.letters import Member, Order, Reply
from flcore.federation.personal import PersonalState
from flcore.federation.server import check
from flcore.servers.support.clients import Maker
from flcore.servers.support.faults import Snapshot, is_sound
from flcore.utils.errors import UsageError
from flcore.utils.seeds import isolated


class Partition(DataSet):
    """A data set of which one client's files are there: nobody else's are looked for."""

    client: int

    def digests(self) -> tuple[str, str]:
        """Of the training and of the test file."""
        train, test = (sha256(self.file(self.client, is_train)) for is_train in (True, False))
        return train, test

    def digest(self) -> str:
        return hashlib.sha256(" ".join(self.digests()).encode()).hexdigest()


class NodeExperiment(Experiment):
    """The same experiment as everywhere, seen by one ``client``."""

    client: int

    def _data(self) -> dict[str, Any]:
        dataset = Partition(self.values["dataset"], self.values["data_dir"])
        dataset.client, dataset.validation = self.client, self.values["validation"]
        config = dataset.config()
        for file in (dataset.file(self.client, is_train) for is_train in (True, False)):
            if not file.is_file():
                raise UsageError(f"{file} is not there: a node needs config.json and its client's two files")
        sizes = {name: config[name] for name in ("num_clients", "num_classes")}
        return sizes | {"dataset": dataset, "shape": dataset.shape()}


class Node:
    """Answers the server's letters. It remembers nothing itself, so every letter may find another process.

    Args:
        argv: the run's flags, as on the command line, with those of this node.
        client: its number, that of its files.
        folder: where its client's personal state is kept from round to round.
    """

    def __init__(self, argv: Sequence[str], client: int, folder: Path) -> None:
        experiment = NodeExperiment.from_argv(argv, writes=False)
        assert isinstance(experiment, NodeExperiment)
        self.experiment, experiment.client = experiment, client
        check(self.experiment)
        method = self.experiment.method
        self.shares = method.server_class().shares if method.weights_up else ()
        self.folder = folder
        torch.set_num_threads(self.experiment.values["num_threads"])

    def member(self) -> Member:
        """What the server must know before the first round."""
        context, client = self._client(0)
        sizes = context.num_clients, context.num_classes, list(context.shape)
        samples = client.train_samples, client.test_samples, client.idle
        return Member(client.id, *samples, *sizes, *context.dataset.digests())

    def answer(self, order: Order) -> Reply:
        """Goes on from the version that the server names: receives, is scored, trains, and is kept."""
        _, client = self._client(order.repeat)
        personal = PersonalState(self.folder / f"repeat-{order.repeat}" / f"client-{client.id}")
        with isolated():
            fresh = not personal.restore(client, order.base)
            if fresh:
                _, client = self._client(order.repeat)
            message = {name: tensor.to(client.device) for name, tensor in order.tensors.items()}
            client.receive(message, order.round)
            correct, samples, auc = client.test_metrics()
            before, after, sound, upload = Snapshot.of(client), (correct, auc), True, {}
            client.train_loss = (0.0, 0)
            if order.train:
                client.train()
                sound = is_sound(client)
                upload = client.message(self.shares)
                if order.score:
                    correct_after, _, auc_after = client.test_metrics()
                    after = correct_after, auc_after
            client.release()
            personal.save(client, before, order.base)
        loss, loss_samples = client.train_loss
        return Reply(
            order.round, samples, correct, float(auc), after[0], float(after[1]), float(loss), loss_samples, sound,
            fresh, upload,
        )  # fmt: skip

    def _client(self, repeat: int) -> tuple[Any, Any]:
        """The run as this node knows it, and its client as it is before the first round."""
        context = self.experiment.context(repeat)
        rule = self.experiment.method.server_class().rule
        maker = Maker(context, rule, (), (), ())
        return context, maker.make(self.experiment.client, partial(rule.network, context))
