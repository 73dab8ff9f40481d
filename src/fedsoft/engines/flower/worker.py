"""The resident worker of a node: keeps torch, model, data and memory loaded, and answers over a local socket.

The app that Flower starts for every message imports next to nothing and hands the message over to here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from fedsoft.engines.flower import frames
from fedsoft.engines.flower.node import Node
from fedsoft.engines.flower.nodefile import NodeConfig
from fedsoft.engines.flower.wire import Parcel
from fedsoft.errors import FedsoftError
from fedsoft.escape import shown

STALLED = 60.0  # seconds without a byte after which a caller is given up


def serve(node: Node, ready: Path | None = None) -> NoReturn:
    """Answer until SIGTERM or Ctrl-C. The file `ready` appears when questions may come."""
    path = node.config.socket
    listener = frames.listen(path)

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, stop)
    try:
        if ready is not None:
            ready.write_text(f"{os.getpid()}\n", "utf-8")
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):  # a caller that is gone: its ask will come again
                connection.settimeout(STALLED)
                answer_one(node, connection)
    finally:
        listener.close()
        path.unlink(missing_ok=True)


def answer_one(node: Node, connection: socket.socket) -> None:
    """One question, one answer."""
    head, body = frames.receive(connection)
    began = time.perf_counter()
    try:
        asked = Parcel.unpacked(head, body)
    except FedsoftError as error:
        reply = Parcel({"node": node.config.name, "refused": str(error)}, {})
        label = "unreadable message"
    else:
        reply = node.answer(asked)
        label = " ".join(str(asked.head[key]) for key in ("kind", "job", "round", "ask") if key in asked.head)
    frames.send(connection, *reply.packed())
    told = f": refused: {reply.head['refused']}" if "refused" in reply.head else ""
    print(shown(f"{label} in {time.perf_counter() - began:.3f} s{told}"), file=sys.stderr, flush=True)


def main(path: str, ready: str | None = None) -> NoReturn:
    """Serve the node that a TOML file describes."""
    serve(Node(NodeConfig(Path(path))), Path(ready) if ready else None)
