"""One file each: a new one is found by its name, nothing else needs to change (see `fedsoft.plugins`)."""

from typing import Any

from fedsoft import plugins


def __getattr__(name: str) -> Any:
    raise plugins.missing(__name__, name)


# Bound over the submodules of the same names, so that `fedsoft.attacks.<name>` is always the thing itself.
globals().update(plugins.load(__name__))
