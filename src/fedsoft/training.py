"""From an algorithm, a federation and a model to a finished run."""

from __future__ import annotations

import inspect
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, SupportsIndex

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from fedsoft.absence import Absent, dropout, together
from fedsoft.adoption import LEVEL, Adopted, How, Newcomers
from fedsoft.attack import Attack, liars, spoiled
from fedsoft.batches import Problem
from fedsoft.blend import Blend
from fedsoft.clientdata import ClientData
from fedsoft.collapse import use_of
from fedsoft.contract import Algorithm, State
from fedsoft.drift import watch
from fedsoft.engines import Factory
from fedsoft.engines import find as find_engine
from fedsoft.errors import DivergedError, FedsoftError, InputError, WorkerLost, advice
from fedsoft.federation import Federation
from fedsoft.guards import Care, Diverged
from fedsoft.local import Solver
from fedsoft.model import Builder, Model, Params, as_numbers, check_outputs, squared_loss
from fedsoft.models.module import module
from fedsoft.privacy import Privacy, why_withheld, withheld
from fedsoft.robust import Rule
from fedsoft.scores import CenterView, Scores, score, served_by
from fedsoft.seeds import generator
from fedsoft.simulate import Engine, Simulation
from fedsoft.solvers.adam import Adam
from fedsoft.threads import one_thread

Record = dict[str, Any]
"""What is logged about one round."""

