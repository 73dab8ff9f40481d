"""Readers for the formats that images are published in: idx, CIFAR-10's binary batches, numpy's arrays, parquet.

Files come from elsewhere, so nothing in them is believed. Nothing is unpickled; every size is checked against what the
file can hold before memory is asked for; unpacking stops where the header says that the data ends. What cannot be read
is one sentence that tells a missing file from a truncated and a damaged one.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import stat
import textwrap
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from fedsoft.errors import InputError

LIMIT = 2**30
"""The most bytes that a file may unpack to. The largest published one, EMNIST ByClass, has 547 million."""
BLOCK = 2**20
RATIO = 1032  # deflate cannot shrink data more than that
MAX_CODE_POINT = 0x10FFFF
GZIP = b"\x1f\x8b"
CIFAR_SHAPE = (3, 32, 32)
CIFAR_RECORD = 1 + math.prod(CIFAR_SHAPE)


class Stream(Protocol):
    """What bytes are read from: a file, or one that is unpacked on the way."""

    def read(self, size: int = ..., /) -> bytes:
        """The next bytes, none at the end."""
        ...


def bad(file: Path, what: str) -> InputError:
    """An error about a file: one line of bounded length, whatever characters come from inside the file."""
    text = "".join(c if c.isprintable() else " " for c in f"file '{file}' {what}")
    return InputError(textwrap.shorten(text, 600, placeholder=" ..."))


def size_of(file: Path) -> int:
    """The bytes in a regular file; complains of everything else, so that nobody waits for a pipe."""
    try:
        found = file.stat()
    except FileNotFoundError:
        raise bad(file, "does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: a path that no file can have
        raise bad(file, f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not stat.S_ISREG(found.st_mode):
        raise bad(file, "is a folder or a device, should be a file")
    if found.st_size == 0:
        raise bad(file, "is empty (zero bytes): get it again")
    return found.st_size


# idx, the format of MNIST


def read_images(file: Path, height: int, width: int) -> np.ndarray:
    """The images in an idx file, packed by gzip or not, as uint8 `[images, height, width]`."""
    images = _idx(file, dimensions=3, what="images")
    if images.shape[1:] != (height, width):
        raise bad(file, f"holds images of {images.shape[1]} x {images.shape[2]} pixels, should be {height} x {width}")
    return images


def read_labels(file: Path, classes: int) -> np.ndarray:
    """The labels in an idx file, packed by gzip or not, as uint8 `[images]`."""
    labels = _idx(file, dimensions=1, what="labels")
    _check_labels(file, labels, classes)
    return labels


def _idx(file: Path, dimensions: int, what: str) -> np.ndarray:
    stored = size_of(file)
    with _opened(file) as (stream, packed):
        head = _exactly(file, stream, 4 + 4 * dimensions)
        if head[:3] != b"\0\0\x08" or head[3] not in (1, 3):
            raise bad(file, "is damaged or not an idx file of bytes: it does not begin with 00 00 08")
        if head[3] != dimensions:
            found = "labels" if head[3] == 1 else "images"
            raise bad(file, f"holds {found}, should hold {what}: are two files swapped?")
        shape = tuple(np.frombuffer(head, ">u4", dimensions, 4).tolist())
        if 0 in shape:
            raise bad(file, f"holds no {what}: its header says {_times(shape)}")
        _check_room(file, math.prod(shape), stored * RATIO if packed else stored - len(head), _times(shape))
        values = _fill(file, stream, math.prod(shape))
        _check_end(file, stream)
    return values.reshape(shape)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[tuple[Stream, bool]]:
    """The content of a file, unpacked where gzip packed it (its first bytes tell, not its name)."""
    try:
        with file.open("rb") as raw:
            packed = raw.read(2) == GZIP
            raw.seek(0)
            if not packed:
                yield raw, False
                return
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield unpacked, True
    except InputError:  # a ValueError too
        raise
    except EOFError:
        raise bad(file, "is truncated: its gzip stream ends too early, get it again") from None
    except (OSError, zlib.error) as error:
        raise bad(file, f"is damaged and cannot be unpacked ({error}): get it again") from None


# CIFAR-10


def read_cifar(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """A binary batch of CIFAR-10: images as uint8 `[images, 3, 32, 32]` and labels as uint8 `[images]`."""
    size = size_of(file)
    if size % CIFAR_RECORD:
        raise bad(file, f"is truncated or not a CIFAR-10 batch: {size} bytes are not a multiple of {CIFAR_RECORD}")
    _check_room(file, size, size, f"{size // CIFAR_RECORD} images")
    with _opened_plain(file) as stream:
        records = _fill(file, stream, size).reshape(-1, CIFAR_RECORD)
    labels = records[:, 0].copy()
    _check_labels(file, labels, 10)
    return records[:, 1:].reshape(-1, *CIFAR_SHAPE), labels


@contextlib.contextmanager
def _opened_plain(file: Path) -> Iterator[IO[bytes]]:
    try:
        with file.open("rb") as stream:
            yield stream
    except OSError as error:
        raise bad(file, f"cannot be read ({error.strerror or error})") from None


# Numpy's arrays


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays of numbers or text by name: out of one `.npz` archive, or from `<name>.npy` files in a folder."""
    if _is_folder(path):
        return {name: _read_npy(path / f"{name}.npy") for name in names}
    size_of(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: _member(path, archive, name) for name in names}
    except InputError:
        raise
    except Exception as error:  # a damaged file can fail in every layer: zip, its compressors, and numpy's header
        raise bad(path, f"is damaged, truncated or not an .npz archive ({error}): get it again") from None


