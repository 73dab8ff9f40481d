"""What a run is and where it was begun, `run.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from fedsoft.runs.config_diff import from_preset

if TYPE_CHECKING:
    from fedsoft.runs.spec import RunSpec
    from fedsoft.training.rounds import Change

FORMAT = "fedsoft-run-3"


@dataclass(frozen=True)
class Parent:
    """The run that this one continues.

    Arguments:
        run: its name.
        hash: of its spec.
        rounds: that were taken over from it.
        joined, left: clients that it did not have, and those that are here no more.
    """

    run: str
    hash: str
    rounds: int
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def change(self) -> Change | None:
        """Who joined and left, and when; None where the clients are the same."""
        from fedsoft.training.rounds import Change

        return Change(self.rounds, self.joined, self.left) if self.joined or self.left else None


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What is written once, when a run begins.

    Arguments:
        format: of the folder.
        label, hash: of the run's spec.
        data: fingerprint of the data; about: how files were understood.
        keep: the state of every `keep` rounds is kept.
        parent: the run that this one continues, where there is one.
        code: digests of the user's own code, by its names, see `user_code`.
        changed: the settings that were not those of its preset; None where it was made of none.
        created, python, platform, processor, command, packages: see `resources.environment`.
    """

    format: str
    label: str
    hash: str
    data: str = ""
    about: str = ""
    keep: int | None = None
    parent: Parent | None = None
    code: dict[str, str] = field(default_factory=dict)
    changed: dict[str, Any] | None = None
    created: str = ""
    python: str = ""
    platform: str = ""
    processor: str = ""
    command: str = ""
    packages: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def here(
        spec: RunSpec, data: str = "", about: str = "", keep: int | None = None, parent: Parent | None = None
    ) -> RunInfo:
        """Describe a run that begins now, on this machine."""
        from fedsoft.machine.resources import environment

        return RunInfo(
            format=FORMAT, label=spec.label, hash=spec.hash, data=data, about=about, keep=keep, parent=parent,
            changed=from_preset(spec),             **environment(),
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> RunInfo:
        """Read what `to_dict` gave; raises ValueError for a field that is missing or of another type."""
        return _adapter().validate_python(values)


@cache
def _adapter() -> TypeAdapter[RunInfo]:
    return TypeAdapter(RunInfo)
