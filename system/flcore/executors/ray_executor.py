"""The clients of a round spread over the processes of a Ray cluster (``-ex ray``), with the loop's numbers.

An actor makes its clients itself, so that data are read where they are used, keeps data and personal tensors from round
to round, and runs its share of a round with `threads` (one core: the loop), or `stacked` on a GPU. What a client draws
is keyed by seed, round and client, so it does not matter where it trains.

The driver's clients stay the truth: after every round they hold, in memory or in --state_dir, what each participant
came out with. A call takes to an actor only what it does not have, and brings back only what has changed (`Parcel`);
the server's message is put into Ray's object store once. So an actor that is lost takes nothing along: its clients are
sent to others as they were before the round, and trained there again.

Clients go longest first to the actor with the least to do, but one whose tensors an actor has stays there unless that
actor would be the last to finish by more than a tenth.
"""

from __future__ import annotations

import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from flcore.clients.localrule import LocalRule
from flcore.clients.support.metrics import Metrics
from flcore.executors.loop import LoopExecutor, units
from flcore.executors.ray_actor import INITIAL, Actor, Job, Reply, packed, portable
from flcore.executors.ray_connection import connect, first_line
from flcore.executors.ray_tensors import HELD, Parcel, Table, known_as
from flcore.servers.messages import add_weighted
from flcore.servers.roundloop import samples_trained
from flcore.trainmodel.forward import Tensors, tensors_of
from flcore.utils.errors import RunError, UsageError
from flcore.utils.runs.run_state import remembered

log = logging.getLogger(__name__)

START_SECONDS = 300.0  # within which the cluster has room for at least one actor
SLACK = 1.1  # of the mean load that an actor may have before a client moves away from it
MOST_LOSSES = 3  # in one round, for each actor
MESSAGES = 4  # of the server, that are kept in Ray's store

Unit = list[Any]  # clients that are computed together


class Slot:
    """An actor, and what the driver knows of it."""

    def __init__(self, handle: Any) -> None:
        self.handle, self.table = handle, Table()
        self.started = handle.ready.remote()


