"""What the leaderboard is to hold: federations, methods, seeds and what is tuned, from a TOML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fedsoft.errors import InputError, unknown
from fedsoft.leaderboard.data import BUDGETS, PRESET, Budget
from fedsoft.runs import spec as specs
from fedsoft.runs.spec import RunSpec
from fedsoft.settings import settings
from fedsoft.storage.files import read_text, reason
from fedsoft.storage.toml import toml
from fedsoft.studies.methods import Method, parse_algorithms, read_methods


@settings
class Entry:
    """One federation.

    Arguments:
        preset: or a TOML file.
        title: in tables.
        set: changes to it, as `--set` has them.
        fast: its short form.
        newcomers: how many clients never take part; they are served at the end.
        seeds: the first that is reported, and how many follow.
        tuning: the first that is tuned on, and how many follow.
        rates: learning rates to try, as multiples of that of the preset.
        epochs: numbers of local epochs to try; default: one, and as many as the preset has.
        tuned_on: another federation, whose tuned settings are taken; default: none.
        budgets: what is run.
        seconds: a guess at what a run takes on one core, for the cost of what was not run yet; runs that are there
            replace it.
    """

    preset: str
    title: str
    set: tuple[str, ...] = ()
    fast: bool = False
    newcomers: Annotated[int, Field(ge=0)] = 10
    seeds: tuple[int, int] = (9001, 20)
    tuning: tuple[int, int] = (1001, 2)
    rates: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0)
    epochs: tuple[int, ...] | None = None
    tuned_on: str | None = None
    budgets: tuple[Budget, ...] = BUDGETS
    seconds: Annotated[float, Field(gt=0)] = 60.0

    @property
    def reported(self) -> tuple[int, ...]:
        return tuple(range(self.seeds[0], sum(self.seeds)))

    @property
    def tuned(self) -> tuple[int, ...]:
        return tuple(range(self.tuning[0], sum(self.tuning)))

    def base(self) -> RunSpec:
        """Return the federation's own run."""
        return specs.read(self.preset, list(self.set), fast=self.fast)


@settings
class Row:
    """One method.

    Arguments:
        algorithm: as `compare` reads it, with the settings that are not tuned.
        source: who has proposed it: a paper.
    """

    algorithm: str
    source: str = ""

    @property
    def method(self) -> Method:
        return read_methods(self.algorithm).listed[0]


@dataclass(frozen=True)
class Plan:
    """All federations and methods by name."""

    federations: Mapping[str, Entry]
    methods: Mapping[str, Row] = field(default_factory=dict)

    def entry(self, name: str) -> Entry:
        if name not in self.federations:
            raise unknown("federation of the leaderboard", name, self.federations)
        return self.federations[name]

    def row(self, name: str) -> Row:
        if name not in self.methods:
            raise unknown("method of the leaderboard", name, [PRESET, *self.methods])
        return self.methods[name]

    def cells(self, names: Sequence[str]) -> list[tuple[str, list[str], list[Budget]]]:
        """Return federations with methods and budgets from `FEDERATION[/METHOD[/BUDGET]]`; all where none is given."""
        found = []
        for name in names or self.federations:
            federation, method, budget = [*name.split("/"), "", ""][:3]
            entry = self.entry(federation)
            methods = [PRESET, *self.methods] if not method else [method]
            if method not in ("", PRESET):
                self.row(method)
            if budget and budget not in entry.budgets:
                raise unknown(f"budget of '{federation}'", budget, entry.budgets)
            found.append((federation, methods, [one for one in entry.budgets if budget in ("", one)]))
        return found


def read_plan(file: Path | None = None) -> Plan:
    """Read a plan; by default the one that comes with the package."""
    text = (resources.files("fedsoft") / "leaderboard" / "plan.toml").read_text("utf-8") if file is None else None
    try:
        raw = toml(read_text(file) if file is not None else text or "")
    except (OSError, ValueError) as error:
        raise InputError(f"--plan '{file}' cannot be read: {reason(error)}") from None
    for key in raw:
        if key not in ("federations", "methods"):
            raise unknown("table of a plan", key, ["federations", "methods"])
    plan = Plan(
        {name: Entry(**given) for name, given in raw.get("federations", {}).items()},
        {name: Row(**given) for name, given in raw.get("methods", {}).items()},
    )
    _check(plan)
    return plan


def _check(plan: Plan) -> None:
    for name, entry in plan.federations.items():
        if set(entry.reported) & set(entry.tuned):
            raise InputError(f"federation '{name}' is tuned on seeds that it reports: give others")
        if entry.tuned_on is not None and plan.entry(entry.tuned_on).tuned_on is not None:
            raise InputError(f"federation '{name}': tuned_on = '{entry.tuned_on}' is not tuned itself")
    for name, row in plan.methods.items():
        if len(parse_algorithms(row.algorithm)) != 1 or name == PRESET or "/" in name or " " in name:
            raise InputError(
                f"method '{name}' is not allowed: should be one algorithm, and its name without / and space"
            )
