"""What happened to clients, and what crossed the wire: two logs in the run's folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from fedsoft.escape import shown
from fedsoft.flower.request import Request
from fedsoft.flower.wire import Packed

REASON = 300  # characters of a reason: parts of it may come from a node
LIMIT = 64 * 2**20  # bytes of a log; then it is renamed, in place of the one before

Event = Literal[
    "joined", "refused", "unknown", "dropped", "missing", "late", "too few", "unscored", "left a sum", "failed sum",
    "lie in a sum",
]  # fmt: skip


class EventLog:
    """`federation.jsonl`: events by client. `wire.jsonl`: every message. Neither without a folder.

    Arguments:
        notify: gets a sentence for each event.
    """

    def __init__(self, notify: Callable[[str], object]) -> None:
        self.notify = notify
        self.folder: Path | None = None
        self.attempt, self.t = 1, 0
        self.titles: dict[int, str] = {}  # node to the name it has given itself

    def title(self, node: int) -> str:
        return self.titles.get(node, str(node))

    def event(self, event: Event, *, reason: str, clients: Sequence[str] = (), node: int | None = None,
              request: Request | None = None) -> None:  # fmt: skip
        """Log what happened to clients, by name."""
        reason = shown(reason)[:REASON]
        about = {} if request is None else {key: value for key, value in request.about.items() if key != "kind"}
        title = None if node is None else self.title(node)
        self._append("federation.jsonl", {
            "event": event, "round": self.t, "attempt": self.attempt, **about, "node": title, "clients": [*clients],
            "reason": reason,
        })  # fmt: skip
        who = f" {', '.join(clients[:3])}{', ...' if len(clients) > 3 else ''}" if clients else ""
        at = f" at node '{title}'" if title else ""
        self.notify(f"round {self.t}: {event}{who}{at}{f': {reason}' if reason else ''}")

    def message(self, way: Literal["down", "up"], node: int, request: Request, packed: Packed) -> None:
        """Log a message that crosses the wire: its kind and its length."""
        self._append("wire.jsonl", {
            "way": way, "round": self.t, "attempt": self.attempt, **request.about, "node": self.title(node),
            "head": len(packed[0].encode()), "body": len(packed[1]),
        })  # fmt: skip

    def _append(self, name: str, entry: dict[str, Any]) -> None:
        if self.folder is None:
            return
        path = self.folder / name
        if path.exists() and path.stat().st_size > LIMIT:
            path.replace(path.with_suffix(".1.jsonl"))
        with path.open("ab") as file:
            file.write(json.dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
