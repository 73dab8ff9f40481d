"""Image files in memory, such as PNG and JPEG, as arrays of one size."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np

from fedsoft.errors import InputError

FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP")
MOST_PIXELS = 2**24
GRAY = ("1", "L")


def read_images(column: Any, name: str) -> np.ndarray:
    """Return a column of image files as uint8 `[images, channels, height, width]`."""
    found: list[np.ndarray] = []
    for row, cell in enumerate(column.to_pylist()):
        content = (cell or {}).get("bytes")
        if content is None:
            raise InputError(f"column '{name}' has no image in row {row + 1}, or only a path: embed it")
        pixels = _pixels(content, f"column '{name}', row {row + 1}")
        if found and pixels.shape != found[0].shape:
            here, first = (" x ".join(map(str, one.shape)) for one in (pixels, found[0]))
            raise InputError(
                f"column '{name}' has an image of {here} in row {row + 1}, but the first has {first}: resize"
            )
        found.append(pixels)
    return np.stack(found)


def _pixels(content: bytes, where: str) -> np.ndarray:
    from PIL import Image

    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(content), formats=FORMATS) as image:
            warnings.simplefilter("error")
            if image.width * image.height > MOST_PIXELS:
                raise InputError(
                    f"{where}: an image of {image.width} x {image.height}, at most {MOST_PIXELS} pixels are read"
                )
            if image.mode in GRAY:
                return np.asarray(image.convert("L"))[None].copy()
            return np.ascontiguousarray(np.asarray(image.convert("RGB")).transpose(2, 0, 1))
    except InputError:
        raise
    except Exception as error:  # every format has its own
        raise InputError(f"{where}: not an image that can be read ({error})") from None
