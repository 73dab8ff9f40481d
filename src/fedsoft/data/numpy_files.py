"""Arrays of numbers or text in numpy's files. Nothing is ever unpickled."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedsoft.data.streams import RATIO, bad, check_claim, check_end, read_array, size_of, times
from fedsoft.errors import InputError, unknown

MAX_CODE_POINT = 0x10FFFF
HEADERS: dict[tuple[int, int], Any] = {  # read by numpy, which takes literals only
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_arrays(
    path: Path, names: Sequence[str], *, optional: Sequence[str] = (), limit: int | None = None
) -> dict[str, np.ndarray]:
    """Return arrays by name, out of one `.npz` archive or from `<name>.npy` files in a folder.

    `optional` ones may be missing in an archive. `limit`: the most bytes of an array, default: `streams.LIMIT`.
    """
    if _is_folder(path):
        return {name: read_npy(path / f"{name}.npy", limit) for name in names}
    size_of(path)
    try:
        with zipfile.ZipFile(path) as archive:
            known = sorted(entry.removesuffix(".npy") for entry in archive.namelist())
            wanted = [*names, *(name for name in optional if name in known)]
            return {name: _member(path, archive, name, known, limit) for name in wanted}
    except InputError:
        raise
    except Exception as error:  # a damaged file can fail in every layer: zip, its compressors, and numpy's header
        what = str(error) or type(error).__name__
        raise bad(path, f"is damaged, truncated or not an .npz archive ({what}): get it again") from None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a path that cannot be
        return False


def _member(path: Path, archive: zipfile.ZipFile, name: str, known: list[str], limit: int | None) -> np.ndarray:
    """Return one array out of an archive."""
    if name not in known:
        raise bad(path, f"lacks an array: {unknown('array', name, known)}")
    entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise bad(path, f"packs array '{name}' in a way that numpy does not: save it with numpy.savez")
    with archive.open(entry) as stream:
        ratio = RATIO if entry.compress_type == zipfile.ZIP_DEFLATED else 1
        return _array(path, name, stream, entry.compress_size * ratio, limit)


def map_npy(file: Path) -> np.ndarray:
    """Return the array of numbers in an `.npy` file, mapped from it."""
    size_of(file)
    try:
        found = np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:
        raise bad(str(file), f"is damaged or not an .npy file ({error})") from None
    if not isinstance(found, np.memmap) or found.dtype.kind not in "biuf":
        raise bad(str(file), f"has {found.dtype} of shape {list(found.shape)}, should be an array of numbers")
    return found


def read_npy(file: Path, limit: int | None = None) -> np.ndarray:
    """Return the array in an `.npy` file of at most `limit` bytes."""
    size = size_of(file)
    try:
        with file.open("rb") as stream:
            return _array(file, file.stem, stream, size, limit)
    except InputError:
        raise
    except Exception as error:
        raise bad(file, f"is damaged or not an .npy file ({error})") from None


def _array(file: Path, name: str, stream: IO[bytes], possible: int, limit: int | None) -> np.ndarray:
    """Return one array in numpy's format, in the byte order of this machine."""
    magic = stream.read(8)
    if magic[:6] != np.lib.format.MAGIC_PREFIX or len(magic) < 8:
        raise bad(file, f"has raw bytes as array '{name}', should be numbers or text")
    version = (magic[6], magic[7])
    if version not in HEADERS:
        raise bad(file, f"has array '{name}' in version {version} of numpy's format, should be numbers or text")
    shape, fortran, dtype = HEADERS[version](stream)
    if dtype.hasobject:
        raise bad(file, f"has Python objects (a pickle) as '{name}', which are never loaded: save numbers or text")
    if dtype.kind not in "biufU" or dtype.itemsize == 0 or any(n < 0 for n in shape):
        raise bad(file, f"has {dtype} of shape {list(shape)} as array '{name}', should be numbers or text")
    length = math.prod(shape) * dtype.itemsize
    check_claim(file, length, possible, f"'{name}' is {times(shape)} of {dtype}", limit)
    values = read_array(file, stream, length)
    check_end(file, stream)
    found = values.view(dtype).astype(dtype.newbyteorder("="), copy=False)
    # Text is kept as code points; numpy fails late and badly on those that are none.
    if dtype.kind == "U" and found.size and int(found.view(np.uint32).max()) > MAX_CODE_POINT:
        raise bad(file, f"is damaged: '{name}' holds what is not text")
    return found.reshape(shape[::-1]).T if fortran else found.reshape(shape)
