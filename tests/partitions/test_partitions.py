"""What every partition must do, and what each of them does."""

from __future__ import annotations

import numpy as np
import pytest

import fedsoft as fs
from fedsoft.data.partition_names import as_partition, parse_partition
from fedsoft.errors import InputError
from fedsoft.plugins import names


def mixture(partition: str, clients: int, sources: int, seed: int = 0) -> np.ndarray:
    return as_partition(partition)(clients, sources, np.random.default_rng(seed))


ALL = ["10:90", "30:70", "linear", "random", "dirichlet(0.3)", "dirichlet"]


def test_every_partition_there_is_is_tested_here() -> None:
    assert {parse_partition(text)[0] for text in ALL} == set(names("partitions"))


@pytest.mark.parametrize("partition", ALL)
@pytest.mark.parametrize("clients", [1, 2, 7, 100])
def test_every_client_has_a_mixture_that_sums_to_1(partition: str, clients: int) -> None:
    made = mixture(partition, clients, 2)
    assert made.shape == (clients, 2)
    assert made.min() >= 0
    assert made.sum(1) == pytest.approx(np.ones(clients))


@pytest.mark.parametrize(("text", "share"), [("10:90", 0.1), ("30:70", 0.3), ("1:9", 0.1), ("0.3 : 0.7", 0.3)])
def test_a_ratio_gives_half_the_clients_each_way(text: str, share: float) -> None:
    assert mixture(text, 6, 2)[:, 0] == pytest.approx([share] * 3 + [1 - share] * 3)


def test_linear_runs_evenly_from_one_source_to_the_other() -> None:
    # The paper: client k of 100 has (0.5 + k)% of the first source.
    assert mixture("linear", 100, 2)[[0, 1, 50, 99], 0] == pytest.approx([0.005, 0.015, 0.505, 0.995])


@pytest.mark.parametrize("partition", ["10:90", "linear"])
def test_partitions_of_two_sources_refuse_more(partition: str) -> None:
    with pytest.raises(InputError, match="needs S = 2 sources, not 3: use 'random' or 'dirichlet'"):
        mixture(partition, 4, 3)


@pytest.mark.parametrize("sources", [1, 2, 8])
def test_random_cuts_give_each_source_the_same_mean_and_the_spread_of_uniform_spacings(sources: int) -> None:
    made = mixture("random", 20000, sources)
    variance = (sources - 1) / (sources**2 * (sources + 1))  # of a spacing: the uniform distribution on the simplex
    assert made.mean(0) == pytest.approx(np.full(sources, 1 / sources), abs=5 * np.sqrt(variance / 20000) + 1e-12)
    assert made.var(0) == pytest.approx(np.full(sources, variance), rel=0.1, abs=1e-12)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_dirichlet_has_the_mean_and_variance_of_its_distribution(alpha: float) -> None:
    made, sources = mixture(f"dirichlet({alpha})", 20000, 4), 4
    variance = (sources - 1) / (sources**2 * (sources * alpha + 1))
    assert made.mean(0) == pytest.approx(np.full(sources, 0.25), abs=5 * np.sqrt(variance / 20000))
    assert made.var(0) == pytest.approx(np.full(sources, variance), rel=0.1)


def test_dirichlet_of_tiny_alpha_gives_clients_of_one_source_and_no_nan() -> None:
    made = mixture("dirichlet(1e-6)", 500, 3)
    assert made.max(1) == pytest.approx(np.ones(500))
    assert set(made.argmax(1)) == {0, 1, 2}


@pytest.mark.parametrize("partition", ["random", "dirichlet(0.5)"])
def test_clients_are_mixed_differently_and_as_the_generator_says(partition: str) -> None:
    made = mixture(partition, 5, 3)
    assert len({tuple(row) for row in made}) == 5
    assert np.array_equal(made, mixture(partition, 5, 3))
    assert not np.array_equal(made, mixture(partition, 5, 3, seed=1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0:0", "one of the shares should be positive"),
        ("dirichlet(0)", r"partition\.alpha = .* is not allowed"),
        ("dirichlet(1, 2)", "has 2 values, 'dirichlet' takes 1"),
        ("linaer", "did you mean 'linear'"),
    ],
)
def test_a_partition_that_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mixture(text, 4, 2)


def test_a_partition_can_be_a_function() -> None:
    fed = fs.datasets.synthetic(
        partition=lambda clients, sources, rng: np.tile([0.25, 0.75], (clients, 1)),
        clients=3,
        points=(8, 8),
        test_points=2,
    )
    assert fed.truth is not None
    assert fed.truth.fractions(fed.train).tolist() == [[0.25, 0.75]] * 3
