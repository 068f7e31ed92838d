"""The server's half of a federation: any method's own server, whose clients are somewhere else.

`RemoteClient` stands for one of them and `RemoteExecutor` is the way there: it hands a round's message to a `Transport`
and gives back what the clients themselves have measured and trained. Selection, validation, aggregation and records
are those of every run.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch

from flcore.clients.support.metrics import Metrics
from flcore.context import RunContext
from flcore.data.reading import DataSet
from flcore.experiment import Experiment
from flcore.federation.letters import INITIAL, Member, Order, Reply, Version
from flcore.trainmodel.forward import Tensors
from flcore.utils.errors import RunError, UsageError

# What belongs to a simulation, or to a run that can be interrupted.
NOT_HERE = {"label_noise", "attack", "num_new_clients", "dlg_eval", "eval_clients", "state_dir"}
NOT_HERE |= {"checkpoint_every", "keep_checkpoint", "resume"}

log = logging.getLogger(__name__)


class Transport(Protocol):
    """How letters go to the clients and come back."""

    def members(self, number: int | None) -> Mapping[int, Member]:
        """The clients by their number, once there are ``number`` of them; None: as many as their data set has."""

    def exchange(self, orders: Mapping[int, Order]) -> Mapping[int, Reply | str]:
        """For every client its reply, or in words why there is none that can be read."""


def check(experiment: Experiment) -> None:
    """Refuses what a federation cannot do.

    Raises:
        UsageError: of the method or of the settings.
    """
    method, values = experiment.method, experiment.values
    server_class = method.server_class()
    if server_class.rule is None or not server_class.by_messages:
        why = "its server reads more of the clients than their messages"
        raise UsageError(f"-algo {method.name} cannot be a federation: {why}")
    for name in sorted(NOT_HERE):
        if values[name] not in (None, False, 0, "none"):
            raise UsageError(f"--{name} is for runs on one machine; a federation of real clients does without")


class RemoteData(DataSet):
    """The data set of a federation: its name and sizes, as the members tell them."""

    members: Mapping[int, Member]

    def digest(self) -> str:
        """What `DataSet.digest` would say if all files lay here."""
        files = {f"train/{i}.npz": member.train_digest for i, member in self.members.items()}
        tests = {f"test/{i}.npz": member.test_digest for i, member in self.members.items()}
        lines = [f"{name} {digest}\n" for part in (tests, files) for name, digest in sorted(part.items())]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


class RemoteClient:
    """A client that is somewhere else: what the server knows of it, and its latest reply."""

    params: Tensors = {}  # stays there, as all that is its own
    state: Tensors = {}
    upload: Tensors = {}

    def __init__(self, server: Any, rule: Any, member: Member) -> None:
        args = server.args
        self.id, self.train_samples, self.test_samples = member.client, member.train_samples, member.test_samples
        self.idle, self.batch_size = member.idle, args.batch_size
        self.forward = server.participation.forward
        self.has_BatchNorm = any(
            isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in self.forward.net.modules()
        )
        self.frozen = {name for name, value in self.forward.net.named_parameters() if not value.requires_grad}
        self.hp, self.local_plan = rule.hyperparameters(args), rule.local_plan
        self.train_slow, self.send_slow = server.train_slow_clients[self.id], server.send_slow_clients[self.id]
        self.weights = self  # see `snapshot`
        self.shared: Tensors = {}
        self.round, self.version = 0, INITIAL
        self.train_loss: tuple[float, int] = (0.0, 0)
        self.reply: Reply | None = None
        self.missing = ""  # why there is no reply in this round

    def take(self, answer: Reply | str, order: Order) -> None:
        """What came of the round's ``order``."""
        self.round, self.shared, self.train_loss = order.round, order.tensors, (0.0, 0)
        self.reply, self.missing = None, ""
        if isinstance(answer, str):
            self.missing = answer
        elif answer.round != order.round or answer.samples != self.test_samples:
            self.missing = f"its reply is for round {answer.round} and {answer.samples} test samples"
        else:
            self.reply, self.version = answer, Version(order.round, order.train)
            if answer.fresh:
                log.warning(f"round {self.round}: client {self.id} has lost its personal state and began anew")

    def train(self) -> None:
        """It has trained already, with the download; from now on its scores are those after training."""
        if self.reply:
            self.train_loss = self.reply.loss if self.reply.sound else float("nan"), self.reply.loss_samples

    def message(self, shares: tuple[str, ...]) -> Any:
        return self.reply.tensors if self.reply else {}

    def test_metrics(self) -> Metrics:
        """Its own scores; of a client without a reply none, so that it is in no mean."""
        reply = self.reply
        if reply is None:
            return 0, 0, float("nan")
        if self.train_loss[1]:
            return reply.correct_after, reply.samples, reply.auc_after
        return reply.correct, reply.samples, reply.auc

    def snapshot(self) -> Tensors:
        return self.params

    def release(self) -> None:
        self.reply = None