def check_archive(path: Path, room: int) -> None:
    """Refuse an `.npz` archive with a member that claims more than its packed bytes can hold, or than there is room."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise bad(path, f"packs '{entry.filename}' in a way that numpy does not: save it with numpy.savez")
            ratio = RATIO if entry.compress_type == zipfile.ZIP_DEFLATED else 1
            most = min(entry.compress_size * ratio, room)
            if entry.file_size > most:
                raise bad(path, f"claims {entry.file_size} bytes for '{entry.filename}': at most {most} can be read")
            with archive.open(entry) as stream:
                claimed = _claimed(stream)
            if claimed > entry.file_size:
                raise bad(
                    path, f"has a header that claims {claimed} bytes in the {entry.file_size} of '{entry.filename}'"
                )


def _claimed(stream: IO[bytes]) -> int:
    """The bytes that the header of an array claims for it; 0 for what has none."""
    if stream.read(6) != np.lib.format.MAGIC_PREFIX:
        return 0
    version = tuple(stream.read(2))
    if version not in ((1, 0), (2, 0), (3, 0)):
        return 0
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    return 0 if dtype.hasobject else math.prod(shape) * dtype.itemsize


def check_table(opened: Any, file: Path, room: int) -> None:
    """Refuse a parquet file with more values than there is room for: a few bytes may stand for any number of them."""
    about = opened.metadata
    claimed = 8 * _rows(about) * about.num_columns
    if claimed > room:
        raise bad(file, f"claims {about.num_rows} rows, {claimed} bytes: at most {room} can be read")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a path that cannot be
        return False


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """One array out of an archive."""
    known = sorted(entry.removesuffix(".npy") for entry in archive.namelist())
    if f"{name}.npy" not in archive.namelist():
        raise bad(path, f"has no array '{name}' (it has: {', '.join(known[:20]) or 'none'})")
    entry = archive.getinfo(f"{name}.npy")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise bad(path, f"packs array '{name}' in a way that numpy does not: save it with numpy.savez")
    with archive.open(entry) as stream:
        ratio = RATIO if entry.compress_type == zipfile.ZIP_DEFLATED else 1
        return _array(path, name, stream, entry.compress_size * ratio)


def _read_npy(file: Path) -> np.ndarray:
    size = size_of(file)
    try:
        with file.open("rb") as stream:
            return _array(file, file.stem, stream, size)
    except InputError:
        raise
    except Exception as error:
        raise bad(file, f"is damaged or not an .npy file ({error})") from None


def _array(file: Path, name: str, stream: IO[bytes], room: int) -> np.ndarray:
    """One array in numpy's format. Its header is read by numpy, which takes literals only."""
    readers: dict[tuple[int, int], Any] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(stream)
    if version not in readers:
        raise bad(file, f"has array '{name}' in version {version} of numpy's format, should be numbers or text")
    shape, fortran, dtype = readers[version](stream)
    if dtype.hasobject:
        raise bad(file, f"has Python objects (a pickle) as '{name}', which are never loaded: save numbers or text")
    if dtype.kind not in "biufU" or dtype.itemsize == 0 or fortran or any(n < 0 for n in shape):
        raise bad(file, f"has {dtype} of shape {list(shape)} as '{name}', should be numbers or text in C order")
    length = math.prod(shape) * dtype.itemsize
    _check_room(file, length, room, f"'{name}' is {_times(shape)} of {dtype}")
    values = _fill(file, stream, length)
    _check_end(file, stream)
    found = values.view(dtype).astype(dtype.newbyteorder("="), copy=False)
    # Text is kept as code points; numpy fails late and badly on those that are none.
    if dtype.kind == "U" and found.size and int(found.view(np.uint32).max()) > MAX_CODE_POINT:
        raise bad(file, f"is damaged: '{name}' holds what is not text")
    return found.reshape(shape)