E = TypeVar("E", bound=Engine, default=Simulation)

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass
class Run:
    """A run in memory: the centers for new users, a personal model for each client, and how they came about."""

    federation: Federation
    simulation: Engine
    state: State
    history: list[Record]

    def __repr__(self) -> str:
        over = "" if self.is_over else ", not over"
        return f"<Run of {self.simulation.algorithm} after {self.rounds} rounds{over}, on {self.federation!r}>"

    @property
    def model(self) -> Model:
        """The model that was trained."""
        return self.simulation.model

    @property
    def rounds(self) -> int:
        """How many rounds were played."""
        return len(self.history)

    @property
    def is_over(self) -> bool:
        """Whether the last round was played as such."""
        return bool(self.history and self.history[-1]["last"])

    @property
    def centers(self) -> list[Params]:
        """The cluster models, as named tensors."""
        return [self.model.layout.unflatten(c.clone()) for c in self.state["centers"]]

    @property
    def weights(self) -> Tensor | None:
        """The estimated importance weights u, `[N, S]`, where the algorithm estimates them."""
        return self.state.get("u")

    def personal(self, client: SupportsIndex | str) -> Params:
        """The personal model of a client (by number or name), as named tensors."""
        k = self._row(client)
        self.simulation.reach_clients()
        if "w" not in self.simulation.memory:
            raise InputError(
                f"{type(self.simulation.algorithm).__name__} keeps no personal model: use predict(client=...)"
            )
        return self.model.layout.unflatten(self.simulation.memory.take(np.array([k]), ["w"])["w"][0])

    def predict(self, x: Any, *, center: int | None = None, client: SupportsIndex | str | None = None) -> Tensor:
        """Predict for inputs `x[points, ...]` with a center or with a client's personal model."""
        if (center is None) == (client is None):
            raise InputError("predict needs either center=... or client=...")
        like = self.state["centers"]
        inputs = as_numbers(torch.as_tensor(x if isinstance(x, Tensor) else np.array(x)), like.dtype)
        inputs = inputs.to(like.device, like.dtype)
        shape = self.federation.shape.input
        if tuple(inputs.shape[1:]) != shape:
            raise InputError(f"x has shape {list(inputs.shape)}, should be [points, {', '.join(map(str, shape))}]")
        with torch.no_grad():
            if client is not None:
                return self.simulation.predict_for(self._row(client), inputs, self.state)
            c = like[self._center(center or 0)]
            return self.model.predict(self.model.outputs(c[None], inputs[None]))[0]

    def blend(self, *, center: int | None = None, client: SupportsIndex | str | None = None) -> Blend:
        """The model or models that a center or a client predicts with."""
        if (center is None) == (client is None):
            raise InputError("blend needs either center=... or client=...")
        with torch.no_grad(), one_thread():
            if center is not None:
                return Blend.single(self.model, self.state["centers"][self._center(center)])
            return self.simulation.blend_for(self._row(client if client is not None else 0), self.state)

    def newcomers(self, *, lam: float | None = None) -> Newcomers:
        """What it takes to serve newcomers, for several of them; see `adopt`."""
        simulation = self.simulation
        lam = float(getattr(simulation.algorithm, "lam", 1.0)) if lam is None else lam
        self._published(range(len(self.state["centers"])))
        if not 0 <= lam < float("inf"):
            raise InputError(f"lam = {lam} is not allowed: should be 0 or more")
        return Newcomers.of(
            self.federation, self.model, simulation.solver, self.state["centers"], lam, simulation.seed
        )  # fmt: skip

    def adopt(
        self, data: tuple[Any, Any], *, how: How = "mixture", level: float = LEVEL, lam: float | None = None,
        name: str = "newcomer",
    ) -> Adopted:  # fmt: skip
        """Serve somebody who was not there: no training round, no other client.

        Arguments:
            data: the newcomer's points (x, y).
            how: what it is handed: the best `center`, the `mixture` of all, or a `personal` model from one proximal
                solve.
            level: of the intervals of its shares.
            lam: strength of the pull towards the centers in that solve; that of the algorithm (or 1) unless told.
            name: of the newcomer; the order of its batches depends on it.
        """
        return self.newcomers(lam=lam).adopt(*data, how=how, level=level, name=name)

    def scores(self) -> Scores:
        """Score the centers and the personal models; see `Scores`."""
        simulation = self.simulation
        with torch.no_grad(), one_thread():
            return score(
                self.federation, self.model, self.state["centers"], self.weights,
                simulation.personal_scores(self.state, self.federation.train),
                simulation.personal_scores(self.state, self.federation.held_out),
            )  # fmt: skip

    def _center(self, center: SupportsIndex) -> int:
        count = len(self.state["centers"])
        if not 0 <= operator.index(center) < count:
            allowed = f"should be 0 to {count - 1}" if count else "this run has no centers"
            raise InputError(f"center = {center} is not allowed: {allowed}")
        self._published([operator.index(center)])
        return operator.index(center)

    def _published(self, centers: Sequence[int]) -> None:
        """Complain about centers that too few clients use."""
        privacy, found = self.simulation.care.privacy, self.withheld
        for s in centers:
            if privacy is not None and s in found:
                raise InputError(why_withheld(s, found[s], privacy.floor))

    @property
    def withheld(self) -> dict[int, float]:
        """The centers that are not published, with their effective numbers of clients; see `Privacy.floor`."""
        return withheld(self.simulation.care.privacy, self.state, self.simulation.sizes)

    def _row(self, client: SupportsIndex | str) -> int:
        names = self.federation.names
        if isinstance(client, str) and client in names:
            return names.index(client)
        if not isinstance(client, str) and 0 <= (client := operator.index(client)) < len(names):
            return client
        raise InputError(
            f"client {client!r} does not exist: there are {len(names)}, named '{names[0]}' to '{names[-1]}'"
        )


def as_model(model: Any, federation: Federation) -> Model:
    """Make the model for the data and try it on a few points."""
    if isinstance(model, nn.Module) or (isinstance(model, type) and issubclass(model, nn.Module)):
        model = module(factory=model)
    elif callable(model) and not inspect.signature(model).parameters:
        model = module(factory=model)  # a function that makes a network
    elif not callable(model) and not isinstance(model, Model):
        raise InputError(f"model = {model!r} is not allowed: should be one of fedsoft.models, or a torch.nn.Module")
    built: Any = model if isinstance(model, Model) else model(federation.shape)
    if isinstance(built, nn.Module):
        raise InputError("model: give the network as fedsoft.models.module(factory), or the network itself")
    x, y = _few_points(federation)
    check_outputs(built, federation.shape, x, y)
    return built


