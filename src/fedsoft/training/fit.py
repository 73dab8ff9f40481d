"""Training in one call, and rounds beyond the last one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch

from fedsoft.core.contract import State
from fedsoft.core.federation import Federation
from fedsoft.engine.base import Engine
from fedsoft.errors import InputError, WorkerLost
from fedsoft.machine.threads import one_thread
from fedsoft.training.callbacks import BestRound, Callback, EarlyStopping, Listener, Progress, Watch
from fedsoft.training.membership import check_same_kind, membership
from fedsoft.training.notices import Kind, collapse, silence, unheard
from fedsoft.training.plan import Plan
from fedsoft.training.prepare import remarks
from fedsoft.training.records import RoundRecord
from fedsoft.training.rounds import Change, Restarts, play
from fedsoft.training.run import Run
from fedsoft.training.snapshot import Snapshot

LOG = logging.getLogger("fedsoft")
R = TypeVar("R", bound=Run)


@dataclass(frozen=True)
class Beginning:
    """Where rounds go on from.

    Arguments:
        state: gives clients and server their state; called again when workers are lost.
        history: of the rounds before.
        change: who joins and leaves.
    """

    state: Callable[[], State]
    history: Sequence[RoundRecord]
    change: Change | None = None


def train(plan: Plan, federation: Federation, make: Callable[..., R]) -> R:
    """Train by a plan from the first round on; `make`: a kind of run, from its first four fields."""
    engine = plan.engine(federation)
    for remark in remarks(engine, federation):
        LOG.warning(remark)
    return _played(plan, make, federation, engine, Beginning(engine.start, []))


def extend(plan: Plan, run: Run, federation: Federation | None, make: Callable[..., R]) -> R:
    """Play the rounds of a plan that a run lacks, perhaps with other clients; the run itself stays as it is.

    It goes on from `run.at_round`. Draws have names, so it ends in the same bits as a run that had these rounds from
    the start, where the algorithm's rounds do not depend on how many there are.
    """
    if run.lacking and federation is None:
        raise InputError(run.lacking)
    run.engine.reach_clients()
    done, closing = run.at_round, run.engine.algorithm.closing_tasks(run.model)
    if plan.limit.rounds <= done:
        raise InputError(f"rounds = {plan.limit.rounds} is not allowed: the run has {done} rounds, should be more")
    if closing and run.history[:done] and run.history[done - 1].last:
        name = type(run.engine.algorithm).__name__
        raise InputError(
            f"{name} closes a run with a last round of its own, and this one is over: fit it anew with rounds = "
            f"{plan.limit.rounds} ('fedsoft resume --rounds' goes back to a state that 'fedsoft run --keep' kept)"
        )
    after, change = (federation or run.federation), None
    snapshot = Snapshot.of(run)
    if federation is not None:
        after = check_same_kind(run.federation, federation)
        change = membership(run.federation.names, after.names, done)
    engine = plan.engine(after)
    if change is not None:
        with torch.no_grad(), one_thread():
            snapshot = snapshot.moved(run.federation.names, engine, after)
    before = [*run.history[: done - 1], *(replace(record, last=False) for record in run.history[done - 1 : done])]
    return _played(plan, make, after, engine, Beginning(partial(snapshot.into, engine), before, change))


def watched(callbacks: Sequence[Callback | Listener]) -> list[Callback | Listener]:
    """Return callbacks with those that they bring along."""
    found = list(callbacks)
    for one in callbacks:
        if isinstance(one, EarlyStopping) and one.restore:
            found.append(BestRound(one.metric, one.least))
    return found


def _played(plan: Plan, make: Callable[..., R], federation: Federation, engine: Engine, beginning: Beginning) -> R:
    """Play the rounds that are left."""
    options, before = plan.options, beginning.history
    shown = [Progress()] if options.progress or (options.progress is None and Progress.is_wanted()) else []
    watch, restarts = Watch([*watched(options.callbacks), *shown]), Restarts(engine)
    run: R | None = None
    seen, warned = len(before), set[tuple[Kind, str]]()
    try:
        while True:
            try:
                with torch.no_grad(), one_thread():
                    state = beginning.state()
                if run is None:
                    run = make(federation, engine, state, list(before))
                    watch.start(run, plan.limit.rounds)
                run.state, run.history = state, list(before)
                rounds = play(
                    engine, federation, state, before, plan.limit, options.score_every, watch, beginning.change
                )  # fmt: skip
                for run.state, record in rounds:
                    run.history.append(record)
                    if run.rounds > seen:  # played again after a loss, it is the same
                        seen = run.rounds
                        watch.round(run, record)
                        _warn(run, warned)
                for notice in silence(run.history) if unheard(run.history) else ():
                    LOG.warning(notice.text)
                run.ended_by = watch.by
                watch.end(run)
                return run
            except WorkerLost as lost:
                restarts.after(lost, seen)
    finally:
        watch.close()


def _warn(run: Run, warned: set[tuple[Kind, str]]) -> None:
    """Say once what is wrong with a center."""
    for notice in collapse(run.history):
        if notice.key not in warned:
            warned.add(notice.key)
            LOG.warning("after round %d %s", run.rounds, notice.text)
