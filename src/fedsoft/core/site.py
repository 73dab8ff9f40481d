"""What a job sees: the points of some clients, and the tools to work on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.batch_iterator import BatchIterator, iterate_batches
from fedsoft.core.batches import GradientParts, Problem, Prox
from fedsoft.core.class_weights import FixedWeights, trained_on
from fedsoft.core.client_data import ClientData
from fedsoft.core.client_draws import Draws, Names
from fedsoft.core.curvature import gauss_newton, gauss_newton_diagonal
from fedsoft.core.local_solve import (
    FirstOrder,
    OptimizerState,
    Solver,
    Work,
    losses_of_all,
    own_gradients,
    own_latents,
    own_outputs,
)
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

    def generators(self, *labels: str | int) -> Draws:
        """Return draws for each client, of this round and these labels."""
        return Draws(self.seed, *labels, self.t, names=self.names)

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
        problem = self._problem(label, prox, point_weights)
        w = self.model.with_statistics(w, self.statistics)
        before = self.optimizer_state(w) if optimizer_state is None else optimizer_state
        solved, after, gradients = self.solver.solve(problem, w, before)
        self.work.gradients.add_(gradients.cpu())
        if self.statistics is not None:
            self.statistics.copy_(solved[:, -self.model.statistics :])
        return solved, after

    def _problem(self, label: str, prox: Prox | None = None, point_weights: Tensor | None = None) -> Problem:
        """Return what clients minimise."""
        data, weights = self._trained_on(point_weights)
        return Problem(self.model, data, prox, weights, lambda: self.generators(label), self.t)

    def _trained_on(self, point_weights: Tensor | None) -> tuple[ClientData, Tensor | None]:
        """Return the points that clients train on, and their weights, weights of classes included."""
        data, weights = trained_on(self.class_weights, self.data, self.dtype)
        if point_weights is not None:
            weights = point_weights if weights is None else weights * point_weights
        return data, weights

    def batches(self, label: str = "batches", epochs: int | None = None) -> tuple[BatchIterator, FirstOrder]:
        """Return an iterator over the clients' batches and their solver, for algorithms that take single steps.

        Call `count_work(batches)` afterwards. `epochs`: passes over the points; default: those of the solver.
        """
        if not isinstance(self.solver, FirstOrder):
            raise InputError(f"the local solver '{type(self.solver).__name__}' takes no single steps: use SGD or Adam")
        if self.statistics is not None:
            raise InputError("statistics = 'local' is not for algorithms that take single steps: use 'averaged'")
        problem, s = self._problem(label), self.solver
        passes = s.epochs if epochs is None else epochs
        return iterate_batches(problem, self.dtype, batch=s.batch, epochs=passes, shuffle=s.shuffle), s

    def solve_part(self, w: Tensor, part: Tensor, epochs: int, label: str = "batches") -> Tensor:
        """Take `epochs` passes from `w[m, P]` that change only the parameters in `part[P]`, with a fresh optimizer."""
        batches, solver = self.batches(label, epochs)
        w, still = batches.stack(w), ~part.to(w.device)
        state = {name: batches.stack(rows) for name, rows in self.optimizer_state(w).items()}
        stepper, fixed = solver.stepper(state, batches.plan), w[:, still]
        for step, b in batches:
            active = w[: batches.plan.active[b]]
            gradient = batches.gradient(active)
            gradient[:, still] = 0
            stepper.step(step, active, GradientParts(gradient))
            batches.settle(active)
            active[:, still] = fixed[: len(active)]  # weight decay would change it
        self.count_work(batches)
        return batches.unstack(w)

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
        return self._solve_wide(self._in_parts(place, m * count), w, None, label)

    def parts(self, part: Tensor, count: int) -> Site:
        """Return a site with every client `count` times, each time with its part of the points, as in `solve_parts`.

        Call `count_parts(site)` afterwards.
        """
        return self._wide(self._in_parts(self.data.owners * count + part, len(self) * count), count)

    def count_parts(self, wide: Site) -> None:
        """Count what was done at a site of `parts` as work of its clients, and keep the means of their statistics."""
        count = len(wide) // len(self)
        self.work.gradients.add_(wide.work.gradients.view(-1, count).sum(1))
        self.work.evaluations.add_(wide.work.evaluations.view(-1, count).sum(1))
        if self.statistics is not None and wide.statistics is not None:
            self.statistics.copy_(wide.statistics.view(len(self), count, -1).mean(1))

    def _in_parts(self, place: Tensor, clients: int) -> ClientData:
        """Return as many clients, each with the points of its place `[points]`."""
        order = torch.argsort(place, stable=True)
        return self.data.reordered(self.data.points[order], torch.bincount(place, minlength=clients))

    def _wide(self, data: ClientData, count: int) -> Site:
        """Return a site with every client `count` times, with these points."""
        names = Names.of(self.names).repeat(count)
        own = None if self.statistics is None else self.statistics.repeat_interleave(count, 0)
        return replace(self, data=data, names=names, work=Work.none(len(names)), statistics=own)

    def solve_some(self, w: Tensor, used: Tensor, label: str = "batches") -> Tensor:
        """Minimise each client's loss from `w[m, P]` over its points that are `used[points]`.

        A model without points stays as it was.
        """
        sizes = torch.bincount(self.data.owners[used], minlength=len(self))
        data = self.data.reordered(self.data.points[used], sizes)
        return self._solve_wide(data, w[:, None], None, label)[:, 0]

    def _solve_wide(
        self, data: ClientData, w: Tensor, point_weights: Tensor | None, label: str, prox: Prox | None = None
    ) -> Tensor:
        """Solve S problems for each client, whose points in `data` are those of m S clients."""
        wide = self._wide(data, w.shape[1])
        solved, _ = wide.solve(w.flatten(0, 1), prox=prox, point_weights=point_weights, label=label)
        self.count_parts(wide)
        return solved.view(w.shape)

    def by(self, solver: Solver) -> Site:
        """Return the same site with another local solver; work is counted together."""
        return replace(self, solver=solver)

    def gradient(self, w: Tensor, point_weights: Tensor | None = None) -> Tensor:
        """Return the gradient of each client's mean loss at `w[m, P]`, over all its points."""
        self.work.gradients.add_(self.data.sizes.cpu())
        data, weights = self._trained_on(point_weights)
        return own_gradients(self.model, data, self.model.with_statistics(w, self.statistics), weights)

    def curvature(self, w: Tensor, *, diagonal: bool, point_weights: Tensor | None = None) -> Tensor:
        """Return the curvature of each client's summed loss at `w[m, P]`: a matrix `[m, P, P]`, or its diagonal.

        The diagonal rests on one target per point that the model itself draws.
        """
        sizes = self.data.sizes.cpu()
        if not diagonal:
            self.work.evaluations.add_(sizes * w.shape[1])
            return gauss_newton(self.model, self.data, w, point_weights)
        self.work.gradients.add_(sizes)
        return gauss_newton_diagonal(self.model, self.data, w, self._own_targets(), point_weights)

    def _own_targets(self) -> Callable[[Tensor], Tensor] | None:
        """Return what draws targets from outputs such that squared gradients have the curvature as their mean."""
        kind = self.model.loss
        if kind not in (cross_entropy, squared_loss):
            return None

        def draw(output: Tensor) -> Tensor:
            draws, sizes = self.generators("targets"), self.data.sizes.cpu().numpy()
            if kind is cross_entropy:
                chance = draws.random_each(sizes)
                below = output.double().softmax(-1).cumsum(-1) < torch.as_tensor(chance, device=output.device)[:, None]
                return below.sum(-1).clamp(max=output.shape[-1] - 1)
            noise = draws.normal_each(sizes, *output.shape[1:])
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
        return self.data.mean_by_client(self.point_losses(w)) * self.data.sizes

    def point_losses(self, w: Tensor) -> Tensor:
        """Return the loss of every point under its client's own model `w[m, P]`."""
        self.work.evaluations.add_(self.data.sizes.cpu())
        return self.model.loss(own_outputs(self.model, self.data, w)[None], self.data.y[self.data.points][None])[0]

    def predictions(self, w: Tensor) -> Tensor:
        """Return what each client's own model `w[m, P]` predicts for each of its points."""
        self.work.evaluations.add_(self.data.sizes.cpu())
        own = self.model.with_statistics(w, self.statistics)
        return self.model.predict(own_outputs(self.model, self.data, own))

    def latents(self, w: Tensor) -> Tensor:
        """Return what the last layer of each client's own model `w[m, P]` is given for each of its points."""
        self.work.evaluations.add_(self.data.sizes.cpu())
        return own_latents(self.model, self.data, self.model.with_statistics(w, self.statistics))

    def draw(self, *labels: str | int) -> Tensor:
        """Draw initial weights of a model, the same at every site of the run, `[P]`.

        Where all draws of a model are the same, centers after the first, `("center", s)`, start beside them.
        """
        rng = generator(self.seed, *labels)
        w = self.model.draw(rng)
        if self.model.apart is not None and labels[0] == "center" and labels[-1] != 0:
            w = self.model.apart(w, rng)
        return w.to(self.data.x.device, self.dtype)
