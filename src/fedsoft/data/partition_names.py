"""Partitions by their short forms, such as `10:90`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, cast

from fedsoft.errors import InputError, unknown
from fedsoft.plugins import build, find, is_code, names

if TYPE_CHECKING:
    from fedsoft.core.partition import Partition

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
    return cast("Partition", build("partitions", name, settings, allow=[name]))
