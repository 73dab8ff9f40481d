"""Images with known owners, as in FEMNIST: every owner is a client, and the mixture is unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from fedsoft.core.federation import Federation
from fedsoft.data.image_settings import Count
from fedsoft.data.image_sources import by_client
from fedsoft.data.owned_images import read_owned_images
from fedsoft.settings import checked

__all__ = ["natural"]


@checked
def natural(
    path: str | Path,
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.2,
    classes: Count | None = None,
    seed: int = 0,
) -> Federation:
    """Images with owners: one client for every different value in the array `clients`.

    Arguments:
        path: an `.npz` archive with the arrays `images`, `labels` and `clients`, a folder with `images.npy`,
            `labels.npy` and `clients.npy`, or a `.parquet` file with these columns. Images are
            `[points, height, width]`, `[points, 1, height, width]` or `[points, 3, height, width]`, as bytes or as
            numbers from 0 to 1; labels are whole numbers from 0, clients whole numbers or text. A row of a parquet file
            holds an image as nested lists, or as one list, pixel after pixel, where it is a square one.
        held_out: the share of each client's points that is kept for scoring its personal model.
        classes: the number of classes, default: the largest label + 1.
        seed: decides which points are held out.
    """
    found = read_owned_images(Path(path), classes)
    return by_client(found.images, found.owners, found.classes, held_out, seed)
