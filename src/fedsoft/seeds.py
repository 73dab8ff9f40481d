"""The only source of randomness: a generator for every (seed, label, round, client).

Draws are named, not taken from a stream. So they do not depend on the order in which clients are visited, on how many
are stacked together, on threads or processes, or on where a run was stopped: there is no generator state to save.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np


def generator(seed: int, *labels: str | int) -> np.random.Generator:
    """Return a generator that depends on the seed and the labels and on nothing else.

    >>> generator(0, "select", 3).integers(100) == generator(0, "select", 3).integers(100)
    np.True_
    """
    # The length of each label is hashed too: ("a", "bc") and ("ab", "c") are different names.
    text = "".join(f"{len(str(part))}:{part}" for part in (seed, *labels))
    key = hashlib.blake2b(text.encode(), digest_size=16).digest()
    own: Any = _Key(key)  # numpy takes it, its type stubs do not
    return np.random.Generator(np.random.Philox(own))


class _Key(np.random.bit_generator.ISeedSequence):
    """Hands Philox its key. `Philox(key=...)` makes the same generator, but first asks the system for entropy that it
    does not use, which takes longer than all the rest."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        """See numpy: Philox asks for two words of 64 bits."""
        return np.frombuffer(self.key, dtype)
