"""The states that a run's folder holds: which of them are whole, and which one to go on from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedsoft.errors import InputError, StoreError
from fedsoft.runs.checkpoints import BEFORE, STATE, Checkpoint, SavedState, kept_name, kept_rounds
from fedsoft.runs.info import RunInfo
from fedsoft.runs.round_log import RoundLog
from fedsoft.runs.sealed import read_typed

NO_RUN = "it is not the folder of a fedsoft run"


@dataclass(frozen=True)
class Found:
    """What a run can be resumed from: the last good state, None before the first, and what is noted about it."""

    point: Checkpoint | None
    is_last: bool = False  # it is the one that was saved last, at its place
    damaged: tuple[Path, ...] = ()
    said: str = ""


@dataclass(frozen=True)
class States:
    """The states in a run's folder, each good only as far as the log beside it reaches."""

    path: Path

    @property
    def info(self) -> RunInfo:
        return read_typed(self.path / "run.json", RunInfo.from_dict, NO_RUN)

    @property
    def log(self) -> RoundLog:
        return RoundLog(self.path / "rounds.jsonl")

    @property
    def kept(self) -> list[int]:
        """The rounds after which a state was kept."""
        return kept_rounds(self.path)

    def readable(self) -> tuple[list[SavedState], dict[Path, str]]:
        """All states whose headers can be read, and what is wrong with the others."""
        states, problems = [], {}
        for name in (STATE, BEFORE, *(kept_name(rounds) for rounds in reversed(self.kept))):
            if (path := self.path / name).exists():
                try:
                    states.append(SavedState.open(path, self.info.hash))
                except StoreError as error:
                    problems[path] = str(error)
        return states, problems

    def at(self, rounds: int) -> Checkpoint:
        """Return the state after `rounds` rounds, checked."""
        states, _ = self.readable()
        for state in states:
            if state.rounds == rounds:
                return state.checked()
        there = sorted({state.rounds for state in states})
        allowed = f"should be one of {', '.join(map(str, there))}" if there else "no state is saved"
        raise InputError(f"round = {rounds} of run '{self.path.name}' is not there: {allowed}")

    def last(self) -> Checkpoint | None:
        """Return the last saved state, checked; None before the first.

        For those who read it only: one that is damaged is not quietly replaced by an older one.
        """
        for name in (STATE, BEFORE):  # a process that is killed between two renames leaves the second alone
            if (path := self.path / name).exists():
                break
        else:
            return None
        try:
            return SavedState.open(path, self.info.hash).checked()
        except StoreError as error:
            older = [state.rounds for state in self.readable()[0] if state.path != path]
            advice = (
                f"'fedsoft resume {self.path}' goes on from an older state" if older else "run it again with --again"
            )
            raise StoreError(f"{error}: the run cannot be resumed from it ({advice})") from None

    def last_good(self) -> Found:
        """The newest state that is whole and has its log; raises when there are some, but none is good."""
        records, flaw = self.log.read()
        states, problems = self.readable()
        for state in sorted(states, key=lambda state: -state.rounds):
            if state.rounds > len(records):
                problems.setdefault(self.log.path, flaw or self.log.too_short(len(records), state.rounds))
                continue
            try:
                point = state.checked()
            except StoreError as error:
                problems[state.path] = str(error)
                continue
            is_last = state.path.name == STATE
            if not problems:
                return Found(point, is_last)
            said = f"{next(iter(problems.values()))}: going on from round {state.rounds}, the last good one"
            return Found(point, is_last, tuple(problems), said)
        if problems:
            first = next(iter(problems.values()))
            raise StoreError(f"{first}, and no good state of an earlier round is kept: run it again with --again")
        if len(records) > 1:  # the first round is always saved
            raise StoreError(f"'{self.path / STATE}' is missing: the run cannot be resumed without it")
        return Found(None)

    def saved_rounds(self) -> int:
        """After how many rounds the last state was saved that has its log, as headers say; 0 where there is none."""
        lines = len(self.log.read()[0])
        return max((state.rounds for state in self.readable()[0] if state.rounds <= lines), default=0)
