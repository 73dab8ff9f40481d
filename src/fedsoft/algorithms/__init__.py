"""Federated algorithms: what server and clients do in a round.

One file each, found by its name: a new file needs no other change (see `fedsoft.plugins`).
"""

from typing import Any

from fedsoft import plugins


def __getattr__(name: str) -> Any:
    """Return a class by its name; its file is read on first use."""
    found = plugins.by_class_name(__name__, name)
    if found is None:
        raise plugins.missing(__name__, name)
    return found
