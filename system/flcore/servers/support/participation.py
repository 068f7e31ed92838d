"""Who takes part in a run and in each of its rounds: clients, slow ones, attackers, draws, dropped uploads."""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from flcore.servers.support import faults
from flcore.servers.support.clients import Maker, ManyClients
from flcore.trainmodel.weights import Weights
from flcore.utils.errors import UsageError
from flcore.utils.seeds import numpy_generator

log = logging.getLogger(__name__)


class Participation:
    """A server's clients, and who of them takes part. Every draw is keyed by (seed, repeat, round, purpose) alone.

    Attributes:
        attackers: of each client whether it attacks (``--attack``).
    """

    def __init__(self, server: Any) -> None:
        self.server = server
        self.forward: Any = None  # the network that the clients of a rule share
        self.attackers = [False] * server.num_clients
        if server.args.attack != "none":
            self.attackers = faults.chosen(server.num_clients, server.args.attack_rate, self._draw("attackers"))

    def _draw(self, *key: int | str) -> np.random.Generator:
        return numpy_generator(self.server.args.seed, self.server.times, *key)

    # ---- the clients of a run ----------------------------------------------------------------------------------------

    def make_all(self, clientObj: Any) -> Sequence[Any]:
        """The clients 0 .. num_clients - 1; with --eval_clients each one is made when it is used first."""
        server, scored = self.server, self.server.evaluation.sample
        if scored is None:
            return self.make(clientObj, range(server.num_clients))
        log.info(f"--eval_clients: {len(scored)} of {server.num_clients} clients are scored, always the same")
        server.record(rs_scored=scored)
        return ManyClients(server.num_clients, lambda i: self.make(clientObj, [i])[0], {0, *scored.tolist()})

    def make(self, clientObj: Any, ids: Iterable[int]) -> list[Any]:
        """Clients of the class ``clientObj`` with their data; those of a rule share one network."""
        server = self.server
        slow = server.train_slow_clients, server.send_slow_clients
        maker = Maker(server.args, clientObj, self.attackers, *slow)

        clients = (maker.make(i, partial(self.network, clientObj), server.store) for i in ids)
        return [client.without_data() if server.args.executor == "ray" else client for client in clients]

    def network(self, clientObj: Any, x: torch.Tensor) -> Any:
        """One network for all clients of a rule, made for samples like x (n, ...): it only lends its structure. None
        for others.
        """
        if not self.forward:
            self.forward = clientObj.network(self.server.args, x)
            if self.forward:
                self.server.weights = Weights(self.forward.net)  # knows the rule's extra modules, should they be shared
        return self.forward

    def check(self) -> None:
        """Refuses clients that cannot train or be tested, and says who cannot take a single step.

        Raises:
            UsageError: there are no samples, or too few in a batch.
        """
        server, clients = self.server, self.server.clients
        looked_at = [] if isinstance(clients, ManyClients) else clients  # of many each when it is used
        for part in ("train", "test") if looked_at else ():
            if not any(getattr(client, f"{part}_samples") for client in clients):
                raise UsageError(f"no client of {server.dataset} has {part} samples; make the data set again")
        if server.batch_size == 1 and clients[0].has_BatchNorm:
            raise UsageError("-lbs 1: this model has BatchNorm, which cannot train on one sample; use -lbs 2 or more")
        idle = [client.id for client in looked_at if client.idle]
        if idle:
            log.warning(f"warning: clients {idle} have too few samples for a training step and are only scored.")

    # ---- faults ------------------------------------------------------------------------------------------------------

    def slow(self, rate: float, kind: str) -> list[bool]:
        """Who is slow: exactly the share ``rate`` of the clients, rounded down; ``kind`` keys the draw."""
        return faults.chosen(self.server.num_clients, rate, self._draw(kind))

    def describe_faults(self) -> None:
        """One line for each kind of fault that is simulated, and for what has no effect on this method."""
        server, args = self.server, self.server.args
        for kind, who in (
            ("slow in training", server.train_slow_clients),
            ("slow in sending", server.send_slow_clients),
            (f"attackers ({args.attack})", self.attackers),
        ):
            if any(who):
                log.info(f"{kind}: clients {np.flatnonzero(who).tolist()}, {sum(who)} of {server.num_clients}")
        if args.attack != "none" and not any(self.attackers):
            log.warning(f"note: --attack_rate {args.attack_rate:g} of {server.num_clients} clients is nobody")
        if any(self.attackers):
            server.record(rs_attackers=np.array(self.attackers, dtype=int))
        if args.aggregate != "mean" and (server.own_loop or not server.method.averages):
            log.warning(f"note: --aggregate has no effect on {server.algorithm}, whose server takes no mean")
        if args.attack in ("signflip", "noise") and server.own_loop:
            log.warning(f"note: --attack {args.attack} has no effect on {server.algorithm}, which sends no messages")

    # ---- the participants of a round ---------------------------------------------------------------------------------

    def select(self) -> list[Any]:
        """This round's participants, drawn without replacement."""
        server = self.server
        draw = self._draw(server.current_round, "select")
        number = server.num_join_clients
        if server.random_join_ratio:
            number = int(draw.integers(server.num_join_clients, server.num_clients + 1))
        server.current_num_join_clients = number
        if number == server.num_clients:
            return list(server.clients)
        return [server.clients[i] for i in sorted(draw.choice(server.num_clients, number, replace=False).tolist())]

    def audience(self) -> Sequence[Any]:
        """Who gets this round's message: all clients, so that all can be scored; of many those that are scored, and the
        participants. The others take the message of the round that they are needed in.
        """
        server = self.server
        if not isinstance(server.clients, ManyClients):
            return server.clients
        ids = {client.id for client in server.selected_clients}.union(server.evaluation.sample.tolist())
        return [server.clients[i] for i in sorted(ids)]

    def arriving(self) -> list[Any]:
        """The participants whose upload is not lost: the share ``-cdr`` of them, rounded down, is, so never all."""
        selected = self.server.selected_clients
        number = len(selected) - int(self.server.client_drop_rate * len(selected) + 1e-9)
        kept = self._draw(self.server.current_round, "drop").choice(len(selected), number, replace=False)
        return [selected[i] for i in sorted(kept)]
