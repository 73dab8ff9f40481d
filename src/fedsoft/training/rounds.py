"""The rounds of a run: played one after the other, logged, and stopped when they diverge or cost too much."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from fedsoft.centers.collapse import use_of
from fedsoft.centers.drift import watch
from fedsoft.contract import State
from fedsoft.errors import DivergedError, FedsoftError, WorkerLost, advice
from fedsoft.federation import Federation
from fedsoft.scores import CenterView, served_by
from fedsoft.simulate import Engine
from fedsoft.threads import one_thread

Record = dict[str, Any]
"""What is logged about one round."""


@dataclass(frozen=True)
class Limit:
    """When a run ends: after so many rounds, or before it spends more client work or bytes than allowed."""

    rounds: int
    work: int | None = None  # gradient evaluations, summed over clients
    bytes: int | None = None  # sent in both directions, summed over clients

    def fits(self, history: Sequence[Record], more: int = 1, closing: int = 0) -> bool:
        """Whether `more` rounds like the dearest of the last few fit after `history`, and the closing work after them.

        The first round is always played: nothing is known of its cost, and it may be dearer than all others.
        """
        if not history or len(history) + more > self.rounds:
            return len(history) + more <= self.rounds
        for allowed, keys, extra in ((self.work, WORK, closing), (self.bytes, BYTES, 0)):
            if allowed is not None:
                spent = [sum(record[key] for key in keys) for record in history]
                if sum(spent) + more * max(spent[1:][-RECENT:] or spent) + extra > allowed:
                    return False
        return True


ABSURD = 1e6  # times the error after the first round
WORK, BYTES = ("gradients",), ("bytes_down", "bytes_up")
PATIENCE = 3  # how often workers may be lost in one round
RECENT = 10  # rounds that tell what the next will cost


def closing_work(engine: Engine) -> int:
    """The gradients that an algorithm spends beyond a usual round in its last one: tasks of everybody."""
    tasks = getattr(engine.algorithm, "closing_tasks", 0)
    return tasks * int(engine.sizes.sum()) * getattr(engine.solver, "epochs", 1)


def play(
    engine: Engine, federation: Federation, state: State, history: Sequence[Record], limit: Limit,
    score_every: int = 1,
) -> Iterator[tuple[State, Record]]:  # fmt: skip
    """Play the rounds that are left after `history`; after each, the new state and what to log about it.

    Centers are scored after the first round, after every `score_every` further ones and after the last.
    """
    history = list(history)
    closing = closing_work(engine)
    truth = federation.truth
    fractions = truth.fractions(federation.train) if truth is not None else None
    with torch.no_grad(), one_thread():
        while not (history and history[-1]["last"]) and limit.fits(history, closing=closing):
            t, last = len(history), not limit.fits(history, more=2, closing=closing)
            began = time.perf_counter()
            new, notes = engine.round(state, t, last)
            seconds = round(time.perf_counter() - began, 6)
            record: Record = {"round": t, "last": last, **notes, **asdict(engine.cost), "seconds": seconds}
            record |= engine.spent(history[-1].get("privacy", {}) if history else {})
            state, changed = watch(new, state)
            if changed:
                record["changed"] = [federation.names[k] for k in changed]
            if (u := state.get("u")) is not None and u.shape[1] > 1:
                record |= use_of(state["centers"], u, engine.sizes)
            if truth is not None and fractions is not None and (last or t % score_every == 0):
                view = CenterView.of(engine.model, state["centers"], state.get("u"), truth, fractions)
                if not np.isfinite(view.centers).all():
                    raise DivergedError(f"the error of a center is not finite after round {t + 1}: training diverged, "
                                        f"{advice(engine.algorithm)}")  # fmt: skip
                record |= {name: value for name, value in asdict(view).items() if value is not None}
                columns = zip(*view.centers, strict=True)
                record["best"] = [max(c) if engine.model.metric.higher_is_better else min(c) for c in columns]
            if truth is None and "u" in state and (last or t % score_every == 0):
                found = served_by(engine.model, state["centers"], state["u"], federation)
                record["served"] = [asdict(use) for use in found]
            if not engine.attacked:  # what liars do is no fault of the rate
                _grown(engine, history, record)
            history.append(record)
            yield state, record


def _grown(engine: Engine, history: Sequence[Record], record: Record) -> None:
    """Complain when the error of a center has grown beyond all measure: it diverges, though its numbers are finite."""
    first = next((errors for errors in map(_errors, history) if errors), [])
    if engine.model.metric.higher_is_better or not first or not max(first) > 0:
        return
    for s, error in enumerate(_errors(record)):
        if not error <= ABSURD * max(first):
            times = error / max(first)
            raise DivergedError(
                f"the error of center {s} is {error:.3g} after round {record['round'] + 1}, {times:.1g} times that of "
                f"the first round: training diverged, {advice(engine.algorithm)}; guard = 5 leaves out single clients"
            )


def _errors(record: Record) -> list[float]:
    """The largest error of each center, on sources or on clients' points, as far as it was scored."""
    return [max(row) for row in record.get("centers", [])] or [use["on_all"] for use in record.get("served", [])]


class Mending:
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
        self.engine.mend()
