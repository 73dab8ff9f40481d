from __future__ import annotations

import numpy as np

from fedsoft.reports.measures import Measured
from fedsoft.reports.regressions import ahead, behind, how_tested, to_first


def row(
    name: str, centers: list[list[float]] | None, personal: list[float | None] | None = None,
    seeds: list[int] | None = None,
) -> Measured:  # fmt: skip
    count = len(centers or personal or [])
    nothing: list[float] = [0.0] * count
    return Measured(
        algorithm=name, runs=[""] * count, seeds=seeds or list(range(count)), best_center=centers,
        recovery=[None] * count, personal_train=[None] * count, personal_held_out=personal or [None] * count,
        worst_decile=[None] * count, rounds=[0] * count, gradients_per_client=nothing, evaluations_per_client=nothing,
        bytes_down_per_client=nothing, bytes_up_per_client=nothing, seconds=nothing,
    )  # fmt: skip


def test_what_is_worse_by_more_than_chance_is_named() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(10)
    first = row("fedsoft", [[v, v] for v in values.tolist()], [*(values + rng.standard_normal(10)).tolist()])
    other = row("mine", [[v + 1, v + 2] for v in values.tolist()], [*(values + rng.standard_normal(10)).tolist()])
    found = to_first([first, other], higher=False)
    assert behind(found, "fedsoft") == [
        "mine is worse than fedsoft over 10 seeds: best centers (p = 0.0039)"
    ]  # twice 2/1024
    assert ahead(found, "fedsoft") == []
    assert ahead(to_first([first, other], higher=True), "fedsoft")[0].startswith("mine is better than fedsoft")
    assert how_tested(found).startswith(
        "differences seed by seed are tested by Wilcoxon, with Holm's correction for all 2"
    )


def test_few_seeds_decide_nothing() -> None:
    """Two seeds that agree to the last digit, and four: nothing is called worse, and that is said."""
    for seeds in (1, 2, 4):
        found = to_first([row("a", [[1.0]] * seeds), row("b", [[2.0]] * seeds)], higher=False)
        assert behind(found, "a") == ahead(found, "a") == []
        assert "too few to call a method better or worse" in how_tested(found)
    five = to_first([row("a", [[1.0]] * 5), row("b", [[2.0], [2.1], [2.2], [2.1], [2.0]])], higher=False)
    assert len(behind(five, "a")) == 1
    assert "Student" in how_tested(five)


def test_draws_have_a_scale() -> None:
    """A difference of a tenth of each draw's scale is clear, however much the scales differ."""
    scale = {seed: 10.0**seed for seed in range(5)}
    first = row("a", [[0.0]] * 5)
    other = row("b", [[0.1 * scale[seed] * (1 + 0.01 * seed)] for seed in range(5)])
    assert behind(to_first([first, other], higher=False), "a") == []
    assert len(behind(to_first([first, other], higher=False, scale=scale), "a")) == 1


def test_nothing_to_tell() -> None:
    same = [row("a", [[1.0], [2.0]] * 4), row("b", [[1.0], [2.0]] * 4)]
    assert behind(to_first(same, higher=False), "a") == []
    nothing = to_first([row("a", None, [None]), row("b", None, [None])], higher=True)
    assert nothing == []
    assert how_tested(nothing) == ""


def test_seeds_that_one_of_them_lost_are_left_out() -> None:
    first, other = row("a", [[1.0]] * 7), row("b", [[1.2], [1.21], [1.22], [1.2], [1.21]], seeds=[0, 2, 3, 5, 6])
    assert [one.tested.seeds for one in to_first([first, other], higher=False)] == [5]
    assert to_first([first, row("b", [[1.2], [1.3]], seeds=[7, 8])], higher=False) == []
