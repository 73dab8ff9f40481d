"""Play one run of the leaderboard in this process, and take its numbers."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch

from fedsoft.core.client_data import ClientData
from fedsoft.core.federation import Federation
from fedsoft.errors import DivergedError, FedsoftError, InputError
from fedsoft.evaluation.spread import Spread
from fedsoft.evaluation.values import Scores
from fedsoft.leaderboard.data import Draw, Result
from fedsoft.leaderboard.plan import Entry
from fedsoft.machine.threads import one_thread
from fedsoft.runs.run import Run
from fedsoft.runs.run_options import RunOptions, federation_of, plan_of
from fedsoft.runs.spec import RunSpec
from fedsoft.seeds import generator
from fedsoft.studies.compare import UNSCORED
from fedsoft.studies.recommend.candidates import CANDIDATES, Candidate
from fedsoft.studies.recommend.measure import Judge
from fedsoft.studies.recommend.newcomers import serve
from fedsoft.training import as_model, train
from fedsoft.training.records import Totals
from fedsoft.training.settled import settled

SCORED = 16  # times that the preset's number of rounds is scored on the way
KEPT = 6  # federations in memory
LOG = logging.getLogger("fedsoft")


@dataclass(frozen=True)
class Clients:
    """The clients of a seed: those that take part, and those that come later."""

    here: Federation
    later: Federation | None


@dataclass
class Player:
    """Plays runs on one federation.

    Arguments:
        entry: the federation.
        options: what may be used of the machine.
    """

    entry: Entry
    options: RunOptions = field(default_factory=lambda: RunOptions(workers=1))
    made: dict[str, Clients] = field(default_factory=dict)

    def clients(self, spec: RunSpec) -> Clients:
        """Return the clients of a run, without the newcomers, who are drawn by the seed."""
        key = repr((spec.dataset, spec.partition, spec.seed, spec.data_seed))
        if key not in self.made:
            while len(self.made) >= KEPT:
                del self.made[next(iter(self.made))]
            whole = federation_of(spec, self.options.given)
            self.made[key] = divided(whole, self.entry.newcomers, spec.seed)
        return self.made[key]

    def held_out(self, spec: RunSpec) -> float:
        """Train, and return the mean held-out score of personal models; NaN where training fails."""
        try:
            run, _ = self._played(replace(spec, score_every=UNSCORED))
        except FedsoftError as error:
            if isinstance(error, InputError):
                raise
            return math.nan
        values = _held_out(run)
        return float(np.nanmean(values)) if np.isfinite(values).any() else math.nan

    def result(self, spec: RunSpec, rounds: int) -> tuple[Result, Scores | None]:
        """Train, serve the newcomers, and return all numbers; `rounds` are those of the federation's own run."""
        began = time.perf_counter()
        try:
            run, clients = self._played(replace(spec, score_every=max(1, rounds // SCORED)))
        except DivergedError as error:
            return Result(seed=spec.seed, digest=_digest([str(error)]), problem=str(error)), None
        seconds, scores = time.perf_counter() - began, run.scores()
        newcomers = self._newcomers(run, clients, spec)
        totals, count = Totals.of(run.history), len(clients.here)
        centers = run.state.centers.detach().cpu().contiguous()
        costs = [(one.gradients, one.evaluations, one.bytes_down, one.bytes_up) for one in run.history]
        raw = centers.numpy().tobytes().hex() if centers.numel() else ""
        later = None if newcomers is None else [float(value).hex() for value in newcomers]
        digest = _digest([raw, [value.hex() for value in _held_out(run).tolist()], later, costs])
        found = Result(
            seed=spec.seed, digest=digest, centers=_mean(scores.of_best), center_count=len(centers),
            recovery=scores.recovery, training=_mean_of(scores.personal_train),
            personal=_mean_of(scores.personal_held_out),
            worst_decile=None if scores.personal_held_out is None else scores.personal_held_out.worst_decile,
            newcomers=None if newcomers is None or not len(newcomers) else float(np.mean(newcomers)),
            rounds=totals.rounds, gradients=totals.gradients / count, evaluations=totals.evaluations / count,
            bytes_down=totals.bytes_down / count, bytes_up=totals.bytes_up / count, seconds=seconds,
            settled=settled(run.history, scores.higher_is_better),
        )  # fmt: skip
        return found, scores

    def _played(self, spec: RunSpec) -> tuple[Run, Clients]:
        clients, plan = self.clients(spec), plan_of(spec, self.options)
        plan = replace(plan, options=replace(plan.options, progress=False))
        with _silent():
            return train(plan, clients.here, partial(Run, plan=plan)), clients

    def _newcomers(self, run: Run, clients: Clients, spec: RunSpec) -> np.ndarray | None:
        """Return the score of each newcomer; None where the method cannot serve them."""
        if clients.later is None:
            return None
        model = as_model(plan_of(spec, self.options).recipe.model, clients.here)
        judge = Judge.of(model, clients.here, None, self.options)
        try:
            with _silent():
                found = serve(run, clients.later, judge, _candidate(spec.algorithm.name))[judge.metric.name]
        except (FedsoftError, RuntimeError, IndexError, KeyError) as error:
            LOG.debug("%s cannot serve newcomers: %s", spec.algorithm.name, error)
            return None
        return found[np.isfinite(found)]


def divided(federation: Federation, newcomers: int, seed: int) -> Clients:
    """Draw the clients that never take part. Those that do keep their truth, and no point of the others."""
    if not newcomers:
        return Clients(federation, None)
    if newcomers > len(federation) - 2:
        raise InputError(f"newcomers = {newcomers} is not allowed: should be at most {len(federation) - 2} here")
    aside = np.sort(generator(seed, "newcomers").permutation(len(federation))[:newcomers])
    rest = np.setdiff1d(np.arange(len(federation)), aside)
    return Clients(_some(federation, rest), replace(_some(federation, aside), truth=None))


def _some(federation: Federation, rows: np.ndarray) -> Federation:
    """Return some of the clients with pools of their own."""
    (train, train_places), (held_out, held_places) = (
        _own(federation.train, rows), _own(federation.held_out, rows)
    )  # fmt: skip
    truth = federation.truth
    if truth is not None:
        truth = replace(
            truth, mixture=truth.mixture[torch.from_numpy(rows)], train_sources=truth.train_sources[train_places],
            held_out_sources=truth.held_out_sources[held_places],
        )  # fmt: skip
    names = tuple(federation.names[k] for k in rows)
    return replace(federation, names=names, train=train, held_out=held_out, truth=truth)


def _own(data: ClientData, rows: np.ndarray) -> tuple[ClientData, torch.Tensor]:
    some = data.take(rows)
    return some.reordered(some.points, some.sizes), some.points


def draw_of(seed: int, run: Result, scores: Scores, clients: int) -> Draw:
    """Return what all runs with a seed share, from the federation's own run."""
    constants = {
        one.name: (_round(one.held_out.mean), _round(one.held_out.worst_decile))
        for one in scores.yardsticks if one.held_out is not None
    }  # fmt: skip
    work, sent = round(run.gradients * clients), round((run.bytes_down + run.bytes_up) * clients)
    oracle = None if scores.oracle is None else _round(fmean(scores.oracle))
    distance = None if scores.distance is None else _round(scores.distance)
    return Draw(
        seed=seed, work=work, bytes=sent, distance=distance, oracle=oracle, noise_floor=scores.noise_floor,
        constants=constants,
    )  # fmt: skip


def _candidate(algorithm: str) -> Candidate:
    """Return how newcomers are served: as `recommend` does it."""
    for one in CANDIDATES:
        if one.algorithm == algorithm and one.adopts_by is not None:
            return one
    return Candidate(algorithm, algorithm, algorithm, "personal")


def _mean(values: list[float] | None) -> float | None:
    return None if not values else fmean(values)


def _mean_of(spread: Spread | None) -> float | None:
    return None if spread is None else spread.mean


def _round(value: float) -> float:
    return float(f"{value:.6g}")


def _held_out(run: Run) -> np.ndarray:
    """Return the held-out score of every client's personal model."""
    with torch.no_grad(), one_thread():
        return run.engine.personal_scores(run.state, run.federation.held_out).double().cpu().numpy()


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


@contextmanager
def _silent() -> Iterator[None]:
    """Say nothing of centers that collapse and the like: the numbers do."""
    before = LOG.level
    LOG.setLevel(logging.ERROR)
    try:
        yield
    finally:
        LOG.setLevel(before)
