"""Which client is at which node: every node names its clients, and is accepted if they belong to its key."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from fedsoft.escape import shown
from fedsoft.flower.request import Request
from fedsoft.flower.server.event_log import EventLog
from fedsoft.flower.server.exchange import Transport
from fedsoft.flower.server.reply_validator import open_reply
from fedsoft.flower.server.terms import QuorumError, Terms
from fedsoft.flower.wire import Packed, WireMessage

TRIES = 3  # before a node that does not name its clients is ignored
BODY = 4096  # bytes that the body of a reply without tensors may have
POINTS = 2**40  # more than any client has


class NodeRegistry:
    """The clients of a run, by name, and where they are.

    Arguments:
        names: of all clients.
        sizes: how many points each has, where that is known; else the nodes say so when they join.
        keys: the fingerprint of the key of each client's node: no other node speaks for it.
        most: how many points a client may claim.
        transport: the way to the nodes.
        terms: how long nodes are waited for.
        log: where joining nodes are logged.
    """

    def __init__(
        self, names: Sequence[str], sizes: dict[str, int], keys: Mapping[str, str], most: int, transport: Transport,
        terms: Terms, log: EventLog,
    ) -> None:  # fmt: skip
        self.names, self.sizes, self.transport, self.terms, self.log = names, sizes, transport, terms, log
        self.keys, self.most = keys, most
        self.homes: dict[str, int] = {}  # client to node
        self.silent: dict[int, int] = {}  # how often a node did not name its clients

    def groups(self, clients: Iterable[str]) -> tuple[dict[int, list[str]], list[str]]:
        """Return clients by their nodes, and those that no node holds."""
        found: dict[int, list[str]] = {}
        nowhere = []
        for client in clients:
            if client in self.homes:
                found.setdefault(self.homes[client], []).append(client)
            else:
                nowhere.append(client)
        return found, nowhere

    def assemble(self, hello: Request) -> None:
        """Wait until all clients are connected at the beginning of a run, or enough of them when it is resumed."""
        end = time.monotonic() + self.terms.assembly
        while True:
            self.meet(hello)
            missing = [client for client in self.names if client not in self.homes]
            if not missing:
                break
            enough = len(self.names) - len(missing) >= self.terms.quorum * len(self.names)
            if time.monotonic() > end:
                if enough and self.log.attempt > 1 and self.sizes.keys() >= set(self.names):
                    self.log.event("missing", clients=missing, reason="not connected when the run was resumed")
                    break
                some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
                raise QuorumError(
                    f"{len(missing)} of {len(self.names)} clients are not connected after {self.terms.assembly:g} s: "
                    f"{some}"
                )
            time.sleep(0.5)

    def check_sizes(self) -> None:
        """Raise for a client that claims many times the points of the others: it would dominate every mean."""
        middle = sorted(self.sizes[name] for name in self.names)[(len(self.names) - 1) // 2]
        for name in self.names:
            if self.terms.points and self.sizes[name] > self.terms.points * middle:
                raise QuorumError(
                    f"client '{name}' claims {self.sizes[name]} points, {self.sizes[name] / middle:.0f} times the "
                    f"median: if that is right, raise 'points' in terms.toml (now {self.terms.points:g})"
                )

    def meet(self, hello: Request) -> None:
        """Ask new nodes for their clients."""
        proved = self.transport.nodes()
        here = set(proved)
        for client, node in list(self.homes.items()):
            if node not in here and len(here - set(self.homes.values())):
                del self.homes[client]  # its node may have come back under another number
        strangers = here - set(self.homes.values()) - {node for node, count in self.silent.items() if count >= TRIES}
        if not strangers:
            return
        messages = {node: WireMessage(hello.head(), {}).packed() for node in sorted(strangers)}
        for node, message in messages.items():
            self.log.message("down", node, hello, message)
        for node, answer in self.transport.exchange(messages, self.terms.timeout):
            if isinstance(answer, str):
                self.silent[node] = self.silent.get(node, 0) + 1
                self.log.event("unknown", node=node, reason=answer)
                continue
            self.log.message("up", node, hello, answer)
            if problem := self._join(node, proved[node], answer):
                self.silent[node] = TRIES
                self.log.event("refused", node=node, reason=problem)

    def _join(self, node: int, key: str, answer: Packed) -> str:
        """Accept a node that has proved to have this key; return why not."""
        own = sum(owner == key for owner in self.keys.values())
        reply = open_reply(answer, own, BODY)
        if isinstance(reply, str):
            return reply
        head = reply.head
        clients, sizes = head.get("clients"), head.get("sizes")
        if not isinstance(clients, list) or not isinstance(sizes, list) or not 0 < len(clients) == len(sizes):
            return "it does not name its clients and their sizes"
        if any(not isinstance(client, str) for client in clients) or len(set(clients)) != len(clients):
            return "it does not name its clients"
        for client, size in zip(clients, sizes, strict=True):
            if client not in self.keys:
                return f"client '{client}' is not in this federation"
            if self.keys[client] != key:
                return f"client '{client}' belongs to another key than that of this node ({key or 'none'})"
            if client in self.homes:
                return f"client '{client}' is at node '{self.log.titles[self.homes[client]]}' already"
            if type(size) is not int or not 1 <= size <= min(self.most, POINTS):
                return f"client '{client}' claims {str(size)[:40]} points, at most {self.most} are accepted"
            if size != self.sizes.get(client, size):
                return f"client '{client}' has {size} points, had {self.sizes[client]}"
        self.log.titles[node] = shown(str(head.get("node"))[:100])
        for client, size in zip(clients, sizes, strict=True):
            self.homes[client], self.sizes[client] = node, size
        self.log.event("joined", node=node, clients=clients, reason="")
        return ""
