"""Messages between server and nodes: a head as JSON, tensors as safetensors. Nothing else, and nothing executable.

A head from the server names the experiment, the attempt, the round and the number of the ask within it, so that a node
knows what it has done already (see `request` and `node.client_memory`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import safetensors
from safetensors.torch import load, save
from torch import Tensor

from fedsoft.errors import InputError
from fedsoft.storage.files import MOST_MEMORY, memory_needed, parse_json

Packed = tuple[str, bytes]
"""The head and the body of a message, as they are sent."""


@dataclass(frozen=True)
class WireMessage:
    """What fedsoft puts into Flower's `Message`, in either direction.

    Flower's `Message` is the envelope: addresses, signatures, time to live, and one record whose two fields are the
    packed head and body of a WireMessage. It never holds tensors in Flower's own records, so that node and server parse
    only formats with limits.
    """

    head: dict[str, Any]
    tensors: dict[str, Tensor]

    def packed(self) -> Packed:
        return json.dumps(self.head, separators=(",", ":")), pack(self.tensors)

    @staticmethod
    def unpacked(head: str, body: bytes) -> WireMessage:
        """Read a message; raises InputError for anything else."""
        if memory_needed(head.encode("utf-8", "replace")) > MOST_MEMORY:
            raise InputError("the head of a message would take too much memory")
        try:
            values = parse_json(head)
        except ValueError:
            raise InputError("the head of a message is not JSON, or nested too deeply") from None
        if not isinstance(values, dict):
            raise InputError("the head of a message is not a JSON object")
        return WireMessage(values, unpack(body))

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names begin with `prefix`, by the rest of their names."""
        return {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def unpack(body: bytes) -> dict[str, Tensor]:
    try:
        return load(body)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise InputError(f"the body of a message holds no tensors: {str(error)[:200]}") from None
