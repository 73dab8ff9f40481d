from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedsoft as fs
from fedsoft.core import local_solve as local
from fedsoft.core.batches import Plan, Prox, plan_batches
from fedsoft.core.client_data import ClientData
from fedsoft.core.client_draws import Draws
from fedsoft.core.local_solve import blocks, losses_of_all, own_outputs
from tests.helpers import RAGGED, class_clients, problem, random_stack, regression_clients, shape_of

sizes_of_clients = st.lists(st.integers(1, 12), min_size=1, max_size=6)


def of_sizes(sizes: list[int]) -> ClientData:
    total = torch.arange(sum(sizes), dtype=torch.float64)
    return ClientData.concat([(part[:, None], part) for part in total.split(sizes)])


def drawn(data: ClientData, t: int = 0) -> Draws:
    return Draws(0, "batches", t, names=[str(k) for k in range(len(data))])


# --- the plan of batches ----------------------------------------------------------------------------------------------


def batches_of(plan: Plan, epoch: int, client: int) -> list[tuple[list[int], list[float]]]:
    """The places and weights of each batch of a client, without padding."""
    row = plan.clients.tolist().index(client)
    found = []
    for column in torch.nonzero(plan.owners == row).flatten().tolist():
        real = plan.weights[:, column] > 0
        found.append((plan.places[epoch, :, column][real].tolist(), plan.weights[real, column].tolist()))
    return found


@given(sizes_of_clients, st.integers(1, 5), st.integers(1, 3))
def test_every_epoch_visits_each_point_of_each_client_once_with_equal_weight_in_its_batch(
    sizes: list[int], batch: int, epochs: int
) -> None:
    data = of_sizes(sizes)
    plan = plan_batches(data, batch, epochs, drawn(data), torch.float64)
    for e in range(epochs):
        for k in range(len(sizes)):
            batches = batches_of(plan, e, k)
            assert sorted(place for places, _ in batches for place in places) == data.client(k)[1].tolist()
            assert [len(places) for places, _ in batches[:-1]] == [batch] * (len(batches) - 1)
            for places, weights in batches:
                assert weights == pytest.approx([1 / len(places)] * len(places))


