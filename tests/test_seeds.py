from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from fedsoft.seeds import generator


def first(*labels: str | int, seed: int = 0) -> int:
    return int(generator(seed, *labels).integers(2**62))


def test_the_same_name_gives_the_same_draws() -> None:
    assert np.array_equal(generator(7, "a", 1).random(5), generator(7, "a", 1).random(5))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("select", 1), ("select", 2)),
        (("select", 1), ("batches", 1)),
        (("batches", 1, "12"), ("batches", 11, "2")),  # the same text when joined
        (("a", "bc"), ("ab", "c")),
        (("a",), ("a", "")),
    ],
)
def test_different_names_give_different_draws(one: tuple[str | int, ...], other: tuple[str | int, ...]) -> None:
    assert first(*one) != first(*other)


def test_the_seed_is_part_of_the_name() -> None:
    assert first("center", 0, seed=0) != first("center", 0, seed=1)


def test_other_draws_do_not_shift_a_draw() -> None:
    before = first("client")
    generator(0, "something else").random(100)
    np.random.default_rng(0).random(100)
    assert first("client") == before


def test_draws_do_not_depend_on_the_process() -> None:
    # Python salts the hash of a text anew in every process; a seed must not be made of it.
    program = "from fedsoft.seeds import generator; print(generator(3, 'batches', 4, 'hospital').integers(2**62))"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(other.stdout) == first("batches", 4, "hospital", seed=3)


def test_generators_of_neighbouring_rounds_are_uncorrelated() -> None:
    draws = np.array([generator(0, "batches", t).standard_normal(2000) for t in range(20)])
    correlation = np.corrcoef(draws) - np.eye(20)
    assert np.abs(correlation).max() < 5 / np.sqrt(2000)
