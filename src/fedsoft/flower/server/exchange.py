"""One exchange of messages with nodes: a request to each, for some of its clients, and what comes back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from fedsoft.engine.cost import Cost
from fedsoft.flower.request import Request
from fedsoft.flower.server.event_log import EventLog
from fedsoft.flower.server.expected_replies import Expectation
from fedsoft.flower.server.reply_validator import Rows, open_reply
from fedsoft.flower.server.terms import Terms
from fedsoft.flower.wire import Packed, WireMessage, pack

SMALL = 2**16  # bytes that a body may have beside its tensors


class Transport(Protocol):
    """Carries messages to nodes and back."""

    def nodes(self) -> dict[int, str]:
        """Return the connected nodes, each with the fingerprint of the key that it proved to have."""
        ...

    def exchange(self, messages: Mapping[int, Packed], seconds: float) -> Iterator[tuple[int, Packed | str]]:
        """Send a message to each node; yield what comes back in time: a head and a body, or why there is none."""
        ...

    def late(self) -> list[int]:
        """Return the nodes that answered after their time was over, since the last call."""
        ...


@dataclass(frozen=True)
class Content:
    """The tensors of a request: `shared` go to all nodes, of `each` a node gets the rows of its clients."""

    shared: Mapping[str, Tensor]
    each: Mapping[str, Tensor]
    rows: Mapping[str, int]  # by client

    @cached_property
    def whole(self) -> bytes:
        return pack(self.shared)

    @property
    def centers(self) -> int | None:
        return len(self.shared["shared/centers"]) if "shared/centers" in self.shared else None

    def packed(self, clients: list[str]) -> bytes:
        if not self.each:
            return self.whole  # the same bytes for all nodes
        part = torch.tensor([self.rows[client] for client in clients])
        return pack({**self.shared, **{name: value[part] for name, value in self.each.items()}})


@dataclass(frozen=True)
class Exchange:
    """Sends requests and opens replies.

    Arguments:
        transport: the way to the nodes.
        terms: how long nodes have.
        sizes: points of each client.
        log: of all messages.
    """

    transport: Transport
    terms: Terms
    sizes: Mapping[str, int]
    log: EventLog

    def send(
        self, request: Request, groups: Mapping[int, list[str]], content: Content, right: Expectation
    ) -> Iterator[tuple[int, Rows | str, Cost]]:
        """Send a request to nodes, for some clients of each; yield replies with their cost, or why there is none."""
        messages = {}
        for node, clients in groups.items():
            head, _ = WireMessage(request.head(clients), {}).packed()
            messages[node] = head, content.packed(clients)
            self.log.message("down", node, request, messages[node])
        for node, answer in self.transport.exchange(messages, self.terms.timeout):
            if isinstance(answer, str):
                yield node, answer, Cost()
            else:
                self.log.message("up", node, request, answer)
                yield node, *self._opened(node, answer, groups[node], right)

    def _opened(self, node: int, answer: Packed, clients: list[str], right: Expectation) -> tuple[Rows | str, Cost]:
        """Return a reply as rows, or why it is refused, and its cost."""
        reply = open_reply(answer, len(clients), SMALL + right.row_bytes * len(clients))
        if isinstance(reply, str):
            return reply, Cost()
        if reply.head.get("clients") != clients:
            return "it answered for other clients than those asked", Cost()
        claimed = reply.head.get("cost", {})
        spent = [claimed.get(key, 0) if isinstance(claimed, dict) else None for key in ("gradients", "evaluations")]
        if not all(type(value) is int and value >= 0 for value in spent):
            return "it sent no cost", Cost()
        cost = Cost(*[int(value or 0) for value in spent])
        points = sum(self.sizes[client] for client in clients)
        if not right.allows(cost.gradients, cost.evaluations, points):
            return f"it claims a cost that its {points} points cannot have: {str(spent)[:80]}", Cost()
        return Rows(self.log.title(node), clients, reply.tensors), cost
