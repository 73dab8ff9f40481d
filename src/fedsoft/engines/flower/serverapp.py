"""What Flower starts on the server for a run: any algorithm, over the grid.

The request is a JSON file on the server's disk: the run as plain values, its folder, and the rules. The outcome is
written beside it, because Flower tells no more about a run than that it ended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log

from fedsoft.engines.flower.clientapp import RECORD
from fedsoft.engines.flower.server import FlowerEngine
from fedsoft.engines.flower.terms import Rules
from fedsoft.engines.flower.wire import Parcel
from fedsoft.errors import FedsoftError, InputError
from fedsoft.escape import shown
from fedsoft.runs.disk import write_folder
from fedsoft.runs.execution import execute
from fedsoft.runs.spec import RunSpec
from fedsoft.runs.stage import Stage

POLL = 0.2  # seconds between two looks for answers; Flower's own loop takes 3
# A SuperNode whose run was stopped while it had a message may be one behind from then on: it sends each reply only when
# the next message comes. So whoever has not answered after so many seconds is sent one that asks for nothing.
NUDGE = 20.0
NOTHING = Parcel({"kind": "nudge"}, {}).packed()

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry a run out, or take it up."""
    path = Path(str(context.run_config["request"]))
    request = Request.read(path)
    outcome: dict[str, Any] = {"run": context.run_id}
    try:
        folder, finished = request.carry_out(grid)
        outcome |= {"folder": str(folder), "finished": finished}
    except FedsoftError as error:
        outcome |= {"error": str(error)}
        raise
    except Exception as error:
        outcome |= {"error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        write_folder(path.parent, {f"{path.stem}.outcome.json": (json.dumps(outcome) + "\n").encode()})


@dataclass(frozen=True)
class Request:
    """What is to be run, where its folder is, and how."""

    spec: dict[str, Any]
    label: str
    folder: str
    rules: dict[str, Any]
    stage: dict[str, Any]

    @staticmethod
    def read(path: Path) -> Request:
        """From its file."""
        try:
            return Request(**json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"'{path}' is not a request: {error}") from None

    def carry_out(self, grid: Grid) -> tuple[Path, bool]:
        """Run it over a grid."""
        spec = RunSpec.from_dict(self.spec, self.label)
        make = partial(
            FlowerEngine, post=GridPost(grid), spec=spec.to_dict(), rules=Rules(**self.rules),
            tell=lambda text: log(WARNING, "%s", shown(text)),
        )  # fmt: skip
        folder, finished = execute(spec, Path(self.folder), Stage(**self.stage, engine=make, signals=False))
        return folder.path, finished


class GridPost:
    """Messages over Flower's grid."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.waited_for: dict[str, int] = {}  # messages whose time is over, with their nodes
        self.came_late: list[int] = []

    def nodes(self) -> set[int]:
        """The nodes that are connected."""
        return set(self.grid.get_node_ids())

    def exchange(
        self, letters: Mapping[int, tuple[str, bytes]], seconds: float
    ) -> Iterator[tuple[int, tuple[str, bytes] | str]]:
        """Send to nodes; what comes back until the time is over."""
        end, nudge = time.monotonic() + seconds, time.monotonic() + NUDGE
        messages = [_message(node, head, body, seconds) for node, (head, body) in letters.items()]
        open_ = {key: node for key, node in zip(self.grid.push_messages(messages), letters, strict=True) if key}
        del messages
        while open_ and time.monotonic() < end:
            for reply in self.grid.pull_messages([*open_, *self.waited_for]):
                key = reply.metadata.reply_to_message_id
                if key in self.waited_for:
                    self.came_late.append(self.waited_for.pop(key))
                elif key in open_:
                    yield open_.pop(key), _content(reply)
            if open_ and time.monotonic() > nudge:
                self.grid.push_messages([_message(node, *NOTHING, seconds) for node in open_.values()])
                nudge = end
            if open_:
                time.sleep(POLL)
        self.waited_for |= open_

    def late(self) -> list[int]:
        """The nodes whose answers came after their time, since last asked."""
        found, self.came_late = self.came_late, []
        return found


def _message(node: int, head: str, body: bytes, seconds: float) -> Message:
    content = RecordDict({RECORD: ConfigRecord({"head": head, "body": body, "seconds": seconds})})
    return Message(content, dst_node_id=node, message_type="query.ask", ttl=seconds + 60)


def _content(reply: Message) -> tuple[str, bytes] | str:
    """The head and the body of a reply, or why it has none."""
    if reply.has_error():
        return f"Flower error {reply.error.code}: {reply.error.reason}"
    record = reply.content.get(RECORD)
    head, body = (record.get("head"), record.get("body")) if isinstance(record, ConfigRecord) else (None, None)
    if not isinstance(head, str) or not isinstance(body, bytes):
        return "the reply is not one of fedsoft"
    return head, body
