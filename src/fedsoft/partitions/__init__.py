"""How sources are mixed at clients.

One file each, found by its name: a new file needs no other change (see `fedsoft.plugins`).
"""

from typing import Any

from fedsoft import plugins


def __getattr__(name: str) -> Any:
    raise plugins.missing(__name__, name)


# Bound over the submodules of the same names, so that `fedsoft.partitions.<name>` is always the thing itself.
globals().update(plugins.load(__name__))
