"""What comes over the wire and over the worker's socket, whatever it is."""

from __future__ import annotations

import json
import socket
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from fedsoft.core.replies import MODEL
from fedsoft.flower import frames
from fedsoft.flower.node.node import Node
from fedsoft.flower.node.refusals import Refusal
from fedsoft.flower.server.reply_validator import ReplyValidator, Rows
from fedsoft.flower.wire import WireMessage
from fedsoft.safety.guards import Guards
from tests.flower import places
from tests.fuzz.mutation import cases, mutated, refused

HEADS = [
    json.dumps({"kind": "ask", "job": "train", "round": 1, "ask": 0, "attempt": 0, "clients": ["a", "b"]}).encode(),
    b'{"node": "n", "clients": ["0", "1"], "cost": [1, 2, 3]}',
]
FORMS = (("w", torch.float32, (3,)),)
BODIES = [save({"w": torch.zeros(2, 3), "u": torch.ones(2, 2).double()}), save({}), save({"n": torch.arange(2)})]


@cases()
@given(head=mutated(HEADS), body=mutated(BODIES))
def test_messages(head: bytes, body: bytes) -> None:
    found: list[WireMessage] = []
    if not refused(lambda: found.append(WireMessage.unpacked(head.decode("utf-8", "replace"), body))):
        rows = [Rows("n", ["a", "b"], found[0].tensors), Rows("m", ["c"], {"w": torch.zeros(1, 3)})]
        ReplyValidator(Guards(3, norm=10.0)).sift(rows, FORMS, {"w": MODEL})


FRAME = frames.LENGTHS.pack(frames.MARK, 2, 3) + b"{}abc"


@cases()
@given(content=mutated([FRAME]))
def test_frames(content: bytes) -> None:
    one, other = socket.socketpair()
    with one, other:
        other.settimeout(5)
        one.sendall(content)
        one.shutdown(socket.SHUT_WR)
        refused(lambda: frames.receive(other), frames.FrameError)


def test_a_frame_that_claims_too_much_gets_no_memory() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(frames.LENGTHS.pack(frames.MARK, 2, frames.LONGEST_BODY) + b"{}" + b"x" * 1000)
        one.shutdown(socket.SHUT_WR)
        with pytest.raises(frames.FrameError, match="closed it before the end"):
            frames.receive(other)


def test_long_frames_arrive_whole() -> None:
    body = bytes(range(256)) * 20_000  # five times what is made room for at first
    one, other = socket.socketpair()
    with one, other:
        sender = threading.Thread(target=frames.send, args=(one, '{"a": 1}', body))
        sender.start()
        assert frames.receive(other) == ('{"a": 1}', body)
        sender.join()


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Node, list[tuple[bytes, bytes]]]:
    """A node, and what it is asked in a run."""
    folder = tmp_path_factory.mktemp("nodes")
    transport = places.Direct(places.shards(folder, 2))
    places.run(places.spec(rounds=1), folder / "run", transport, nodes=2)
    messages = [message.packed() for number, message, _ in transport.sent if number == 1]
    return transport.there[1], [(head.encode(), body) for head, body in messages]


@cases(60)
@given(data=st.data())
def test_nodes(asked: tuple[Node, list[tuple[bytes, bytes]]], data: st.DataObject) -> None:
    """A node always answers. What it did not expect it refuses, with a code from the list and nothing else."""
    node, messages = asked
    head, body = data.draw(st.sampled_from(messages))
    if data.draw(st.booleans()):
        head = data.draw(mutated([head]))
    else:
        body = data.draw(mutated([body]))
    answers: list[WireMessage] = []
    if not refused(lambda: answers.append(node.answer(WireMessage.unpacked(head.decode("utf-8", "replace"), body)))):
        told = json.loads(answers[0].packed()[0])
        assert told["node"] == "node-0"
        if "refused" in told:
            assert told["refused"] in list(Refusal)
            assert told.keys() == {"node", "refused"}
