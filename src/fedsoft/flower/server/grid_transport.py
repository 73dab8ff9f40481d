"""Messages over Flower's grid."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsoft.flower.node.client_app import RECORD
from fedsoft.flower.server.identity import fingerprint
from fedsoft.flower.server.superlink_watch import WatchedGrid
from fedsoft.flower.wire import Packed, WireMessage

POLL = 0.2  # seconds between two looks for answers; Flower's own loop takes 3
# A SuperNode whose run was stopped while it held a message may be one behind from then on: it sends each reply only
# when the next message comes. So a node that has not answered after NUDGE seconds is sent an empty message.
NUDGE = 20.0
EMPTY = WireMessage({"kind": "nudge"}, {}).packed()


class GridTransport:
    """A `Transport` over Flower's grid."""

    def __init__(self, grid: Grid) -> None:
        self.grid = WatchedGrid(grid)
        self.overdue: dict[str, int] = {}  # messages whose time is over, with their nodes
        self.came_late: list[int] = []

    def nodes(self) -> dict[int, str]:
        return {node.node_id: fingerprint(node.public_key) for node in self.grid.get_nodes()}

    def exchange(self, messages: Mapping[int, Packed], seconds: float) -> Iterator[tuple[int, Packed | str]]:
        end, nudge = time.monotonic() + seconds, time.monotonic() + NUDGE
        sent = self.grid.push_messages([_message(node, packed, seconds) for node, packed in messages.items()])
        pending = {key: node for key, node in zip(sent, messages, strict=True) if key}
        while pending and time.monotonic() < end:
            for reply in self.grid.pull_messages([*pending, *self.overdue]):
                key = reply.metadata.reply_to_message_id
                if key in self.overdue:
                    self.came_late.append(self.overdue.pop(key))
                elif key in pending:
                    yield pending.pop(key), _content(reply)
            if pending and time.monotonic() > nudge:
                self.grid.push_messages([_message(node, EMPTY, seconds) for node in pending.values()])
                nudge = end
            if pending:
                time.sleep(POLL)
        self.overdue |= pending

    def late(self) -> list[int]:
        found, self.came_late = self.came_late, []
        return found


def _message(node: int, packed: Packed, seconds: float) -> Message:
    head, body = packed
    content = RecordDict({RECORD: ConfigRecord({"head": head, "body": body, "seconds": seconds})})
    return Message(content, dst_node_id=node, message_type="query.ask", ttl=seconds + 60)


def _content(reply: Message) -> Packed | str:
    """Return the head and the body of a reply, or why it has none."""
    if reply.has_error():
        return f"Flower error {reply.error.code}: {reply.error.reason}"
    record = reply.content.get(RECORD)
    head, body = (record.get("head"), record.get("body")) if isinstance(record, ConfigRecord) else (None, None)
    if not isinstance(head, str) or not isinstance(body, bytes):
        return "the reply is not one of fedsoft"
    return head, body
