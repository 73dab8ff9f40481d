"""The appendix on tau: what estimating u only every tau rounds costs, and what it saves."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from fedsoft.algorithms.fedsoft import FedSoft
from fedsoft.core.client_data import DataShape
from fedsoft.datasets.synthetic import synthetic
from fedsoft.evaluation.scores import align, center_scores, oracle_models, recovery
from fedsoft.models.linear import linear
from fedsoft.solvers.exact import Exact
from fedsoft.theory.check import Found, statement, yes
from fedsoft.theory.library import quiet
from fedsoft.training.prepare import Recipe, prepare

TAUS = (1, 2, 5, 10, 20)
ROUNDS, SEEDS = 20, 4


def play(tau: int, seed: int) -> dict[str, float]:
    """One run of the paper's synthetic 10:90 federation with the exact local solver."""
    federation = synthetic(partition="10:90", test_points=200, held_out=0.0, seed=seed)
    truth = federation.truth
    assert truth is not None
    model = linear()(DataShape("regression", federation.shape.input, 1))
    fractions = truth.fractions(federation.train)
    optima = oracle_models(model, federation)
    engine = prepare(Recipe(FedSoft(S=2, K=60, lam=1.0, tau=tau), model, Exact(), seed), federation)
    errors, down = [], 0
    with quiet():
        state = engine.start()
        for t in range(ROUNDS):
            state, _ = engine.round(state, t)
            down += engine.cost.bytes_down
            table = center_scores(model, state.centers, truth.tests)
            errors.append(recovery(state.u, fractions, align(table, False)))
    order = align(center_scores(model, state.centers, truth.tests), False)
    goal = torch.as_tensor(optima)[order]
    scale = float(torch.cdist(torch.as_tensor(optima), torch.as_tensor(optima)).max())
    away = float((state.centers.double() - goal).norm(dim=1).mean()) / scale
    return {"error": float(np.mean(errors)), "last": errors[-1], "centers": away, "bytes": float(down)}


@statement("tau", "Appendix B", "a larger tau makes the error of u larger; convergence is the same but for constants")
def check_tau(seed: int, draws: int) -> Found:
    """Means and standard deviations over seeds; the centers' distance to their sources as a share of Delta."""
    runs = {tau: [play(tau, seed + i) for i in range(SEEDS)] for tau in TAUS}
    values, series = {}, {}
    for tau, found in runs.items():
        values[str(tau)] = {
            key: {"mean": float(np.mean([f[key] for f in found])), "sd": float(np.std([f[key] for f in found], ddof=1))}
            for key in found[0]
        }
    for key, label in (("error", "mean error of u"), ("last", "last error of u"), ("centers", "|c - c*| / Delta"),
                       ("bytes", "bytes down")):  # fmt: skip
        series[label] = [[tau, values[str(tau)][key]["mean"]] for tau in TAUS]
    means = [values[str(tau)]["error"]["mean"] for tau in TAUS]
    rising = all(b >= a - 1e-9 for a, b in itertools.pairwise(means))
    late = [tau for tau in TAUS if values[str(tau)]["centers"]["mean"] > 1.1 * values["1"]["centers"]["mean"]]
    saved = {tau: 1 - values[str(tau)]["bytes"]["mean"] / values["1"]["bytes"]["mean"] for tau in TAUS}
    rows = "; ".join(
        f"{tau}: u {values[str(tau)]['error']['mean']:.3f} +- {values[str(tau)]['error']['sd']:.3f}, c "
        f"{values[str(tau)]['centers']['mean']:.3f} +- {values[str(tau)]['centers']['sd']:.3f}, {saved[tau]:.0%} saved"
        for tau in TAUS
    )
    return Found(
        yes(rising),
        f"error of u, mean over rounds: {means[0]:.3f} (tau = 1) to {means[-1]:.3f} (tau = {TAUS[-1]})",
        "rises with tau",
        f"synthetic 10:90, 100 clients, K = 60, {ROUNDS} rounds, {SEEDS} seeds, per tau the mean error of u, |c - c*| "
        f"/ Delta at the end and "
        f"the bytes to clients that are saved. {rows}. Centers are worse by a tenth or more for tau = "
        f"{', '.join(map(str, late)) or 'none'}",
        values,
        series,
        draws=SEEDS * len(TAUS),
    )
