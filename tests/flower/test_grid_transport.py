"""The way to nodes over Flower's grid."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

pytest.importorskip("flwr", reason='needs Flower: pip install "fedsoft[flower]"')

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedsoft.flower.node.client_app import RECORD
from fedsoft.flower.server import grid_transport
from fedsoft.flower.server.grid_transport import GridTransport

from .grids import OwnGrid


class Behind(OwnGrid):
    """One node that sends each reply only when the next message comes; and one that does not."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.held: list[Message] = []
        self.sent: dict[str, Message] = {}
        self.kinds: list[tuple[int, str]] = []

    def get_node_ids(self) -> Iterable[int]:
        return [1, 2]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        keys = []
        for message in messages:
            node, key = message.metadata.dst_node_id, str(next(self.numbers))
            message.metadata.__dict__["_message_id"] = key
            self.kinds.append((node, str(message.content[RECORD]["head"])))
            reply = Message(RecordDict({RECORD: ConfigRecord({"head": f"to {key}", "body": b""})}), reply_to=message)
            if node == 1:
                self.held.append(reply)
                reply = self.held.pop(0) if len(self.held) > 1 else None
            if reply is not None:
                self.sent[reply.metadata.reply_to_message_id] = reply
            keys.append(key)
        return keys

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.sent.pop(key) for key in message_ids if key in self.sent]


def test_a_node_that_is_one_message_behind_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1, raising=False)
    monkeypatch.setattr(grid_transport, "NUDGE", 0.3)
    grid = Behind()
    transport = GridTransport(grid)
    for _ in range(2):
        found = dict(transport.exchange({1: ("job", b"x"), 2: ("job", b"x")}, seconds=20))
        assert found.keys() == {1, 2}
        assert all(isinstance(answer, tuple) for answer in found.values())
    sent = [(node, "nudge" in head) for node, head in grid.kinds]
    assert sent == [(1, False), (2, False), (1, True)] * 2
    assert transport.late() == []
