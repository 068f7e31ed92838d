"""Nodes that go, come back, fail and stay away, on a double of Flower's grid."""

from types import SimpleNamespace

import pytest
import torch

from flcore.federation import grid as grids
from flcore.federation.grid import GridTransport
from flcore.federation.letters import Member, Order, Reply, to_records
from flcore.utils.errors import RunError

app = pytest.importorskip("flwr.app")

ORDER = Order(0, 1, True, True, -1, False, {"w": torch.ones(2)})


def member(client):
    return Member(client, 10, 4, False, 2, 3, [1, 20, 20], "a", "b")


def reply(order):
    return Reply(order["numbers"]["round"], 4, 3, 0.5, 4, 0.5, 2.0, 8, True, False, {"w": torch.zeros(2)})


class Grid:
    """``nodes[id]`` -> a function of (kind, content) that gives a letter, an error's text, or None for no answer."""

    def __init__(self, **nodes):
        self.nodes = {int(name[1:]): answer for name, answer in nodes.items()}
        self.replies, self.count, self.asked = {}, 0, []

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        for message in messages:
            self.count += 1
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            self.asked.append((node, kind))
            answer = self.nodes[node](kind, message.content)
            failed = isinstance(answer, str)
            if answer is not None:
                self.replies[str(self.count)] = SimpleNamespace(
                    has_error=lambda failed=failed: failed,
                    error=SimpleNamespace(code=2, reason=answer),
                    content=None if failed else to_records(answer),
                    metadata=SimpleNamespace(reply_to_message_id=str(self.count)),
                )
            yield str(self.count)

    def pull_messages(self, ids):
        return [self.replies.pop(letter) for letter in ids if letter in self.replies]


def node(client, answer=reply):
    return lambda kind, content: member(client) if kind == "query" else answer(content)


def letter(content, dst_node_id, message_type):
    return SimpleNamespace(
        content=content, metadata=SimpleNamespace(dst_node_id=dst_node_id, message_type=message_type)
    )


@pytest.fixture(autouse=True)
def outside_of_a_run(monkeypatch):
    monkeypatch.setattr(grids, "PAUSE", 0.01)
    monkeypatch.setattr(app, "Message", letter)  # Flower's own asks for the run's identity


def test_every_client_is_found_and_answers():
    transport = GridTransport(Grid(n7=node(1), n8=node(0)), 1)
    assert sorted(transport.members(None)) == [0, 1]
    answers = transport.exchange({0: ORDER, 1: ORDER})
    assert [answers[i].correct_after for i in (0, 1)] == [4, 4]


def test_who_has_not_come_in_time_is_named_with_the_reason():
    transport = GridTransport(Grid(n7=node(1), n8=lambda kind, content: "UsageError: no such file"), 0.1)
    with pytest.raises(RunError, match=r"clients \[0\] have not come within 0.1 s: .*UsageError: no such file"):
        transport.members(2)


def test_a_node_that_comes_back_gets_its_letter_again():
    """The former one is silent, but Flower takes it for present until its heartbeat is missed."""
    grid = Grid(n1=node(0))
    transport = GridTransport(grid, 2)
    transport.members(1)

    def killed(content):
        grid.nodes[2] = node(0)
        return None

    grid.nodes[1] = node(0, killed)
    assert transport.exchange({0: ORDER})[0].correct == 3
    assert grid.asked == [(1, "query"), (1, "train"), (2, "query"), (2, "train")]


def test_a_failure_is_tried_again_three_times_at_most():
    grid, failures = Grid(n1=node(0)), ["one", "two"]
    transport = GridTransport(grid, 2)
    transport.members(1)
    grid.nodes[1] = node(0, lambda content: failures.pop() if failures else reply(content))
    assert transport.exchange({0: ORDER})[0].correct == 3
    grid.nodes[1] = node(0, lambda content: "RunError: no room")
    assert transport.exchange({0: ORDER})[0] == "its node failed with code 2: RunError: no room"


def test_patience_ends_with_what_there_is():
    grid = Grid(n1=node(0), n2=node(1))
    transport = GridTransport(grid, 0.1)
    transport.members(2)
    grid.nodes[2] = node(1, lambda content: None)
    answers = transport.exchange({0: ORDER, 1: ORDER})
    assert isinstance(answers[0], Reply) and answers[1] == "no answer within 0.1 s"
