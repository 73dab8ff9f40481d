"""What crosses the wire: a head as JSON, tensors as safetensors. Nothing else, and nothing that could be run.

A head from the server names the experiment, the attempt, the round and the number of the ask within it, so that a node
knows what it has done already (see `memory`).
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


@dataclass(frozen=True)
class Parcel:
    """A message in either direction."""

    head: dict[str, Any]
    tensors: dict[str, Tensor]

    def packed(self) -> tuple[str, bytes]:
        """As text and bytes."""
        return json.dumps(self.head, separators=(",", ":")), pack(self.tensors)

    @staticmethod
    def unpacked(head: str, body: bytes) -> Parcel:
        """From text and bytes; complains about what is not a message."""
        try:
            values = json.loads(head)
        except (ValueError, RecursionError):
            raise InputError("the head of a message is not JSON") from None
        if not isinstance(values, dict):
            raise InputError("the head of a message is not a JSON object")
        return Parcel(values, unpack(body))

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin so, by the rest of their names."""
        return {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as the bytes of a safetensors file."""
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def unpack(body: bytes) -> dict[str, Tensor]:
    """The tensors in the bytes of a safetensors file."""
    try:
        return load(body)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise InputError(f"the body of a message holds no tensors: {error}") from None
