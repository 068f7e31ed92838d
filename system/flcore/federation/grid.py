"""Flower's grid as the way to the clients: who is there, and one letter with its reply for each of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, TypeVar

from flcore.federation import flower
from flcore.federation.letters import Member, Order, Reply, from_records, to_records
from flcore.utils import interrupt
from flcore.utils.errors import RunError

PAUSE = 0.2  # seconds between two looks
TRIES = 3  # of one letter at one node that answers with an error

log = logging.getLogger(__name__)
Answer = TypeVar("Answer", Member, Reply)


class GridTransport:
    """
    Args:
        grid: of Flower's `ServerApp`.
        patience: seconds to wait for the clients at the start, and for the replies of a round. A node that goes and
            comes back meanwhile gets its letter again.
    """

    def __init__(self, grid: Any, patience: float) -> None:
        self.grid, self.patience = grid, patience
        self.node: dict[int, int] = {}  # of each client
        self.known: dict[int, Member | None] = {}  # of each node its client; None: it has not told
        self.asked: dict[str, int] = {}  # nodes that are asked who they are, by the letter
        self.reasons: dict[int, str] = {}  # why a node has not told

    def members(self, number: int | None) -> Mapping[int, Member]:
        """See `Transport`.

        Raises:
            RunError: some have not come in time.
        """
        deadline = time.monotonic() + self.patience
        while True:
            self._look()
            found = {member.client: member for member in self.known.values() if member}
            wanted = number or next((member.num_clients for member in found.values()), 1)
            if found.keys() >= set(range(wanted)):
                return found
            if time.monotonic() > deadline:
                reasons = "; ".join(self.reasons.values())
                missing = sorted(set(range(wanted)) - found.keys())
                raise RunError(
                    f"clients {missing} have not come within {self.patience:g} s" + (f": {reasons}" * bool(reasons))
                )
            interrupt.check()
            time.sleep(PAUSE)

    def exchange(self, orders: Mapping[int, Order]) -> Mapping[int, Reply | str]:
        deadline = time.monotonic() + self.patience
        answers: dict[int, Reply | str] = {}
        sent: dict[str, tuple[int, int]] = {}  # client and node, by the letter
        tries = dict.fromkeys(orders, 0)
        why = dict.fromkeys(orders, f"no answer within {self.patience:g} s")
        content = {client: to_records(order) for client, order in orders.items()}
        while len(answers) < len(orders) and time.monotonic() < deadline:
            present = self._look()
            waiting = set(sent.values())
            for client in orders.keys() - answers.keys():
                node = self.node.get(client)
                if node in present and (client, node) not in waiting and tries[client] < TRIES:
                    sent[self._push(content[client], node, "train")] = client, node
            for letter, reply in self._pull(list(sent)):
                client, node = sent.pop(letter)
                if client in answers:
                    continue  # of a node that was thought to be gone
                answer = read(Reply, reply)
                if isinstance(answer, str):
                    tries[client] += 1
                    why[client] = answer
                    if tries[client] == TRIES:
                        answers[client] = answer
                else:
                    answers[client] = answer
            interrupt.check()
            time.sleep(PAUSE)
        return {client: answers.get(client, why[client]) for client in orders}

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def _look(self) -> set[int]:
        """The nodes that are there; those that are new are asked for their client. One that came last has it."""
        present = set(self.grid.get_node_ids())
        for node in present - self.known.keys():
            self.known[node] = None
            self.asked[self._push(flower("app").RecordDict({}), node, "query")] = node
        for letter, reply in self._pull(list(self.asked)):
            node = self.asked.pop(letter)
            member = read(Member, reply)
            if isinstance(member, str):
                self.reasons[node] = member
                log.warning(f"a node is left out: {member}")
                continue
            before = self.node.get(member.client)
            if before in present and node != before:
                log.warning(f"client {member.client} has come again; its former node is not asked any more")
            if before is not None:
                self.known[before] = None
            self.known[node], self.node[member.client] = member, node
        return present

    def _push(self, content: Any, node: int, kind: str) -> str:
        message = flower("app").Message(content, dst_node_id=node, message_type=kind)
        return str(next(iter(self.grid.push_messages([message])), None))

    def _pull(self, letters: list[str]) -> list[tuple[str, Any]]:
        if not letters:
            return []
        found = self.grid.pull_messages(letters)
        return [(reply.metadata.reply_to_message_id, reply) for reply in found]


def read(kind: type[Answer], reply: Any) -> Answer | str:
    """What a node has answered, or why that cannot be used."""
    if reply.has_error():
        lines = str(reply.error.reason or "").strip().splitlines()
        return f"its node failed with code {reply.error.code}" + (f": {lines[-1]}" if lines else "")
    try:
        return from_records(kind, reply.content)
    except ValueError as error:
        return f"its reply cannot be read: {error}"
