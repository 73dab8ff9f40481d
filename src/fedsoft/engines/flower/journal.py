"""What happened in a federation, by name, and what crossed the wire: two logs in the run's folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LIMIT = 64 * 2**20  # bytes of a log; then it is set aside, in place of the one before


class Journal:
    """`federation.jsonl`: what happened to clients. `wire.jsonl`: every message. Neither without a folder.

    Arguments:
        tell: is told in one sentence what goes wrong.
    """

    def __init__(self, tell: Callable[[str], object]) -> None:
        self.tell = tell
        self.folder: Path | None = None
        self.attempt, self.t = 1, 0
        self.titles: dict[int, str] = {}  # node to the name it has given itself

    def title(self, node: int) -> str:
        """What a node is called."""
        return self.titles.get(node, str(node))

    def say(self, event: str, *, reason: str, clients: list[str] | None = None, node: int | None = None,
            ask: Mapping[str, Any] | None = None) -> None:  # fmt: skip
        """Log what happened to clients, by name."""
        about = {key: ask[key] for key in ("job", "ask") if ask and key in ask}
        title = None if node is None else self.title(node)
        self._append("federation.jsonl", {
            "event": event, "round": self.t, "attempt": self.attempt, **about, "node": title, "clients": clients or [],
            "reason": reason,
        })  # fmt: skip
        names = clients or []
        who = f" {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}" if names else ""
        at = f" at node '{title}'" if title else ""
        self.tell(f"round {self.t}: {event}{who}{at}{f': {reason}' if reason else ''}")

    def note(self, way: str, node: int, head: Mapping[str, Any], letter: tuple[str, bytes]) -> None:
        """Log a message that crosses the wire: what kind, and how long."""
        about = {key: head[key] for key in ("kind", "job", "ask") if key in head}
        self._append("wire.jsonl", {
            "way": way, "round": self.t, "attempt": self.attempt, **about, "node": self.title(node),
            "head": len(letter[0].encode()), "body": len(letter[1]),
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
