from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsoft as fs
from fedsoft.errors import InputError
from fedsoft.seeds import generator
from tests.algorithms.plain import TWO, batches, drawn, gradient, local_training
from tests.helpers import RAGGED, Pairs, engine_for, federation, fitted, regression_clients

SGD = fs.SGD(lr=0.05, epochs=2, batch=5)

# --- by hand ----------------------------------------------------------------------------------------------------------


def test_two_steps_of_two_clients_by_hand() -> None:
    lr, alpha_lr = 0.05, 0.03
    run = fitted(fs.APFL(alpha=0.4, alpha_lr=alpha_lr), TWO, 2, fs.SGD(lr=lr, epochs=2, batch=3))
    c = float(fitted(fs.APFL(), TWO, 0).state.centers)
    slope = [lambda w: 2 / 3 * (6 * w - 14), lambda w: 2 * (4 * w + 4)]
    v, alpha, mix = [c, c], [0.4, 0.4], [c, c]
    for _ in range(2):
        w = [c, c]
        for k in range(2):
            for step in range(2):
                g = slope[k](alpha[k] * v[k] + (1 - alpha[k]) * w[k])
                apart = v[k] - w[k]
                w[k] -= lr * slope[k](w[k])
                v[k] -= lr * alpha[k] * g
                if step == 0:  # once per round
                    alpha[k] = min(1, max(0, alpha[k] - alpha_lr * apart * g))
            mix[k] = alpha[k] * v[k] + (1 - alpha[k]) * w[k]
        c = (3 * w[0] + 1 * w[1]) / 4
    assert alpha[0] != pytest.approx(0.4, abs=1e-3)
    memory = run.engine.client_states
    assert memory["alpha"].flatten().tolist() == pytest.approx(alpha)
    assert memory["v"].flatten().tolist() == pytest.approx(v)
    assert memory["w"].flatten().tolist() == pytest.approx(mix)
    assert float(run.state.centers) == pytest.approx(c)


def test_the_personal_model_is_the_mix_with_the_clients_own_w() -> None:
    # After one round of one client, its own w is the new center; the mix with the old one would be another model.
    run = fitted(fs.APFL(adapt=False, alpha=0.3), TWO[:1], 1, SGD)
    v, c = run.engine.client_states["v"], run.state.centers
    assert torch.allclose(run.engine.client_states["w"], 0.3 * v + 0.7 * c, atol=1e-12)
    assert torch.allclose(run.predict(TWO[0][0], client=0), TWO[0][0] @ (0.3 * v + 0.7 * c)[0], atol=1e-12)


# --- limiting cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local", [SGD, fs.SGD(momentum=0.9, batch=5), fs.Adam(epochs=2, batch=5)])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_the_center_is_that_of_fedavg_for_every_alpha(local: Any, alpha: float) -> None:
    mixed, plain = (fitted(a, regression_clients(), 3, local) for a in (fs.APFL(K=3, alpha=alpha), fs.FedAvg(K=3)))
    # FedAvg's local solves are one compiled loop, which rounds otherwise.
    assert torch.allclose(mixed.state.centers, plain.state.centers, rtol=0, atol=1e-12)


def test_with_alpha_0_the_personal_model_is_the_w_of_fedavg() -> None:
    # Of one client alone, which is also the mean.
    for k, pair in enumerate(regression_clients()):
        mixed = fitted(fs.APFL(alpha=0, adapt=False), [pair], 3, SGD)
        plain = fitted(fs.FedAvg(), [pair], 3, SGD)
        assert torch.allclose(mixed.engine.client_states["w"], plain.state.centers, atol=1e-12), k
        assert torch.equal(mixed.engine.client_states["v"], fitted(fs.FedAvg(), [pair], 0).state.centers)


def test_with_alpha_1_the_personal_model_is_trained_locally() -> None:
    run = fitted(fs.APFL(K=3, alpha=1, adapt=False), regression_clients(), 4, SGD)
    expected = local_training(4, 3, SGD)
    assert torch.allclose(run.engine.client_states["v"], expected, atol=1e-12)
    assert torch.allclose(run.engine.client_states["w"], expected, atol=1e-12)


def test_alpha_stays_when_it_is_not_adapted() -> None:
    run = fitted(fs.APFL(alpha=0.3, adapt=False), regression_clients(), 3, SGD)
    assert run.engine.client_states["alpha"].flatten().tolist() == [0.3] * 8


def test_alpha_is_clipped() -> None:
    run = fitted(fs.APFL(alpha_lr=1e6), regression_clients(), 3, SGD)
    alpha = run.engine.client_states["alpha"]
    assert bool(((alpha == 0) | (alpha == 1)).all())
    assert bool(torch.isfinite(run.engine.client_states["w"]).all())