class RemoteExecutor:
    """Has the clients of a ``server`` work where they are. They train with the download: one letter a round."""

    name = "flower"
    adds = False

    def __init__(self, server: Any, transport: Transport) -> None:
        self.server, self.transport = server, transport

    def receive(self, clients: Sequence[Any], message: Tensors, current_round: int) -> None:
        server = self.server
        training = {client.id for client in server.selected_clients} if current_round < server.global_rounds else set()
        score = current_round % server.eval_gap == 0
        orders = {
            client.id: Order(
                *(server.times, current_round, client.id in training, score),
                client.version.round,
                client.version.trained,
                message,
            )
            for client in clients
        }
        answers = self.transport.exchange(orders)
        for client in clients:
            client.take(answers[client.id], orders[client.id])
        if silent := {client.id: client.missing for client in clients if client.missing}:
            told = "; ".join(f"client {i}: {why}" for i, why in silent.items())
            log.warning(f"round {current_round}: no reply that can be used: {told}")
        if len(silent) == len(clients):
            raise RunError(f"round {current_round}: no client has answered")

    def train(self, clients: Sequence[Any], done: Callable[[], object]) -> None:
        for client in clients:
            client.train()
            done()
        missing = [client for client in clients if client.missing]
        self.server.round_uploads.leave_out(missing, "there is no reply of theirs")

    def test(self, clients: Sequence[Any]) -> list[Metrics]:
        return [client.test_metrics() for client in clients]

    def close(self) -> None:
        pass


class Federation:
    """What a method's server does otherwise in a federation; to be named before it."""

    def set_clients(self: Any, rule: Any) -> None:
        """Stand-ins for the clients that have come."""
        self.participation.network(rule, torch.zeros(1, *self.args.shape))
        self.clients = [RemoteClient(self, rule, member) for _, member in sorted(self.args.dataset.members.items())]
        self.participation.describe_faults()
        self.participation.check()

    def end_round(self: Any) -> bool:
        """A client that was left out goes on from what it was before it trained, as everywhere."""
        for client in self.selected_clients:
            if client.id in self.round_uploads.left_out and not client.missing:
                client.version = Version(self.current_round, trained=False)
        return bool(super().end_round())  # type: ignore[misc]  # the method's server


class FederatedExperiment(Experiment):
    """An experiment whose clients are behind a ``transport``; to be set before it runs."""

    transport: Transport

    @classmethod
    def of(cls, argv: Sequence[str], transport: Transport, writes: bool = True) -> FederatedExperiment:
        """The experiment that a command line means."""
        self = cls.from_argv(argv, writes)
        assert isinstance(self, FederatedExperiment)
        check(self)
        self.transport = transport
        self.values = MappingProxyType({**self.values, "executor": RemoteExecutor.name})
        return self

    def _data(self) -> dict[str, Any]:
        wanted, name = self.values["num_clients"], self.values["dataset"]
        members = self.transport.members(wanted)
        first = members[min(members)]
        for member in members.values():
            for size in ("num_clients", "num_classes", "shape"):
                if (its := getattr(member, size)) != getattr(first, size):
                    raise UsageError(
                        f"client {member.client} says {size} {its}, client {first.client} {getattr(first, size)}: "
                        "they have not the same data set"
                    )
        if wanted not in (None, first.num_clients):
            raise UsageError(f"-nc {wanted}, but the clients' data set has {first.num_clients}; leave -nc out")
        data = RemoteData(name, Path(self.values["data_dir"]))
        data.members = members
        log.info(
            f"{data}: clients {sorted(members)} have come, {sum(m.train_samples for m in members.values())} samples"
        )
        return {
            "dataset": data,
            "num_clients": len(members),
            "num_classes": first.num_classes,
            "shape": tuple(first.shape),
        }

    def _save_models(self, server: Any, files: Any) -> None:
        """They stay with the clients."""

    def _server(self, context: RunContext) -> Any:
        own = self.method.server_class()
        server = type(own.__name__, (Federation, own), {})(context, context.repeat)
        server.executor = RemoteExecutor(server, self.transport)
        return server
