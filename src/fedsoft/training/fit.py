"""Training in one call."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

from fedsoft.contract import Algorithm
from fedsoft.engines import Factory
from fedsoft.engines import find as find_engine
from fedsoft.errors import InputError, WorkerLost
from fedsoft.federation import Federation
from fedsoft.local import Solver
from fedsoft.model import Builder, Model
from fedsoft.threads import one_thread
from fedsoft.training.preparing import crowded, prepare
from fedsoft.training.rounds import Limit, Mending, Record, play
from fedsoft.training.run import Run
from fedsoft.trust.absence import Absent
from fedsoft.trust.attack import Attack
from fedsoft.trust.guards import Care, Diverged, unheard
from fedsoft.trust.privacy import Privacy
from fedsoft.trust.robust import Rule

LOG = logging.getLogger("fedsoft")


def fit(
    algorithm: Algorithm,
    federation: Federation,
    model: Builder | Model | nn.Module,
    *,
    rounds: int,
    seed: int = 0,
    local: Solver | None = None,
    device: str = "cpu",
    dtype: Literal["float32", "float64"] = "float32",
    chunk: int | None = None,
    backend: str = "auto",
    dropout: float = 0.0,
    score_every: int = 1,
    workers: int | None = None,
    memory: int | str | None = None,
    robust: Rule | None = None,
    attack: Attack | None = None,
    absent: Absent | None = None,
    privacy: Privacy | None = None,
    guard: float = 0.0,
    diverged: Diverged = "stop",
    engine: str | Factory = "local",
    address: str | None = None,
    on_round: Callable[[Record], object] | None = None,
) -> Run:
    """Train, and return the run.

    Arguments:
        algorithm: for instance `FedSoft(S=2, K=60)`.
        federation: the clients, for instance `Federation.from_clients([(x, y), ...])`.
        model: `models.linear()`, `models.mlp()`, a `torch.nn.Module`, or `models.module(...)`.
        rounds: communication rounds T.
        seed: of all draws of the run.
        local: what clients solve their problem with; `Adam()` unless told.
        device: `cpu` or `cuda`.
        dtype: `float32` or `float64`.
        chunk: how many clients are stacked together; chosen by size unless told.
        backend: how a network is computed: `stacked` (all clients of a chunk at once), `loop` (one after the other),
            `chain` (the same, with a backward pass written by hand); `auto` takes the fastest.
        dropout: the probability that a client does not answer a job.
        score_every: score the centers on the test sets after every so many rounds only: it may cost more than training.
        workers: how many threads train clients at once; one for each core unless told. Results do not depend on it.
        memory: how much RAM the clients' memory and replies may take, such as "4G"; half of what is available unless
            told. What does not fit is kept on disk. Results do not depend on it.
        robust: a rule in place of the mean wherever clients' models are averaged, such as `rules.median()`.
        attack: what some clients do who lie, such as `attacks.sign_flip(share=0.2)`, for studying it.
        absent: who does not answer, beyond `dropout`, for studying it; see `fedsoft.trust.absence`.
        privacy: what is hidden of points and clients, and how well; see `fedsoft.trust.privacy`.
        guard: how many times the median norm a client's model may have before it is not believed; 0 for any. Replies
            that are not finite or out of range are never believed. See `fedsoft.trust.guards`.
        diverged: when a client's training gives values that are not finite, `stop` the run, or `drop` the client for
            this ask: what it keeps stays as it was.
        engine: where clients are: `local` in this process, `ray` in others, here or on a cluster; or what makes one,
            see `fedsoft.engines`. Draws do not depend on it.
        address: of the cluster, for engines that have one.
        on_round: called with the record of every round.
    """
    for name, value, least in (("rounds", rounds, 0), ("score_every", score_every, 1)):
        if not isinstance(value, int) or value < least:
            raise InputError(f"{name} = {value!r} is not allowed: should be a whole number of at least {least}")
    if isinstance(algorithm, type | str):
        raise InputError(
            f"algorithm = {algorithm!r} is not allowed: should be one with its settings, such as FedSoft(S=2)"
        )
    if isinstance(local, type):
        raise InputError(f"local = {local!r} is not allowed: should be one with its settings, such as Adam(lr=0.01)")
    made = prepare(
        algorithm, federation, model, seed=seed, local=local, device=device, dtype=dtype, chunk=chunk, drop=dropout,
        backend=backend, workers=workers, memory=memory, rule=robust, attack=attack,
        engine=find_engine(engine, address), absent=absent, care=Care(guard, diverged, privacy),
    )  # fmt: skip
    if (note := crowded(algorithm, len(federation))) is not None:
        LOG.warning(note)
    told = 0
    mending = Mending(made)
    while True:
        try:
            with torch.no_grad(), one_thread():
                state = made.start()
            run = Run(federation, made, state, [])
            for run.state, record in play(made, federation, state, [], Limit(rounds), score_every):
                run.history.append(record)
                if on_round is not None and run.rounds > told:  # played again after a loss, it is the same
                    on_round(record)
                told = max(told, run.rounds)
            if (never := unheard(run.history)) is not None:
                LOG.warning(never)
            return run
        except WorkerLost as lost:
            mending.after(lost, told)
