"""Large JSON files, one member at a time: memory holds a single value, and no more of it than is allowed."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from fedsoft.storage.files import SIZES, open_regular

CHUNK = 2**18  # characters that are read at once, at least
SPACE = " \t\n\r"


def members(path: Path, inside: str, most: int) -> Iterator[tuple[str | None, str, Any]]:
    """Yield the members of the object in a file; in place of the member `inside`, the members of that object.

    Each is given as (`inside` or None, name, value). Raise ValueError for what is not JSON, and for a value that would
    take more than `most` bytes of memory.
    """
    with io.TextIOWrapper(os.fdopen(open_regular(path), "rb"), encoding="utf-8") as stream:
        reader = _Reader(stream, most)
        for name in reader.names():
            if name == inside:
                for inner in reader.names():
                    yield inside, inner, reader.value()
            else:
                yield None, name, reader.value()
        if reader.peek():
            raise ValueError("it goes on after the end of its object")


class _Reader:
    """JSON text from a stream, value by value."""

    def __init__(self, stream: TextIO, most: int) -> None:
        self.stream, self.most = stream, most
        self.buffer, self.at = "", 0
        self.decoder = json.JSONDecoder(parse_constant=_constant)

    def _fill(self) -> bool:
        """Read on; return False at the end of the file."""
        self.buffer, self.at = self.buffer[self.at :], 0
        if _memory_needed(self.buffer) > self.most:
            raise ValueError(f"one of its values would take more than {self.most} bytes of memory")
        more = self.stream.read(max(CHUNK, len(self.buffer)))
        self.buffer += more
        return bool(more)

    def peek(self) -> str:
        """Return the next character that is no space, nothing at the end."""
        while True:
            while self.at < len(self.buffer):
                if self.buffer[self.at] not in SPACE:
                    return self.buffer[self.at]
                self.at += 1
            if not self._fill():
                return ""

    def take(self, wanted: str) -> str:
        """Step over one of these characters."""
        if not (found := self.peek()) or found not in wanted:
            raise ValueError(f"it has {found!r} where {' or '.join(wanted)} should be" if found else "it is truncated")
        self.at += 1
        return found

    def names(self) -> Iterator[str]:
        """Yield the names of an object's members; the value of each has to be read before the next."""
        self.take("{")
        if self.peek() == "}":
            self.take("}")
            return
        while True:
            if self.peek() != '"':
                self.take('"')
            name = self.value()
            self.take(":")
            yield name
            if self.take(",}") == "}":
                return

    def value(self) -> Any:
        """Return the next value."""
        self.peek()
        while True:
            try:
                found, end = self.decoder.raw_decode(self.buffer, self.at)
            except json.JSONDecodeError as error:
                if not self._fill():
                    raise ValueError("it is truncated or damaged" if self.buffer else "it is truncated") from error
                continue
            except RecursionError:
                raise ValueError("it is nested too deeply") from None
            if end == len(self.buffer) and self._fill():  # a number may go on
                continue
            if _memory_needed(self.buffer[self.at : end]) > self.most:
                raise ValueError(f"one of its values would take more than {self.most} bytes of memory")
            self.at = end
            return found


def _memory_needed(text: str) -> int:
    """Return about the most memory that JSON text takes once it is parsed (see `files.memory_needed`)."""
    return len(text) + sum(size * text.count(mark.decode()) for mark, size in SIZES.items())


def _constant(name: str) -> float:
    raise ValueError(f"it has {name}, should be finite numbers")
