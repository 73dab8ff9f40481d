"""The ClientApp of a node: hands a message to the node's resident worker, and the worker's answer back.

It imports next to nothing, because it is a new process for every message; torch, data and model are in the worker.
"""

from __future__ import annotations

import struct
import sys
import traceback

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsoft.flower import frames

RECORD = "fedsoft"
FAILED = '{"refused":"failed"}'  # see `refusals`, which takes longer to import
NO_TENSORS = struct.pack("<Q", 8) + b"{}      "

app = ClientApp()


@app.query("ask")
def ask(message: Message, context: Context) -> Message:
    """Answer one message. What goes wrong here is written to the node's own log only."""
    try:
        record = message.content[RECORD]
        head, body, seconds = str(record["head"]), record["body"], float(str(record["seconds"]))
        if not isinstance(body, bytes):
            raise TypeError("the body of a message should be bytes")
        head, body = frames.call(str(context.node_config["worker"]), head, body, seconds)
    except Exception:
        traceback.print_exc(file=sys.stderr)
        head, body = FAILED, NO_TENSORS
    return Message(RecordDict({RECORD: ConfigRecord({"head": head, "body": body})}), reply_to=message)
