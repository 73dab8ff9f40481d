"""Local solvers: the steps that clients take on their own points.

One file each, found by its name: a new file needs no other change (see `fedsoft.plugins`).
"""

from typing import Any

from fedsoft import plugins


def __getattr__(name: str) -> Any:
    """The classes by their own names, each file read when it is first asked for."""
    found = plugins.by_class_name(__name__, name)
    if found is None:
        raise plugins.missing(__name__, name)
    return found