def prepare(
    algorithm: Algorithm, federation: Federation, model: Builder | Model | nn.Module, *, seed: int,
    local: Solver | None = None, device: str = "cpu", dtype: str = "float32", chunk: int | None = None,
    drop: float = 0.0, backend: str = "auto", workers: int | None = None, memory: int | str | None = None,
    rule: Rule | None = None, attack: Attack | None = None, engine: Callable[..., E] = Simulation,
    absent: Absent | None = None, care: Care | None = None,
) -> E:  # fmt: skip
    """Everything in place for the first round. `engine` is a `Factory`, see `fedsoft.engines`."""
    if dtype not in DTYPES:
        raise InputError(f"dtype = '{dtype}' is not allowed: should be 'float32' or 'float64'")
    check_device(device)
    solver, built = local or Adam(), as_model(model, federation).by(_backend(backend, device))
    _try_out(solver, built, federation)
    if care is not None and care.privacy is not None:
        squared = built.loss is squared_loss
        care.privacy.check(algorithm, len(federation), rule=rule, guard=care.norm, squared=squared)
    false = frozenset() if attack is None else liars(federation.names, attack.share, seed)
    if attack is not None:
        rows = np.array([k for k, name in enumerate(federation.names) if name in false], dtype=np.int64)
        federation = replace(federation, train=spoiled(federation.train, rows, attack, federation.shape))
    made = engine(
        algorithm, built, solver, federation,
        seed=seed, chunk=chunk, device=device, dtype=DTYPES[dtype], absent=together(dropout(drop, seed), absent),
        workers=workers, memory=memory, rule=rule, attack=attack, liars=false, care=care or Care(),
    )  # fmt: skip
    made.attacked = attack is not None
    return made


def _backend(backend: str, device: str) -> str:
    """What is written by hand is written for the CPU; elsewhere large stacks are what is fast."""
    return "stacked" if backend == "auto" and device != "cpu" else backend


def _few_points(federation: Federation) -> tuple[Tensor, Tensor]:
    """Of the client that has most: one point does not tell a mean over points from a value for each."""
    if not len(federation.train.x):  # they are elsewhere: zeros have the shape, too
        x, y = federation.train.x, federation.train.y
        return x.new_zeros(4, *x.shape[1:]), y.new_zeros(4, *y.shape[1:])
    data = federation.train.take([int(federation.train.sizes.argmax())])
    x, y = data.client(0)
    return ClientData.concat([(x[:4], y[:4])]).to("cpu", torch.float32).client(0)


def check_device(device: str) -> None:
    """Complain about a device that is not there."""
    cuda = torch.cuda.is_available()
    if device != "cpu" and not (device.startswith("cuda") and cuda):
        allowed = "'cpu' or 'cuda'" if cuda else "'cpu'"
        raise InputError(f"device = '{device}' is not available here: should be {allowed}")


def _try_out(solver: Solver, model: Model, federation: Federation) -> None:
    """Solve one tiny problem, so that what cannot work is said before a run begins."""
    data = ClientData.concat([_few_points(federation)])
    w = model.draw(generator(0, "try"))[None]
    with torch.no_grad():
        solver.solve(Problem(model, data, None, None, lambda: [generator(0, "try")]), w, solver.moments(w))


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


def closing_work(simulation: Engine) -> int:
    """The gradients that an algorithm spends beyond a usual round in its last one: tasks of everybody."""
    tasks = getattr(simulation.algorithm, "closing_tasks", 0)
    return tasks * int(simulation.sizes.sum()) * getattr(simulation.solver, "epochs", 1)


