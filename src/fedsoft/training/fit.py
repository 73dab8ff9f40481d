"""Training in one call."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import nn

from fedsoft.core.contract import Algorithm
from fedsoft.core.federation import Federation
from fedsoft.core.local_solve import Solver
from fedsoft.core.model import Builder, Model
from fedsoft.errors import InputError, WorkerLost
from fedsoft.machine.threads import one_thread
from fedsoft.safety.conditions import Conditions
from fedsoft.training.notices import Kind, collapse, silence, unheard
from fedsoft.training.options import FitOptions
from fedsoft.training.prepare import Recipe, prepare, remarks
from fedsoft.training.rounds import Limit, Restarts, play
from fedsoft.training.run import Run

LOG = logging.getLogger("fedsoft")


def fit(
    algorithm: Algorithm,
    federation: Federation,
    model: Builder | Model | nn.Module | Callable[[], nn.Module],
    *,
    rounds: int | Limit,
    solver: Solver | None = None,
    seed: int = 0,
    conditions: Conditions | None = None,
    options: FitOptions | None = None,
) -> Run:
    """Train, and return the run.

    Arguments:
        algorithm: for instance `FedSoft(S=2, K=60)`.
        federation: the clients, for instance `Federation.from_clients([(x, y), ...])`.
        model: `models.linear()`, `models.mlp()`, a `torch.nn.Module` or a function that makes one, or
            `models.module(...)`.
        rounds: communication rounds T, or a `Limit` that also bounds client work or bytes.
        solver: what clients solve their problem with; default: `Adam()`.
        seed: of all draws of the run.
        conditions: what clients may do, and what is done about it: dropout, attacks, aggregators, guards, privacy.
        options: how it is computed: device, workers, memory, engine, precision; and `on_round`.
    """
    options, limit = options or FitOptions(), rounds if isinstance(rounds, Limit) else Limit(rounds)
    for name, value, least in (("rounds", limit.rounds, 0), ("score_every", options.score_every, 1)):
        if not isinstance(value, int) or value < least:
            raise InputError(f"{name} = {value!r} is not allowed: should be a whole number of at least {least}")
    if isinstance(algorithm, type | str):
        raise InputError(
            f"algorithm = {algorithm!r} is not allowed: should be one with its settings, such as FedSoft(S=2)"
        )
    if isinstance(solver, type):
        raise InputError(f"solver = {solver!r} is not allowed: should be one with its settings, such as Adam(lr=0.01)")
    recipe = Recipe(
        algorithm, model, solver, seed, options.dtype, options.backend, options.metrics, options.class_weights
    )
    engine = prepare(recipe, federation, conditions, options)
    for remark in remarks(engine):
        LOG.warning(remark)
    seen = 0
    told: set[tuple[Kind, str]] = set()
    restarts = Restarts(engine)
    while True:
        try:
            with torch.no_grad(), one_thread():
                state = engine.start()
            run = Run(federation, engine, state, [])
            for run.state, record in play(engine, federation, state, [], limit, options.score_every):
                run.history.append(record)
                if options.on_round is not None and run.rounds > seen:  # played again after a loss, it is the same
                    options.on_round(record)
                seen = max(seen, run.rounds)
                for notice in collapse(run.history):
                    if notice.key not in told:
                        told.add(notice.key)
                        LOG.warning("after round %d %s", run.rounds, notice.text)
            for notice in silence(run.history) if unheard(run.history) else ():
                LOG.warning(notice.text)
            return run
        except WorkerLost as lost:
            restarts.after(lost, seen)
