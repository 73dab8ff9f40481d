"""The rounds of a run: played one after the other, logged, and stopped when they diverge or cost too much."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsoft.clusters.collapse import use_of
from fedsoft.clusters.drift import watch
from fedsoft.core.contract import State
from fedsoft.core.federation import Federation
from fedsoft.core.local_solve import task_passes
from fedsoft.engine.base import Engine
from fedsoft.errors import DivergedError, FedsoftError, WorkerLost, advice
from fedsoft.evaluation.scores import CenterView, center_usage
from fedsoft.machine.threads import one_thread
from fedsoft.training.held_out import HeldOut
from fedsoft.training.records import RoundRecord

ABSURD = 1e6  # times the error of the centers as they were drawn
PATIENCE = 3  # how often workers may be lost in one round
RECENT = 10  # rounds that tell what the next will cost
MOST_NAMED = 20  # excluded clients that a record names; the others are counted
MOST_JOINED = 1000  # names of clients that joined or left in a record
# Notes of algorithms and engines that have a field of their own in a record.
FIELDS = ("selected", "answered", "phase", "dropped", "late", "evidence", "variation")


@dataclass(frozen=True)
class Limit:
    """When a run ends: after this many rounds, or before it spends more client work or bytes than allowed."""

    rounds: int
    work: int | None = None  # gradient evaluations, summed over clients
    bytes: int | None = None  # sent in both directions, summed over clients

    def fits(self, history: Sequence[RoundRecord], more: int = 1, closing: int = 0) -> bool:
        """Whether `more` rounds like the dearest of the last few fit after `history`, and the closing work after them.

        The first round is always played: nothing is known of its cost, and it may be dearer than all others.
        """
        if not history or len(history) + more > self.rounds:
            return len(history) + more <= self.rounds
        work, sent = [record.gradients for record in history], [record.bytes for record in history]
        for allowed, spent, extra in ((self.work, work, closing), (self.bytes, sent, 0)):
            if allowed is not None and sum(spent) + more * max(spent[1:][-RECENT:] or spent) + extra > allowed:
                return False
        return True


def closing_work(engine: Engine) -> int:
    """Return the gradients that an algorithm spends in its last round beyond a usual one: tasks of all clients."""
    return engine.algorithm.closing_tasks(engine.model) * int(engine.sizes.sum()) * task_passes(engine.training.solver)


class Observer(Protocol):
    """What looks at rounds while they are played; see `callbacks.Watch`."""

    @property
    def measure(self) -> HeldOut | None:
        """What to measure on held-out points after every round."""
        ...

    def over(self, rounds: int) -> bool:
        """Whether the run is to end after this round."""
        ...


@dataclass(frozen=True)
class Change:
    """Clients that join and leave a run between two rounds; `at`: how many rounds were played before."""

    at: int
    joined: tuple[str, ...]
    left: tuple[str, ...]

    def noted(self) -> dict[str, Any]:
        """Return the fields of a record: a line of the log has its limits."""
        return {"joined": list(self.joined[:MOST_JOINED]), "left": list(self.left[:MOST_JOINED])}


def play(
    engine: Engine, federation: Federation, state: State, history: Sequence[RoundRecord], limit: Limit,
    score_every: int = 1, observer: Observer | None = None, change: Change | None = None,
) -> Iterator[tuple[State, RoundRecord]]:  # fmt: skip
    """Play the rounds that are left after `history`; after each, the new state and what to log about it.

    Centers are scored after the first round, after every `score_every` further ones and after the last. Where
    `observer` ends the run, algorithms that close with a last round of their own still play it.
    """
    history = list(history)
    closing = closing_work(engine)
    fractions = federation.truth.fractions(federation.train) if federation.truth is not None else None
    while not (history and history[-1].last) and limit.fits(history, closing=closing):
        ended = observer is not None and observer.over(len(history))
        if ended and not engine.algorithm.closing_tasks(engine.model):
            return
        t, last = len(history), ended or not limit.fits(history, more=2, closing=closing)
        # Not around the yield, too: between rounds gradients and threads are the caller's.
        with torch.no_grad(), one_thread():
            began = time.perf_counter()
            engine.recall(history[-1].notes if history else {})
            engine.begin_round(state, t, last)
            new, notes = engine.carry_out(state, t)
            seconds = round(time.perf_counter() - began, 6)
            known = _noted(engine, notes | engine.round_notes(), history[-1] if history else None)
            state, changed = watch(new, state, engine.sizes)
            if (u := state.mixture) is not None and u.shape[1] > 1:
                known |= use_of(state.centers, u, engine.sizes)
            if last or t % score_every == 0:
                known |= _scored(engine, federation, state, fractions, t)
            if observer is not None and observer.measure is not None:
                known["held_out"] = observer.measure(engine, federation, state)
            if change is not None and change.at == t:
                known |= change.noted()
            names = [federation.names[k] for k in changed]
            record = RoundRecord(round=t + 1, last=last, seconds=seconds, changed=names, **known)
            if engine.conditions.attack is None:  # what malicious clients do is no fault of the rate
                before = next((errors for errors in map(_errors, history) if errors), None)
                errors = _errors(record) or _on_all(engine, federation, state, wanted=last or not history)
                if not history and errors:
                    before = _on_all(engine, federation, engine.initial_state(), wanted=True)
                _grown(engine, before, errors, record.round)
        history.append(record)
        yield state, record


def _noted(engine: Engine, notes: Mapping[str, Any], before: RoundRecord | None) -> dict[str, Any]:
    """Return the fields of a record that the engine and the algorithm know after a round."""
    excluded = list(dict.fromkeys(engine.excluded))
    return {
        **asdict(engine.cost),
        **{name: notes[name] for name in FIELDS if name in notes},
        "notes": {name: value for name, value in notes.items() if name not in FIELDS},
        "excluded": excluded[:MOST_NAMED],
        "excluded_more": max(0, len(excluded) - MOST_NAMED),
        "privacy": engine.spent(None if before is None else before.privacy),
    }


def _scored(engine: Engine, federation: Federation, state: State, fractions: Tensor | None, t: int) -> dict[str, Any]:
    """Return the fields of a record that scoring gives: of sources where they are known, else of clients' points."""
    u, truth = state.mixture, federation.truth
    if truth is None or fractions is None:
        return {} if u is None else {"served": center_usage(engine.model, state.centers, u, federation)}
    view = CenterView.of(engine.model, state.centers, u, truth, fractions)
    if not np.isfinite(view.centers).all():
        raise DivergedError(f"the error of a center is not finite after round {t + 1}: training diverged, "
                            f"{advice(engine.algorithm.rates)}")  # fmt: skip
    best = max if engine.model.metric.higher_is_better else min
    columns = zip(*view.centers, strict=True)
    return {"centers": view.centers, "weights": view.weights or [], "best": [best(column) for column in columns]}