# Parquet


def read_columns(file: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns of numbers, text or lists of numbers by name; lists of equal lengths become further axes."""
    size_of(file)
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(str(file)) as opened:
            known = opened.schema_arrow.names
            for name in names:
                if known.count(name) != 1:
                    told = ", ".join(known[:20]) or "none"
                    raise bad(file, f"has {known.count(name)} columns '{name}', should have one (it has: {told})")
            size = max(_unpacked(opened), 8 * _rows(opened.metadata))
            _check_room(file, size, size, f"{opened.metadata.num_rows} rows of {size} bytes")
            table = opened.read(columns=list(names))
        return {name: _column(file, name, table.column(name).combine_chunks()) for name in names}
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise bad(file, f"is damaged or not a parquet file ({error}): get it again") from None


def _unpacked(opened: Any) -> int:
    """The bytes that a parquet file says it unpacks to. Not by column: pyarrow aborts on damaged ones."""
    about = opened.metadata
    return sum(max(0, about.row_group(i).total_byte_size) for i in range(about.num_row_groups))


def _rows(about: Any) -> int:
    """The rows that a parquet file says it has, as a whole or by parts."""
    return max(about.num_rows, sum(max(0, about.row_group(i).num_rows) for i in range(about.num_row_groups)))


def _column(file: Path, name: str, column: Any) -> np.ndarray:
    """One column as an array."""
    import pyarrow as pa
    from pyarrow import compute, types

    column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    shape = [len(column)]
    while types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        lengths = compute.call_function("list_value_length", [column]).unique().to_pylist()
        if len(lengths) > 1 or column.null_count:
            raise bad(file, f"has lists of different lengths in column '{name}', should be of one")
        shape.append(lengths[0] if lengths else 0)
        column = column.flatten()
    column = column.dictionary_decode() if types.is_dictionary(column.type) else column
    if column.null_count:
        raise bad(file, f"has missing values in column '{name}', fill them or drop those rows")
    if types.is_integer(column.type) or types.is_floating(column.type):
        values = np.array(column.to_numpy(zero_copy_only=False))  # a copy: arrow's memory may not be written to
    elif types.is_string(column.type) or types.is_large_string(column.type):
        values = np.array(column.to_pylist(), dtype=np.str_)
    else:
        raise bad(file, f"has {column.type} in column '{name}', should be numbers or text")
    return values.reshape(shape)


# What all of them share


def _times(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "a single value"


def _check_room(file: Path, claimed: int, room: int, what: str) -> None:
    """Refuse a header that promises more than the file can hold, or than anybody should load."""
    if claimed > room:
        raise bad(file, f"is truncated or damaged: its header says {what}, more than a file of this size can hold")
    if claimed > LIMIT:
        raise bad(file, f"is too large: its header says {what}, at most {LIMIT} bytes are read")


def _exactly(file: Path, stream: Stream, count: int) -> bytes:
    found = stream.read(count)
    if len(found) < count:
        raise bad(file, f"is truncated: it ends after {len(found)} bytes, within its header")
    return found


def _fill(file: Path, stream: Stream, count: int) -> np.ndarray:
    """So many bytes, block by block: memory is in use only as far as there is data."""
    values = np.empty(count, np.uint8)
    done = 0
    while done < count:
        block = stream.read(min(BLOCK, count - done))
        if not block:
            raise bad(file, f"is truncated: it has {done} of the {count} bytes that its header says, get it again")
        values[done : done + len(block)] = np.frombuffer(block, np.uint8)
        done += len(block)
    return values


def _check_end(file: Path, stream: Stream) -> None:
    """Nothing may follow. Reading on also makes unpackers compare their checksums."""
    if stream.read(1):
        raise bad(file, "is damaged: it goes on after the data that its header says")


def _check_labels(file: Path, labels: np.ndarray, classes: int) -> None:
    if (largest := int(labels.max())) >= classes:
        place = int(np.argmax(labels))
        raise bad(file, f"is damaged: image {place} has label {largest}, labels should be 0 to {classes - 1}")
