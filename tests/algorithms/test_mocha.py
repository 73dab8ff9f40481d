from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.core.contract import State
from fedsoft.errors import InputError
from tests.algorithms.plain import drawn
from tests.helpers import Pairs, class_clients, federation, fitted, random_stack, regression_clients


def sigma_of(w: np.ndarray, eps: float) -> np.ndarray:
    """Sigma of the models `w[N, P]`, as the rule says it: the paper's W has them as columns."""
    root = np.real(scipy.linalg.sqrtm(w @ w.T + eps * np.eye(len(w))))
    return root / np.trace(root)


def objective(pairs: Pairs, w: Tensor, omega: np.ndarray, lam: float, eps: float) -> float:
    """sum_k f_k(w_k) + lam/2 (tr W Omega W^T + eps tr Omega)."""
    own = sum(float(((x @ w_k - y) ** 2).mean()) for (x, y), w_k in zip(pairs, w, strict=True))
    return own + lam / 2 * float(np.trace(w.numpy().T @ omega @ w.numpy()) + eps * np.trace(omega))


def joint_solution(pairs: Pairs, omega: np.ndarray, lam: float) -> np.ndarray:
    """The minimiser over W for a fixed Omega, by one linear system for all clients together."""
    count, size = len(pairs), pairs[0][0].shape[1]
    system = np.kron(lam * omega, np.eye(size))
    right = np.zeros(count * size)
    for k, (x, y) in enumerate(pairs):
        own = slice(k * size, (k + 1) * size)
        system[own, own] += 2 / len(y) * (x.T @ x).numpy()
        right[own] = 2 / len(y) * (x.T @ y).numpy()
    return np.linalg.solve(system, right).reshape(count, size)


# --- Omega ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [1, 2, 3, 9])  # models have 3 parameters
@pytest.mark.parametrize("eps", [1e-2, 1.0])
def test_omega_is_the_inverse_of_sigma(clients: int, eps: float) -> None:
    w = torch.from_numpy(np.random.default_rng(0).standard_normal((clients, 3)) * 2)
    omega = fs.MOCHA(eps=eps).omega(w).numpy()
    assert omega @ sigma_of(w.numpy(), eps) == pytest.approx(np.eye(clients), abs=1e-9)


def test_omega_of_models_that_are_alike_is_still_there() -> None:
    omega = fs.MOCHA(eps=1e-6).omega(torch.ones(5, 2))
    assert bool(torch.isfinite(omega).all())
    assert bool((torch.linalg.eigvalsh(omega) > 0).all())


def test_sigma_minimises_the_objective_among_those_of_trace_1() -> None:
    rng = np.random.default_rng(0)
    w, eps = rng.standard_normal((6, 3)), 0.1

    def penalty(sigma: np.ndarray) -> float:
        omega = np.linalg.inv(sigma)
        return float(np.trace(w.T @ omega @ w) + eps * np.trace(omega))

    best = np.linalg.inv(fs.MOCHA(eps=eps).omega(torch.from_numpy(w)).numpy())
    assert np.trace(best) == pytest.approx(1)
    for _ in range(20):
        other = rng.standard_normal((6, 6))
        other = other @ other.T / np.trace(other @ other.T)
        assert penalty(0.95 * best + 0.05 * other) > penalty(best)


def test_omega_is_updated_every_outer_rounds() -> None:
    # `related` are the models that Omega comes from: those at the beginning of the last round that is a multiple.
    states = [fitted(fs.MOCHA(outer=3), regression_clients(), rounds).state for rounds in range(8)]
    for rounds in range(1, 8):
        since = (rounds - 1) // 3 * 3
        assert torch.equal(states[rounds].per_client["related"], states[since].per_client["w"])


