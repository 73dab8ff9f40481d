"""Your own data: numpy arrays in a folder, whose inputs stay on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fedsoft.core.federation import Federation
from fedsoft.data.array_files import clients_in
from fedsoft.settings import checked

__all__ = ["arrays"]


@checked
def arrays(
    path: str | Path,
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.2,
    task: Literal["auto", "regression", "classification", "multilabel"] = "auto",
    standardize: bool = False,
    seed: int = 0,
) -> Federation:
    """Arrays of any size in `.npy` files: inputs are read from disk batch by batch, so they may be larger than memory.

    Arguments:
        path: a folder with `x.npy`, `y.npy` and either `clients.npy`, the client of each point (numbers or text), or
            `sizes.npy`, the number of points of each client, whose points follow each other; or a folder with a folder
            for each client that holds its `x.npy` and `y.npy`.
        held_out: the share of each client's points that is kept for scoring its personal model.
        task: what y is, default: by its type.
        standardize: bring every input to mean 0 and std 1 over the training points of all clients, as they are read.
        seed: decides which points are held out.
    """
    found = clients_in(Path(path))
    made = Federation.from_clients(
        [pair for _, pair in found], names=[name for name, _ in found], held_out=held_out, task=task, seed=seed
    )
    return made.standardized() if standardize else made
