"""A true federation on Flower: clients at nodes of their own, behind TLS and keys, with memory on their own disks.

    wire, frames        what crosses the wire, and the worker's socket
    nodefile, node      a node as one TOML file; the clients' side
    memory              what clients keep, on the node's disk
    worker, clientapp   the resident worker; the thin app that Flower starts for every message
    starter             starts that app in milliseconds
    screen, server      what is believed; the server's side, behind `ask`
    serverapp           what Flower starts on the server
    keys, loopback      a whole federation on this machine
    drive               a run on it
    strategy            FedSoft for an existing Flower app

Next to nothing is imported here: the app on a node has no time for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from fedsoft.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from fedsoft.runs.folder import RunFolder
    from fedsoft.runs.spec import RunSpec
    from fedsoft.runs.stage import Stage


def engine(address: str | None) -> NoReturn:
    """Refuses: what is in this process's memory is not at any node."""
    raise InputError(
        "engine 'flower' runs what a preset or a file describes, on the data of its nodes: use 'fedsoft run' with "
        "--engine flower, or 'fedsoft flower run'"
    )


def carry_out(spec: RunSpec, path: Path, stage: Stage) -> tuple[RunFolder, bool]:
    """Carry a run out on a federation: the one in the folder `stage.address`, or one that is started for it."""
    from fedsoft.engines.flower.drive import carry_out

    return carry_out(spec, path, stage)