# --- the joint problem ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("K", [3, "all"])
def test_for_a_fixed_omega_rounds_converge_to_the_joint_solution(K: Any) -> None:
    pairs, lam, eps = regression_clients(), 0.05, 1.0
    related = random_stack(fs.models.linear()(federation(pairs).shape), len(pairs)) * 3
    engine = fitted(fs.MOCHA(lam=lam, eps=eps, K=K, outer=10**6), pairs, 0).engine
    state = State(related[:0], per_client={"w": engine.client_states["w"].clone(), "related": related})
    omega = np.linalg.inv(sigma_of(related.numpy(), eps))
    assert float(np.abs(omega - np.diag(np.diag(omega))).max()) > 1  # clients are coupled
    values = []
    with torch.no_grad():
        for t in range(1, 600):  # not 0, where Omega would be updated
            state, _ = engine.round(state, t)
            values.append(objective(pairs, state.per_client["w"], omega, lam, eps))
    assert bool((np.diff(values) <= 1e-12).all())
    assert state.per_client["w"].numpy() == pytest.approx(joint_solution(pairs, omega, lam), abs=1e-6)


@pytest.mark.parametrize("K", [3, "all"])
@pytest.mark.parametrize(("lam", "eps"), [(0.01, 1.0), (0.3, 0.01), (3.0, 10.0)])
def test_the_objective_never_grows(K: Any, lam: float, eps: float) -> None:
    pairs = regression_clients()
    run = fitted(fs.MOCHA(lam=lam, eps=eps, K=K, outer=3), pairs, 0)
    state, values = run.state, []
    with torch.no_grad():
        for t in range(20):
            state, _ = run.engine.round(state, t)
            omega = np.linalg.inv(sigma_of(state.per_client["related"].numpy(), eps))
            values.append(objective(pairs, state.per_client["w"], omega, lam, eps))
            # before Omega is updated for the same models, the objective is that of the old one; see both
            if (t + 1) % 3 == 0:
                omega = np.linalg.inv(sigma_of(state.per_client["w"].numpy(), eps))
                values.append(objective(pairs, state.per_client["w"], omega, lam, eps))
    assert bool((np.diff(values) <= 1e-9 * values[0]).all())
    assert values[-1] < values[0]


def test_one_round_of_two_clients_by_hand() -> None:
    # One feature: f_0 = (w - 1)^2, f_1 = 4 (w - 3)^2; the models that Omega comes from are 1 and 2, eps = 4.
    pairs = [
        (torch.ones(1, 1).double(), torch.ones(1).double()),
        (2 * torch.ones(1, 1).double(), 6 * torch.ones(1).double()),
    ]
    lam, w = 0.5, (1.0, 2.0)
    # W^T W + 4 I = [[5, 2], [2, 8]] has the eigenvalues 4 and 9 with vectors (2, -1) and (1, 2) / sqrt 5: its root is
    # [[11/5, 2/5], [2/5, 14/5]], of trace 5 and determinant 6.
    omega = np.linalg.inv(np.array([[11, 2], [2, 14]]) / 25)
    assert omega == pytest.approx(np.array([[14, -2], [-2, 11]]) / 6)
    safe = max(16 / 14, 13 / 11)
    solved = []
    for k, (half, best) in enumerate([(1, 1), (4, 3)]):
        pull, slope = lam * safe * omega[k, k], lam * (omega[k, 0] * w[0] + omega[k, 1] * w[1])
        solved.append((2 * half * best + pull * w[k] - slope) / (2 * half + pull))
    engine = fitted(fs.MOCHA(lam=lam, eps=4.0), pairs, 0).engine
    models = torch.tensor([[1.0], [2.0]]).double()
    with torch.no_grad():
        state, _ = engine.round(State(models[:0], per_client={"w": models, "related": models}), 0)
    assert state.per_client["w"].flatten().tolist() == pytest.approx(solved)


# --- limiting cases ---------------------------------------------------------------------------------------------------


def ridge(pairs: Pairs, strength: float) -> np.ndarray:
    """argmin f_k(w) + strength/2 |w|^2 of every client."""
    solved = []
    for x, y in pairs:
        gram = 2 / len(y) * x.T @ x + strength * torch.eye(x.shape[1]).double()
        solved.append(torch.linalg.solve(gram, 2 / len(y) * x.T @ y).numpy())
    return np.array(solved)


