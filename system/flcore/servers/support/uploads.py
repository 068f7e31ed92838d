"""A round's participants on their way from training to the aggregation: who is left out, who is late, what arrives."""

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flcore.clients.support import privacy
from flcore.servers.messages import (
    CLASS_MEANS,
    NOT_FINITE,
    Layout,
    add_weighted,
    defect,
    expected_layout,
    message_bytes,
    weighted_mean,
)
from flcore.servers.roundloop import samples_trained
from flcore.servers.support import faults
from flcore.servers.support.robust import robust_mean, robust_prototypes
from flcore.trainmodel.forward import Tensors
from flcore.utils.errors import RunError
from flcore.utils.seeds import torch_generator

log = logging.getLogger(__name__)

# Bytes of trained weights that wait for their aggregation, by the type of device; at least `SMALLEST_PART` clients.
WAITING = {"cpu": 2**28, "cuda": 2**32}
SMALLEST_PART = 16


class RoundUploads:
    """What one round's participants have sent; a new one for each round.

    Where the server needs no more of some weights than their mean, a large round comes in parts: the uploads of one are
    added up and its clients' trained weights released before the next one trains, so that a thousand clients do not
    need a thousand models in memory.
    """

    def __init__(self, server: Any) -> None:
        self.server, self.round = server, server.current_round
        self.left_out: set[int] = set()  # clients whose training or upload cannot be used
        self.late: list[int] = []  # over the limit of -ts
        self.seconds = 0.0  # simulated: the slowest client's, at most the limit
        self.before: dict[int, faults.Snapshot] = {}  # what clients had before they trained
        self.seen: set[int] = set()  # whose upload was looked at, arrived or not
        self.clients: list[Any] = []  # whose upload is taken
        self.messages: list[Tensors] = []
        self.bytes = 0
        self.added: list[str] = []  # names of weights that are added up at once
        self.there = False  # by the executor, where they were trained
        self.sums: Tensors = {}  # of n_i times the weights
        self.samples = 0  # of the clients in `sums`
        self.layouts: dict[tuple[str, ...], Layout] = {}  # of uploads, by what they may hold: that of the first part

    def parts(self, clients: list[Any]) -> list[list[Any]]:
        """The round's participants in parts of a bounded size, or in one if the server reads every upload."""
        server = self.server
        whole = server.args.aggregate != "mean" or server.dlg_eval
        names = () if whole else [name for name in server.shared_weights() if name.startswith(server.method.means_only)]
        if not names:
            return [clients]
        one = sum(server.global_params[name].nbytes for name in names)
        size = max(SMALLEST_PART, WAITING.get(server.device.type, WAITING["cpu"]) // one)
        parts = [clients[start : start + size] for start in range(0, len(clients), size)]
        received = [name for name in names if name.startswith(server.rule.replaced)]  # the others are read again
        self.there = server.executor.adds and server.args.attack not in faults.ON_UPLOADS and bool(received)
        self.added = received if self.there else names if len(parts) > 1 else []
        return parts

    def train_all(self, scored: bool) -> dict[int, float]:
        """Trains the round's participants, part by part; their accuracies afterwards (point B) if they are ``scored``,
        by their numbers.

        Raises:
            RunError: none of them came out with finite values.
        """
        server, selected = self.server, self.server.selected_clients
        accuracies: dict[int, float] = {}
        count = iter(range(1, len(selected) + 1))

        def done() -> None:
            server.check_interrupt()
            server.recorder.client_done(next(count), len(selected))

        parts = self.parts(selected)
        for number, part in enumerate(parts, 1):
            for observer in server.observers:
                observer.on_training(part)
            self.train(part, done)
            if scored:
                measured = server.evaluation.scored(part)
                found = server.evaluation.accuracies(measured)
                accuracies |= {client.id: value for client, value in zip(measured, found, strict=True)}
            if number < len(parts):
                self.accept(part)
                for client in part:
                    client.release()
        if self.left_out.issuperset(client.id for client in selected):
            raise server.diverged("no participant is left")
        return accuracies

    def train(self, clients: Sequence[Any], done: Callable[[], object]) -> list[Any]:
        """Trains the clients. One that comes out with values that are not finite is left out of this round and gets
        back what it had before; returned are the others.
        """
        self.before = {client.id: faults.Snapshot.of(client) for client in clients}
        executor = self.server.executor
        if self.there:
            executor.train_there(clients, done, self.added)
        else:
            executor.train(clients, done)
        bad = [client for client in clients if not faults.is_sound(client)]
        self.leave_out(bad, "their training loss or weights are not finite")
        return [client for client in clients if client.id not in self.left_out]

    def leave_out(self, clients: list[Any], why: str) -> None:
        """Says which clients are left out and ``why``, and restores those that have just trained.

        Raises:
            RunError: with ``--on_nan stop``.
        """
        if not clients:
            return
        ids = [client.id for client in clients]
        if self.server.args.on_nan == "stop":
            raise self.server.diverged(f"clients {ids}: {why} (--on_nan stop)")
        for client in clients:
            if client.id in self.before:
                self.before[client.id].restore(client)
        self.left_out.update(ids)
        log.warning(f"round {self.server.current_round}: clients {ids} left out, {why}")

    @cached_property
    def arriving(self) -> set[int]:
        """Clients whose upload is not dropped."""
        return {client.id for client in self.server.active_clients()}

    def accept(self, clients: list[Any]) -> None:
        """Takes those uploads of the trained ``clients`` that arrive, in time and without a defect."""
        server = self.server
        received = message_bytes(server.last_message)
        limit = server.time_threthold if server.time_select else float("inf")
        self.seen.update(client.id for client in clients)
        arriving = [client for client in clients if client.id not in self.left_out and client.id in self.arriving]
        before = len(self.clients)
        for client, upload in self.usable(arriving, server.method.extras):
            size = message_bytes(upload)
            seconds = faults.simulated_seconds(client, received + size)
            self.seconds = max(self.seconds, min(seconds, limit))
            if seconds > limit:
                self.late.append(client.id)
            else:
                self.bytes += size
                self.clients.append(client)
                self.messages.append(self._add(client, upload) if self.added else upload)
        if self.there and (taken := self.clients[before:]):
            add_weighted(self.sums, self.added, server.executor.sums(taken, self.added), 1)

    def usable(self, clients: list[Any], extras: tuple[str, ...]) -> list[tuple[Any, Tensors]]:
        """The clients whose upload has no defect, each with it; the others are left out.

        Args:
            extras: prefixes of the names that an upload may hold beside weights and class means.

        Raises:
            RunError: all have the same defect, other than values that are not finite: it is the method's.
        """
        server = self.server
        weights = server.shared_weights() if server.method.weights_up else {}
        extras += CLASS_MEANS if server.method.prototypes else ()
        uploads = [self.upload_of(client) for client in clients]
        expected = self.layouts.setdefault(extras, expected_layout(weights, uploads, extras, server.needs))
        nobody = "" if expected.keys() >= set(server.needs) else f"lacks {' or '.join(server.needs)}"
        defects = [nobody or defect(upload, expected) for upload in uploads]
        reasons = list(dict.fromkeys(defects))
        if len(clients) > 1 and len(reasons) == 1 and reasons[0] and not reasons[0].endswith(NOT_FINITE):
            raise RunError(f"{server.algorithm}: every client's upload {reasons[0]}")
        for reason in filter(None, reasons):
            bad = [client for client, its in zip(clients, defects, strict=True) if its == reason]
            self.leave_out(bad, f"their upload {reason}")
        found = zip(clients, uploads, defects, strict=True)
        return [(client, upload) for client, upload, reason in found if not reason]

    def _add(self, client: Any, upload: Tensors) -> Tensors:
        """Adds up the weights of which only the mean is needed; returns the rest of the upload."""
        if not self.there:
            add_weighted(self.sums, self.added, upload, samples_trained(client))
        self.samples += samples_trained(client)
        return {name: value for name, value in upload.items() if name not in self.added}

    def means(self, names: list[str]) -> Tensors:
        """Those of the named weights that were added up, as means by n_i."""
        return {
            name: self.sums[name] / self.samples if self.sums[name].is_floating_point() else self.sums[name]
            for name in names
            if name in self.sums
        }

    def combine(self, names: list[str], messages: list[Tensors], weights: list[float]) -> Tensors:
        """One value for each named tensor, as --aggregate says: the weighted mean, or one without the outliers."""
        args = self.server.args
        if args.aggregate == "mean" or not names:
            added = self.means(names)
            return added | weighted_mean([name for name in names if name not in added], messages, weights)
        trained = [message for message, weight in zip(messages, weights, strict=True) if weight]
        stacks = {name: torch.stack([message[name] for message in trained]) for name in names}
        return robust_mean(stacks, args.aggregate, args.trim)

    def filter_prototypes(self, prototypes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The same for prototypes (N, C, ...) and counts (N, C), which stay as they came for a mean."""
        args = self.server.args
        if args.aggregate == "mean":
            return prototypes, counts
        return robust_prototypes(prototypes, counts, args.aggregate, args.trim)

    def upload_of(self, client: Any) -> Tensors:
        """What reaches the server from a client, as an attacker has left it."""
        server = self.server
        upload: Tensors = client.message(server.shares if server.method.weights_up else ())
        if server.args.attack not in faults.ON_UPLOADS or not server.participation.attackers[client.id]:
            return upload
        draw = torch_generator(server.args.seed, server.times, server.current_round, client.id, "attack")
        return faults.attacked(upload, client.shared, server.args.attack, server.args.attack_scale, draw)

    def examine(self) -> None:
        """What these uploads gave away: ``-dlg``'s rating, and the privacy spent so far."""
        server = self.server
        if server.dlg_eval and server.current_round % server.dlg_gap == 0:
            server.call_dlg(server.current_round)
        if server.privacy:
            releases = server.records.get("rs_dp_releases", [np.zeros(server.num_clients, dtype=np.int64)])[-1].copy()
            releases[[client.id for client in server.selected_clients]] += 1  # also if the upload was lost on the way
            spent = privacy.epsilon(server.args.proto_noise, releases.max(), server.args.dp_delta)
            server.record(rs_dp_releases=releases, rs_dp_epsilon=spent)
