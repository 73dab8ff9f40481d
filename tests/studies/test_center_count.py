"""The number of sources: the rules by hand, and synthetic data whose number is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.core.client_data import ClientData
from fedsoft.errors import InputError
from fedsoft.reports.choice import choice_picture, choice_table
from fedsoft.runs import spec
from fedsoft.runs.spec import RunSpec
from fedsoft.studies.center_count import NONE, CountTrial, choose, decide, trial_specs
from fedsoft.studies.mixture_fit import MixtureFit, needed_centers, stability
from fedsoft.studies.process_pool import ProcessPool
from tests.cli.test_cli import run as run  # the command line in this process

SMALL = ["clients=12", "points=[40, 60]", "K=all", "batch=20", "epochs=4", "test_points=20", "rounds=40"]


def small(*changes: str) -> RunSpec:
    return spec.read("synthetic-random", [*SMALL, *changes])


def trial(S: int, score: float, error: float = 0.1, stable: float | None = 0.9) -> CountTrial:
    return CountTrial(S, score, error, stable, 2, stable, tuple([1 / S] * S), 0, ("r",))


def fitted(sources: list[int], centers: int) -> MixtureFit:
    """Points of three clients that only the center of their source explains; further centers are copies of the last."""
    source = torch.tensor(sources)
    right = torch.arange(centers).clamp(max=int(source.max()))
    losses = torch.where(right == source[:, None], 0.0, 50.0).double()
    data = ClientData.concat([(torch.zeros(len(source), 1), source.long())] * 3)
    return MixtureFit(data, data, (losses.repeat(3, 1), losses.repeat(3, 1)), None, 1)


def decided(trials: list[CountTrial], needed: int) -> Any:
    fits = [fitted(list(range(needed)) * 6, t.S) for t in trials]
    return decide("x", "fedem", [0, 1], 0.1, trials, fits)


def test_the_smallest_within_one_standard_error_is_taken() -> None:
    found = decided([trial(1, -3.0, stable=None), trial(2, -1.05), trial(3, -1.0), trial(4, -1.2)], needed=2)
    assert (found.best, found.first, found.recommended, found.structure) == (3, 2, 2, True)
    assert found.verdict == "S = 2"
    assert "largest that was tried" not in " ".join(found.reasons)


def test_no_structure_is_said_when_one_center_will_do() -> None:
    found = decided([trial(1, -1.05, stable=None), trial(2, -1.0)], needed=1)
    assert (found.recommended, found.structure, found.verdict) == (1, False, NONE)


def test_no_structure_is_said_when_seeds_do_not_agree() -> None:
    found = decided([trial(1, -3.0, stable=None), trial(2, -1.0, stable=0.1)], needed=2)
    assert (found.recommended, found.structure) == (1, False)
    assert "do not agree" in " ".join(found.reasons)


def test_a_seed_that_got_stuck_is_no_agreement() -> None:
    stuck = replace(trial(2, -1.0, stable=0.1), arrived=1, agreement=None)
    found = decided([trial(1, -3.0, stable=None), stuck], needed=2)
    assert (found.recommended, found.structure) == (1, False)
    assert "only one seed got there" in " ".join(found.reasons)
    alone = replace(stuck, stability=None)  # there is no other seed
    assert decided([trial(1, -3.0, stable=None), alone], needed=2).recommended == 2


def test_runs_that_still_improve_are_never_recommended() -> None:
    restless = replace(trial(2, -1.0), settled=False)
    found = decided([trial(1, -3.0, stable=None), restless, trial(3, -1.1)], needed=3)
    assert found.recommended == 3
    assert "S = 2 still improved" in " ".join(found.reasons)
    assert decided([trial(1, -3.0, stable=None), restless], needed=2).verdict == NONE


def test_what_does_not_beat_one_center_client_by_client_is_never_recommended() -> None:
    """The score of S = 2 is the better one, but its fit explains the clients' points worse than one center does."""
    worse, one = fitted([0, 1] * 6, 2).only([0, 0]), fitted([0] * 12, 1)
    found = decide("x", "fedem", [0, 1], 0.1, [trial(1, -3.0, stable=None), trial(2, -1.0)], [one, worse])
    assert (found.recommended, found.structure) == (1, False)
    assert "S = 2 is not surely better than one center" in " ".join(found.reasons)


def test_copies_and_unused_centers_are_not_sources() -> None:
    found = decided([trial(1, -9.0, stable=None), trial(2, -8.0), trial(5, -1.0, error=0.4)], needed=3)
    assert (found.first, found.needed, found.recommended) == (5, 3, 3)
    assert "3 of its 5 centers" in " ".join(found.reasons)


