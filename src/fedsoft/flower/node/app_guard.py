"""Flower's command `flwr-clientapp`, guarded: it runs the installed app and nothing that comes with a run.

Flower itself unpacks, imports and runs the app that a server ships, so whoever may start a run there could run any code
here. Its check of signatures (`--trusted-entities`) needs a licence of Flower's own hub, which apps of a private
federation do not have. So the four functions through which a shipped app would come are replaced before they are used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from flwr.clientapp import ClientApp
from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
from flwr.supernode.runtime import run_clientapp

from fedsoft.errors import FedsoftError
from fedsoft.flower.node.client_app import app


def _installed(**about: object) -> Callable[..., ClientApp]:
    return lambda *identity: app


def _not_unpacked(content: bytes, **about: object) -> None:
    pass


def _no_folder(*identity: str) -> Path:
    return Path()


def _refuse(*args: object, **about: object) -> NoReturn:
    raise FedsoftError("packages that a shipped app requires are never installed")


REPLACED: dict[str, Callable[..., Any]] = {
    "get_load_client_app_fn": _installed,
    "install_from_fab": _not_unpacked,
    "get_project_dir": _no_folder,
    "install_app_dependencies": _refuse,
}


def guarded_clientapp() -> Callable[[], None]:
    """Return Flower's command, made to run the installed app."""
    for name, function in REPLACED.items():
        if not callable(getattr(run_clientapp, name, None)):
            raise FedsoftError(f"this version of Flower loads apps in another way ('{name}' is gone): nothing is run")
        setattr(run_clientapp, name, function)
    return flwr_clientapp


def main() -> None:
    sys.argv[0] = "flwr-clientapp"
    guarded_clientapp()()