def _grown(engine: Engine, before: Sequence[float] | None, errors: Sequence[float], t: int) -> None:
    """Raise when the error of a center has grown beyond all bounds: it diverges, though its numbers are finite.

    Arguments:
        before: the errors of the centers as they were drawn, or after the first round; None where they are not known.
        errors: those after round `t`.
    """
    first = [error for error in before or () if math.isfinite(error)]
    if engine.model.metric.higher_is_better or not first or not max(first) > 0:
        return
    for s, error in enumerate(errors):
        if not error <= ABSURD * max(first):
            times = error / max(first)
            raise DivergedError(
                f"the error of center {s} is {error:.3g} after round {t}, {times:.1g} times that of "
                f"{'the start' if t == 1 else 'the first round'}: training diverged, {advice(engine.algorithm.rates)}; "
                "guard = 5 leaves out single clients"
            )


def _on_all(engine: Engine, federation: Federation, state: State, *, wanted: bool) -> list[float]:
    """The error of each center on the points of all clients, where that is `wanted`, and they are here."""
    centers = state.centers
    if not wanted or not len(centers) or not len(federation.train.x) or engine.model.metric.higher_is_better:
        return []
    u = centers.new_full((len(federation), len(centers)), 1 / len(centers))
    return [use.on_all for use in center_usage(engine.model, centers, u, federation)]


def _errors(record: RoundRecord) -> list[float]:
    """The largest error of each center, on sources or on clients' points, as far as it was scored."""
    return [max(row) for row in record.centers] or [use.on_all for use in record.served]


class Restarts:
    """Brings back workers that are lost, but not for ever when they are lost again and again."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.reached, self.losses = engine, 0, 0

    def after(self, lost: WorkerLost, rounds: int) -> None:
        """Bring back what is lost; `rounds` is how far the run had come."""
        self.losses = 1 if rounds > self.reached else self.losses + 1
        self.reached = max(self.reached, rounds)
        if self.losses > PATIENCE:
            raise FedsoftError(f"{lost}; it was brought back {PATIENCE} times and lost again in the same round "
                               "(out of memory?)") from None  # fmt: skip
        self.engine.restart_workers()