@given(sizes_of_clients, st.integers(1, 5))
def test_clients_take_as_many_steps_as_they_have_batches(sizes: list[int], batch: int) -> None:
    data = of_sizes(sizes)
    plan = plan_batches(data, batch, 1, drawn(data), torch.float64)
    steps = [sum(row < active for active in plan.active) for row in range(len(sizes))]
    assert [steps[row] for row in np.argsort(plan.clients.numpy())] == [-(-n // batch) for n in sizes]


def test_epochs_are_shuffled_anew() -> None:
    data = of_sizes([20])
    first, second = plan_batches(data, 5, 2, drawn(data), torch.float64).places
    assert not torch.equal(first, second)


def test_without_draws_points_come_in_the_order_of_the_data() -> None:
    plan = plan_batches(of_sizes([3, 7]), 2, 2, None, torch.float64)
    assert [places for places, _ in batches_of(plan, 1, 1)] == [[3, 4], [5, 6], [7, 8], [9]]


def test_the_order_of_a_client_does_not_depend_on_the_others() -> None:
    alone, among = of_sizes([7]), of_sizes([7, 30, 2])
    single = plan_batches(alone, 3, 2, drawn(alone), torch.float64)
    plan = plan_batches(among, 3, 2, drawn(among), torch.float64)
    assert [batches_of(plan, e, 0) for e in range(2)] == [batches_of(single, e, 0) for e in range(2)]


# --- the proximal pull ------------------------------------------------------------------------------------------------


def test_gradient_of_the_pull_equals_that_of_the_sum_over_centers() -> None:
    torch.manual_seed(0)
    m, S, P, lam = 4, 3, 6, 0.7
    w, centers, u = (torch.randn(*side, dtype=torch.float64) for side in ((m, P), (S, P), (m, S)))
    u = u.abs()
    w.requires_grad_()
    pull = torch.zeros((), dtype=torch.float64)
    for k in range(m):
        for s in range(S):
            pull = pull + lam / 2 * u[k, s] * ((w[k] - centers[s]) ** 2).sum()
    (expected,) = torch.autograd.grad(pull, w)
    prox = Prox.to_centers(lam * u, centers)
    assert torch.allclose(prox.strength * w - prox.target, expected, atol=1e-12)


@pytest.mark.parametrize("S", [1, 2, 50])
def test_what_a_step_needs_of_the_centers_does_not_grow_with_their_number(S: int) -> None:
    prox = Prox.to_centers(torch.rand(4, S), torch.rand(S, 6))
    assert prox.strength.shape == (4, 1)
    assert prox.target.shape == (4, 6)


# --- working on all points --------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(1, 7), st.data())
def test_blocks_hold_every_point_once_at_its_place(sizes: list[int], block: int, data: st.DataObject) -> None:
    clients = of_sizes(sizes).take(data.draw(st.permutations(range(len(sizes)))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "EVALUATION_BLOCK", block)
        found = [
            (int(order), int(row), int(place))
            for part in blocks(clients)
            for row, places, orders, real in zip(part.rows, part.places, part.order, part.real, strict=True)
            for order, place in zip(orders[real], places[real], strict=True)
        ]
    expected = zip(range(len(clients.points)), clients.owners.tolist(), clients.points.tolist(), strict=True)
    assert sorted(found) == list(expected)


@pytest.mark.parametrize("block", [4, 256])
def test_own_outputs_are_those_of_each_clients_model_on_its_points(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "EVALUATION_BLOCK", block)
    pairs = class_clients()
    model = fs.models.mlp(hidden=[4])(shape_of(pairs))
    data = ClientData.concat(pairs).take([3, 0, 7, 2])
    w = random_stack(model, 4)
    expected = [model.outputs(w[i : i + 1], data.client(i)[0][None])[0] for i in range(4)]
    assert torch.allclose(own_outputs(model, data, w), torch.cat(expected), atol=1e-12)


def test_own_outputs_without_points_have_the_shape_of_the_models() -> None:
    pairs = class_clients((3, 4))
    model = fs.models.mlp(hidden=[4])(shape_of(pairs))
    nothing = ClientData.concat([(x[:0], y[:0]) for x, y in pairs])
    assert own_outputs(model, nothing, random_stack(model, 2)).shape == (0, 4)


@pytest.mark.parametrize("S", [3, 30000])  # so many centers that the points are split
def test_losses_of_all_are_those_of_every_point_under_every_center(S: int) -> None:
    pairs = regression_clients((4, 6, 2), dimension=2)
    model = fs.models.linear()(shape_of(pairs))
    centers = torch.from_numpy(np.random.default_rng(0).standard_normal((S, 2)))
    data = ClientData.concat(pairs).take([2, 0])
    losses = losses_of_all(model, data, centers)
    assert losses.shape == (6, S)
    row = 0
    for k in (2, 0):
        for x, y in zip(*pairs[k], strict=True):
            for s in (0, 1, S - 1):
                assert float(losses[row, s]) == pytest.approx(float((x @ centers[s] - y) ** 2), abs=1e-12)
            row += 1


# --- descent ----------------------------------------------------------------------------------------------------------


def test_descent_reports_the_gradients_it_spent_in_points_times_epochs() -> None:
    pairs = regression_clients()
    model = fs.models.linear()(shape_of(pairs))
    _, _, spent = fs.SGD(epochs=3, batch=5).solve(
        problem(model, ClientData.concat(pairs)), random_stack(model, len(pairs)), {}
    )
    assert spent.tolist() == [3 * n for n in RAGGED]


def test_descent_leaves_its_inputs_alone() -> None:
    pairs = regression_clients()
    model = fs.models.linear()(shape_of(pairs))
    solver, w = fs.Adam(epochs=1, batch=5), random_stack(model, len(pairs))
    state, before = solver.init_state(w), w.clone()
    solver.solve(problem(model, ClientData.concat(pairs)), w, state)
    assert torch.equal(w, before)
    assert all(bool((value == 0).all()) for value in state.values())
