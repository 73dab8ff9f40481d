"""A run in memory: what it has learned, and for whom."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from fedsoft.centers.blend import Blend
from fedsoft.contract import State
from fedsoft.errors import InputError
from fedsoft.federation import Federation
from fedsoft.model import Model, Params, as_numbers
from fedsoft.newcomers.adoption import LEVEL, Adopted, How, Newcomers
from fedsoft.scores import Scores, score
from fedsoft.simulate import Engine
from fedsoft.threads import one_thread
from fedsoft.training.rounds import Record
from fedsoft.trust.privacy import why_withheld, withheld


@dataclass
class Run:
    """A run in memory: the centers for new users, a personal model for each client, and how they came about."""

    federation: Federation
    engine: Engine
    state: State
    history: list[Record]

    def __repr__(self) -> str:
        over = "" if self.is_over else ", not over"
        return f"<Run of {self.engine.algorithm} after {self.rounds} rounds{over}, on {self.federation!r}>"

    @property
    def model(self) -> Model:
        """The model that was trained."""
        return self.engine.model

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
        self.engine.reach_clients()
        if "w" not in self.engine.memory:
            raise InputError(f"{type(self.engine.algorithm).__name__} keeps no personal model: use predict(client=...)")
        return self.model.layout.unflatten(self.engine.memory.take(np.array([k]), ["w"])["w"][0])

    def predict(self, x: Any, *, center: int | None = None, client: SupportsIndex | str | None = None) -> Tensor:
        """Predict for inputs `x[points, ...]` with a center or with a client's personal model.

        Where the federation is scaled, these are inputs as they were before; see `Federation`.
        """
        if (center is None) == (client is None):
            raise InputError("predict needs either center=... or client=...")
        like = self.state["centers"]
        inputs = as_numbers(torch.as_tensor(x if isinstance(x, Tensor) else np.array(x)), like.dtype)
        inputs = inputs.to(like.device, like.dtype)
        shape = self.federation.shape.input
        if tuple(inputs.shape[1:]) != shape:
            raise InputError(f"x has shape {list(inputs.shape)}, should be [points, {', '.join(map(str, shape))}]")
        inputs = self.federation.as_seen(inputs)
        with torch.no_grad():
            if client is not None:
                return self.engine.predict_for(self._row(client), inputs, self.state)
            c = like[self._center(center or 0)]
            return self.model.predict(self.model.outputs(c[None], inputs[None]))[0]

    def blend(self, *, center: int | None = None, client: SupportsIndex | str | None = None) -> Blend:
        """The model or models that a center or a client predicts with."""
        if (center is None) == (client is None):
            raise InputError("blend needs either center=... or client=...")
        with torch.no_grad(), one_thread():
            if center is not None:
                return Blend.single(self.model, self.state["centers"][self._center(center)])
            return self.engine.blend_for(self._row(client if client is not None else 0), self.state)

    def newcomers(self, *, lam: float | None = None) -> Newcomers:
        """What it takes to serve newcomers, for several of them; see `adopt`."""
        engine = self.engine
        lam = float(getattr(engine.algorithm, "lam", 1.0)) if lam is None else lam
        self._published(range(len(self.state["centers"])))
        if not 0 <= lam < float("inf"):
            raise InputError(f"lam = {lam} is not allowed: should be 0 or more")
        return Newcomers.of(
            self.federation, self.model, engine.solver, self.state["centers"], lam, engine.seed
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
        engine = self.engine
        with torch.no_grad(), one_thread():
            return score(
                self.federation, self.model, self.state["centers"], self.weights,
                engine.personal_scores(self.state, self.federation.train),
                engine.personal_scores(self.state, self.federation.held_out),
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
        privacy, found = self.engine.care.privacy, self.withheld
        for s in centers:
            if privacy is not None and s in found:
                raise InputError(why_withheld(s, found[s], privacy.floor))

    @property
    def withheld(self) -> dict[int, float]:
        """The centers that are not published, with their effective numbers of clients; see `Privacy.floor`."""
        return withheld(self.engine.care.privacy, self.state, self.engine.sizes)

    def _row(self, client: SupportsIndex | str) -> int:
        names = self.federation.names
        if isinstance(client, str) and client in names:
            return names.index(client)
        if not isinstance(client, str) and 0 <= (client := operator.index(client)) < len(names):
            return client
        raise InputError(
            f"client {client!r} does not exist: there are {len(names)}, named '{names[0]}' to '{names[-1]}'"
        )
