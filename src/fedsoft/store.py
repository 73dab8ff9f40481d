"""Runs on disk: a folder each, written so that a crash at any moment leaves the last good state.

    spec.toml            what was run, all settings explicit
    run.json             versions, machine, hash of the spec
    rounds.jsonl         one line per round
    state.safetensors    the server's state and the clients' memory after the last saved round
    scores.json          written at the end
    figure.png           written at the end

Whole files are written beside their place, synced and renamed over it. `rounds.jsonl` grows by lines, which are synced
before the state that belongs to them; lines beyond the saved state are dropped when a run is taken up again. What a
process left behind that was killed while it wrote is removed when the next one takes the run's lock.

The state is written and read a few rows at a time: clients may remember more than the machine has memory.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fedsoft.errors import InputError, StoreError
from fedsoft.spec import RunSpec

if TYPE_CHECKING:
    from torch import Tensor

    from fedsoft.tensorfile import Form

FORMAT = "fedsoft-run-1"
RECORDED = {"round", "last", "gradients", "bytes_down", "bytes_up", "seconds"}  # in every record of the log
SCORED = {"metric", "higher_is_better", "sources", "centers", "best", "recovery", "personal_train", "oracle"}


LEFTOVERS = (".state.*", ".rounds.*", ".scores.*", ".memory-*")  # of files that are written under the lock
NEW = ".new-"  # begins the name of a folder in the making, which takes milliseconds
ABANDONED = 3600.0  # seconds after which nobody is at work on one any more


@dataclass(frozen=True)
class Checkpoint:
    """The whole state of a run after `rounds` rounds."""

    rounds: int
    state: Mapping[str, Tensor]
    memory: Mapping[str, Tensor]  # see `tensorfile.in_blocks` for a few rows at a time


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
            raw = tomllib.loads((self.path / "spec.toml").read_text("utf-8"))
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
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
        """The log, one entry per round. A torn last line is left out."""
        try:
            lines = (self.path / "rounds.jsonl").read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"'{self.path / 'rounds.jsonl'}' cannot be read: {error.strerror}") from None
        records = []
        for line in lines[:-1]:  # a whole line ends in a newline
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict) or not RECORDED <= record.keys():
                raise StoreError(f"'{self.path / 'rounds.jsonl'}' is damaged in line {len(records) + 1}")
            records.append(record)
        return records

    def scores(self) -> dict[str, Any] | None:
        """The final scores; None while the run is not finished."""
        if not (self.path / "scores.json").exists():
            return None
        scores = self._json("scores.json", "")
        if not SCORED <= scores.keys():
            raise StoreError(f"'{self.path / 'scores.json'}' is damaged: it lacks {', '.join(SCORED - scores.keys())}")
        return scores

    def checkpoint(self) -> Checkpoint | None:
        """The last saved state, checked; None before the first. What clients remember is read when it is asked for."""
        from fedsoft.tensorfile import Saved, as_bytes, opened

        path = self.path / "state.safetensors"
        if not path.exists():
            return None
        try:
            text, file = opened(path)
            notes = json.loads(text)
            rounds, of = int(notes["round"]), str(notes["hash"])
            digest = hashlib.blake2b(digest_size=16)
            for name, (_, form) in sorted(file.places.items()):
                digest.update(_title(name, form))
                for _, block in file.blocks(name):
                    digest.update(as_bytes(block))
            intact = digest.hexdigest() == notes["digest"]
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise StoreError(
                f"'{path}' is damaged ({type(error).__name__}): the run cannot be taken up from it"
            ) from None
        if of != self.info.get("hash"):
            raise StoreError(f"'{path}' belongs to another run (hash {of})")
        if not intact:
            raise StoreError(f"'{path}' is damaged (its checksum is wrong): the run cannot be taken up from it")
        return Checkpoint(rounds, dict(Saved(file, "state/")), Saved(file, "memory/"))

    def _json(self, name: str, otherwise: str) -> dict[str, Any]:
        path = self.path / name
        try:
            value = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise StoreError(f"'{path}' is missing: {otherwise}") from None
        except (OSError, ValueError) as error:
            raise StoreError(f"'{path}' is damaged: {error}") from None
        if not isinstance(value, dict):
            raise StoreError(f"'{path}' is damaged: should hold one JSON object")
        return value

    # --- writing ------------------------------------------------------------------------------------------------------

    @staticmethod
    def create(path: Path, spec: RunSpec, fingerprint: str = "", about: str = "") -> RunFolder:
        """A new folder for a run. It appears whole or not at all."""
        with _said(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=NEW, dir=path.parent))
            try:
                info = {"format": FORMAT, "label": spec.label, "hash": spec.hash, "data": fingerprint, "about": about}
                info |= environment()
                for name, text in (("spec.toml", spec.to_toml()), ("run.json", json.dumps(info, indent=1) + "\n")):
                    (made / name).write_text(text, "utf-8")
                    _sync(made / name)
                _sync(made)
                made.chmod(0o755)
                made.rename(path)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
            _sync(path.parent)
        return RunFolder(path)

    def append(self, record: dict[str, Any]) -> None:
        """Add a round to the log."""
        with _said(self.path), (self.path / "rounds.jsonl").open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")

    def save(self, point: Checkpoint) -> None:
        """Replace the saved state. The log up to here is on disk before it."""
        from fedsoft.tensorfile import TensorFile, arranged, as_bytes, in_blocks, write_at

        parts = {"state": in_blocks(point.state), "memory": in_blocks(point.memory)}
        forms = {f"{where}/{name}": form for where, part in parts.items() for name, form in part.forms.items()}
        notes = {"round": point.rounds, "hash": self.info["hash"], "digest": "0" * 32}
        with _said(self.path):
            if (self.path / "rounds.jsonl").exists():
                _sync(self.path / "rounds.jsonl")
        with self._replacing("state.safetensors") as file:
            _, places = arranged(forms, json.dumps(notes))
            target, digest = TensorFile(file.fileno(), places), hashlib.blake2b(digest_size=16)
            for key in sorted(forms):
                where, _, name = key.partition("/")
                digest.update(_title(key, forms[key]))
                for begin, rows in parts[where].blocks(name):
                    target.write(key, begin, rows)
                    digest.update(as_bytes(rows))
            # The header comes first in the file and holds the checksum, whose length is known before it is.
            header, _ = arranged(forms, json.dumps(notes | {"digest": digest.hexdigest()}))
            write_at(file.fileno(), header, 0)

    def records_until(self, rounds: int) -> list[dict[str, Any]]:
        """The log up to a saved state; complains when it is shorter than that."""
        records = self.records()[:rounds]
        if len(records) != rounds:
            raise StoreError(f"'{self.path / 'rounds.jsonl'}' holds {len(records)} rounds, but {rounds} were saved")
        return records

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
        with self._replacing(name) as file:
            file.write(content)

    @contextlib.contextmanager
    def _replacing(self, name: str) -> Iterator[IO[bytes]]:
        """A file to write to that takes its place when it is done."""
        with _said(self.path):
            handle, temporary = tempfile.mkstemp(prefix=f".{name}-", dir=self.path)
            try:
                with os.fdopen(handle, "wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                Path(temporary).chmod(0o644)
                Path(temporary).replace(self.path / name)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
            _sync(self.path)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing to this run. Held by the operating system, so it ends with the process."""
        import fcntl

        with _said(self.path):
            file = (self.path / "lock").open("ab")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(f"run '{self.name}' is being worked on by another process") from None
            with _said(self.path):
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


