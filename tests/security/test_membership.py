"""Points that a model was trained on are told from others, and what stops that, at a small scale.

The figures of the docs are those of `python -m benchmarks.attacks`, made by the same functions.
"""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.membership import PUBLISHED, SENT, active, center, on_models, passive, told

from fedsoft.core.contract import Algorithm
from fedsoft.safety.privacy import Privacy

pytest.importorskip("dp_accounting", reason='needs an accountant: pip install "fedsoft[privacy]"')


def made(name: str) -> tuple[Algorithm, Privacy | None]:
    algorithm, privacy = SENT[name]
    return algorithm, privacy()


def test_the_curve_is_right() -> None:
    rng = np.random.default_rng(0)
    same, other, higher = rng.standard_normal(20_000), rng.standard_normal(20_000), 1 + rng.standard_normal(20_000)
    assert told(same, other).auc == pytest.approx(0.5, abs=0.01)
    assert told(same, other).found == pytest.approx(0.01, abs=0.004)
    assert told(higher, other).auc == pytest.approx(0.760, abs=0.01)  # the normal distribution at 1 / sqrt(2)
    assert told(np.ones(3), np.zeros(3)) == (1.0, 1.0)
    assert told(np.ones(3), np.ones(3)) == (0.5, 0.0)


@pytest.mark.slow
def test_a_client_s_model_tells_its_points_unless_it_adds_noise() -> None:
    plain, right = passive(*made("FedAvg: none"), seed=0)
    assert plain.auc > 0.7
    assert plain.found > 0.05
    hidden, cost = passive(*made("FedAvg: noise on models, ε = 100"), seed=0)
    assert hidden.auc < 0.57
    assert hidden.found < 0.04
    assert 0.5 < cost < right


@pytest.mark.slow
def test_noise_on_counts_does_not_hide_points_in_models() -> None:
    plain, hidden = (passive(*made(f"FedSoft: {name}"), seed=0)[0] for name in ("none", "noise on counts, ε = 1"))
    assert plain.auc > 0.65
    assert hidden.auc == pytest.approx(plain.auc, abs=0.05)


@pytest.mark.slow
def test_a_server_that_cheats_is_stopped_by_much_noise_only() -> None:
    plain = active(None, seed=0, targets=100)
    assert plain.auc > 0.99
    assert plain.found > 0.9
    assert active(on_models(100.0), seed=0, targets=100).auc > 0.9  # whatever `passive` says
    hidden = active(on_models(1.0), seed=0, targets=100)
    assert hidden.auc < 0.65
    assert hidden.found < 0.1


@pytest.mark.slow
def test_a_center_of_few_clients_tells_their_points_unless_noise_hides_them() -> None:
    few, many = (center(None, seed=0, clients=clients)[0] for clients in (5, 20))
    assert few.auc > 0.6
    assert many.auc < few.auc - 0.04
    hidden, right = center(PUBLISHED["clip and noise, ε = 10"](), seed=0, clients=5)
    assert hidden.auc < 0.55
    assert right < 0.4  # and nothing is left to learn from so few
