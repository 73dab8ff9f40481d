"""A run on a federation, driven from the server: hand it to Flower, follow it, end what was started for it."""

from __future__ import annotations

import json
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsoft.checks import renamed, toml
from fedsoft.engines.flower.loopback import Loopback
from fedsoft.engines.flower.terms import Rules
from fedsoft.errors import FedsoftError, InputError
from fedsoft.runs.disk import write_folder
from fedsoft.runs.execution import stop_when_asked
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.spec import RunSpec
from fedsoft.runs.stage import Stage

NODES = 4  # of a federation that is started for one run
LOOK = 0.2  # seconds between two looks at the run's folder
CHECK = 30.0  # seconds between two questions to Flower whether the run is still there


def carry_out(spec: RunSpec, path: Path, stage: Stage) -> tuple[RunFolder, bool]:
    """Carry a run out, or take it up; True when it is finished. See `runs.execute`."""
    if stage.device != "cpu":
        raise InputError(f"device = '{stage.device}' is not allowed: nodes compute on their CPU")
    if stage.address is not None:
        return follow(Loopback(Path(stage.address).absolute()), spec, path, stage)
    # What clients keep stays there until the run is finished, so that it can be taken up.
    own = Loopback(path.parent.absolute() / f".federation-{path.name[-40:]}")
    try:
        own.up(stage.workers or NODES)
        folder, finished = follow(own, spec, path, stage)
    finally:
        own.down()
    if finished:
        shutil.rmtree(own.folder, ignore_errors=True)
    return folder, finished


def follow(federation: Loopback, spec: RunSpec, path: Path, stage: Stage) -> tuple[RunFolder, bool]:
    """Submit a run to a federation that is up, and wait for its end."""
    federation.settings  # noqa: B018  complains when there is none
    request = Ticket.write(federation, spec, path, stage)
    told = len(RunFolder(path).records())
    asked = threading.Event()
    with stop_when_asked(asked, stage.signals):
        number = federation.submit(request.path)
        checked = time.monotonic()
        while (outcome := request.outcome()) is None:
            told = _tell(path, told, stage)
            if asked.is_set() or stage.told_to_stop():
                federation.stop(number)
                return RunFolder.open(path), False
            link = federation.processes().get("superlink")  # a service of the system is not ours to watch
            if link is not None and not link.alive:
                raise FedsoftError(
                    f"the SuperLink of '{federation.folder}' is gone: start it with 'fedsoft flower up', then take the "
                    "run up"
                )
            if time.monotonic() - checked > CHECK:
                checked = time.monotonic()
                if federation.status(number).startswith("finished") and request.outcome() is None:
                    raise FedsoftError(f"Flower ended run {number} without an outcome: see "
                                       f"'{federation.folder / 'superlink.log'}'")  # fmt: skip
            time.sleep(LOOK)
    _tell(path, told, stage)
    if "error" in outcome:
        raise FedsoftError(str(outcome["error"]))
    return RunFolder.open(path), bool(outcome["finished"])


def _tell(path: Path, told: int, stage: Stage) -> int:
    """Tell of rounds that are new in the log; how many were told."""
    if stage.on_round is None:
        return told
    records = RunFolder(path).records()
    for record in records[told:]:
        stage.on_round(record)
    return max(told, len(records))


@dataclass(frozen=True)
class Ticket:
    """A request in the federation's folder."""

    path: Path

    @staticmethod
    def write(federation: Loopback, spec: RunSpec, path: Path, stage: Stage) -> Ticket:
        """What is to be run, as the server reads it; see `serverapp.Request`."""
        content = {
            "spec": spec.to_dict(), "label": spec.label, "folder": str(path.absolute()),
            "rules": rules_of(federation.folder),
            "stage": {"chunk": stage.chunk, "memory": stage.memory, "keep": stage.keep},
        }  # fmt: skip
        folder = federation.folder / "requests"
        ticket = Ticket(folder / f"{path.name}.json")
        ticket.ended.unlink(missing_ok=True)
        write_folder(folder, {ticket.path.name: (json.dumps(content, indent=1) + "\n").encode()})
        return ticket

    @property
    def ended(self) -> Path:
        """Where the outcome will be."""
        return self.path.with_name(f"{self.path.stem}.outcome.json")

    def outcome(self) -> dict[str, Any] | None:
        """How it ended; None while it has not."""
        return json.loads(self.ended.read_text("utf-8")) if self.ended.exists() else None


def rules_of(folder: Path) -> dict[str, Any]:
    """The rules that stand in a federation's folder, checked; see `server.Rules`."""
    path = folder / "rules.toml"
    try:
        rules = toml(path.read_text("utf-8")) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' cannot be read: {error}") from None
    with renamed({"Rules": ""}):
        Rules(**rules)
    return rules