def write_folder(path: Path, files: dict[str, bytes]) -> None:
    """A folder of whole files, none of them ever half written."""
    with _said(path):
        path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        RunFolder(path).write(name, content)


def environment() -> dict[str, Any]:
    """Where and with what a run was made."""
    packages = {name: version(name) for name in ("fedsoft", "torch", "numpy", "scipy", "safetensors")}
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "packages": packages,
    }


def list_runs(root: Path) -> list[RunFolder]:
    """The runs in a folder, newest last."""
    if not root.is_dir():
        return []
    found = [RunFolder(path.parent) for path in root.glob("*/run.json") if not path.parent.name.startswith(".")]
    return sorted(found, key=lambda run: (run.path / "run.json").stat().st_mtime)


def find_run(root: Path, name: str) -> RunFolder:
    """A run by path, by name, or by the beginning of its name."""
    if (Path(name) / "run.json").exists() or Path(name).is_absolute() or os.sep in name:
        return RunFolder.open(Path(name))
    runs = list_runs(root)
    matches = [run for run in runs if run.name == name] or [run for run in runs if run.name.startswith(name)]
    if len(matches) == 1:
        return RunFolder.open(matches[0].path)
    if matches:
        raise InputError(f"'{name}' could be {', '.join(run.name for run in matches)}: give more of the name")
    there = (
        f"it holds {', '.join(run.name for run in runs[-5:])}"
        if runs
        else "it holds none: start one with 'fedsoft run'"
    )
    raise InputError(f"there is no run '{name}' in '{root}': {there}")


def _title(name: str, form: Form) -> bytes:
    """What the checksum says before the numbers of a tensor."""
    return f"{name} {form.dtype} {list(form.shape)}".encode()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _said(path: Path) -> Iterator[None]:
    """What the operating system refuses, in one sentence."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        advice = {
            errno.ENOSPC: "free some space, then go on with 'fedsoft resume'",
            errno.EDQUOT: "free some space, then go on with 'fedsoft resume'",
            errno.EFBIG: "a file would grow beyond the allowed size",
            errno.EACCES: "choose another folder with --out",
            errno.EROFS: "choose another folder with --out",
            errno.ENOTDIR: "choose another folder with --out",
        }.get(error.errno or 0, "what was saved before is unharmed")
        raise StoreError(f"cannot write to '{path}': {error.strerror or error} ({advice})") from None
