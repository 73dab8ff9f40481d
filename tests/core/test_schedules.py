from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, StepLR

import fedsoft as fs
from fedsoft.core.batches import plan_batches
from fedsoft.core.client_data import ClientData
from fedsoft.core.schedules import rates
from fedsoft.errors import InputError


def factors(schedule: fs.Schedule, count: int) -> list[float]:
    number = torch.arange(count)
    return schedule.factors(number, torch.full_like(number, count)).tolist()


def by_torch(make: Any, count: int, **settings: Any) -> list[float]:
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, found = make(optimizer, **settings), []
    for _ in range(count):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (fs.Schedule(name="step", every=3, factor=0.5), by_torch(StepLR, 10, step_size=3, gamma=0.5)),
        (fs.Schedule(name="step", every=4), by_torch(StepLR, 10, step_size=4)),
        (fs.Schedule(name="cosine", length=12), by_torch(CosineAnnealingLR, 10, T_max=12)),
        (fs.Schedule(name="cosine", length=9, least=0.2), by_torch(CosineAnnealingLR, 10, T_max=9, eta_min=0.2)),
        (
            fs.Schedule(name="linear", length=8, least=0.1),
            by_torch(LinearLR, 10, start_factor=1.0, end_factor=0.1, total_iters=8),
        ),
        (fs.Schedule(warmup=4), by_torch(LinearLR, 10, start_factor=0.25, total_iters=3)),
    ],
)
def test_factors_are_those_of_torch(schedule: fs.Schedule, expected: list[float]) -> None:
    assert factors(schedule, 10) == pytest.approx(expected, abs=1e-12)


def test_a_schedule_begins_after_its_warm_up() -> None:
    warm = factors(fs.Schedule(name="cosine", length=6, warmup=3), 9)
    assert warm[:3] == pytest.approx([1 / 3, 2 / 3, 1])
    assert warm[3:] == pytest.approx(factors(fs.Schedule(name="cosine", length=6), 6))


@given(
    name=st.sampled_from(["constant", "step", "cosine", "linear"]), warmup=st.integers(0, 50),
    length=st.integers(1, 60), least=st.floats(0, 1), at=st.integers(0, 2**40),
)  # fmt: skip
def test_a_server_that_names_any_round_cannot_raise_the_rate(
    name: Any, warmup: int, length: int, least: float, at: int
) -> None:
    own = {"step": {"every": length}, "cosine": {"length": length, "least": least}}
    settings: dict[str, Any] = {"linear": own["cosine"], "constant": {}, **own}[name]
    value = float(fs.Schedule(name=name, warmup=warmup, **settings).factors(torch.tensor(at), torch.tensor(at)))
    assert 0 < value <= 1


def test_steps_are_counted_for_each_client_and_over_rounds() -> None:
    sizes = [7, 2, 5]
    data = ClientData.concat([(torch.zeros(n, 1), torch.zeros(n)) for n in sizes])
    plan = plan_batches(data, 2, 3, None, torch.float64)
    schedule = fs.Schedule(name="linear", over="steps", length=1000)
    for t in (0, 4):
        found = rates(2.0, schedule, type(plan)(**{**vars(plan), "t": t}))
        assert isinstance(found, torch.Tensor)
        per_round = {k: 3 * -(-n // 2) for k, n in enumerate(sizes)}
        for epoch in range(3):
            for column, owner in enumerate(plan.owners.tolist()):
                client = int(plan.clients[owner])
                step = t * per_round[client] + int(plan.done[epoch, column])
                assert float(found[epoch, column]) == pytest.approx(2 * (1 - step / 1000))
    task = rates(1.0, fs.Schedule(name="linear", over="task"), plan)
    assert isinstance(task, torch.Tensor)
    assert float(task.min()) == pytest.approx(1 / 12)  # the longest task has 12 steps, its last begins at 11 of them


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"name": "cosine"}, "schedule.length is missing: 'cosine' needs a number of rounds"),
        ({"name": "step", "over": "steps"}, "schedule.every is missing: 'step' needs a number of steps"),
        ({"name": "cosin", "length": 3}, "schedule.name = 'cosin' is not allowed"),
        ({"name": "cosine", "lenght": 3}, "did you mean 'length'"),
        ({"name": "step", "every": 2, "length": 3}, "schedule.length = 3 is not allowed: 'step' has no such setting"),
        ({"name": "step", "every": 2, "factor": 2.0}, "schedule.factor = 2.0 is not allowed: should be at most 1"),
        ({"warmup": -1}, "schedule.warmup = -1 is not allowed: should be at least 0"),
        ("cosine", "schedule.length is missing"),
        (3, "schedule = 3 is not allowed"),
    ],
)
def test_what_is_no_schedule_is_said_in_one_sentence(given: Any, reason: str) -> None:
    for make in (fs.SGD, fs.Adam, fs.AdamW):
        with pytest.raises(InputError, match=reason):
            make(schedule=given)
