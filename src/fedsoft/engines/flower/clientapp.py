"""What Flower starts on a node for every message: hands it to the node's resident worker and its answer back.

This file imports next to nothing, because it is a new process each time; torch, data and model are in the worker. With
`node = "..."` in place of `worker = "..."` in the node's configuration there is no worker: every message loads all.
"""

from __future__ import annotations

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsoft.engines.flower import frames

RECORD = "fedsoft"

app = ClientApp()


@app.query("ask")
def ask(message: Message, context: Context) -> Message:
    """One question of the server."""
    asked = message.content[RECORD]
    head, body, seconds = str(asked["head"]), asked["body"], float(str(asked["seconds"]))
    assert isinstance(body, bytes)
    if worker := context.node_config.get("worker"):
        head, body = frames.call(str(worker), head, body, seconds)
    else:
        head, body = _alone(str(context.node_config["node"]), head, body)
    return Message(RecordDict({RECORD: ConfigRecord({"head": head, "body": body})}), reply_to=message)


def _alone(path: str, head: str, body: bytes) -> tuple[str, bytes]:
    """Without a worker."""
    from pathlib import Path

    from fedsoft.engines.flower.node import Node
    from fedsoft.engines.flower.nodefile import NodeConfig
    from fedsoft.engines.flower.wire import Parcel

    return Node(NodeConfig(Path(path))).answer(Parcel.unpacked(head, body)).packed()
