"""Runs on disk: a folder each, written so that a crash at any moment leaves the last good state.

    spec.toml            what was run, all settings explicit
    run.json             versions, machine, hash of the spec
    rounds.jsonl         one line per round
    state.safetensors    the server's state and the clients' memory after the last saved round
    state-before.safetensors    the same after the round that was saved before it, until the run is finished
    state-N.safetensors  the same after round N, for the rounds that are to be kept
    diverged.json        why it ended before its time, where training diverged
    scores.json          written at the end
    figure.png           written at the end

Whole files are written beside their place, synced and renamed over it. `rounds.jsonl` grows by lines, which are synced
before the state that belongs to them; lines beyond the saved state are dropped when a run is taken up again. What a
process left behind that was killed while it wrote is removed when the next one takes the run's lock.

Everything that a run is taken up from has a checksum. What is damaged is found, and the last good state is used.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsoft.checks import toml
from fedsoft.errors import InputError, StoreError
from fedsoft.machine import environment
from fedsoft.runs.checkpoints import (
    BEFORE,
    CHECK,
    STATE,
    Checkpoint,
    SavedState,
    kept_name,
    kept_rounds,
    sealed,
    unsealed,
    write_state,
)
from fedsoft.runs.disk import replacing, said, sync
from fedsoft.runs.spec import RunSpec

FORMAT = "fedsoft-run-1"
RECORDED = {"round", "last", "gradients", "bytes_down", "bytes_up", "seconds"}  # in every record of the log
SCORED = {"metric", "higher_is_better", "sources", "centers", "best", "recovery", "personal_train", "oracle"}
# Of files written under the lock.
LEFTOVERS = (".state*", ".rounds.*", ".scores.*", ".diverged.*", ".figure.*", ".memory-*")
DIVERGED = "diverged.json"
DAMAGED = "damaged-"  # begins the name of a state that was set aside
NEW = ".new-"  # begins the name of a folder in the making, which takes milliseconds
ABANDONED = 3600.0  # seconds after which nobody is at work on one any more


@dataclass(frozen=True)
class Found:
    """What a run can be taken up from: the last good state, None before the first, and what is to be said about it."""

    point: Checkpoint | None
    is_last: bool = False  # it is the one that was saved last, at its place
    damaged: tuple[Path, ...] = ()
    said: str = ""


@dataclass(frozen=True)
class RunFolder:
    """One run's folder."""

    path: Path

    # --- reading ------------------------------------------------------------------------------------------------------

    @staticmethod
    def open(path: Path) -> RunFolder:
        """An existing run; complains about a folder that is none."""
        if not path.is_dir():
            raise StoreError(f"there is no run folder '{path}'")
        folder = RunFolder(path)
        info = folder._json("run.json", "it is not the folder of a fedsoft run")
        if info.get("format") != FORMAT:
            raise StoreError(f"'{path}' has format {info.get('format')!r}, this version reads '{FORMAT}'")
        if links := sorted(entry.name for entry in path.iterdir() if entry.is_symlink()):
            # Somebody else's folder could make us write anywhere.
            raise StoreError(f"'{path / links[0]}' is a link: the files of a run should be in its own folder")
        return folder

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def info(self) -> dict[str, Any]:
        """Versions, machine and hash."""
        return self._json("run.json", "it is not the folder of a fedsoft run")

    def spec(self) -> RunSpec:
        """What was run, checked against the hash that was written with it."""
        try:
            raw = toml((self.path / "spec.toml").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise StoreError(f"'{self.path / 'spec.toml'}' cannot be read: {error}") from None
        info = self.info
        try:
            spec = RunSpec.from_dict(raw, label=str(info.get("label", "run")))
        except InputError as error:
            raise StoreError(f"'{self.path / 'spec.toml'}' does not fit this version of fedsoft: {error}") from None
        if spec.hash != info.get("hash"):
            raise StoreError(
                f"'{self.path / 'spec.toml'}' was changed after the run began (hash {spec.hash}, "
                f"was {info.get('hash')}): put it back, or start a new run from it"
            )
        return spec

    def records(self) -> list[dict[str, Any]]:
        """The log, one entry per round. A torn last line is left out, and so is what was never synced."""
        saved = max((state.rounds for state in self._states()[0]), default=0)  # first: the log is ahead of the states
        records, flaw = self._log()
        if flaw and len(records) < max(saved, 1):
            raise StoreError(flaw)
        if len(records) < saved:
            raise StoreError(self._too_short(len(records), saved))
        return records

    def _log(self) -> tuple[list[dict[str, Any]], str]:
        """The good lines of the log from its first on, and what is wrong with the next one."""
        path = self.path / "rounds.jsonl"
        try:
            lines = path.read_bytes().split(b"\n")[:-1]  # a whole line ends in a newline
        except FileNotFoundError:
            return [], ""
        except OSError as error:
            raise StoreError(f"'{path}' cannot be read: {error.strerror}") from None
        records: list[dict[str, Any]] = []
        strict = bool(lines) and self._strict
        for line in lines:
            try:
                read = json.loads(line)
            except (ValueError, RecursionError):
                read = None
            record = unsealed(read) if isinstance(read, dict) and (CHECK in read or not strict) else None
            if record is None or not RECORDED <= record.keys():
                return records, f"'{path}' is damaged in line {len(records) + 1}"
            records.append(record)
        return records, ""

    @property
    def _strict(self) -> bool:
        """Whether log and states must have checksums; those of the first version had not."""
        return bool(self.info.get("sealed"))

    def scores(self) -> dict[str, Any] | None:
        """The final scores; None while the run is not finished."""
        if not (self.path / "scores.json").exists():
            return None
        scores = self._json("scores.json", "")
        if not SCORED <= scores.keys():
            raise StoreError(f"'{self.path / 'scores.json'}' is damaged: it lacks {', '.join(SCORED - scores.keys())}")
        return scores

    @property
    def diverged(self) -> str | None:
        """Why training diverged, in one sentence; None where it did not."""
        if not (self.path / DIVERGED).exists():
            return None
        return str(self._json(DIVERGED, "").get("problem", ""))

    def checkpoint(self, rounds: int | None = None) -> Checkpoint | None:
        """The last saved state, or one that was kept after so many rounds, checked; None before the first."""
        if rounds is not None:
            states, _ = self._states()
            for state in states:
                if state.rounds == rounds:
                    return state.checked()
            there = sorted({state.rounds for state in states})
            allowed = f"should be one of {', '.join(map(str, there))}" if there else "no state is saved"
            raise InputError(f"round = {rounds} of run '{self.name}' is not there: {allowed}")
        for name in (STATE, BEFORE):  # a process that is killed between two renames leaves the second alone
            if (self.path / name).exists():
                return self._good(self.path / name)
        return None

    def _good(self, path: Path) -> Checkpoint:
        """A state for those who read it only: one that is damaged is not quietly replaced by an older one."""
        try:
            return SavedState.open(path, str(self.info.get("hash")), strict=self._strict).checked()
        except StoreError as error:
            older = [state.rounds for state in self._states()[0] if state.path != path]
            advice = (
                f"'fedsoft resume {self.path}' goes on from an older state" if older else "run it anew with --again"
            )
            raise StoreError(f"{error}: the run cannot be taken up from it ({advice})") from None

    @property
    def intact(self) -> bool:
        """Whether log and last state are whole and belong together; reads all of them."""
        try:
            point = self.checkpoint()
            return point is not None and len(self.records_until(point.rounds)) == len(self.records())
        except StoreError:
            return False

    def saved_rounds(self) -> int:
        """After how many rounds the last state was saved that has its log, as headers say; 0 where there is none."""
        lines = len(self._log()[0])
        return max((state.rounds for state in self._states()[0] if state.rounds <= lines), default=0)

    @property
    def kept(self) -> list[int]:
        """The rounds whose states are kept."""
        return kept_rounds(self.path)

    def last_good(self) -> Found:
        """The newest state that is whole and has its log; complains when there are some, but none of them is good."""
        records, flaw = self._log()
        states, problems = self._states()
        for state in sorted(states, key=lambda state: -state.rounds):
            if state.rounds > len(records):
                log = self.path / "rounds.jsonl"
                problems.setdefault(log, flaw or self._too_short(len(records), state.rounds))
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
            raise StoreError(f"{first}, and no good state of an earlier round is kept: run it anew with --again")
        if len(records) > 1:  # the first round is always saved
            raise StoreError(f"'{self.path / STATE}' is missing: the run cannot be taken up without it")
        return Found(None)

    def _states(self) -> tuple[list[SavedState], dict[Path, str]]:
        """All states whose headers can be read, and what is wrong with the others."""
        states, problems = [], {}
        for name in (STATE, BEFORE, *(kept_name(rounds) for rounds in reversed(self.kept))):
            if (path := self.path / name).exists():
                try:
                    states.append(SavedState.open(path, str(self.info.get("hash")), strict=self._strict))
                except StoreError as error:
                    problems[path] = str(error)
        return states, problems

    def _json(self, name: str, otherwise: str) -> dict[str, Any]:
        path = self.path / name
        try:
            value = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise StoreError(f"'{path}' is missing: {otherwise}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise StoreError(f"'{path}' is damaged: {error}") from None
        if not isinstance(value, dict):
            raise StoreError(f"'{path}' is damaged: should hold one JSON object")
        if (content := unsealed(value)) is None:
            raise StoreError(f"'{path}' is damaged: its checksum is wrong")
        return content

    # --- writing ------------------------------------------------------------------------------------------------------

    @staticmethod
    def create(
        path: Path, spec: RunSpec, fingerprint: str = "", about: str = "", keep: int | None = None
    ) -> RunFolder:  # fmt: skip
        """A new folder for a run. It appears whole or not at all. `keep`: keep the state of every so many rounds."""
        with said(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=NEW, dir=path.parent))
            try:
                info = {"format": FORMAT, "label": spec.label, "hash": spec.hash, "data": fingerprint, "about": about}
                info |= environment() | {"sealed": True} | ({} if keep is None else {"keep": keep})
                for name, text in (("spec.toml", spec.to_toml()), ("run.json", _text(info))):
                    (made / name).write_text(text, "utf-8")
                    sync(made / name)
                sync(made)
                made.chmod(0o755)
                made.rename(path)
            except OSError as error:
                shutil.rmtree(made, ignore_errors=True)
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not (path / "run.json").exists():
                    raise
                return RunFolder.open(path)  # another process began the same run a moment ago: the lock decides
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
            sync(path.parent)
        return RunFolder(path)

    def append(self, record: dict[str, Any]) -> None:
        """Add a round to the log."""
        log = self.path / "rounds.jsonl"
        with said(self.path):
            new = not log.exists()
            with log.open("ab") as file:
                file.write(json.dumps(sealed(record)).encode() + b"\n")
            if new:  # that there is a log is on disk before the first state
                sync(self.path)

    def save(self, point: Checkpoint, *, keep: bool = False) -> None:
        """Replace the saved state, or keep this one besides. The log up to here is on disk before it."""
        with said(self.path):
            if (self.path / "rounds.jsonl").exists():
                sync(self.path / "rounds.jsonl")
        run = str(self.info["hash"])
        if keep:  # first: who is killed in between plays the round again and so keeps it, too
            with replacing(self.path, kept_name(point.rounds)) as file:
                write_state(file, point, run)
        with replacing(self.path, STATE, aside=BEFORE) as file:
            write_state(file, point, run)

    def put_aside(self, found: Found) -> None:
        """Rename damaged states, so that they do not take the place of good ones."""
        with said(self.path):
            for path in found.damaged:
                if path.name != "rounds.jsonl" and path.exists():
                    path.replace(path.with_name(f"{DAMAGED}{path.name}"))
            if found.damaged:
                sync(self.path)

    def finish(self, scores: dict[str, Any]) -> None:
        """Write the scores; the state before the last one is no longer needed."""
        with said(self.path):
            (self.path / BEFORE).unlink(missing_ok=True)
        self.write("scores.json", _text(scores).encode())

    def diverge(self, problem: str | None) -> None:
        """Write down that training diverged, and why; None where it is tried again."""
        if problem is not None:
            self.write(DIVERGED, _text({"problem": problem}).encode())
            return
        with said(self.path):
            (self.path / DIVERGED).unlink(missing_ok=True)

    def records_until(self, rounds: int) -> list[dict[str, Any]]:
        """The log up to a saved state; complains when it is shorter than that."""
        records, flaw = self._log()
        if len(records) < rounds:
            raise StoreError(flaw or self._too_short(len(records), rounds))
        return records[:rounds]

    def _too_short(self, lines: int, rounds: int) -> str:
        return f"'{self.path / 'rounds.jsonl'}' holds {lines} rounds, but {rounds} were saved"

    def cut(self, rounds: int) -> list[dict[str, Any]]:
        """Drop what the log says beyond the saved state; the records that remain."""
        lines = b""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.path / "rounds.jsonl").read_bytes()
        kept = b"".join(line + b"\n" for line in lines.split(b"\n")[:-1][:rounds])
        if kept != lines:
            self.write("rounds.jsonl", kept)
        return self.records_until(rounds)

    def write(self, name: str, content: bytes) -> None:
        """Write a file so that it is there whole, new or old, whatever happens."""
        with replacing(self.path, name) as file:
            file.write(content)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing to this run. Held by the operating system, so it ends with the process."""
        import fcntl

        with said(self.path):
            file = (self.path / "lock").open("ab")
        with file:
            with said(self.path):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise StoreError(
                        f"run '{self.name}' is being worked on by another process: wait for it, or stop it first"
                    ) from None
                self._sweep()
            yield

    def _sweep(self) -> None:
        """Remove what killed processes left behind: here nobody else writes now, beside it somebody may."""
        for pattern in LEFTOVERS:
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)
        for path in self.path.parent.glob(f"{NEW}*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > ABANDONED:
                    shutil.rmtree(path, ignore_errors=True)


def _text(content: dict[str, Any]) -> str:
    """A JSON object with its checksum, for people too."""
    return json.dumps(sealed(content), indent=1) + "\n"
