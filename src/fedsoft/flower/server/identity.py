"""Which node may speak for which client: by fingerprints of keys, as `ssh-keygen -lf KEY.pub` prints them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)

from fedsoft.errors import InputError
from fedsoft.storage.files import LONGEST_TEXT, read_bytes


def fingerprint(key: bytes) -> str:
    """Return the fingerprint of a public key, as OpenSSH or Flower writes it; empty for anything else."""
    try:
        found = load_pem_public_key(key) if key.lstrip().startswith(b"-----") else load_ssh_public_key(key)
        blob = base64.b64decode(found.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1])
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return ""
    return f"SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')}"


def fingerprint_of(path: Path) -> str:
    """Return the fingerprint of the public key in a file."""
    try:
        found = fingerprint(read_bytes(path, LONGEST_TEXT))
    except OSError as error:
        raise InputError(f"the public key '{path}' cannot be read: {error.strerror}") from None
    if not found:
        raise InputError(f"the public key '{path}' is not allowed: should be as ssh-keygen writes it to a .pub file")
    return found


def homes(spec: Mapping[str, Any], names: Sequence[str], shards: Sequence[str]) -> dict[str, str]:
    """Return the key of each client's node: from the run's file, or `shards[k]` for the k-th share of a preset's."""
    if spec["dataset"]["name"] == "nodes":
        return dict(spec["dataset"]["clients"])
    if not shards:
        raise InputError(
            "this federation has no nodes of its own, so the run must name the key of each client: use [dataset] "
            "name = 'nodes', with the fingerprint of a node's key for each client"
        )
    parts = np.array_split(np.arange(len(names)), len(shards))
    return {names[int(k)]: key for key, part in zip(shards, parts, strict=True) for k in part}
