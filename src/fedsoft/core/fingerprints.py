"""Digests of points: whether data has changed, and which points occur twice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.client_data import ClientData
from fedsoft.core.mapped import blocks_of
from fedsoft.seeds import generator

ROWS = 2**14  # that are looked at together
ONE, TWO, HALF = np.uint64(1), np.uint64(2), np.uint64(32)
FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)  # odd, with bits of no pattern


def digest(names: Iterable[str], tensors: Iterable[Tensor], how: str = "") -> str:
    """Return a digest of names, of all numbers in tensors with their types and shapes, and of how they are used."""
    found = hashlib.blake2b(digest_size=16)
    for text in names:
        found.update(f"{len(text)}:{text}".encode())
    for tensor in tensors:
        found.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        for rows in blocks_of(tensor):
            found.update(rows.contiguous().numpy().tobytes())
    found.update(how.encode())
    return found.hexdigest()


def repeated(first: ClientData, second: ClientData) -> int:
    """Return how many points of `second` the same client has in `first`, too: the same inputs and the same target."""
    return int(np.isin(_codes(second, first), _codes(first, first)).sum())


def _codes(data: ClientData, like: ClientData) -> np.ndarray:
    """Return a number for each point: points of one client with the same content have the same one."""
    places, owners = data.points.cpu().numpy(), data.owners.cpu().numpy().astype(np.uint64)
    x, y = _row_codes(data.x, like.x.dtype, "x"), _row_codes(data.y, like.y.dtype, "y")
    return x[places] + y[places] + _mixed(owners, FIRST)


def _row_codes(values: Tensor, kind: torch.dtype, label: str) -> np.ndarray:
    """Return a 64-bit hash of each row: its words, mixed, each times a factor of its own."""
    found = [np.zeros(0, np.uint64)]
    for block in blocks_of(values):
        for rows in block.split(ROWS) if len(block) else ():
            plain = np.ascontiguousarray(rows.to(kind).cpu().numpy()).reshape(len(rows), -1)
            cells = plain.view(np.uint8).reshape(len(rows), -1)
            words = np.pad(cells, ((0, 0), (0, -cells.shape[1] % 8))).view(np.uint64)
            factors = generator(0, "row codes", label).integers(2**63, size=words.shape[1], dtype=np.uint64) * TWO + ONE
            found.append((_mixed(words, SECOND) * factors).sum(1, dtype=np.uint64))
    return np.concatenate(found)


def _mixed(words: np.ndarray, factor: np.uint64) -> np.ndarray:
    """Spread the bits of words: a sum of plain ones would not see two signs that change together."""
    words = words * factor
    return words ^ (words >> HALF)