class RayExecutor(LoopExecutor):
    """
    Args:
        address: of a cluster, such as "auto" or "host:6379"; None: one of this machine alone, for this run.
        actors: how many; 0: one a GPU with -dev cuda, else one a core.
        stack_size: see `StackedExecutor`.
        sums: trained weights of which the server needs the sum alone stay in the actors, each of which sends one sum.
            The order of the additions is then not the loop's.

    Raises:
        UsageError: Ray is not installed, or there is no such cluster.
    """

    name = "ray"

    def __init__(
        self, address: str | None = None, actors: int = 0, stack_size: int | str = "auto", sums: bool = False
    ) -> None:
        self.ray, self.mine = connect(address, "-ex ray")
        self.number, self.stack_size, self.adds = actors, stack_size, sums
        self.num_workers = actors or int(self.ray.cluster_resources().get("CPU", 1))  # that run at the same time
        self.slots: list[Slot] = []
        self.starting: list[Slot] = []
        self.home: dict[int, Slot] = {}  # of each client
        self.before: dict[int, dict[str, Any]] = {}  # clients whose trained weights stay in an actor, before that
        self.stay: Sequence[str] = ()  # the names of those weights
        self.losses = 0  # of actors in this round
        self._start: Callable[[], Slot] | None = None
        self.asked = False  # for actors, once
        self._initial: tuple[list[Any], dict[Any, Any]] = [], {}
        self._messages: OrderedDict[int, tuple[Tensors, int, list[Any], dict[Any, Any]]] = OrderedDict()  # by id
        self._last_number = INITIAL

    # ---- what an executor does ---------------------------------------------------------------------------------------

    def receive(self, clients: Sequence[Any], message: Tensors, current_round: int) -> None:
        """A plain merge needs no data and happens here; what is more than that happens where the data are."""
        self.before, self.losses = {}, 0
        far = [client for client in clients if travels(client) and merges(client)]
        near = [client for client in clients if not (travels(client) and merges(client))] if far else clients
        super().receive(near, message, current_round)
        for client in far:
            client.round, client.shared = current_round, message
        self._run("receive", [[client] for client in far], lambda: None)

    def train(self, clients: Sequence[Any], done: Callable[[], object]) -> None:
        if not all(map(travels, clients)):
            return super().train(clients, done)
        self._run("train", [[client] for client in clients], done)

    def train_there(self, clients: Sequence[Any], done: Callable[[], object], stay: Sequence[str]) -> None:
        """`train`, but the weights named by ``stay`` remain in the actors, if they can, until `sums` is called.

        Meanwhile the clients hold those that they had received; `test` goes by the trained ones. One whose actor is
        lost trains again.
        """
        if not all(map(travels, clients)):
            return super().train(clients, done)
        for client in clients:
            own = {name: getattr(client, name) for name in (*remembered(client), "upload")}
            self.before[client.id] = own | {"train_time_cost": dict(client.train_time_cost)}
        self.stay = stay
        self._run("train", [[client] for client in clients], done, stay)

    def sums(self, clients: Sequence[Any], names: list[str]) -> Tensors:
        """The sum over the clients, trained by `train_there`, of n_i times their named weights; these are then gone."""
        total: Tensors = {}
        for client in clients:
            if client.id not in self.before:  # it came back whole
                add_weighted(total, names, client.params, samples_trained(client))
        far = [client for client in clients if client.id in self.before]
        found: list[tuple[int, Tensors]] = []
        while far:
            self._train_lost(far)
            calls = []
            for slot in self.slots:
                weights = {client.id: samples_trained(client) for client in far if self.home[client.id] is slot}
                if weights:
                    calls.append((slot, weights, slot.handle.sums.remote(weights)))
            for slot, weights, reference in calls:
                try:
                    came = self._get(reference)
                except self.ray.exceptions.RayError as error:
                    self._lost(slot, error, len(weights))
                    continue
                far = [client for client in far if client.id not in weights]
                found.append((min(weights), {name: one.tensor(clients[0].device) for name, one in came.items()}))
        for _, part in sorted(found, key=lambda one: one[0]):  # not in the order of their coming
            add_weighted(total, names, part, 1)
        self.before = {}
        return total

    def test(self, clients: Sequence[Any]) -> list[Metrics]:
        if not all(map(travels, clients)):
            return super().test(clients)
        whole = [client for client in clients if client.id not in self.before]
        alone = [[client] for client in clients if client.id in self.before]  # its weights here are not its own
        found = self._run("test", units(whole) + alone, lambda: None)
        return [found[client.id] for client in clients]

    def close(self) -> None:
        for slot in (*self.slots, *self.starting):
            self.ray.kill(slot.handle)
        self.slots, self.starting = [], []
        if self.mine:
            self.ray.shutdown()

    # ---- actors ------------------------------------------------------------------------------------------------------

    def _prepare(self, client: Any) -> None:
        """Starts the actors before the first call; later takes in those that have started meanwhile."""
        if self._start is None:
            self._begin(client)
        while self.starting:
            timeout = 0.0 if self.slots else START_SECONDS
            ready, _ = self.ray.wait([slot.started for slot in self.starting], timeout=timeout)
            if not ready:
                break
            slot = next(slot for slot in self.starting if slot.started == ready[0])
            self.starting.remove(slot)
            try:
                self.ray.get(slot.started)
            except self.ray.exceptions.RayTaskError as error:
                raise (error.cause or error) from None
            except self.ray.exceptions.RayError as error:
                log.warning(f"ray: an actor did not start: {first_line(error)}")
                continue
            self.slots.append(slot)
        if self.number > len(self.slots) and not self.asked:
            log.warning(f"ray: there was room for {len(self.slots)} of {self.number} actors; others join later")
        self.asked = True
        if not self.slots:
            raise RunError(f"Ray has had no room for an actor within {START_SECONDS:g} s; it needs a core or a GPU")

    def _begin(self, client: Any) -> None:
        ray, device = self.ray, client.device.type
        there = ray.cluster_resources()
        cores, cards = there.get("CPU", 1.0), there.get("GPU", 0.0)
        if device == "cuda" and not cards:
            raise UsageError("-ex ray -dev cuda: the cluster has no GPU that Ray knows of")
        number = self.number or int(cards if device == "cuda" else cores) or 1
        share = {"num_cpus": shared_out(cores, number)}
        if device == "cuda":
            share["num_gpus"] = shared_out(cards, number)
        initial = tensors_of(client._network)
        self._initial = [ray.put(packed(initial))], known_as(INITIAL, initial)
        by_value(client.args.model, ray.cloudpickle)
        maker = ray.put(portable(client.source))
        remote = ray.remote(Actor).options(**share)
        self._start = lambda: Slot(remote.remote(maker, device, share["num_cpus"], self.stack_size))
        self.number, self.starting = number, [self._start() for _ in range(number)]
        each = ", ".join(f"{name.removeprefix('num_')} {amount:g}" for name, amount in share.items())
        log.info(f"ray: {number} actors with {each} each, on {len(ray.nodes())} machines")
        ray.wait([slot.started for slot in self.starting], num_returns=number, timeout=START_SECONDS)

    def _get(self, reference: Any) -> Any:
        """What a call gives; an error of the code in it as it was raised there."""
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            raise (error.cause or error) from None

    def _lost(self, slot: Slot, error: Exception, clients: int) -> None:
        self.losses += 1
        if self.losses > MOST_LOSSES * (len(self.slots) + 1):
            raise RunError(f"{self.losses} actors of Ray were lost in one round: {first_line(error)}") from None
        log.warning(f"ray: an actor was lost ({first_line(error)}); {clients} clients run again elsewhere")
        if slot in self.slots and self._start:
            self.slots.remove(slot)
            self.home = {client: home for client, home in self.home.items() if home is not slot}
            self.starting.append(self._start())

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _run(
        self, what: str, groups: list[Unit], done: Callable[[], object], stay: Sequence[str] = ()
    ) -> dict[int, Metrics]:
        """Has the units of clients received, trained or tested by the actors; the metrics by client."""
        ray, found = self.ray, dict[int, Metrics]()
        waiting: dict[Any, tuple[Slot, list[Unit], list[Job]]] = {}
        if groups:
            waiting |= self._hand_out(what, groups, stay)
        while waiting:
            ready, _ = ray.wait(list(waiting))
            slot, share, jobs = waiting.pop(ready[0])
            clients = [client for unit in share for client in unit]
            try:
                replies: list[Reply] = self._get(ready[0])
            except ray.exceptions.RayError as error:
                self._lost(slot, error, len(clients))
                waiting |= self._hand_out(what, share, stay)
                continue
            for client, job, reply in zip(clients, jobs, replies, strict=True):
                take(client, slot, job, reply, what)
                if stay and not reply.left:
                    del self.before[client.id]
                if reply.metrics is not None:
                    found[client.id] = reply.metrics
                done()
        return found

    def _train_lost(self, clients: Sequence[Any]) -> None:
        """Trains again those whose trained weights have stayed in an actor that is lost."""
        while lost := [client for client in clients if client.id in self.before and client.id not in self.home]:
            for client in lost:
                for name, value in self.before[client.id].items():
                    setattr(client, name, dict(value) if name == "train_time_cost" else value)
            self._run("train", [[client] for client in lost], lambda: None, self.stay)

    def _hand_out(
        self, what: str, groups: list[Unit], stay: Sequence[str] = ()
    ) -> dict[Any, tuple[Slot, list[Unit], list[Job]]]:
        self._prepare(groups[0][0])
        if what == "test":
            self._train_lost([client for unit in groups for client in unit])
        waiting = {}
        for slot, share in self._balance(groups, what == "test"):
            places = {INITIAL: self._initial[0]}
            jobs = [[self._job(client, slot, places, what == "test") for client in unit] for unit in share]
            reference = slot.handle.run.remote(what, jobs, places, slot.table.take_gone(), stay)
            waiting[reference] = slot, share, [job for unit in jobs for job in unit]
        return waiting

    def _balance(self, groups: list[Unit], test: bool) -> list[tuple[Slot, list[Unit]]]:
        """Which actor gets which units; see the top of this file."""
        samples = "test_samples" if test else "train_samples"
        sizes = {id(unit): 1 + sum(getattr(client, samples) for client in unit) for unit in groups}
        most = max(SLACK * sum(sizes.values()) / len(self.slots), *sizes.values(), 0)
        loads = {id(slot): 0 for slot in self.slots}
        shares: dict[int, list[Unit]] = {id(slot): [] for slot in self.slots}
        for unit in sorted(groups, key=lambda unit: -sizes[id(unit)]):
            home = self.home.get(unit[0].id)
            bound = test and unit[0].id in self.before  # to where its trained weights are
            if home is None or (loads[id(home)] + sizes[id(unit)] > most and not bound):
                home = min(self.slots, key=lambda slot: loads[id(slot)])
            loads[id(home)] += sizes[id(unit)]
            shares[id(home)].append(unit)
            for client in () if test else unit:
                before = self.home.setdefault(client.id, home)
                if before is not home:
                    self.home[client.id] = home
                    before.table.forget(client.id)
        return [(slot, shares[id(slot)]) for slot in self.slots if shares[id(slot)]]

    def _job(self, client: Any, slot: Slot, places: dict[int, Any], test: bool) -> Job:
        groups = {"params": client.params, "state": client.state}
        number, place, known = self._message(client.shared)
        places[number] = place
        parcel = Parcel.of(groups, [known, self._initial[1], slot.table.known(client.id)])
        slot.table.update(client.id, parcel.own(groups))
        more = {name: getattr(client, name) for name in remembered(client)[len(LASTING) :]}
        return Job(client.id, client.round, number, parcel, more, test and client.id in self.before)

    def _message(self, message: Tensors) -> tuple[int, list[Any], dict[Any, Any]]:
        """Its number, its place in Ray's store, and its tensors by identity; one without tensors is always the same."""
        key = id(message) if message else 0
        if key not in self._messages:
            self._last_number += 1
            place = [self.ray.put(packed(message))]
            self._messages[key] = message, self._last_number, place, known_as(self._last_number, message)
            if len(self._messages) > MESSAGES:
                self._messages.popitem(last=False)
        self._messages.move_to_end(key)
        return self._messages[key][1:]


