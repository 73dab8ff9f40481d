"""What a job sees: the points of some clients, and the tools to work on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.batch_iterator import BatchIterator, iterate_batches
from fedsoft.core.batches import Problem, Prox
from fedsoft.core.class_weights import FixedWeights, weights_of_points
from fedsoft.core.client_data import ClientData
from fedsoft.core.curvature import gauss_newton, gauss_newton_diagonal
from fedsoft.core.local_solve import FirstOrder, OptimizerState, Solver, Work, losses_of_all, own_gradients, own_outputs
from fedsoft.core.metrics import cross_entropy, squared_loss
from fedsoft.core.model import Model
from fedsoft.errors import InputError
from fedsoft.seeds import generator

Hide = Callable[[Tensor], Tensor]
"""Maps shares `[m, S]` of m clients to shares that hide single points."""


@dataclass(frozen=True)
class Site:
    """What a job sees: m clients with their own points, and the tools to work on them."""

    model: Model
    data: ClientData
    solver: Solver
    names: Sequence[str]
    seed: int
    t: int
    dtype: torch.dtype
    work: Work = field(kw_only=True)
    hide: Hide | None = field(default=None, kw_only=True)
    least_points: int = field(default=1, kw_only=True)  # sums over fewer points of a client are not sent
    secure: bool = field(default=False, kw_only=True)  # replies are seen as sums only
    class_weights: FixedWeights | None = field(default=None, kw_only=True)
    statistics: Tensor | None = field(default=None, kw_only=True)  # [m, Q]: of clients that keep their own; in place

    def __len__(self) -> int:
        return len(self.data)

    def generators(self, *labels: str | int) -> list[np.random.Generator]:
        """Return one generator for each client, of this round and these labels."""
        return [generator(self.seed, *labels, self.t, name) for name in self.names]

    def hidden(self, shares: Tensor) -> Tensor:
        """Return shares as they may leave the clients: with noise on their counts, if the run asks for it."""
        return shares if self.hide is None else self.hide(shares)

    def optimizer_state(self, w: Tensor) -> OptimizerState:
        """Return the local solver's state for models `w[m, P]` that have taken no step yet."""
        return self.solver.init_state(w, self.model.layout)

    def solve(
        self,
        w: Tensor,
        optimizer_state: OptimizerState | None = None,
        *,
        prox: Prox | None = None,
        point_weights: Tensor | None = None,
        label: str = "batches",
    ) -> tuple[Tensor, OptimizerState]:
        """Minimise each client's own loss (plus the proximal term) from `w[m, P]` with the local solver."""
        point_weights = self._weighted(point_weights)
        problem = Problem(self.model, self.data, prox, point_weights, lambda: self.generators(label), self.t)
        w = self.model.with_statistics(w, self.statistics)
        before = self.optimizer_state(w) if optimizer_state is None else optimizer_state
        solved, after, gradients = self.solver.solve(problem, w, before)
        self.work.gradients.add_(gradients.cpu())
        if self.statistics is not None:
            self.statistics.copy_(solved[:, -self.model.statistics :])
        return solved, after

    def _weighted(self, point_weights: Tensor | None) -> Tensor | None:
        """Return weights of points times those of their classes."""
        of_classes = weights_of_points(self.class_weights, self.data, self.dtype)
        return point_weights if of_classes is None else of_classes * (1 if point_weights is None else point_weights)

    def batches(self, label: str = "batches") -> tuple[BatchIterator, FirstOrder]:
        """Return an iterator over the clients' batches and their solver, for algorithms that take single steps.

        Call `count_work(batches)` afterwards.
        """
        if not isinstance(self.solver, FirstOrder):
            raise InputError(f"the local solver '{type(self.solver).__name__}' takes no single steps: use SGD or Adam")
        if self.statistics is not None:
            raise InputError("statistics = 'local' is not for algorithms that take single steps: use 'averaged'")
        problem = Problem(self.model, self.data, None, self._weighted(None), lambda: self.generators(label), self.t)
        s = self.solver
        return iterate_batches(problem, self.dtype, batch=s.batch, epochs=s.epochs, shuffle=s.shuffle), s

    def count_work(self, batches: BatchIterator) -> None:
        """Count the gradients computed over these batches as work."""
        self.work.gradients.add_(batches.gradients.cpu())

    def solve_each(
        self, w: Tensor, point_weights: Tensor | None = None, label: str = "batches", *, prox: Prox | None = None
    ) -> Tensor:
        """Solve S problems for each client, from `w[m, S, P]` with `point_weights[points, S]`: S times the work.

        `prox` holds a row for each problem, those of a client side by side.
        """
        m, count, _ = w.shape
        data = self.data.take(np.repeat(np.arange(m), count))
        weights = None
        if point_weights is not None:  # in the order of the repeated clients: each client's points S times
            client, s = data.owners // count, data.owners % count
            position = torch.arange(len(data.owners), device=w.device) - data.offsets[data.owners]
            weights = point_weights[self.data.offsets[client] + position, s]
        return self._solve_wide(data, w, weights, label, prox)

    def solve_parts(self, w: Tensor, part: Tensor, label: str = "batches") -> Tensor:
        """Solve S problems for each client, from `w[m, S, P]`, each on its part of the points.

        `part[points]` is 0 to S - 1. Every point is used once, so the work is that of one problem. A model without
        points stays as it was.
        """
        m, count, _ = w.shape
        place = self.data.owners * count + part
        order = torch.argsort(place, stable=True)
        sizes = torch.bincount(place, minlength=m * count)
        points = self.data.points[order]
        data = self.data.reordered(points, sizes)
        return self._solve_wide(data, w, None, label)

    def _solve_wide(
        self, data: ClientData, w: Tensor, point_weights: Tensor | None, label: str, prox: Prox | None = None
    ) -> Tensor:
        """Solve S problems for each client, whose points in `data` are those of m S clients."""
        m, count, size = w.shape
        names = [name for name in self.names for _ in range(count)]
        own = None if self.statistics is None else self.statistics.repeat_interleave(count, 0)
        wide = replace(self, data=data, names=names, work=Work.none(m * count), statistics=own)
        solved, _ = wide.solve(w.reshape(m * count, size), prox=prox, point_weights=point_weights, label=label)
        self.work.gradients.add_(wide.work.gradients.view(m, count).sum(1))
        if self.statistics is not None and own is not None:
            self.statistics.copy_(own.view(m, count, -1).mean(1))
        return solved.view(m, count, size)

    def by(self, solver: Solver) -> Site:
        """Return the same site with another local solver; work is counted together."""
        return replace(self, solver=solver)

    def gradient(self, w: Tensor) -> Tensor:
        """Return the gradient of each client's mean loss at `w[m, P]`, over all its points."""
        self.work.gradients.add_(self.data.sizes.cpu())
        return own_gradients(
            self.model, self.data, self.model.with_statistics(w, self.statistics), self._weighted(None)
        )

    def curvature(self, w: Tensor, *, diagonal: bool) -> Tensor:
        """Return the curvature of each client's summed loss at `w[m, P]`: a matrix `[m, P, P]`, or its diagonal.

        The diagonal rests on one target per point that the model itself draws.
        """
        sizes = self.data.sizes.cpu()
        if not diagonal:
            self.work.evaluations.add_(sizes * w.shape[1])
            return gauss_newton(self.model, self.data, w)
        self.work.gradients.add_(sizes)
        return gauss_newton_diagonal(self.model, self.data, w, self._own_targets())

    def _own_targets(self) -> Callable[[Tensor], Tensor] | None:
        """Return what draws targets from outputs such that squared gradients have the curvature as their mean."""
        kind = self.model.loss
        if kind not in (cross_entropy, squared_loss):
            return None

        def draw(output: Tensor) -> Tensor:
            each = zip(self.generators("targets"), self.data.sizes.tolist(), strict=True)
            if kind is cross_entropy:
                chance = np.concatenate([g.random(n) for g, n in each])
                below = output.double().softmax(-1).cumsum(-1) < torch.as_tensor(chance, device=output.device)[:, None]
                return below.sum(-1).clamp(max=output.shape[-1] - 1)
            noise = np.concatenate([g.standard_normal((n, *output.shape[1:])) for g, n in each])
            return output + torch.as_tensor(noise, device=output.device).to(output.dtype) / 2**0.5

        return draw

    def losses(self, centers: Tensor) -> Tensor:
        """Return the loss of every point under every center, `[points, S]`.

        Where points are to be hidden all losses are finite: one that is not would spoil the shares of all other points,
        by more than any noise for a single point.
        """
        self.work.evaluations.add_(self.data.sizes.cpu() * len(centers))
        if self.statistics is None:
            found = losses_of_all(self.model, self.data, centers)
        else:
            each = [self.model.with_statistics(c.expand(len(self), -1), self.statistics) for c in centers]
            y = self.data.y[self.data.points][None]
            found = torch.stack([self.model.loss(own_outputs(self.model, self.data, w)[None], y)[0] for w in each], 1)
        return found if self.hide is None else found.nan_to_num(nan=torch.finfo(found.dtype).max)

    def own_losses(self, w: Tensor) -> Tensor:
        """Return the summed loss `[m]` of each client's own model `w[m, P]`."""
        self.work.evaluations.add_(self.data.sizes.cpu())
        each = self.model.loss(own_outputs(self.model, self.data, w)[None], self.data.y[self.data.points][None])[0]
        return self.data.mean_by_client(each) * self.data.sizes

    def predictions(self, w: Tensor) -> Tensor:
        """Return what each client's own model `w[m, P]` predicts for each of its points."""
        self.work.evaluations.add_(self.data.sizes.cpu())
        own = self.model.with_statistics(w, self.statistics)
        return self.model.predict(own_outputs(self.model, self.data, own))

    def draw(self, *labels: str | int) -> Tensor:
        """Draw initial weights of a model, the same at every site of the run, `[P]`.

        Where all draws of a model are the same, centers after the first, `("center", s)`, start beside them.
        """
        rng = generator(self.seed, *labels)
        w = self.model.draw(rng)
        if self.model.apart is not None and labels[0] == "center" and labels[-1] != 0:
            w = self.model.apart(w, rng)
        return w.to(self.data.x.device, self.dtype)
