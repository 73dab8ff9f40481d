"""How sources are mixed at clients, and whole numbers of points from a mixture."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from typing import Any, cast

import numpy as np

from fedsoft.errors import InputError, unknown
from fedsoft.plugins import build, find, is_code, names

Partition = Callable[[int, int, np.random.Generator], np.ndarray]
"""(clients N, sources S, generator) to the true mixture `[N, S]`, rows summing to 1."""


def apportion(mixture: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return numbers of points `[N, S]` with row sums `sizes[N]`, as close to the mixture as possible.

    The largest remainders are rounded up, so each entry is within 1 of its exact share.
    """
    if mixture.ndim != 2 or len(mixture) != len(sizes) or not np.isfinite(mixture).all() or (mixture < 0).any():
        raise InputError(
            f"the partition gave a mixture of shape {mixture.shape}, should be [{len(sizes)}, S] and not negative"
        )
    if not np.allclose(mixture.sum(axis=1), 1, atol=1e-6):
        raise InputError(f"the partition gave a client shares that sum to {mixture.sum(axis=1).max():g}, should be 1")
    exact = mixture * sizes[:, None]
    counts = np.floor(exact).astype(np.int64)
    missing = sizes - counts.sum(axis=1)
    rank = np.argsort(np.argsort(-(exact - counts), axis=1, kind="stable"), axis=1)
    return counts + (rank < missing[:, None])


LONGEST_NAME = 1000  # characters of a short form


def parse_partition(text: str, allow: Collection[str] = ()) -> tuple[str, dict[str, Any]]:
    """Read the short form of a partition, `10:90`, `dirichlet(0.5)` or `linear`, as name and settings.

    >>> parse_partition("30:70")
    ('ratio', {'a': '30', 'b': '70'})
    """
    if len(text) > LONGEST_NAME:
        raise InputError(f"partition of {len(text)} characters is not allowed: should have at most {LONGEST_NAME}")
    if pair := re.fullmatch(r"([\d.]+)\s*:\s*([\d.]+)", text.strip()):
        return "ratio", {"a": pair[1], "b": pair[2]}
    if call := re.fullmatch(r"(\w+)\s*\(([^()]*)\)", text.strip()):
        name, values = call[1], [value.strip() for value in call[2].split(",") if value.strip()]
        keys = list(inspect.signature(find("partitions", name, allow)).parameters)
        if len(values) > len(keys):
            raise InputError(f"partition '{text}' has {len(values)} values, '{name}' takes {len(keys)}")
        return name, dict(zip(keys, values, strict=False))
    if text not in names("partitions") and not is_code(text):
        raise unknown("partition", text, ["a:b", "dirichlet(alpha)", *names("partitions")])
    return text, {}


def as_partition(partition: str | Partition) -> Partition:
    """Return a partition from its short form; a function is one already."""
    if not isinstance(partition, str):
        return partition
    name, settings = parse_partition(partition)
    return cast(Partition, build("partitions", name, settings, allow=[name]))