LASTING = ("params", "state", "round", "train_loss", "train_time_cost", "send_time_cost")  # of every client


def travels(client: Any) -> bool:
    """Whether an actor can run it; one that brings its own training (PFLlib's) stays here."""
    return bool(client.parallel and client.source)


def merges(client: Any) -> bool:
    """Whether it takes a message in a way of its own."""
    return bool(client.begins() or type(client).receive is not LocalRule.receive)


def take(client: Any, slot: Slot, job: Job, reply: Reply, what: str) -> None:
    """Takes over what a client came out with."""
    if reply.tensors is None:
        return
    before = job.tensors.own({"params": client.params, "state": client.state})

    def find(number: int, name: str) -> Any:
        if number == HELD:
            return before[name]
        return client.shared[name] if number == job.message else tensors_of(client._network)[name]

    groups = reply.tensors.opened(find, client.device)
    client.params, client.state = groups["params"], groups["state"]
    slot.table.update(client.id, reply.tensors.own(groups))
    for name, value in reply.more.items():
        setattr(client, name, value)
    if what == "train":
        client.upload, client.train_loss = groups["upload"], reply.train_loss
        for name, value in reply.time_cost.items():
            client.train_time_cost[name] += value


def shared_out(amount: float, number: int) -> float:
    """The share of each of ``number`` actors, which together must not ask for more than there is; whole above 1."""
    share = amount / number
    return float(int(share)) if share >= 1 else int(share * 10000) / 10000


def by_value(model: Any, cloudpickle: Any) -> None:
    """Has the code of a user's network sent along, which no other process can import."""
    for name in {type(module).__module__ for module in model.modules()}:
        if name.startswith("user_network_"):
            cloudpickle.register_pickle_by_value(sys.modules[name])
