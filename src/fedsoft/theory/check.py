"""What a check returns, and the list of all checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter

Holds = Literal["yes", "no", "assumptions not met"]
Kind = Literal["as written", "corrected", "step of a proof"]
KINDS: tuple[Kind, ...] = ("as written", "corrected", "step of a proof")
"""What a check is about: a statement of the paper, one that was put right, or a step that could be replaced."""
WORSE: tuple[Holds, ...] = ("yes", "assumptions not met", "no")
Series = dict[str, list[list[float]]]


def yes(holds: bool) -> Holds:
    """`yes` or `no`."""
    return "yes" if holds else "no"


def met(possible: bool) -> Holds:
    """`yes`, or `assumptions not met` where no case was found in which they are."""
    return "yes" if possible else "assumptions not met"


@dataclass(frozen=True)
class Found:
    """What was found about a statement.

    Arguments:
        holds: whether it holds as the paper writes it.
        measured: what was measured, in a few words with numbers.
        bound: what the paper says it should be.
        finding: the margin; or the counterexample, with the numbers to recompute it by hand.
        values: the numbers by name.
        series: curves to draw, {name: [[x, y], ...]}.
        draws: how many problems or draws the numbers rest on; 1 where they are exact.
    """

    holds: Holds
    measured: str
    bound: str
    finding: str
    values: dict[str, Any] = field(default_factory=dict)
    series: Series = field(default_factory=dict)
    draws: int = 1


@dataclass(frozen=True)
class Check:
    """One statement of the paper, and what was found about it. Checks of the same `about` are of one statement."""

    name: str
    about: str
    kind: Kind
    reference: str
    statement: str
    holds: Holds
    measured: str
    bound: str
    finding: str
    values: dict[str, Any]
    series: Series
    draws: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Check:
        """Read what `to_dict` gave; raises ValueError for a field that is missing or of another type."""
        return TypeAdapter(Check).validate_python(values)


Examine = Callable[[int, int], Found]


@dataclass(frozen=True)
class Statement:
    """A statement of the paper with the function (seed, draws) that examines it."""

    name: str
    about: str
    kind: Kind
    reference: str
    statement: str
    examine: Examine

    def check(self, seed: int, draws: int) -> Check:
        found = self.examine(seed, draws)
        return Check(
            name=self.name,
            about=self.about,
            kind=self.kind,
            reference=self.reference,
            statement=self.statement,
            seed=seed,
            **vars(found),
        )


STATEMENTS: dict[str, Statement] = {}
"""All statements by name, in the order of the paper."""


def statement(
    name: str, reference: str, text: str, *, about: str = "", kind: Kind = "as written"
) -> Callable[[Examine], Examine]:  # fmt: skip
    """Register the function that examines a statement; `about`: the statement, where several checks are of it."""

    def register(examine: Examine) -> Examine:
        STATEMENTS[name] = Statement(name, about or name, kind, reference, text, examine)
        return examine

    return register


def tally(checks: Sequence[Check], kind: Kind) -> dict[Holds, int]:
    """Count statements by what was found, each once: one counterexample is enough for `no`."""
    found: dict[str, Holds] = {}
    for check in checks:
        if check.kind == kind:
            before = found.get(check.about, "yes")
            found[check.about] = check.holds if WORSE.index(check.holds) > WORSE.index(before) else before
    return {holds: sum(one == holds for one in found.values()) for holds in WORSE}
