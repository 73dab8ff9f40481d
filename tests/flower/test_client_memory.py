"""What a node keeps on its disk: asks that come twice, rounds that are played again, asks that come too late."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedsoft as fs
from fedsoft.flower.node.client_memory import ClientMemory, Position, Version
from fedsoft.flower.node.refusals import Refused


def value(version: Version | None) -> float:
    assert version is not None
    return float(version.tensors()["w"][0])


def advance(memory: ClientMemory, attempt: int, t: int, ask: int, new: float) -> None:
    position = Position(attempt, t, ask)
    memory.keep(position, ["a"], {"w": torch.tensor([new])}, memory.before(position))


@pytest.fixture
def memory(tmp_path: Path) -> ClientMemory:
    """Enrolled with 0; round t left 10 t + 1 after its first ask and 10 t + 2 after its second."""
    memory = ClientMemory(tmp_path)
    memory.keep(Position(1, -1, -1), ["a"], {"w": torch.tensor([0.0])})
    for t in range(5):
        for ask in (0, 1):
            advance(memory, 1, t, ask, 10 * t + ask + 1)
    return memory


def test_the_next_ask_finds_what_the_last_left(memory: ClientMemory) -> None:
    assert value(memory.before(Position(1, 5, 0))) == 42
    assert value(ClientMemory(memory.folder).before(Position(1, 9, 0))) == 42  # dropouts for rounds, and started again


def test_an_ask_that_comes_twice_is_done_from_the_same_state(memory: ClientMemory) -> None:
    for _ in range(3):
        assert value(memory.before(Position(1, 4, 1))) == 41
        advance(memory, 1, 4, 1, 42)
    assert value(memory.last) == 42


def test_a_round_that_is_played_again_begins_where_it_began(memory: ClientMemory) -> None:
    assert value(memory.before(Position(2, 4, 0))) == 32
    assert value(memory.before(Position(2, 4, 1))) == 32  # when a client is drawn for the second ask only
    assert value(memory.before(Position(2, 3, 0))) == 22
    assert value(memory.before(Position(2, 5, 0))) == 42
    advance(memory, 2, 4, 0, 51)
    assert value(memory.before(Position(2, 4, 1))) == 51
    assert value(memory.before(Position(3, 4, 0))) == 32


def test_what_is_overtaken_is_refused(memory: ClientMemory) -> None:
    with pytest.raises(Refused, match="ask 0 of round 4 comes after ask 1 of round 4"):
        memory.before(Position(1, 4, 0))
    advance(memory, 2, 5, 0, 51)
    with pytest.raises(Refused, match="attempt 1 of this run was followed by attempt 2"):
        memory.before(Position(1, 6, 0))
    with pytest.raises(Refused, match="cannot go back to the beginning of round 2"):
        memory.before(Position(3, 2, 0))


def test_few_files_are_kept_and_what_was_killed_is_swept(memory: ClientMemory) -> None:
    assert len(list(memory.folder.glob("*.safetensors"))) <= 4
    (memory.folder / ".new-torn").write_bytes(b"half a fi")
    assert value(ClientMemory(memory.folder).last) == 42
    assert not (memory.folder / ".new-torn").exists()


def test_what_is_damaged_is_not_used(memory: ClientMemory) -> None:
    last = memory.last
    assert last is not None
    last.path.write_bytes(last.path.read_bytes()[:-1])
    with pytest.raises(fs.StoreError, match="is damaged"):
        ClientMemory(memory.folder)
    memory.keep(Position(1, 9, 0), ["a"], {"w": torch.tensor([torch.nan])}, memory.versions[0])
    assert memory.last is not None
    with pytest.raises(fs.StoreError, match="'w' holds values that are not finite"):
        memory.last.tensors()


@pytest.mark.slow
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=12), st.data())
def test_a_server_that_starts_again_at_its_last_round_always_finds_its_beginning(
    rounds: list[tuple[bool, int]], data: st.DataObject
) -> None:
    """Whatever a client was asked, and however often the server was started again one round back."""
    with TemporaryDirectory() as folder:
        memory = ClientMemory(Path(folder))
        memory.keep(Position(1, -1, -1), ["a"], {"w": torch.tensor([0.0])})
        state, count, attempt = 0.0, 0, 1
        for t, (again, asks) in enumerate(rounds):
            begin = state
            for turn in range(1 + again):
                state = begin
                attempt += turn
                for ask in range(asks if turn == again else data.draw(st.integers(0, 2))):
                    position = Position(attempt, t, ask)
                    assert value(memory.before(position)) == state
                    state, count = state + 1 + count, count + 1
                    memory.keep(position, ["a"], {"w": torch.tensor([state])}, memory.before(position))
                    memory = ClientMemory(Path(folder))
            if not asks and again:  # nothing was asked the second time: the next ask is of a later round
                state = begin
                if value(memory.last) != begin:
                    attempt += 1
                    position = Position(attempt, t, 0)
                    assert value(memory.before(position)) == begin
                    memory.keep(position, ["a"], {"w": torch.tensor([begin])}, memory.before(position))
