"""Numbers at their limits: precision, extreme scales, data without variance, and training that diverges."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.reports.comparison import ComparisonReport
from fedsoft.runs import spec
from fedsoft.runs.execute import execute, resume
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.run_options import RunOptions
from fedsoft.studies.compare import compare
from fedsoft.studies.process_pool import ProcessPool
from fedsoft.training import Run
from tests.helpers import trained

ALGORITHMS = [fs.FedSoft(S=2, K=8), fs.IFCA(S=2), fs.FedEM(S=2), fs.FedRoute(S=2), fs.FedAvg(), fs.Ditto()]
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)

Pairs = list[tuple[np.ndarray, np.ndarray]]


def mixed(clients: int = 10, points: int = 20, seed: int = 0) -> Pairs:
    """Regressions on two sources."""
    rng = np.random.default_rng(seed)
    theta = np.array([[2.0, -1.0, 0.5], [-2.0, 1.0, 1.5]])
    pairs = []
    for k in range(clients):
        x = rng.standard_normal((points, 3))
        which = (rng.random(points) < (0.2 if k % 2 else 0.8)).astype(int)
        pairs.append((x, (x * theta[which]).sum(1) + 0.1 * rng.standard_normal(points)))
    return pairs


def fit(algorithm: Any, pairs: Pairs, **options: Any) -> Run:
    federation = fs.Federation.from_clients(pairs, held_out=0)
    options = {"rounds": 4, "solver": fs.Adam(lr=0.02, epochs=3), **options}
    return trained(algorithm, federation, fs.models.linear(), **options)


def finite(run: Run) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in run.state.tensors().values())


# --- precision --------------------------------------------------------------------------------------------------------


@every_algorithm
def test_single_and_double_precision_agree(algorithm: Any) -> None:
    """Relative to the largest parameter: 1e-4 after four rounds."""
    runs = [fit(algorithm, mixed(), dtype=dtype) for dtype in ("float32", "float64")]
    single, double = (run.state.centers.double() for run in runs)
    assert float((single - double).abs().max()) <= 1e-4 * float(double.abs().max())


# --- scales -----------------------------------------------------------------------------------------------------------


@every_algorithm
@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e15, 1e30])
@pytest.mark.parametrize("what", ["features", "targets"])
def test_extreme_scales_end_in_finite_numbers_or_are_named(algorithm: Any, what: str, scale: float) -> None:
    pairs = [(x * scale, y) if what == "features" else (x, y * scale) for x, y in mixed()]
    for options in ({}, {"dtype": "float64"}):
        try:
            run = fit(algorithm, pairs, **options)
        except fs.DivergedError as error:
            told = str(error)
        else:
            told = "" if finite(run) else "not finite"
        assert not told or ("round" in told and "scale the data" in told)


def test_in_double_precision_scaled_features_need_only_scaled_models() -> None:
    """Least squares do not depend on the unit of the features: the weights take it up."""
    plain, scaled = (
        fit(fs.FedRoute(S=2), [(x * unit, y) for x, y in mixed()], dtype="float64").state.centers
        for unit in (1.0, 1e-6)
    )
    torch.testing.assert_close(scaled[:, :3] * 1e-6, plain[:, :3], rtol=1e-4, atol=1e-6)


def constant(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([x, np.full((len(x), 1), 7.0)], axis=1), y


DEGENERATE = {
    "a constant feature": constant,
    "points twice": lambda x, y: (np.concatenate([x, x]), np.concatenate([y, y])),
    "one point many times": lambda x, y: (x[:1].repeat(len(x), 0), y[:1].repeat(len(y))),
    "no variance": lambda x, y: (np.zeros_like(x), np.zeros_like(y)),
    "one point": lambda x, y: (x[:1], y[:1]),
}


@every_algorithm
@pytest.mark.parametrize("kind", DEGENERATE)
def test_data_without_variance_is_no_trouble(algorithm: Any, kind: str) -> None:
    run = fit(algorithm, [DEGENERATE[kind](x, y) for x, y in mixed()])
    assert finite(run)
    personal = run.scores().personal_train
    assert personal is not None
    assert math.isfinite(personal.mean)


@every_algorithm
def test_a_classification_in_which_everybody_has_one_class(algorithm: Any) -> None:
    rng = np.random.default_rng(0)
    pairs = [(rng.standard_normal((10, 3)), np.full(10, k % 2)) for k in range(10)]
    run = fit(algorithm, pairs)
    assert finite(run)


@pytest.mark.parametrize("lam", [0.0, 1e6])
@pytest.mark.parametrize("solver", [fs.Adam(lr=0.02, epochs=3), fs.Exact()], ids=["adam", "exact"])
def test_no_pull_and_an_enormous_one(lam: float, solver: Any) -> None:
    pairs = mixed()
    run = fit(fs.FedSoft(S=2, lam=lam), pairs, solver=solver)
    assert finite(run)
    if isinstance(solver, fs.Exact) and lam:
        pulled = run.state.u.double() / run.state.u.double().sum(1, keepdim=True)
        before = fit(fs.FedSoft(S=2, lam=lam), pairs, solver=solver, rounds=3).state.centers.double()
        torch.testing.assert_close(run.engine.client_states["w"].double(), pulled @ before, rtol=1e-2, atol=1e-2)


def test_an_enormous_pull_with_plain_steps_diverges_and_says_so() -> None:
    with pytest.raises(fs.DivergedError, match=r"client '\d' .*round \d.*solver\.lr"):
        fit(fs.FedSoft(S=2, lam=1e6), mixed(), solver=fs.SGD(lr=0.1, epochs=30))


# --- divergence -------------------------------------------------------------------------------------------------------


def test_growth_beyond_all_measure_is_divergence_though_all_is_finite(tmp_path: Path) -> None:
    """A rate just above what the curvature allows: every round multiplies the error."""
    changes = ["algorithm=fedavg", "solver=sgd", "solver.lr=1.0", "solver.epochs=3", "solver.batch=1000", "rounds=60",
               "dataset.clients=10", "dtype=float64"]  # fmt: skip
    run = spec.read("synthetic-10-90", changes)
    sentence = r"the error of center 0 is .* after round \d+, .* times .*solver\.lr"
    with pytest.raises(fs.DivergedError, match=sentence) as told:
        execute(run, tmp_path / "run", RunOptions())
    folder = RunFolder.open(tmp_path / "run")
    point = folder.checkpoint()
    assert point is not None  # the last good state is kept
    assert bool(torch.isfinite(point.state.centers).all())
    assert 1 <= point.rounds <= int(str(told.value).partition("after round ")[2].partition(",")[0])
    with pytest.raises(fs.DivergedError, match="the error of center 0"):  # and says the same when resumed
        resume(folder, RunOptions())


@pytest.mark.engine
@pytest.mark.slow
def test_a_comparison_in_which_a_method_diverges_has_its_table(tmp_path: Path) -> None:
    from rich.console import Console

    base = spec.read("synthetic-10-90", ["dataset.clients=10", "algorithm=fedavg", "rounds=2", "dtype=float32"])
    text = "fedavg,ifca(solver.lr=1e30),fedprox"
    found = compare(base, text, [0, 1], ProcessPool(tmp_path))
    assert found is not None
    assert [*found.folders] == ["fedavg", "fedprox"]
    assert set(found.diverged) == {"ifca(solver.lr=1e+30)"}
    console = Console(width=300, record=True, file=io.StringIO())
    report = ComparisonReport.of(found)
    for table in report.tables(300):
        console.print(table)
    lines = [line for line in console.export_text().splitlines() if "ifca" in line]
    assert lines
    assert all("diverged" in line for line in lines)
    assert (
        "ifca(solver.lr=1e+30) diverged with 2 of 2 seeds; seed 0: the error of a center is not finite"
        in report.divergences[0]
    )
    assert report.to_csv()
    assert report.png()
