"""The paper's synthetic data: a mixture of linear regressions."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from fedsoft.core.client_data import ClientData, DataShape
from fedsoft.core.client_draws import Draws, Names
from fedsoft.core.federation import Federation, Truth
from fedsoft.core.mapped import Scratch
from fedsoft.core.partition import Partition, apportion
from fedsoft.data.dataset_settings import dataset
from fedsoft.data.memory_check import check_counts
from fedsoft.data.partition_names import as_partition
from fedsoft.machine.resources import cores
from fedsoft.machine.threads import in_order
from fedsoft.seeds import generator
from fedsoft.settings import settings

__all__ = ["synthetic"]

Count = Annotated[int, Field(ge=1)]

PART = 512  # clients whose points are drawn at once


@settings
class Synthetic:
    """Linear regressions y = <x, theta_s> + noise, x standard normal, theta_s normal of the given variance.

    Arguments:
        partition: how the sources are mixed at clients: `10:90`, `linear`, `random`, `dirichlet(0.5)`, or a function.
        S: number of sources.
        clients: number of clients N.
        points: n_k is uniform from the first to the second number, both included.
        dimension: of x.
        theta_variance: variance of each entry of theta (the paper's sigma_0 is this variance).
        noise: standard deviation of the noise; its square is the error that no model can beat.
        held_out: further points of each client, as a share of n_k, for scoring its personal model.
        test_points: size of the test set of each source.
        change: (t, share), for data that arrives over time: from round t on, counted from 0, this share of the clients
            has as many other points, with its mixture in reverse order. Truth and held-out points are those at the end.
        seed: of all draws.
    """

    partition: str | Partition = "10:90"
    S: Count = 2
    clients: Count = 100
    points: tuple[Count, Count] = (100, 200)
    dimension: Count = 10
    theta_variance: Annotated[float, Field(ge=0)] = 10.0
    noise: Annotated[float, Field(ge=0)] = 1.0
    held_out: Annotated[float, Field(ge=0)] = 0.25
    test_points: Count = 2000
    change: tuple[Count, Annotated[float, Field(ge=0, le=1)]] | None = None
    seed: int = 0

    def federation(self) -> Federation:
        """Draw the sources, the clients and their points."""
        N, S, seed = self.clients, self.S, self.seed
        on_disk = check_counts(
            "synthetic", clients=N, points=self.points, held_out=self.held_out, sources=S, tests=self.test_points,
            point=4 * (self.dimension + 1), may_be_on_disk=True,
        )  # fmt: skip
        low, high = self.points
        theta = generator(seed, "theta").standard_normal((S, self.dimension)) * np.sqrt(self.theta_variance)
        mixture = as_partition(self.partition)(N, S, generator(seed, "mixture"))
        sizes = generator(seed, "sizes").integers(low, high + 1, N)
        before, at = None, 0
        if self.change is not None:
            at, share = self.change
            before, _ = self._pool("points", apportion(mixture, sizes), theta, on_disk)
            turned = generator(seed, "changed").permutation(N)[: round(share * N)]
            mixture[turned] = mixture[turned, ::-1]
        train, train_sources = self._pool("points", apportion(mixture, sizes), theta, on_disk)
        extra = np.floor(sizes * self.held_out).astype(np.int64)
        held, held_sources = self._pool("held-out", apportion(mixture, extra), theta, on_disk)
        tests, _ = self._pool("test", np.eye(S, dtype=np.int64) * self.test_points, theta)
        truth = Truth(
            mixture=torch.from_numpy(mixture),
            train_sources=train_sources,
            held_out_sources=held_sources,
            tests=tuple(tests.client(s) for s in range(S)),
            names=tuple(f"θ{s}" for s in range(S)),
            noise_floor=self.noise**2,
        )
        shape, names = DataShape("regression", (self.dimension,), 1), tuple(map(str, range(N)))
        return Federation(train, held, names, shape, truth, before=before, change_at=at)

    def _pool(
        self, label: str, counts: np.ndarray, theta: np.ndarray, on_disk: bool = False
    ) -> tuple[ClientData, torch.Tensor]:
        """Draw `counts[client, source]` points, for each client on its own."""
        from fedsoft.core import draw_kernels

        sizes, sources = counts.sum(1), np.tile(np.arange(self.S), len(counts))
        source = np.repeat(sources, counts.ravel())
        names = Names.of([str(k) for k in range(len(counts))])
        shape = (len(source), self.dimension)
        x = np.empty((0, 0) if on_disk else shape, dtype=np.float32)
        scratch = Scratch(shape, np.float32) if on_disk else None
        y = np.empty(len(source), dtype=np.float32)
        ends = np.cumsum(sizes)

        def draw(part: np.ndarray) -> None:
            rows = slice(int(ends[part[0]] - sizes[part[0]]), int(ends[part[-1]]))
            drawn = Draws(self.seed, label, names=names.take(part)).normal_each(sizes[part], self.dimension + 1)
            own = np.empty((len(drawn), self.dimension), np.float32) if scratch else x[rows]
            draw_kernels.regressions(drawn, theta, source[rows], self.noise, own, y[rows])
            if scratch:
                scratch.write(rows.start, own)

        clients = np.arange(len(counts))
        in_order(draw, np.split(clients, np.arange(PART, len(counts), PART)), cores())
        given = torch.from_numpy(sizes)
        inputs = torch.from_numpy(x) if scratch is None else scratch.tensor()
        data = ClientData(inputs, torch.from_numpy(y), torch.cumsum(given, 0) - given, given)
        return data, torch.from_numpy(source)


synthetic = dataset(Synthetic)
