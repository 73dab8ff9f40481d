"""A name for the settings of an experiment: runs that differ in them must not share the noise that hides clients."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import is_dataclass
from operator import itemgetter
from typing import Any

from fedsoft.core.contract import Algorithm

PLAIN = int | float | str | bool | None


def _plain(values: Mapping[str, Any], *, unset: bool = False) -> list[tuple[str, Any]]:
    """Return the plain values among settings, and in tables within them; `unset`: also those that are None."""
    found = [(k, v) for k, v in values.items() if isinstance(v, PLAIN) and (unset or v is not None)]
    inner = {key: vars(value) if is_dataclass(value) else value for key, value in values.items()}
    found += [(key, repr(_plain(value))) for key, value in inner.items() if isinstance(value, Mapping) and value]
    return sorted(found, key=itemgetter(0))


def named(*settings: object) -> str:
    """Return a name for settings."""
    values = [
        # What a solver leaves open is not named: further settings of that kind must not change the noise of a run.
        one if isinstance(one, PLAIN)
        else (type(one).__name__, *_plain(vars(one), unset=isinstance(one, Algorithm)))
        for one in settings
    ]  # fmt: skip
    return hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest()
