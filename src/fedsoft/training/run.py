"""A run in memory: what it has learned, and for whom."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from fedsoft.clusters.ensemble import Ensemble
from fedsoft.core.client_metrics import ClientMetric, MetricChoice, read_metrics
from fedsoft.core.contract import State
from fedsoft.core.federation import Federation
from fedsoft.core.model import Model, Params
from fedsoft.data.new_points import is_rows, read_new_clients, seen_inputs
from fedsoft.engine.base import Engine
from fedsoft.errors import InputError
from fedsoft.evaluation.metric_scores import score_metrics, with_centers
from fedsoft.evaluation.scores import score
from fedsoft.evaluation.values import Scores
from fedsoft.evaluation.variance_table import prior_summary
from fedsoft.machine.threads import one_thread
from fedsoft.onboarding.new_clients import LEVEL, Adopted, How, NewClients
from fedsoft.onboarding.usual import Usual
from fedsoft.safety.privacy import why_withheld, withheld
from fedsoft.training.outcome import Outcome
from fedsoft.training.predictions import ClientPredictions, by_client
from fedsoft.training.records import RoundRecord


@dataclass
class Run:
    """A run in memory: the centers for new users, a personal model for each client, and how they came about.

    Arguments:
        federation: the clients; of a run that was loaded without its data, all but their points.
        engine: where the clients are.
        state: what the server knows.
        history: a record of every round.
        saved: what was measured at the end of a run that was loaded.
        lacking: why the clients' points are not here, in one sentence; empty where they are, or where the engine
            reaches them.
        at: the round that the models are of, where it is not the last one; see `callbacks.BestRound`.
        ended_by: the callback that ended the run, or nothing.
    """

    federation: Federation
    engine: Engine
    state: State
    history: list[RoundRecord]
    saved: Outcome | None = None
    lacking: str = ""
    at: int | None = None
    ended_by: str = ""

    def __repr__(self) -> str:
        over = "" if self.is_over else ", not over"
        best = "" if self.at is None else f", as it was after round {self.at}"
        return f"<Run of {self.engine.algorithm} after {self.rounds} rounds{over}{best}, on {self.federation!r}>"

    @property
    def model(self) -> Model:
        """The model that was trained."""
        return self.engine.model

    @property
    def rounds(self) -> int:
        """How many rounds were played."""
        return len(self.history)

    @property
    def at_round(self) -> int:
        """After how many rounds the models were as they are here."""
        return self.rounds if self.at is None else self.at

    @property
    def is_over(self) -> bool:
        """Whether the last round was played as such, or a callback ended the run."""
        return bool(self.ended_by or (self.history and self.history[-1].last))

    @property
    def centers(self) -> list[Params]:
        """The cluster models, as named tensors."""
        return [self.model.layout.unflatten(c.clone()) for c in self.state.centers]

    @property
    def weights(self) -> Tensor | None:
        """The estimated importance weights u, `[N, S]`, where the algorithm estimates them."""
        return self.state.mixture

    def personal(self, client: SupportsIndex | str) -> Params:
        """The personal model of a client (by number or name), as named tensors."""
        found = self.ensemble(client=client)
        if found.gate is not None:
            raise InputError(
                f"{type(self.engine.algorithm).__name__} predicts with more than one network for each client: "
                "use ensemble(client=...)"
            )
        if len(found.w) != 1:
            raise InputError(
                f"{type(self.engine.algorithm).__name__} predicts with {len(found.w)} models for each client: "
                "use ensemble(client=...)"
            )
        return self.model.layout.unflatten(found.w[0].clone())

    def predict(self, x: Any, *, center: int | None = None, client: SupportsIndex | str | None = None) -> Tensor:
        """Predict for inputs with a center or with a client's personal model.

        Arguments:
            x: inputs `x[points, ...]`; where the federation is scaled, as they were before (see `Federation`). Where it
                was read from files also such a file, a data frame, or a dictionary of columns: text is coded as that of
                the clients, other columns than inputs are ignored.
            center, client: whose model to use: the number of a center, or the number or name of a client.
        """
        if (center is None) == (client is None):
            raise InputError("predict needs either center=... or client=...")
        like = self.state.centers
        inputs = self.model.inputs(seen_inputs(self.federation, x).to(like.device), like.dtype)
        with torch.no_grad():
            if client is not None:
                return self.engine.predict_for(self._row(client), inputs, self.state)
            c = like[self._center(center or 0)]
            return self.model.predict(self.model.outputs(c[None], inputs[None]))[0]

    def held_out_predictions(self) -> list[ClientPredictions]:
        """Return what each client's personal model predicts for its held-out points, beside their targets.

        Iterate as `for client, y, prediction in run.held_out_predictions()`. Inputs are scaled as the run needs it.
        """
        if self.lacking:
            raise InputError(self.lacking)
        federation = self.federation
        with torch.no_grad(), one_thread():
            found = self.engine.personal_predictions(self.state, federation.held_out)
        return by_client(federation, found)

    def ensemble(self, *, center: int | None = None, client: SupportsIndex | str | None = None) -> Ensemble:
        """The model or models that a center or a client predicts with."""
        if (center is None) == (client is None):
            raise InputError("ensemble needs either center=... or client=...")
        with torch.no_grad(), one_thread():
            if center is not None:
                return Ensemble.single(self.model, self.state.centers[self._center(center)])
            return self.engine.ensemble_for(self._row(client if client is not None else 0), self.state)

    def new_clients(self, *, lam: float | None = None) -> NewClients:
        """Return what serves several new clients; see `adopt`."""
        engine = self.engine
        way = engine.algorithm.way(self.state) if lam is None else None
        adopted = partial(engine.algorithm.adopt, state=self.state) if lam is None else lambda _: None
        lam = engine.algorithm.pull if lam is None else lam
        self._published(range(len(self.state.centers)))
        if not 0 <= lam < float("inf"):
            raise InputError(f"lam = {lam} is not allowed: should be 0 or more")
        return NewClients(
            self.federation, self.model, engine.training.solver, self.state.centers, lam, engine.training.seed,
            self._usual(), engine.training.class_weights, way, adopted,
        )  # fmt: skip

    def _usual(self) -> Usual:
        if not len(self.state.centers):
            raise InputError("this run has no centers for a new client: train with another algorithm")
        if self.saved is not None and self.saved.usual is not None:
            return self.saved.usual
        if self.lacking:
            raise InputError(self.lacking)
        return Usual.of(self.federation, self.model, self.state.centers, self.engine.training.seed)

    def adopt(
        self, x: Any, y: Any = None, *, how: How = "mixture", level: float = LEVEL, lam: float | None = None,
        name: str | None = None,
    ) -> Adopted:  # fmt: skip
        """Serve a client that was not in the run: no training round, no other client.

        Arguments:
            x, y: the new client's points, as two arguments or as one pair (x, y); or its file, a data frame or a
                dictionary of columns with the targets, as x alone.
            how: what it is handed: the best `center`, the `mixture` of all, or a `personal` model from one proximal
                solve.
            level: of the intervals of its shares.
            lam: strength of the pull towards the centers in that solve; default: that of the algorithm, or 1. fedprior
                and fedlevels take the prior, or for networks the way, that they have learned, unless it is given.
            name: of the new client; the order of its batches depends on it. Default: that in its file, if any.
        """
        if is_rows(x, self.federation):
            points = read_new_clients(x, self.federation, labelled=y is None)
            if len(points) != 1:
                some = ", ".join(f"'{one}'" for one in [*points][:3])
                raise InputError(f"adopt is for one client, but these are {len(points)}: {some}, ... (see adopt_all)")
            ((found, pair),) = points.items()
            x, y, name = pair[0], pair[1] if y is None else y, name or found
        elif y is None:
            if not (isinstance(x, tuple | list) and len(x) == 2):
                raise InputError(
                    "adopt needs points with their targets: adopt(x, y) or adopt((x, y)), or a file or table with them"
                )
            x, y = x
        return self.new_clients(lam=lam).adopt(x, y, how=how, level=level, name=name or "new client")

    def adopt_all(
        self, points: Any, *, how: How = "mixture", level: float = LEVEL, lam: float | None = None
    ) -> dict[str, Adopted]:
        """Serve several new clients, by name; see `adopt`.

        Arguments:
            points: a folder with a file for each, or a file, a data frame or a dictionary of columns with the column of
                clients that the run's data has; or pairs (x, y) by name.
            how, level, lam: see `adopt`.
        """
        desk = self.new_clients(lam=lam)
        pairs = isinstance(points, Mapping) and all(isinstance(one, tuple) and len(one) == 2 for one in points.values())
        given = points if pairs else read_new_clients(points, self.federation)
        return {name: desk.adopt(x, y, how=how, level=level, name=name) for name, (x, y) in given.items()}

    def scores(self, metrics: MetricChoice | None = None) -> Scores:
        """Score the centers and the personal models; see `Scores`.

        Arguments:
            metrics: what to score by, beside the model's own metric; default: what the run asked for.
        """
        if self.saved is not None and metrics is None:
            return self.saved.scores
        further = self.engine.metrics if metrics is None else read_metrics(metrics, self.federation.shape)
        return self._measured(*self._personal_scores(), further)

    def outcome(self) -> Outcome:
        """Measure everything about the run's end that needs the clients' points; see `Outcome`."""
        if self.saved is not None:
            return self.saved
        train, held_out = self._personal_scores()
        federation, usual = self.federation, None
        if len(self.state.centers) and len(federation.train.x):  # else there is none, or points are at nodes
            usual = self._usual()
        truth = federation.truth
        return Outcome(
            rounds=self.at_round, train=_values(train), held_out=_values(held_out), usual=usual,
            shares=None if truth is None else truth.fractions(federation.train).tolist(),
            scores=self._measured(train, held_out, self.engine.metrics), ended_by=self.ended_by,
        )  # fmt: skip

    def _personal_scores(self) -> tuple[Tensor, Tensor]:
        """Return the metric of each client's personal model on its training and held-out points."""
        if self.lacking:
            raise InputError(self.lacking)
        with torch.no_grad(), one_thread():
            score_on = partial(self.engine.personal_scores, self.state)
            return score_on(self.federation.train), score_on(self.federation.held_out)

    def _measured(self, train: Tensor, held_out: Tensor, further: Sequence[ClientMetric]) -> Scores:
        engine, fed = self.engine, self.federation
        with torch.no_grad(), one_thread():
            scores = score(fed, self.model, self.state.centers, self.weights, train, held_out)
            prior = prior_summary(self.history[: self.at_round], self.model, fed.columns)
            clusters = None if scores.clusters is None else scores.clusters.without(self.withheld)
            scores = replace(scores, prior=prior, clusters=clusters)
            if not further:
                return scores
            each = (engine.personal_metrics(self.state, data, further) for data in (fed.train, fed.held_out))
            found = score_metrics(further, fed, *each)
            return replace(scores, metrics=with_centers(found, further, fed, self.model, self.state))

    def _center(self, center: SupportsIndex) -> int:
        count = len(self.state.centers)
        if not 0 <= operator.index(center) < count:
            allowed = f"should be 0 to {count - 1}" if count else "this run has no centers"
            raise InputError(f"center = {center} is not allowed: {allowed}")
        self._published([operator.index(center)])
        return operator.index(center)

    def _published(self, centers: Sequence[int]) -> None:
        """Raise for centers that too few clients use."""
        privacy, found = self.engine.conditions.privacy, self.withheld
        for s in centers:
            if privacy is not None and s in found:
                raise InputError(why_withheld(s, found[s], privacy.floor))

    @property
    def withheld(self) -> dict[int, float]:
        """The centers that are not published, with their effective numbers of clients; see `Privacy.floor`."""
        return withheld(self.engine.conditions.privacy, self.state, self.engine.sizes)

    def _row(self, client: SupportsIndex | str) -> int:
        names = self.federation.names
        if isinstance(client, str) and client in names:
            return names.index(client)
        if not isinstance(client, str) and 0 <= (client := operator.index(client)) < len(names):
            return client
        raise InputError(
            f"client {client!r} does not exist: there are {len(names)}, named '{names[0]}' to '{names[-1]}'"
        )


def _values(found: Tensor) -> list[float | None]:
    """Return numbers for JSON, which has no NaN."""
    return [None if math.isnan(value) else value for value in found.double().tolist()]
