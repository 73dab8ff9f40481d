"""What can go wrong with a disk, at every single operation on a run's folder.

Run as a program, this is a warm process that carries a small run out in children of its own, one for each operation
that changes the disk. The child is killed right before the operation, or in the middle of it, or is told that the disk
is full or read-only from there on. What the child left is then resumed without faults and compared.

    python -m tests.faults ROOT KIND...      prints one line of JSON for each fault
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KILLED = 137
KINDS = ("kill", "torn", "hollow", "behind", "full", "readonly")
PATIENCE = 60.0  # seconds for one child
CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Disk:
    """Counts what changes the disk under `root`, in the order in which it happens, and lets one operation fail.

    kill: the process ends before the operation. torn: in the middle of a write. hollow: before it, and all bytes that
    were never synced are zeros. behind: before it, and all names that were never synced are as they were. full: no
    space from there on. readonly: no changes from there on.
    """

    def __init__(self, root: Path, kind: str = "", at: int = -1) -> None:
        self.root, self.kind, self.at = str(root.resolve()), kind, at
        self.seen: list[str] = []
        self.opened: set[str] = set()
        self.synced: dict[str, int] = {}  # length that is safe, by path
        self.undo: dict[str, list[Callable[[], object]]] = {}  # for names that are not synced, by folder
        self.shadow = Path(f"{self.root}.shadow")
        self.shadow.mkdir(exist_ok=True)
        self.real = {name: getattr(os, name) for name in (
            "open", "fsync", "pwrite", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "chmod"
        )}  # fmt: skip
        self.real_open = io.open

    # --- where faults happen ------------------------------------------------------------------------------------------

    def inside(self, path: Any) -> str | None:
        """The full path, where it is under the root."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}").removesuffix(" (deleted)")  # noqa: PTH115
        text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 (links must not be followed)
        return text if text.startswith(self.root + os.sep) or text == self.root else None

    def step(self, what: str, path: str, tear: Callable[[], object] | None = None) -> None:
        """One operation is about to happen."""
        number = len(self.seen)
        self.seen.append(f"{what} {Path(path).relative_to(self.root)}")
        if number < self.at or self.at < 0:
            return
        if self.kind == "full" and what in ("write", "open", "mkdir", "fsync"):
            if what == "write" and number == self.at and tear is not None:
                tear()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if self.kind == "readonly" and what != "fsync":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        if number == self.at and self.kind in ("kill", "torn", "hollow", "behind"):
            if self.kind == "torn" and tear is not None:
                tear()
            if self.kind == "hollow":
                self.hollow()
            if self.kind == "behind":
                self.fall_behind()
            os._exit(KILLED)

    def hollow(self) -> None:
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(folder, name)  # noqa: PTH118
                size, safe = Path(path).stat().st_size, self.synced.get(path, 0)
                if size > safe:
                    handle = self.real["open"](path, os.O_WRONLY)
                    self.real["pwrite"](handle, b"\0" * (size - safe), safe)
                    os.close(handle)

    def fall_behind(self) -> None:
        for steps in self.undo.values():
            for step in reversed(steps):
                step()

    # --- the operations -----------------------------------------------------------------------------------------------

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """`os.open`."""
        if not flags & CHANGING or dir_fd is not None or (full := self.inside(path)) is None:
            return self.real["open"](path, flags, mode, dir_fd=dir_fd)
        self.making(full)
        return self.real["open"](path, flags, mode)

    def making(self, full: str) -> None:
        self.step("open", full)
        self.opened.add(full)
        if not os.path.lexists(full):
            self.synced[full] = 0
            self.later(full, lambda: self.real["unlink"](full))

    def later(self, full: str, undo: Callable[[], object]) -> None:
        def quietly() -> None:
            with contextlib.suppress(FileNotFoundError):
                undo()

        self.undo.setdefault(os.path.dirname(full), []).append(quietly)  # noqa: PTH120

    def io_open(self, file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
                newline: Any = None, closefd: bool = True, opener: Any = None) -> Any:  # fmt: skip
        """`open`, whose files tell of every write that reaches the system."""
        full = self.inside(file) if set(mode) & set("wax+") and isinstance(file, str | os.PathLike | int) else None
        if full is None:
            return self.real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if not isinstance(file, int):
            self.making(full)
            if "w" in mode:
                self.synced[full] = 0
        raw = _Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        raw.disk, raw.path = self, full
        buffered = io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    def pwrite(self, handle: int, content: Any, position: int) -> int:
        """`os.pwrite`."""
        if (full := self.inside(handle)) is None:
            return self.real["pwrite"](handle, content, position)
        half = memoryview(content).cast("B")[: len(memoryview(content).cast("B")) // 2]
        self.step("write", full, lambda: self.real["pwrite"](handle, half, position))
        return self.real["pwrite"](handle, content, position)

    def fsync(self, handle: int) -> None:
        """`os.fsync`."""
        if (full := self.inside(handle)) is None:
            return self.real["fsync"](handle)
        self.step("fsync", full)  # that is all: what would be lost without it is kept in `synced` and `undo`
        if os.path.isdir(full):  # noqa: PTH112
            self.undo.pop(full, None)
        else:
            self.synced[full] = os.fstat(handle).st_size
        return None

    def moved(self, name: str) -> Callable[..., None]:
        """`os.replace` and `os.rename`."""

        def move(source: Any, target: Any, **more: Any) -> None:
            old, new = self.inside(source), self.inside(target)
            if old is None or new is None:
                return self.real[name](source, target, **more)
            self.step(name, new)
            backup = self.backup(new)
            self.real[name](source, target, **more)

            def undo() -> None:
                self.real["rename"](new, old)
                if backup is not None:
                    os.link(backup, new)

            self.later(new, undo)
            before = [path for path in self.synced if path == old or path.startswith(old + os.sep)]
            self.synced |= {new + path.removeprefix(old): self.synced.pop(path) for path in before}
            for folder in [folder for folder in self.undo if folder == old]:  # what is unsynced in it stays so
                self.undo.pop(folder)
            return None

        return move

    def backup(self, full: str) -> str | None:
        """Another name for a file that is about to go."""
        if not os.path.isfile(full):  # noqa: PTH113
            return None
        place = str(self.shadow / str(len(self.seen)))
        os.link(full, place)
        return place

    def gone(self, name: str) -> Callable[..., None]:
        """`os.unlink` and the like."""

        def go(path: Any, **more: Any) -> None:
            if more.get("dir_fd") is None and (full := self.inside(path)) is not None and os.path.lexists(full):
                self.step(name, full)
                if (backup := self.backup(full)) is not None:
                    self.later(full, lambda: os.link(backup, full))
            self.real[name](path, **more)

        return go

    def plain(self, name: str) -> Callable[..., None]:
        """`os.mkdir` and `os.chmod`."""

        def do(path: Any, *rest: Any, **more: Any) -> None:
            if more.get("dir_fd") is None and (full := self.inside(path)) is not None:
                self.step(name, full)
            self.real[name](path, *rest, **more)

        return do

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Stand between the program and the system."""
        os.open, os.pwrite, os.fsync = self.open, self.pwrite, self.fsync
        os.replace, os.rename = self.moved("replace"), self.moved("rename")
        os.unlink, os.remove, os.rmdir = self.gone("unlink"), self.gone("remove"), self.gone("rmdir")
        os.mkdir, os.chmod = self.plain("mkdir"), self.plain("chmod")
        io.open = self.io_open  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            for name, function in self.real.items():
                setattr(os, name, function)
            io.open = self.real_open


class _Raw(io.FileIO):
    """A file that tells of its writes."""

    disk: Disk
    path: str

    def write(self, content: Any, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        half = memoryview(content).cast("B")[: len(memoryview(content).cast("B")) // 2]
        self.disk.step("write", self.path, lambda: super(_Raw, self).write(half))
        return super().write(content)


# --- the warm process -------------------------------------------------------------------------------------------------

CHANGES = ["clients=4", "points=[6, 9]", "K=2", "epochs=1", "test_points=10", "dimension=3", "rounds=2",
           "solver.name=sgd"]  # fmt: skip
KEEP = 2


@functools.cache
def chosen_run() -> Any:
    from fedsoft.runs import spec

    return spec.read("synthetic-10-90", CHANGES)


def carry_out(out: Path) -> None:
    """The run, through the library."""
    from fedsoft.runs.execute import execute
    from fedsoft.runs.run_options import RunOptions

    chosen = chosen_run()
    execute(chosen, out / chosen.id, RunOptions(workers=1, keep=KEEP))


def command(out: Path) -> int:
    """The run, through the command line; its exit code."""
    from fedsoft.cli import main

    sets = [word for change in CHANGES for word in ("--set", change)]
    sys.argv = ["fedsoft", "run", "synthetic-10-90", *sets, "--keep", str(KEEP), "--workers", "1", "--out", str(out)]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)


def in_child(work: Callable[[], int], said: Path) -> int:
    """Do something in a copy of this process; its exit code. What it prints goes to a file."""
    pid = os.fork()
    if pid == 0:
        code = 70  # a traceback
        try:
            handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            code = work()
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + PATIENCE
    while (done := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            return -1
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(done[1])


def outcome(out: Path) -> dict[str, Any]:
    """What a finished run consists of, without times."""
    from fedsoft.runs.find import list_runs
    from tests.helpers import logged

    (folder,) = list_runs(out)
    scores, records = folder.scores(), logged(folder.records())
    states = {path.name: path.read_bytes().hex() for path in sorted(folder.path.glob("*.safetensors"))}
    left = sorted(path.name for path in folder.path.glob(".*") if not path.name.startswith(".figure"))
    return {
        "records": records,
        "states": states,
        "scores": scores and scores.to_dict(),
        "kept": folder.states.kept,
        "left": left,
    }


def faults(root: Path, kinds: list[str]) -> Iterator[dict[str, Any]]:
    """Every fault of these kinds at every operation, and what became of it."""
    import torch

    from fedsoft.runs import saving

    torch.set_num_threads(1)
    saving.SAVING_SHARE = float("inf")  # saves after every round, whatever it costs
    (root / "whole").mkdir(parents=True)
    audited: set[str] = set()
    counting = Disk(root / "whole")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        path, _, flags = arguments if event == "open" else (None, None, 0)
        if isinstance(path, str) and flags & CHANGING and (full := counting.inside(path)) is not None:
            audited.add(full)

    sys.addaudithook(hook)
    with counting.watched():
        carry_out(root / "whole")
    whole = outcome(root / "whole")
    yield {"kind": "count", "steps": counting.seen, "unseen": sorted(audited - counting.opened)}
    by_hand = Disk(root / "drawn")  # the command draws a figure besides; it is loaded here, not in every child
    if {"full", "readonly"} & set(kinds):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), by_hand.watched():
            command(root / "drawn")
    for kind in kinds:
        by_command = kind in ("full", "readonly")
        for at, step in enumerate((by_hand if by_command else counting).seen):
            if kind == "torn" and not step.startswith("write"):
                continue
            out = root / f"{kind}-{at}"
            out.mkdir()
            disk = Disk(out, kind, at)

            def work(disk: Disk = disk, out: Path = out, by_command: bool = by_command) -> int:
                with disk.watched():
                    return command(out) if by_command else (carry_out(out), 0)[1]

            said = root / f"{kind}-{at}.txt"
            code = in_child(work, said)
            told = said.read_text()
            found: dict[str, Any] = {"kind": kind, "at": at, "step": step, "code": code, "said": told, "after": ""}
            try:
                carry_out(out)
                found["same"] = outcome(out) == whole
            except Exception as error:
                found |= {"same": False, "after": f"{type(error).__name__}: {error}"}
            yield found
            for path in (out, disk.shadow):
                shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    for line in faults(Path(sys.argv[1]), sys.argv[2:] or list(KINDS)):
        print(json.dumps(line), flush=True)
