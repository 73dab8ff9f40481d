"""Which client is at which node: every node says which ones it holds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from fedsoft.engines.flower.journal import Journal
from fedsoft.engines.flower.terms import Post, QuorumError, Rules
from fedsoft.engines.flower.wire import Parcel
from fedsoft.errors import InputError
from fedsoft.trust.guards import POINTS

TRIES = 3  # before a node that does not say who it is is left alone

Head = dict[str, Any]


class Roster:
    """The clients of a run, by name, and where they are.

    Arguments:
        names: of all clients.
        counted: how many points each has, where that is known; else the nodes tell when they come first.
        post: the way to the nodes.
        rules: how long is waited for them.
        journal: where it is logged who comes.
    """

    def __init__(
        self, names: Sequence[str], counted: dict[str, int], post: Post, rules: Rules, journal: Journal
    ) -> None:
        self.names, self.counted, self.post, self.rules, self.journal = names, counted, post, rules, journal
        self.homes: dict[str, int] = {}  # client to node
        self.silent: dict[int, int] = {}  # how often a node did not say who it is

    def groups(self, clients: Iterable[str]) -> tuple[dict[int, list[str]], list[str]]:
        """Clients by their nodes, and those that no node holds."""
        found: dict[int, list[str]] = {}
        nowhere = []
        for client in clients:
            if client in self.homes:
                found.setdefault(self.homes[client], []).append(client)
            else:
                nowhere.append(client)
        return found, nowhere

    def assemble(self, head: Head) -> None:
        """Wait until all clients are there at the beginning of a run, or enough of them when it is taken up."""
        end = time.monotonic() + self.rules.assembly
        while True:
            self.meet(head)
            missing = [client for client in self.names if client not in self.homes]
            if not missing:
                break
            enough = len(self.names) - len(missing) >= self.rules.quorum * len(self.names)
            if time.monotonic() > end:
                if enough and self.journal.attempt > 1 and self.counted.keys() >= set(self.names):
                    self.journal.say("absent", clients=missing, reason="not there when the run was taken up")
                    break
                some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
                raise QuorumError(
                    f"{len(missing)} of {len(self.names)} clients are not there after {self.rules.assembly:g} s: {some}"
                )
            time.sleep(0.5)

    def meet(self, head: Head) -> None:
        """Ask nodes that are new who they are."""
        here = self.post.nodes()
        for client, node in list(self.homes.items()):
            if node not in here and len(here - set(self.homes.values())):
                del self.homes[client]  # its node may have come back under another number
        strangers = here - set(self.homes.values()) - {node for node, count in self.silent.items() if count >= TRIES}
        if not strangers:
            return
        letters = {node: Parcel(head, {}).packed() for node in sorted(strangers)}
        for node, letter in letters.items():
            self.journal.note("down", node, head, letter)
        for node, answer in self.post.exchange(letters, self.rules.timeout):
            if isinstance(answer, str):
                self.silent[node] = self.silent.get(node, 0) + 1
                self.journal.say("unknown", node=node, reason=answer)
                continue
            self.journal.note("up", node, head, answer)
            if told := self._introduced(node, answer):
                self.silent[node] = TRIES
                self.journal.say("refused", node=node, reason=told)

    def _introduced(self, node: int, answer: tuple[str, bytes]) -> str:
        """Take a node in; or why not."""
        try:
            head = Parcel.unpacked(*answer).head
        except InputError as error:
            return str(error)
        if "refused" in head:
            return str(head["refused"])
        clients, sizes = head.get("clients"), head.get("sizes")
        if not isinstance(clients, list) or not isinstance(sizes, list) or not 0 < len(clients) == len(sizes):
            return "it does not tell its clients and their sizes"
        for client, size in zip(clients, sizes, strict=True):
            if client not in self.names:
                return f"client '{client}' is not of this federation"
            if client in self.homes:
                return f"client '{client}' is at node '{self.journal.titles[self.homes[client]]}' already"
            if type(size) is not int or not 1 <= size <= POINTS:
                return f"client '{client}' has {size} points"
            if size != self.counted.get(client, size):
                return f"client '{client}' has {size} points, had {self.counted[client]}"
        self.journal.titles[node] = str(head.get("node"))[:100]
        for client, size in zip(clients, sizes, strict=True):
            self.homes[client], self.counted[client] = node, size
        self.journal.say("joined", node=node, clients=clients, reason="")
        return ""
