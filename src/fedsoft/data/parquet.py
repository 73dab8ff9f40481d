"""Parquet files, unpacked by a process of their own with limits on its memory and time.

A few bytes may stand for any number of values, and what a file says about itself may be wrong: only what comes out of
it tells. The process is kept for the next file; one that is damaged, or unpacks to too much, ends it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedsoft.data.streams import LIMIT, bad, size_of
from fedsoft.errors import InputError
from fedsoft.storage.files import open_regular

RATIO = 100  # how many times its size a file may unpack to
LEAST = 2**26  # bytes that any file may unpack to
OVERHEAD = 2**27  # bytes of memory besides what comes out
SECONDS = 3  # of CPU time, for any file
BYTES_PER_SECOND = 2**20  # of a file, beyond that time
AT_ONCE = 2**22  # values that are unpacked at once


def read_parquet(file: Path, columns: Sequence[str] | None = None, room: int | None = None) -> Any:
    """Return the table in a file, or some columns of it; raise ValueError where it takes more than `room` bytes."""
    most = max(LEAST, RATIO * file.stat().st_size)
    with _lock:
        return _unpacker().read(file, columns, most if room is None else min(most, room))


class Unpacker:
    """A process that unpacks a file, as the reader that waits for it sees it."""

    def __init__(self) -> None:
        code = f"import sys; sys.path[:] = {sys.path!r}; from fedsoft.data.parquet import serve; serve()"
        pipe = subprocess.PIPE
        settings = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system"}  # the others take memory in advance
        self.owner = os.getpid()
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, env=settings
        )  # fmt: skip
        atexit.register(self.close)

    @property
    def ready(self) -> bool:
        """Whether it is ours, and waits for a file."""
        return self.owner == os.getpid() and self.process.poll() is None

    def read(self, file: Path, columns: Sequence[str] | None, most: int) -> Any:
        """Return a table of at most `most` bytes."""
        import pyarrow as pa

        asked, answer = self.process.stdin, self.process.stdout
        assert asked is not None
        assert answer is not None
        try:
            asked.write(json.dumps([os.fspath(file), columns, most]).encode() + b"\n")
            asked.flush()
            batches, held = [], 0
            with pa.ipc.open_stream(pa.PythonFile(answer, mode="r")) as stream:
                for batch in stream:
                    batches.append(batch)
                    held += _size(batch)
                    if held > most:
                        break
                else:
                    return pa.Table.from_batches(batches, stream.schema)
        except (pa.ArrowException, OSError, ValueError):
            raise ValueError(self._failure(most)) from None
        except BaseException:
            self.close()
            raise
        self.close()
        raise ValueError(_too_much(most))

    def _failure(self, most: int) -> str:
        """Return why it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        by_itself = self.process.poll() == 1
        said = self.close().decode("utf-8", "replace").strip()
        return said[-1000:] if by_itself and said else _too_much(most)

    def close(self) -> bytes:
        """End the process; return what it wrote to stderr."""
        atexit.unregister(self.close)
        if self.owner != os.getpid():
            return b""
        if self.process.poll() is None:
            self.process.kill()
        with contextlib.suppress(OSError):  # a closed pipe
            return self.process.communicate()[1]
        return b""


def _size(batch: Any) -> int:
    """Return the bytes that rows take as numbers, at least."""
    return max(batch.nbytes, 8 * batch.num_rows * max(1, batch.num_columns))


def _too_much(most: int) -> str:
    return f"it unpacks to more than {most} bytes, or takes longer than a file of its size should"


_lock = threading.Lock()
_kept: list[Unpacker] = []


def _unpacker() -> Unpacker:
    if not (_kept and _kept[0].ready):
        _kept[:] = [Unpacker()]
    return _kept[0]


# --- columns as arrays ------------------------------------------------------------------------------------------------


def read_columns(file: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return columns of numbers, text or lists of numbers by name; lists of equal lengths become further axes."""
    size_of(file)
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(str(file)) as opened:
            known = opened.schema_arrow.names
            for name in names:
                if known.count(name) != 1:
                    some = ", ".join(known[:20]) or "none"
                    raise bad(file, f"has {known.count(name)} columns '{name}', should have one (it has: {some})")
        table = read_parquet(file, names, LIMIT)
        return {name: column_array(file, name, table.column(name).combine_chunks()) for name in names}
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise bad(file, f"is damaged or not a parquet file ({error}): get it again") from None


def column_array(file: Path, name: str, column: Any) -> np.ndarray:
    """Return one column as an array."""
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


# --- in that process --------------------------------------------------------------------------------------------------


def serve() -> None:
    """Unpack the files that stdin names line by line, until it ends."""
    import pyarrow as pa

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    base = _in_use()
    for line in sys.stdin.buffer:
        name, columns, most = json.loads(line)
        try:
            _limit(base + 2 * most + OVERHEAD, Path(name).stat().st_size)
            _send(Path(name), columns, most, sys.stdout.buffer)
        except MemoryError:
            sys.stderr.write(_too_much(most))
            sys.exit(1)
        except Exception as error:
            sys.stderr.write(str(error) or type(error).__name__)
            sys.exit(1)


def _in_use() -> int:
    """Return the bytes of memory that this process has allocated."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[5]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):  # not Linux
        return 2**28


def _limit(memory: int, size: int) -> None:
    """Limit the memory of this process, and its time for a file of that size."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (memory if hard < 0 else min(memory, hard), hard))
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    until = int(used) + 1 + SECONDS + size // BYTES_PER_SECOND
    resource.setrlimit(resource.RLIMIT_CPU, (until if hard < 0 else min(until, hard), hard))


def _send(file: Path, columns: Sequence[str] | None, most: int, to: IO[bytes]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    with os.fdopen(open_regular(file), "rb") as stream, parquet.ParquetFile(stream, pre_buffer=False) as found:
        about = found.metadata
        claimed = 8 * _rows(about) * (len(columns) if columns is not None else about.num_columns)
        if claimed > most:
            raise ValueError(f"it claims {about.num_rows} rows, {claimed} bytes: at most {most} can be read")
        step = max(1, min(2**16, AT_ONCE // max(1, about.num_columns)))
        batches = _plain(found.iter_batches(step, columns=columns, use_threads=False))
        first = next(batches, None)
        schema = first.schema if first is not None else found.schema_arrow
        with pa.ipc.new_stream(to, schema) as writer:
            while first is not None:
                writer.write_batch(first)
                first = next(batches, None)
    to.flush()


def _rows(about: Any) -> int:
    """Return the rows that a file says it has, as a whole or by parts."""
    return max(about.num_rows, sum(max(0, about.row_group(i).num_rows) for i in range(about.num_row_groups)))


def _plain(batches: Iterator[Any]) -> Iterator[Any]:
    """Replace references by their values, so that their size is counted, too."""
    import pyarrow as pa

    for batch in batches:
        types = [_values(field.type) for field in batch.schema]
        columns = [part.cast(type_) for part, type_ in zip(batch.columns, types, strict=True)]
        names = batch.schema.names
        yield pa.record_batch(columns, names=names)


def _values(type_: Any) -> Any:
    """Return the type without references: text in place of categories."""
    import pyarrow as pa

    if pa.types.is_dictionary(type_):
        return _values(type_.value_type)
    if pa.types.is_nested(type_) and any(word in str(type_) for word in ("dictionary", "_view")):
        raise ValueError(f"it has {str(type_)[:100]}, should be numbers, text or lists of numbers")
    return pa.large_string() if str(type_) in ("string", "large_string", "string_view") else type_