def test_before_models_are_related_it_is_independent_ridge_regression() -> None:
    # W = 0 gives Sigma = I/N, Omega = N I.
    pairs, lam = regression_clients(), 0.02
    run = fitted(fs.MOCHA(lam=lam), pairs, 1)
    assert run.state.per_client["w"].numpy() == pytest.approx(ridge(pairs, lam * len(pairs)), abs=1e-9)


def test_under_an_overwhelming_eps_it_stays_independent_ridge_regression() -> None:
    pairs, lam = regression_clients(), 0.02
    run = fitted(fs.MOCHA(lam=lam, eps=1e12), pairs, 20)
    assert run.state.per_client["w"].numpy() == pytest.approx(ridge(pairs, lam * len(pairs)), abs=1e-4)


def test_without_lambda_everybody_trains_alone() -> None:
    pairs = regression_clients()
    assert fitted(fs.MOCHA(lam=0.0), pairs, 3).state.per_client["w"].numpy() == pytest.approx(
        ridge(pairs, 0.0), abs=1e-8
    )


def test_there_are_no_centers_and_the_server_knows_what_clients_have() -> None:
    run = fitted(fs.MOCHA(K=4), regression_clients(), 4)
    assert run.state.centers.shape == (0, 3)
    assert run.weights is None
    assert torch.equal(run.state.per_client["w"], run.engine.client_states["w"])


# --- against a plain loop ---------------------------------------------------------------------------------------------


def test_a_run_equals_the_plain_loop() -> None:
    pairs, K, lr, lam, eps, outer = regression_clients(), 3, 0.02, 0.03, 0.5, 3
    sgd = fs.SGD(lr=lr, epochs=2, batch=100, shuffle=False)
    run = fitted(fs.MOCHA(K=K, lam=lam, eps=eps, outer=outer), pairs, 8, sgd)
    w, omega = np.zeros((8, 3)), np.eye(8)
    for t in range(8):
        if t % outer == 0:
            omega = np.linalg.inv(sigma_of(w, eps))
        safe = max(sum(abs(omega[k, j]) for j in range(8)) / omega[k, k] for k in range(8))
        new = w.copy()
        for k in drawn(t, K, 8):
            x, y = (part.numpy() for part in pairs[k])
            coupled = sum(omega[k, j] * w[j] for j in range(8))
            for _ in range(2):
                slope = 2 / len(y) * x.T @ (x @ new[k] - y)
                new[k] = new[k] - lr * (slope + lam * (coupled + safe * omega[k, k] * (new[k] - w[k])))
        w = new
    assert run.state.per_client["w"].numpy() == pytest.approx(w, abs=1e-9)


# --- what it is for, and what it is not for ---------------------------------------------------------------------------


def test_clients_of_few_points_gain_by_the_others_more_than_by_shrinking() -> None:
    fed = fs.datasets.synthetic(partition="10:90", clients=60, points=(8, 16), seed=0)

    def error(**settings: Any) -> float:
        spread = fs.fit(fs.MOCHA(**settings), fed, fs.models.linear(), rounds=40, solver=fs.Exact()).scores()
        assert spread.personal_held_out is not None
        return spread.personal_held_out.median

    alone, shrunk = error(lam=0.0), error(lam=0.003, eps=1e9)  # the latter is ridge regression at its best strength
    assert error(lam=0.03, eps=10.0) < 0.7 * shrunk < 0.7 * alone


def test_only_models_that_are_linear_in_their_parameters_are_taken() -> None:
    with pytest.raises(InputError, match=r"MOCHA needs a model that is linear in its parameters"):
        fs.fit(fs.MOCHA(), federation(regression_clients()), fs.models.mlp(), rounds=1)
    with pytest.raises(InputError, match=r"MOCHA needs a model that is linear in its parameters"):
        fs.fit(fs.MOCHA(), federation(class_clients()), fs.models.linear(), rounds=1)


@pytest.mark.parametrize("setting", [{"lam": -1}, {"outer": 0}, {"eps": 0}, {"K": 0}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"MOCHA\.{next(iter(setting))} = "):
        fs.MOCHA(**setting)
