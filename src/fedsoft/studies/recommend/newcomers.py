"""Clients that join after training: each candidate serves them in its own way, and no shared model changes.

A newcomer does what a client of the run does in as many rounds as these had on average, except that the shared models
stay as they are. Fine-tuning is one job.
"""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from fedsoft.clusters.initial import older
from fedsoft.core.client_data import ClientData
from fedsoft.core.contract import State
from fedsoft.core.federation import Federation
from fedsoft.engine.base import Engine
from fedsoft.machine.threads import one_thread
from fedsoft.runs.run import Run
from fedsoft.studies.recommend.candidates import Candidate
from fedsoft.training.snapshot import Snapshot


class Measure(Protocol):
    """Measures personal models, client by client."""

    def __call__(self, engine: Engine, state: State, data: ClientData) -> dict[str, np.ndarray]: ...


def serve(run: Run, newcomers: Federation, measure: Measure, candidate: Candidate) -> dict[str, np.ndarray]:
    """Serve newcomers with their training points, and measure on their held-out points."""
    assert run.plan is not None
    recipe = run.plan.recipe
    algorithm = recipe.algorithm if recipe.algorithm.K is None else replace(recipe.algorithm, K="all")  # pyright: ignore[reportArgumentType]
    plan = replace(run.plan, recipe=replace(recipe, algorithm=algorithm))
    with closing(plan.engine(newcomers)) as engine, torch.no_grad(), one_thread():
        state = Snapshot.of(run).moved((), engine, newcomers).into(engine)
        if candidate.adopts_by is not None:
            engine.begin_round(state, 0, last=True)
            engine(candidate.adopts_by, engine.everyone, centers=state.centers)
        else:
            if "age" in state.extra:  # they begin, whatever the run has behind it
                state = state.update(extra={"age": torch.zeros_like(state.extra["age"])})
            for t in range(rounds_of_a_client(run)):
                new, _ = engine.round(state, t)
                state = State(state.centers, new.mixture, new.per_client, {**state.extra, **older(state)})
            if "strengths" in state.extra:  # networks with a learned prior: models of their own come last
                way = {
                    name: state.extra[name] for name in ("strengths", "scale", "rate", "picture") if name in state.extra
                }
                engine.begin_round(state, 0, last=True)
                engine("tune", engine.everyone, each=None, centers=state.centers, **way)
        return measure(engine, state, newcomers.held_out)


def rounds_of_a_client(run: Run) -> int:
    """Return in how many rounds a client of a run took part on average."""
    share = [min(1.0, (record.selected or 0) / len(run.federation)) for record in run.history]
    return max(2, math.ceil(sum(share)))