def test_the_largest_that_was_tried_is_no_answer() -> None:
    found = decided([trial(1, -9.0, stable=None), trial(2, -0.9, error=0.4)], needed=2)
    assert "try more" in found.reasons[-1]


def test_centers_are_needed_while_leaving_costs_more_than_allowed() -> None:
    three = fitted([0, 1, 2] * 5, 4)
    assert needed_centers(three, float(three.held_out_likelihood().mean()) - 0.2) == 3
    assert needed_centers(three, -1e9) == 1


def test_the_held_out_likelihood_is_that_of_the_smoothed_mixture() -> None:
    """8 points of one center of two: shares (8.5, 0.5) / 9, and the other center explains nothing."""
    found = fitted([0] * 8 + [1], 2).only([0, 1])
    u = np.array([8.5, 1.5]) / 10
    assert found.held_out_likelihood() == pytest.approx((8 * np.log(u[0]) + np.log(u[1])) / 9)


def test_seeds_that_number_the_centers_differently_agree() -> None:
    a, b = fitted([0, 1, 2] * 4, 3), fitted([0, 1, 2] * 4, 3).only([2, 0, 1])
    assert stability([a, b]) == pytest.approx(1)
    assert stability([a, a.only([0, 0, 0])]) == pytest.approx(0)
    assert stability([a]) is None
    assert stability([a.only([0]), a.only([0])]) is None


def test_seeds_share_one_federation() -> None:
    first, second = trial_specs(small(), "fedem", 3, [4, 5], lr=0.1)
    assert (first.seed, second.seed, first.data_seed, second.data_seed) == (4, 5, 0, 0)
    assert first.algorithm.settings["S"] == 3
    assert first.solver.settings["lr"] == 0.1
    assert first.id != second.id
    assert spec.RunSpec.from_dict(first.to_dict()).data_seed == 0
    from fedsoft.runs.run_options import RunOptions, build

    assert build(first, RunOptions())[0].fingerprint == build(second, RunOptions())[0].fingerprint
    assert build(first, RunOptions())[0].fingerprint == fs.datasets.synthetic(
        partition="random", clients=12, points=(40, 60), test_points=20
    ).fingerprint  # fmt: skip


def test_a_seed_of_the_data_is_written_only_where_it_is_set() -> None:
    assert "data_seed" not in small().to_dict()
    with pytest.raises(InputError, match="data_seed = -1"):
        spec.read("synthetic-random", ["data_seed=-1"])


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    for wanted, changes, algorithm, words in (
        ([0, 1], [], "fedem", "at least 1"),
        ([2], [], "fedem", "nothing to choose"),
        ([1, 2], [], "fedavg", "'fedavg' has no S to choose"),
        ([1, 2], ["held_out=0"], "fedem", "needs held-out points"),
    ):
        with pytest.raises(InputError, match=words):
            choose(small(*changes), wanted, ProcessPool(tmp_path), algorithm=algorithm)
    assert not list(tmp_path.iterdir())


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("sources", [1, 2])
def test_the_number_of_sources_is_found(sources: int, tmp_path: Path) -> None:
    base = small(f"dataset.S={sources}")
    found = choose(base, [1, 2, 3], ProcessPool(tmp_path, 2), seeds=[0, 1])
    assert found is not None
    assert (found.recommended, found.structure) == (sources, sources > 1)
    names = {path.name for path in tmp_path.iterdir()}
    assert choose(base, [1, 2, 3], ProcessPool(tmp_path), seeds=[0, 1]) == found  # nothing is run again
    assert {path.name for path in tmp_path.iterdir()} == names
    assert choice_picture(found).startswith(b"\x89PNG")
    assert b"<svg" in choice_picture(found, "svg")
    assert choice_table(found).row_count == 3


@pytest.mark.engine
@pytest.mark.slow
def test_the_command_recommends_and_saves(run: Any, tmp_path: Path) -> None:
    changes = [part for change in SMALL[:-1] for part in ("--set", change)]
    arguments = [
        "choose",
        "synthetic-random",
        "--S",
        "1..2",
        "--seeds",
        "0..1",
        "--rounds",
        "8",
        "--lr",
        "0.05",
        *changes,
    ]
    code, out, err = run(*arguments)
    assert code == 0, err
    assert "Recommended: " in out
    assert "standard error" in out
    folder = next((tmp_path / "runs").glob("choose-*"))
    assert {path.name for path in folder.iterdir()} == {"choice.json", "choice.png", "choice.svg"}
    code, out, _ = run(*arguments, "--json")
    plain = json.loads(out)
    assert plain["lr"] == 0.05
    assert [found["S"] for found in plain["trials"]] == [1, 2]
