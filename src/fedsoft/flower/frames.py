"""Frames on a local socket: a head of text and a body of bytes.

Nothing slow is imported here: the app on a node is a new process for every message, and talks to the resident worker
through this.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from fedsoft.errors import InputError

LENGTHS = struct.Struct("<4sIQ")  # a mark, the length of the head, the length of the body
MARK = b"fsf1"
LONGEST_HEAD = 16 * 2**20
LONGEST_BODY = 64 * 2**30
JOB_ENDED = 75  # exit code of a worker that ended a job by ending itself; it is to be restarted
FIRST = 2**20  # bytes that are allocated before any have arrived


class FrameError(ConnectionError):
    """What arrived is not a frame, or is cut off."""


def send(connection: socket.socket, head: str, body: bytes) -> None:
    text = head.encode()
    connection.sendall(LENGTHS.pack(MARK, len(text), len(body)) + text)
    connection.sendall(body)


def receive(
    connection: socket.socket, longest_body: int = LONGEST_BODY, longest_head: int = LONGEST_HEAD
) -> tuple[str, bytes]:
    mark, head, body = LENGTHS.unpack(_exactly(connection, LENGTHS.size))
    if mark != MARK or head > longest_head or body > longest_body:
        raise FrameError("what arrived at the worker's socket is not a frame")
    try:
        text = _exactly(connection, head).decode()
    except UnicodeDecodeError:
        raise FrameError("the head of a frame is not text") from None
    return text, _exactly(connection, body)


def listen(path: Path) -> socket.socket:
    """Open a socket for this user only; raises InputError where a process listens already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)  # left behind by a process that was killed
        else:
            raise InputError(f"another process listens at '{path}' already")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(16)
    return listener


def call(path: str, head: str, body: bytes, seconds: float) -> tuple[str, bytes]:
    """Send a frame to the process that listens at a socket; return its answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        connection.connect(path)
        send(connection, head, body)
        return receive(connection)


def _exactly(connection: socket.socket, count: int) -> bytes:
    """Read `count` bytes. Memory is allocated as they arrive, not as they are announced."""
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
