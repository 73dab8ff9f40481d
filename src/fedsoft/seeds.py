"""The only source of randomness: a generator for every (seed, label, round), and a stream of it for every client.

Draws are named, not taken from a stream. So they do not depend on the order in which clients are visited, on how many
are stacked together, on threads or processes, or on where a run was stopped: there is no generator state to save.

The numbers are those of Philox (Salmon et al., 2011), which are a function of a key and a counter. The key is a hash of
seed and labels. What concerns one client has the hash of its name as one half of the counter: see
`core.client_draws`, which draws for many clients at once.
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
    return _keyed(key_of(seed, *labels))


def generator_at(key: tuple[np.uint64, np.uint64], counter: tuple[int, int, int, int]) -> np.random.Generator:
    """Return the generator of a key of two words that begins after a counter of four, the lowest first."""
    words = np.array(key, dtype=np.uint64).tobytes()
    return _keyed(words, np.array(counter, dtype=np.uint64))


def key_of(*labels: str | int) -> bytes:
    """Return a hash of 128 bits of labels."""
    # The length of each label is hashed too: ("a", "bc") and ("ab", "c") are different names.
    text = "".join(f"{len(str(part))}:{part}" for part in labels)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _keyed(key: bytes, counter: np.ndarray | None = None) -> np.random.Generator:
    own: Any = _Key(key)  # numpy takes it, its type stubs do not
    return np.random.Generator(np.random.Philox(own, counter=counter))


class _Key(np.random.bit_generator.ISeedSequence):
    """Hands Philox its key. `Philox(key=...)` makes the same generator, but first asks the system for entropy that it
    does not use, which takes longer than all the rest."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        """See numpy: Philox asks for two words of 64 bits."""
        return np.frombuffer(self.key, dtype)
