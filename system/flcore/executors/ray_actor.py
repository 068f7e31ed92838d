"""What runs in an actor of Ray: clients with their data, trained and scored by one of the other executors."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flcore.clients.support.metrics import Metrics
from flcore.executors.loop import LoopExecutor
from flcore.executors.ray_tensors import HELD, Packed, Parcel, known_as
from flcore.executors.stacked import StackedExecutor
from flcore.executors.threads import ThreadsExecutor
from flcore.servers.messages import add_weighted
from flcore.servers.support import faults
from flcore.trainmodel.forward import Tensors

INITIAL = 0  # the number of the "message" that the initial weights are


class Job(NamedTuple):
    """One client of a call, as it is before."""

    id: int
    round: int
    message: int  # the number of the server's message that it has
    tensors: Parcel  # params, state
    more: dict[str, Any]  # what else its class remembers
    left: bool = False  # the weights that stayed here when it was trained take the place of those in `tensors`


class Reply(NamedTuple):
    """The same client afterwards; None where nothing changes."""

    tensors: Parcel | None  # params, state, upload
    train_loss: tuple[float, int]
    time_cost: dict[str, float]
    more: dict[str, Any]
    metrics: Metrics | None
    left: bool = False  # weights have stayed


def portable(maker: Any) -> Any:
    """A maker of clients that can be sent to another machine: the network on the CPU."""
    args = maker.args
    model = copy.deepcopy(args.model).cpu()
    return dataclasses.replace(maker, args=dataclasses.replace(args, model=model, device=torch.device("cpu")))


def packed(tensors: Tensors) -> dict[str, Packed]:
    return {name: Packed.of(value) for name, value in tensors.items()}


class Actor:
    """
    Args:
        maker: of the run's clients, see `portable`.
        device: the type of device to compute on.
        cores: for this actor; with several, several clients run at once.
        stack_size: see `StackedExecutor`, which runs on a GPU.
    """

    def __init__(self, maker: Any, device: str, cores: float, stack_size: int | str) -> None:
        args = maker.args
        torch.set_num_threads(args.num_threads)
        self.device = torch.device("cuda", 0) if device == "cuda" else torch.device(device)  # the one that Ray gives it
        self.maker = dataclasses.replace(
            maker, args=dataclasses.replace(args, model=args.model.to(self.device), device=self.device)
        )
        self.inner: LoopExecutor = ThreadsExecutor(int(cores)) if cores >= 2 else LoopExecutor()
        if self.device.type == "cuda":
            self.inner = StackedExecutor(stack_size)
        self.many = bool(args.eval_clients)
        self.forward: Any = None
        self.clients: dict[int, Any] = {}
        self.used: dict[int, int] = {}  # the last round
        self.held: dict[int, dict[str, Tensor]] = {}
        self.messages: dict[int, Tensors] = {}
        self.left: dict[int, Tensors] = {}  # trained weights by client that have stayed here

    def ready(self) -> int:
        """The number of this process, once it can work."""
        return os.getpid()

    def run(
        self,
        what: str,
        units: Sequence[Sequence[Job]],
        messages: dict[int, Any],
        gone: dict[int, set[str]],
        stay: Sequence[str] = (),
    ) -> list[Reply]:
        """Lets every client ``receive`` its message, ``train`` or be tested (``test``), those of a unit together.

        Args:
            messages: the server's, by number, each as a list with a reference to its place in Ray's store.
            gone: names of tensors by client that nobody refers to any more.
            stay: names of weights that stay here after training, for `sums`, if the client came out sound.
        """
        for client, names in gone.items():
            held = self.held.get(client, {})
            self.held[client] = {name: tensor for name, tensor in held.items() if name not in names}
            if not self.held[client]:
                del self.held[client]
        self._fetch(messages)
        jobs = [job for unit in units for job in unit]
        clients = {job.id: self._client(job) for job in jobs}
        scores: list[Metrics | None] = [None] * len(jobs)
        if what == "test":
            scores = [*self.inner.score([[clients[job.id] for job in unit] for unit in units])]
        elif what == "train":
            self.inner.train(list(clients.values()), lambda: None)
        else:
            for job in jobs:
                clients[job.id].receive(self.messages[job.message], job.round)
        if what == "train":
            for client in clients.values():
                self._keep(client, stay)
        replies = [self._reply(clients[job.id], job, score) for job, score in zip(jobs, scores, strict=True)]
        if self.many:
            latest = max(self.used.values())
            for i in [i for i, used in self.used.items() if used < latest - 1]:
                del self.used[i], self.clients[i]
        return replies

    def _keep(self, client: Any, names: Sequence[str]) -> None:
        """A sound client's named weights stay here; in their place go back those that came, which the driver has."""
        self.left.pop(client.id, None)  # of a round in which its upload was dropped
        if names and faults.is_sound(client):
            self.left[client.id] = {name: client.params[name] for name in names}
            client.params = client.params | {name: client.shared[name] for name in names}

    def sums(self, weights: dict[int, int]) -> dict[str, Packed]:
        """The sum of so many times each client's weights that have stayed here, which then go."""
        total: Tensors = {}
        for client, weight in weights.items():
            add_weighted(total, [*self.left[client]], self.left[client], weight)
        self.left = {}
        return packed(total)

    def _fetch(self, messages: dict[int, Any]) -> None:
        import ray

        for number in messages.keys() - self.messages:
            packed: dict[str, Packed] = ray.get(messages[number][0])
            self.messages[number] = {name: one.tensor(self.device) for name, one in packed.items()}
        self.messages = {number: self.messages[number] for number in messages}

    def _network(self, x: Tensor) -> Any:
        self.forward = self.forward or self.maker.client_class.network(self.maker.args, x)
        return self.forward

    def _client(self, job: Job) -> Any:
        if job.id not in self.clients:
            self.clients[job.id] = self.maker.make(job.id, self._network)
        client, held = self.clients[job.id], self.held.get(job.id, {})
        self.used[job.id] = job.round
        groups = job.tensors.opened(lambda n, name: held[name] if n == HELD else self.messages[n][name], self.device)
        client.round, client.shared = job.round, self.messages[job.message]
        client.params, client.state, client.upload = groups["params"], groups["state"], {}
        if job.left:
            client.params = client.params | self.left[job.id]
        client.train_time_cost = {"num_rounds": 0, "total_cost": 0.0}
        for name, value in job.more.items():
            setattr(client, name, value)
        self.held[job.id] = job.tensors.own(groups)
        return client

    def _reply(self, client: Any, job: Job, score: Metrics | None) -> Reply:
        """Between the calls the client is without tensors: what is its own is in `held`."""
        parcel = None
        if score is None:
            groups = {"params": client.params, "state": client.state, "upload": client.upload}
            known = [known_as(number, self.messages[number]) for number in (job.message, INITIAL)]
            parcel = Parcel.of(groups, [*known, known_as(HELD, self.held[job.id])])
            self.held[job.id] = parcel.own(groups)
        client.params, client.state, client.upload, client.shared = {}, {}, {}, {}
        more = {name: getattr(client, name) for name in job.more}
        left = job.id in self.left
        return Reply(parcel, client.train_loss, client.train_time_cost, more, score, left)
