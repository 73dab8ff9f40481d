"""The paper's synthetic data: a mixture of linear regressions."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from fedsoft.core.client_data import ClientData, DataShape
from fedsoft.core.federation import Federation, Truth
from fedsoft.core.partition import Partition, apportion, as_partition
from fedsoft.data.memory_check import check_counts
from fedsoft.seeds import generator
from fedsoft.settings import checked

__all__ = ["synthetic"]

Count = Annotated[int, Field(ge=1)]


@checked
def synthetic(
    partition: str | Partition = "10:90",
    S: Count = 2,
    clients: Count = 100,
    points: tuple[Count, Count] = (100, 200),
    dimension: Count = 10,
    theta_variance: Annotated[float, Field(ge=0)] = 10.0,
    noise: Annotated[float, Field(ge=0)] = 1.0,
    held_out: Annotated[float, Field(ge=0)] = 0.25,
    test_points: Count = 2000,
    change: tuple[Count, Annotated[float, Field(ge=0, le=1)]] | None = None,
    seed: int = 0,
) -> Federation:
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
    check_counts(
        "synthetic", clients=clients, points=points, held_out=held_out, sources=S, tests=test_points,
        point=4 * (dimension + 1),
    )  # fmt: skip
    low, high = points
    theta = generator(seed, "theta").standard_normal((S, dimension)) * np.sqrt(theta_variance)
    mixture = as_partition(partition)(clients, S, generator(seed, "mixture"))
    sizes = generator(seed, "sizes").integers(low, high + 1, clients)

    def pool(label: str, counts: np.ndarray) -> tuple[ClientData, torch.Tensor]:
        """Draw `counts[client, source]` points, for each client on its own."""
        data, origin = [], []
        for k, row in enumerate(counts):
            rng = generator(seed, label, k)
            source = np.repeat(np.arange(S), row)
            x = rng.standard_normal((len(source), dimension))
            y = np.einsum("nd,nd->n", x, theta[source]) + noise * rng.standard_normal(len(source))
            data.append((torch.from_numpy(x).float(), torch.from_numpy(y).float()))
            origin.append(source)
        return ClientData.concat(data), torch.from_numpy(np.concatenate(origin))

    before, at = None, 0
    if change is not None:
        at = change[0]
        before, _ = pool("points", apportion(mixture, sizes))
        turned = generator(seed, "changed").permutation(clients)[: round(change[1] * clients)]
        mixture[turned] = mixture[turned, ::-1]
    train, train_sources = pool("points", apportion(mixture, sizes))
    held, held_sources = pool("held-out", apportion(mixture, np.floor(sizes * held_out).astype(np.int64)))
    tests, _ = pool("test", np.eye(S, dtype=np.int64) * test_points)
    truth = Truth(
        mixture=torch.from_numpy(mixture),
        train_sources=train_sources,
        held_out_sources=held_sources,
        tests=tuple(tests.client(s) for s in range(S)),
        names=tuple(f"θ{s}" for s in range(S)),
        noise_floor=noise**2,
    )
    names = tuple(map(str, range(clients)))
    return Federation(train, held, names, DataShape("regression", (dimension,), 1), truth, before=before, change_at=at)