def play(
    simulation: Engine, federation: Federation, state: State, history: Sequence[Record], limit: Limit,
    score_every: int = 1,
) -> Iterator[tuple[State, Record]]:  # fmt: skip
    """Play the rounds that are left after `history`; after each, the new state and what to log about it.

    Centers are scored after the first round, after every `score_every` further ones and after the last.
    """
    history = list(history)
    closing = closing_work(simulation)
    truth = federation.truth
    fractions = truth.fractions(federation.train) if truth is not None else None
    with torch.no_grad(), one_thread():
        while not (history and history[-1]["last"]) and limit.fits(history, closing=closing):
            t, last = len(history), not limit.fits(history, more=2, closing=closing)
            began = time.perf_counter()
            new, notes = simulation.round(state, t, last)
            seconds = round(time.perf_counter() - began, 6)
            record: Record = {"round": t, "last": last, **notes, **asdict(simulation.cost), "seconds": seconds}
            record |= simulation.spent(history[-1].get("privacy", {}) if history else {})
            state, changed = watch(new, state)
            if changed:
                record["changed"] = [federation.names[k] for k in changed]
            if (u := state.get("u")) is not None and u.shape[1] > 1:
                record |= use_of(state["centers"], u, simulation.sizes)
            if truth is not None and fractions is not None and (last or t % score_every == 0):
                view = CenterView.of(simulation.model, state["centers"], state.get("u"), truth, fractions)
                if not np.isfinite(view.centers).all():
                    raise DivergedError(f"the error of a center is not finite after round {t}: training diverged, "
                                        f"{advice(simulation.algorithm)}")  # fmt: skip
                record |= {name: value for name, value in asdict(view).items() if value is not None}
                columns = zip(*view.centers, strict=True)
                record["best"] = [max(c) if simulation.model.metric.higher_is_better else min(c) for c in columns]
            if truth is None and "u" in state and (last or t % score_every == 0):
                found = served_by(simulation.model, state["centers"], state["u"], federation)
                record["served"] = [asdict(use) for use in found]
            if not simulation.attacked:  # what liars do is no fault of the rate
                _grown(simulation, history, record)
            history.append(record)
            yield state, record


def _grown(simulation: Engine, history: Sequence[Record], record: Record) -> None:
    """Complain when the error of a center has grown beyond all measure: it diverges, though its numbers are finite."""
    first = next((errors for errors in map(_errors, history) if errors), [])
    if simulation.model.metric.higher_is_better or not first or not max(first) > 0:
        return
    for s, error in enumerate(_errors(record)):
        if not error <= ABSURD * max(first):
            times = error / max(first)
            raise DivergedError(
                f"the error of center {s} is {error:.3g} after round {record['round']}, {times:.1g} times that of the "
                f"first round: training diverged, {advice(simulation.algorithm)}; guard = 5 leaves out single clients"
            )


def _errors(record: Record) -> list[float]:
    """The largest error of each center, on sources or on clients' points, as far as it was scored."""
    return [max(row) for row in record.get("centers", [])] or [use["on_all"] for use in record.get("served", [])]


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
        absent: who does not answer, beyond `dropout`, for studying it; see `fedsoft.absence`.
        privacy: what is hidden of points and clients, and how well; see `fedsoft.privacy`.
        guard: how many times the median norm a client's model may have before it is not believed; 0 for any. Replies
            that are not finite or out of range are never believed. See `fedsoft.guards`.
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
    simulation = prepare(
        algorithm, federation, model, seed=seed, local=local, device=device, dtype=dtype, chunk=chunk, drop=dropout,
        backend=backend, workers=workers, memory=memory, rule=robust, attack=attack,
        engine=find_engine(engine, address), absent=absent, care=Care(guard, diverged, privacy),
    )  # fmt: skip
    told = 0
    mending = Mending(simulation)
    while True:
        try:
            with torch.no_grad(), one_thread():
                state = simulation.start()
            run = Run(federation, simulation, state, [])
            for run.state, record in play(simulation, federation, state, [], Limit(rounds), score_every):
                run.history.append(record)
                if on_round is not None and run.rounds > told:  # played again after a loss, it is the same
                    on_round(record)
                told = max(told, run.rounds)
            return run
        except WorkerLost as lost:
            mending.after(lost, told)


class Mending:
    """Brings back workers that are lost, but not for ever when they are lost again and again."""

    def __init__(self, simulation: Engine) -> None:
        self.simulation, self.reached, self.losses = simulation, 0, 0

    def after(self, lost: WorkerLost, rounds: int) -> None:
        """Bring back what is lost; `rounds` is how far the run had come."""
        self.losses = 1 if rounds > self.reached else self.losses + 1
        self.reached = max(self.reached, rounds)
        if self.losses > PATIENCE:
            raise FedsoftError(f"{lost}; it was brought back {PATIENCE} times and lost again in the same round "
                               "(out of memory?)") from None  # fmt: skip
        self.simulation.mend()
