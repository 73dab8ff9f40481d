"""Handwriting of people (FEMNIST): every writer is a client."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from fedsoft.core.federation import Federation
from fedsoft.data import fetch
from fedsoft.data.image_settings import Count
from fedsoft.data.image_sources import by_client
from fedsoft.settings import checked

__all__ = ["writers"]


@checked
def writers(
    size: Count | None = None,
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.2,
    data_dir: str | Path | None = None,
    seed: int = 0,
) -> Federation:
    """FEMNIST: digits and letters, 28x28, 62 classes, by the person who wrote them; the mixture is unknown.

    Arguments:
        size: pixels of a side, a divisor of 28: images are averaged down to it.
        held_out: the share of each writer's images that is kept for scoring its personal model.
        data_dir: folder with `writers.npz` (arrays images, labels and clients), or with `femnist/`, in which LEAF's
            own script has put its JSON; default: FEDSOFT_DATA, then the cache.
        seed: decides which images are held out.
    """
    found = fetch.load_owned("writers", data_dir)
    return by_client(found.images.shrunk("writers", size), found.owners, found.classes, held_out, seed)