def test_a_client_unlike_the_others_turns_to_its_local_model() -> None:
    # Nine clients agree, the tenth has another model. Its local model helps it, the center does not.
    rng = np.random.default_rng(0)
    pairs = []
    for k in range(10):
        x = torch.from_numpy(rng.standard_normal((20, 2)))
        pairs.append((x, x @ torch.tensor([1.0, 2.0] if k < 9 else [-3.0, -2.0]).double()))
    run = fitted(fs.APFL(alpha_lr=0.05), pairs, 40, fs.SGD(lr=0.02, epochs=1, batch=10))
    alpha, (x, y) = run.engine.client_states["alpha"].flatten(), pairs[9]
    assert float(alpha[9]) > 0.75 > float(alpha[:9].mean())
    personal, center = (((run.predict(x, **who) - y) ** 2).mean() for who in ({"client": 9}, {"center": 0}))
    assert float(personal) < float(center) / 100


# --- against a plain loop ---------------------------------------------------------------------------------------------


def specification(
    pairs: Pairs, start: Tensor, K: int, alpha_lr: float, rounds: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """APFL one client and one batch at a time: the center, and the clients' mixes, local models and alphas."""
    c, mixes, local, alphas = (
        start,
        [start] * len(pairs),
        [start] * len(pairs),
        [torch.tensor(0.5).double()] * len(pairs),
    )
    for t in range(rounds):
        selected, trained = drawn(t, K, len(pairs)), {}
        for k in selected:
            x, y = pairs[k]
            w, v, alpha = c, local[k], alphas[k]
            for step, batch in enumerate(batches(k, t, len(y), SGD)):
                g = gradient(alpha * v + (1 - alpha) * w, x[batch], y[batch])
                moved = alpha - alpha_lr * (v - w) @ g
                w, v = w - SGD.lr * gradient(w, x[batch], y[batch]), v - SGD.lr * alpha * g
                alpha = moved.clamp(0, 1) if step == 0 else alpha
            trained[k], local[k], alphas[k], mixes[k] = w, v, alpha, alpha * v + (1 - alpha) * w
        points = sum(len(pairs[k][1]) for k in selected)
        c = torch.stack([len(pairs[k][1]) / points * trained[k] for k in selected]).sum(0)
    return c, torch.stack(mixes), torch.stack(local), torch.stack(alphas)


def test_a_run_equals_the_specification() -> None:
    pairs = regression_clients()
    run = fitted(fs.APFL(K=3, alpha_lr=0.1), pairs, 8, SGD)
    start = run.model.draw(generator(0, "center", 0)).double()
    c, mixes, local, alphas = specification(pairs, start, 3, 0.1, 8)
    assert torch.allclose(run.state.centers[0], c, atol=1e-9)
    assert torch.allclose(run.engine.client_states["w"], mixes, atol=1e-9)
    assert torch.allclose(run.engine.client_states["v"], local, atol=1e-9)
    assert torch.allclose(run.engine.client_states["alpha"][:, 0], alphas, atol=1e-9)
    assert float(alphas.std()) > 0.01


# --- who answers, and what it costs -----------------------------------------------------------------------------------


def test_the_mean_is_over_those_who_answered() -> None:
    # Dividing by all that were drawn would shrink the center.
    engine = engine_for(fs.APFL(), federation(TWO), fs.models.linear(), dtype="float64", solver=fs.SGD(batch=3))
    engine.dropouts = lambda job, t, names: np.array([name == "1" for name in names])
    with torch.no_grad():
        state, _ = engine.round(engine.start(), 0)
    alone = fitted(fs.FedAvg(), TWO[:1], 1, fs.SGD(batch=3)).state.centers
    assert torch.allclose(state.centers, alone, atol=1e-12)


def test_two_tasks_are_counted_and_one_model_goes_each_way() -> None:
    record = fitted(fs.APFL(), regression_clients(), 1, SGD).history[0]
    assert record.gradients == 2 * SGD.epochs * sum(RAGGED)
    assert record.bytes_down == record.bytes_up == 8 * 3 * 8


def test_a_solver_without_steps_is_refused() -> None:
    with pytest.raises(InputError, match="takes no single steps: use SGD or Adam"):
        fitted(fs.APFL(), TWO, 1, fs.Exact())


@pytest.mark.parametrize("setting", [{"K": 0}, {"alpha": -0.1}, {"alpha": 1.1}, {"alpha_lr": 0}])
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"APFL\.{next(iter(setting))} = "):
        fs.APFL(**setting)
