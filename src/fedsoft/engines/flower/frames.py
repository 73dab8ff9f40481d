"""Frames on a local socket: a head of text and a body of bytes.

Nothing is imported here that takes time: the app on a node is a new process for every message, and talks to the
resident worker through this.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from fedsoft.errors import InputError

LENGTHS = struct.Struct("<4sIQ")  # a mark, the length of the head, the length of the body
MARK = b"fsf1"
LONGEST_HEAD = 64 * 2**20
LONGEST_BODY = 64 * 2**30
FIRST = 2**20  # bytes that are made room for before any have come


class FrameError(ConnectionError):
    """What came is not a frame, or its end is missing."""


def send(connection: socket.socket, head: str, body: bytes) -> None:
    """Write one frame."""
    text = head.encode()
    connection.sendall(LENGTHS.pack(MARK, len(text), len(body)) + text)
    connection.sendall(body)


def receive(connection: socket.socket) -> tuple[str, bytes]:
    """Read one frame."""
    mark, head, body = LENGTHS.unpack(_exactly(connection, LENGTHS.size))
    if mark != MARK or head > LONGEST_HEAD or body > LONGEST_BODY:
        raise FrameError("what came over the worker's socket is not a frame")
    try:
        text = _exactly(connection, head).decode()
    except UnicodeDecodeError:
        raise FrameError("the head of a frame is not text") from None
    return text, _exactly(connection, body)


def listen(path: Path) -> socket.socket:
    """A socket that only this user may use; complains when somebody listens there already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)  # left behind by one that was killed
        else:
            raise InputError(f"somebody listens at '{path}' already")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(16)
    return listener


def call(path: str, head: str, body: bytes, seconds: float) -> tuple[str, bytes]:
    """Ask whoever listens at a socket; the answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        connection.connect(path)
        send(connection, head, body)
        return receive(connection)


def _exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes: the system may give a part at a time. Room is made as they come, not as they are announced."""
    found, begin = bytearray(min(count, FIRST)), 0
    while begin < count:
        if begin == len(found):
            found.extend(bytes(min(count, 2 * begin) - begin))
        with memoryview(found) as view:
            more = connection.recv_into(view[begin:])
        if more == 0:
            raise FrameError("the other side of the worker's socket closed it before the end")
        begin += more
    return bytes(found)
