"""Runs on disk: a folder each, written so that a crash at any moment leaves the last good state.

    spec.toml            what was run, all settings explicit
    run.json             versions, machine, hash of the spec
    data.json            names and sizes of clients, columns, classes, scale: no point
    rounds.jsonl         one line per round
    state.safetensors    the server's state and the clients' memory after the last saved round
    state-before.safetensors    the same after the round that was saved before it, until the run is finished
    state-N.safetensors  the same after round N, for the rounds that are to be kept
    diverged.json        why it ended before its time, where training diverged
    outcome.json         scores of each client, and what new clients are compared with: written at the end
    scores.json          written at the end
    federation.json      what nodes know the run by, where clients are at nodes of a federation
    figure.png           written at the end

Whole files are written beside their place, synced and renamed over it. `rounds.jsonl` grows by lines, which are synced
before the state that belongs to them; lines beyond the saved state are dropped when a run is resumed. What a
process left behind that was killed while it wrote is removed when the next one takes the run's lock.

Everything that a run is resumed from has a checksum. What is damaged is found, and the last good state is used.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedsoft.errors import InputError, StoreError
from fedsoft.evaluation.values import Scores
from fedsoft.runs.checkpoints import BEFORE, STATE, Checkpoint, kept_name, write_state
from fedsoft.runs.info import FORMAT, RunInfo
from fedsoft.runs.lock import NEW, locked
from fedsoft.runs.round_log import RoundLog
from fedsoft.runs.sealed import read_object, read_typed, sealed_text
from fedsoft.runs.spec import RunSpec, Source
from fedsoft.runs.states import NO_RUN, Found, States
from fedsoft.storage import files
from fedsoft.storage.atomic import replacing, said, sync
from fedsoft.storage.toml import toml
from fedsoft.training.outcome import Outcome
from fedsoft.training.records import RoundRecord

if TYPE_CHECKING:
    from fedsoft.runs.data_summary import DataSummary

DIVERGED = "diverged.json"
OUTCOME = "outcome.json"
AT_NODES = "federation.json"
DAMAGED = "damaged-"  # begins the name of a state that was set aside


@dataclass(frozen=True)
class Begun:
    """What a run begins with that was played elsewhere: records, the state after them, and the end where it is over."""

    records: Sequence[RoundRecord]
    point: Checkpoint
    outcome: Outcome | None = None

    def write(self, folder: Path, run: str) -> None:
        """Write all of it into the folder of the run with this hash."""
        log = RoundLog(folder / "rounds.jsonl")
        for record in self.records:
            log.append(record)
        log.sync()
        with (folder / STATE).open("wb") as file:
            write_state(file, self.point, run)
        sync(folder / STATE)
        if self.outcome is not None:
            RunFolder(folder).conclude(self.outcome)


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run: everything that is read from it and written into it."""

    path: Path

    @property
    def states(self) -> States:
        return States(self.path)

    # --- reading ------------------------------------------------------------------------------------------------------

    @staticmethod
    def open(path: Path) -> RunFolder:
        """Open an existing run; raises StoreError for another folder."""
        if not path.is_dir():
            raise StoreError(f"there is no run folder '{path}'")
        folder = RunFolder(path)
        found = read_object(path / "run.json", NO_RUN).get("format")
        if found != FORMAT:
            raise StoreError(f"'{path}' has format {found!r}, this version reads '{FORMAT}': run it again")
        for entry in sorted(path.iterdir()):
            if entry.is_symlink():  # somebody else's folder could make us write anywhere
                raise StoreError(f"'{entry}' is a link: the files of a run should be in its own folder")
            if not (entry.is_file() or entry.is_dir()):
                raise StoreError(f"'{entry}' is a pipe or a device: should be a file")
        return folder

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def info(self) -> RunInfo:
        return self.states.info

    @property
    def log(self) -> RoundLog:
        return self.states.log

    def spec(self, allow: Collection[str] = ()) -> RunSpec:
        """What was run, checked against the hash that was written with it.

        A folder is data: code that it names is not imported unless that name is in `allow`.
        """
        return self._spec(allow, "saved")

    @property
    def recorded(self) -> RunSpec:
        """The same, only to be shown: its parts are neither imported nor compared with what this version has."""
        return self._spec((), "record")

    def _spec(self, allow: Collection[str], source: Source) -> RunSpec:
        try:
            raw = toml(files.read_text(self.path / "spec.toml"))
        except (OSError, ValueError) as error:
            raise StoreError(f"'{self.path / 'spec.toml'}' cannot be read: {files.reason(error)}") from None
        info = self.info
        try:
            spec = RunSpec.from_dict(raw, info.label, allow=allow, source=source)
        except InputError as error:
            raise StoreError(f"'{self.path / 'spec.toml'}' does not fit this version of fedsoft: {error}") from None
        if spec.hash != info.hash:
            raise StoreError(
                f"'{self.path / 'spec.toml'}' was changed after the run began (hash {spec.hash}, "
                f"was {info.hash}): put it back, or start a new run from it"
            )
        return spec

    def records(self) -> list[RoundRecord]:
        """Return the log, one record per round, without a torn last line and without what was never synced."""
        states, _ = self.states.readable()  # first: the log is ahead of them
        saved = max((state.rounds for state in states), default=0)
        records, flaw = self.log.read()
        if flaw and len(records) < max(saved, 1):
            raise StoreError(flaw)
        if len(records) < saved:
            raise StoreError(self.log.too_short(len(records), saved))
        return records

    @property
    def data(self) -> DataSummary:
        """What is known of the clients without their points."""
        from fedsoft.runs.data_summary import DataSummary

        return read_typed(self.path / "data.json", DataSummary.from_dict, "the run cannot be used without it")

    def outcome(self) -> Outcome | None:
        """Return what was measured at the end; None while the run is not finished."""
        path, scores = self.path / OUTCOME, self.scores()
        if scores is None or not path.exists():
            return None
        return read_typed(path, lambda content: Outcome.from_dict(content, scores))

    def scores(self) -> Scores | None:
        """Return the final scores; None while the run is not finished."""
        path = self.path / "scores.json"
        return read_typed(path, Scores.from_dict) if path.exists() else None

    @property
    def diverged(self) -> str | None:
        """Why training diverged, in one sentence; None where it did not."""
        path = self.path / DIVERGED
        return read_typed(path, lambda content: str(content.get("problem", ""))) if path.exists() else None

    @property
    def at_nodes(self) -> bool:
        """Whether the clients keep their state at nodes of a federation."""
        return (self.path / AT_NODES).exists()

    def checkpoint(self, rounds: int | None = None) -> Checkpoint | None:
        """Return the last saved state, or the one kept after `rounds` rounds, checked; None before the first."""
        return self.states.last() if rounds is None else self.states.at(rounds)

    @property
    def intact(self) -> bool:
        """Whether log and last state are whole and belong together; reads all of them."""
        try:
            point = self.checkpoint()
            self.outcome()
            return point is not None and len(self.log.until(point.rounds)) == len(self.records())
        except StoreError:
            return False

    # --- writing ------------------------------------------------------------------------------------------------------

    @staticmethod
    def create(
        path: Path, spec: RunSpec, data: DataSummary | None = None, info: RunInfo | None = None,
        begun: Begun | None = None,
    ) -> RunFolder:  # fmt: skip
        """Create the folder of a run, whole or not at all; `begun`: with rounds that were played before."""
        texts = {"spec.toml": spec.to_toml(), "run.json": sealed_text((info or RunInfo.here(spec)).to_dict())}
        texts |= {} if data is None else {"data.json": sealed_text(data.to_dict())}
        with said(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=NEW, dir=path.parent))
            try:
                for name, text in texts.items():
                    (made / name).write_text(text, "utf-8")
                    sync(made / name)
                if begun is not None:
                    begun.write(made, spec.hash)
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

    def save(self, point: Checkpoint, *, keep: bool = False) -> None:
        """Replace the saved state, or keep this one besides. The log up to here is on disk before it."""
        self.log.sync()
        run = self.info.hash
        if keep:  # first: who is killed in between plays the round again and so keeps it, too
            with replacing(self.path, kept_name(point.rounds)) as file:
                write_state(file, point, run)
        with replacing(self.path, STATE, aside=BEFORE) as file:
            write_state(file, point, run)

    def drop(self, rounds: int) -> None:
        """Remove a state that was kept."""
        with said(self.path):
            (self.path / kept_name(rounds)).unlink(missing_ok=True)

    def put_aside(self, found: Found) -> None:
        """Rename damaged states, so that they do not take the place of good ones."""
        with said(self.path):
            for path in found.damaged:
                if path != self.log.path and path.exists():
                    path.replace(path.with_name(f"{DAMAGED}{path.name}"))
            if found.damaged:
                sync(self.path)

    def conclude(self, outcome: Outcome) -> None:
        """Write what was measured at the end, the scores last: with them a run is finished."""
        self.write(OUTCOME, sealed_text(outcome.to_dict()).encode())
        self.finish(outcome.scores)

    def finish(self, scores: Scores) -> None:
        """Write the scores; the state before the last one is no longer needed."""
        with said(self.path):
            (self.path / BEFORE).unlink(missing_ok=True)
        self.write("scores.json", sealed_text(scores.to_dict()).encode())

    def diverge(self, problem: str | None) -> None:
        """Write down that training diverged, and why; None where it is tried again."""
        if problem is not None:
            self.write(DIVERGED, sealed_text({"problem": problem}).encode())
            return
        with said(self.path):
            (self.path / DIVERGED).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder of a run that never played a round."""
        shutil.rmtree(self.path, ignore_errors=True)

    def write(self, name: str, content: bytes) -> None:
        """Write a file so that it is there whole, new or old, whatever happens."""
        with replacing(self.path, name) as file:
            file.write(content)

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from writing to this run."""
        return locked(self.path)
