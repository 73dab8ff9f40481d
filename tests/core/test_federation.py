from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedsoft as fs
from fedsoft.core.client_data import ClientData
from fedsoft.core.federation import DataShape, Federation, Scale, Truth
from fedsoft.errors import InputError

X, Y = np.arange(30.0).reshape(10, 3), np.arange(10.0)


def numbers(x: torch.Tensor) -> list[float]:
    return x[:, 0].tolist()


# --- splitting --------------------------------------------------------------------------------------------------------


def test_held_out_points_are_a_share_of_each_client_and_are_not_trained_on() -> None:
    fed = Federation.from_clients([(X, Y), (X[:7] + 100, Y[:7])], held_out=0.3)
    assert fed.train.sizes.tolist() == [7, 5]
    assert fed.held_out.sizes.tolist() == [3, 2]
    for k, whole in enumerate((X, X[:7] + 100)):
        together = numbers(fed.train.client(k)[0]) + numbers(fed.held_out.client(k)[0])
        assert sorted(together) == whole[:, 0].tolist()


def test_x_and_y_stay_together() -> None:
    fed = Federation.from_clients([(X, X[:, 0])])
    for part in (fed.train, fed.held_out):
        assert torch.equal(part.x[:, 0], part.y)


def test_which_points_are_held_out_depends_on_the_name_and_the_seed_not_on_the_place() -> None:
    def held(names: list[str], client: str, seed: int = 0) -> list[float]:
        fed = Federation.from_clients([(X, Y)] * len(names), names=names, held_out=0.5, seed=seed)
        return numbers(fed.held_out.client(names.index(client))[0])

    assert held(["a", "b", "c"], "b") == held(["b", "a"], "b")
    assert held(["a", "b"], "a") != held(["a", "b"], "b")
    assert held(["a"], "a") != held(["a"], "a", seed=1)


def test_a_client_of_one_point_trains_on_it() -> None:
    fed = Federation.from_clients([(X[:1], Y[:1])], held_out=0.9)
    assert (fed.train.sizes.tolist(), fed.held_out.sizes.tolist()) == ([1], [0])


# --- what y means -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "task", "outputs"),
    [
        (np.arange(10) % 3, "classification", 3),
        (np.arange(10) % 2 == 0, "classification", 2),
        (np.arange(10) / 2, "regression", 1),
        (np.zeros((10, 4)), "regression", 4),
    ],
)
def test_the_task_follows_from_the_type_of_y(y: np.ndarray, task: str, outputs: int) -> None:
    shape = Federation.from_clients([(X, y)]).shape
    assert (shape.task, shape.input, shape.outputs) == (task, (3,), outputs)


def test_the_task_can_be_told() -> None:
    counts = Federation.from_clients([(X, np.arange(10))], task="regression")
    assert (counts.shape.task, counts.train.y.is_floating_point()) == ("regression", True)
    labels = Federation.from_clients([(X, Y)], task="classification", classes=12)
    assert (labels.shape.outputs, labels.train.y.dtype) == (12, torch.int64)


# --- what is taken ----------------------------------------------------------------------------------------------------


def fits(clients: list[tuple[Any, Any]]) -> None:
    run = fs.fit(fs.FedSoft(), Federation.from_clients(clients), fs.models.linear(), rounds=1, solver=fs.SGD(lr=1e-4))
    assert bool(torch.isfinite(run.state.centers).all())


def test_lists_tensors_and_integers_are_taken_as_inputs() -> None:
    fits([(X.tolist(), Y.tolist()), (torch.tensor(X), torch.tensor(Y)), (X.astype(int), Y)])


@pytest.mark.parametrize(("x", "y"), [(np.float32, np.float64), (np.float64, np.float32)])
def test_x_and_y_may_differ_in_precision(x: type, y: type) -> None:
    fits([(X.astype(x), Y.astype(y))] * 2)


def test_a_single_target_in_a_column_is_taken() -> None:
    fits([(X, Y[:, None])] * 2)


def test_an_array_that_cannot_be_written_to_is_taken_without_a_warning() -> None:
    x = X.copy()
    x.flags.writeable = False
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # torch would give this warning only once
    try:
        fits([(x, Y)] * 2)
    finally:
        torch.set_warn_always(before)


def test_a_reversed_view_of_an_array_is_taken() -> None:
    fits([(X[::-1], Y[::-1])] * 2)


# --- what is refused --------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[list[tuple[Any, Any]], dict[str, Any], str]] = {
    "no clients": ([], {}, "at least one client"),
    "a client without points": ([(X, Y), (X[:0], Y[:0])], {}, "client '1' has no points"),
    "x and y of different lengths": ([(X, Y[:-1])], {}, "client '0': x has shape"),
    "x without an axis of features": ([(Y, Y)], {}, "client '0': x has shape"),
    "a value that is not a number": ([(X, Y), (X * np.nan, Y)], {}, "client '1': x holds NaN"),
    "an infinite target": ([(X, Y + np.inf)], {}, "client '0': y holds NaN or infinite"),
    "text as input": ([([["a"]] * 10, Y)], {}, "client '0': x is not an array of numbers"),
    "text and numbers as labels": ([(X, ["a"] * 10), (X, Y)], {}, "client '1' has numbers as labels, but '0' has text"),
    "an unknown class": (
        [(X, ["a"] * 10)],
        {"classes": ["b"]},
        "client '0' has a label of no class: unknown class 'a'",
    ),
    "complex numbers": ([(X * 1j, Y)], {}, "client '0': x holds complex"),
    "inputs of different shapes": ([(X, Y), (X[:, :2], Y)], {}, "client '1': a point is"),
    "two clients of one name": ([(X, Y)] * 2, {"names": ["a", "a"]}, "1 different names for 2 clients"),
    "too few names": ([(X, Y)] * 2, {"names": ["a"]}, "names"),
    "a negative label": ([(X, Y.astype(int) - 1)], {"classes": 10}, "label -1 is out of range"),
    "a label beyond the classes": ([(X, Y.astype(int))], {"classes": 5}, "label 9 is out of range"),
    "labels that are not whole": ([(X, Y / 2)], {"task": "classification"}, "whole numbers"),
    "several labels per point": ([(X, np.zeros((10, 2), int))], {}, "one number per point"),
    "everything held out": ([(X, Y)], {"held_out": 1.0}, "held_out = 1.0 is not allowed"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_used_is_refused_by_name(what: str) -> None:
    clients, options, message = REFUSED[what]
    with pytest.raises(InputError, match=message):
        Federation.from_clients(clients, **options)


# --- the truth --------------------------------------------------------------------------------------------------------


def test_fractions_count_the_sources_of_each_clients_points() -> None:
    fed = fs.datasets.synthetic(clients=4, points=(8, 12), test_points=5, seed=1)
    assert fed.truth is not None
    fractions = fed.truth.fractions(fed.train)
    begin = 0
    for k, n in enumerate(fed.train.sizes.tolist()):
        sources = fed.truth.train_sources[begin : begin + n].tolist()
        assert fractions[k].tolist() == pytest.approx([sources.count(0) / n, sources.count(1) / n])
        begin += n


def test_fractions_follow_clients_that_were_reordered() -> None:
    fed = fs.datasets.synthetic(clients=4, points=(8, 12), test_points=5, seed=1)
    assert fed.truth is not None
    order = [2, 0, 3, 1]
    assert torch.equal(fed.truth.fractions(fed.train.take(order)), fed.truth.fractions(fed.train)[order])


def test_only_one_source_leaves_its_points_and_drops_who_has_none() -> None:
    x = torch.arange(12.0)[:, None]
    sizes = torch.tensor([3, 2, 4])
    train = ClientData(x[:9], x[:9, 0], torch.cumsum(sizes, 0) - sizes, sizes)
    held = ClientData(x[9:], x[9:, 0], torch.tensor([0, 1, 2]), torch.tensor([1, 1, 1]))
    truth = Truth(
        mixture=torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]]),
        train_sources=torch.tensor([0, 1, 1, 0, 0, 1, 0, 1, 1]),
        held_out_sources=torch.tensor([1, 0, 0]),
        tests=((x[:1], x[:1, 0]), (x[1:2], x[1:2, 0])),
        names=("A", "B"),
    )
    both = Federation(train, held, ("a", "b", "c"), DataShape("regression", (1,), 1), truth)
    one = both.only(1)
    assert one.names == ("a", "c")
    assert [one.train.client(k)[1].tolist() for k in range(2)] == [[1, 2], [5, 7, 8]]
    assert [one.held_out.client(k)[1].tolist() for k in range(2)] == [[9], []]
    assert one.truth is not None
    assert one.truth.fractions(one.train).tolist() == [[0, 1], [0, 1]]
    assert one.truth.mixture.tolist() == [[0.5, 0.5], [0.25, 0.75]]
    assert len(one.truth.tests) == 2
    assert one.fingerprint != both.fingerprint
    with pytest.raises(InputError, match="source = 2 is not allowed: should be 0 to 1"):
        both.only(2)
    with pytest.raises(InputError, match="not known"):
        Federation(train, held, both.names, both.shape).only(0)


def test_inputs_that_are_far_from_scale_are_told() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(30, 2)), draw.normal(size=30)
    assert Federation.from_clients([(x, y), (x, y)]).unscaled is None
    told = Federation.from_clients([(x * [1, 30] + [120, 0], y), (x, y)]).unscaled
    assert told is not None
    assert "standard deviations up to 6" in told
    assert "bring every column to mean 0" in told
    images = (draw.integers(0, 255, size=(30, 1, 4, 4)).astype(np.uint8), draw.integers(0, 2, size=30))
    assert Federation.from_clients([images, images]).unscaled is None


# --- scale ------------------------------------------------------------------------------------------------------------


def test_scaling_is_by_the_training_points_of_all_clients() -> None:
    """By hand: the values 1, 2, 3, 6 have mean 3 and std sqrt(3.5); the other column is constant."""
    clients = [(np.array([[1.0, 7.0], [2.0, 7.0]]), Y[:2]), (np.array([[3.0, 7.0], [6.0, 7.0]]), Y[:2])]
    fed = Federation.from_clients(clients, held_out=0.0).standardized()
    assert fed.scale is not None
    assert fed.scale.mean.tolist() == [3.0, 7.0]
    assert fed.scale.std.tolist() == pytest.approx([3.5**0.5, 1.0])
    expected = np.array([[-2, 0], [-1, 0], [0, 0], [3, 0]]) / [3.5**0.5, 1.0]
    assert np.allclose(fed.train.x, expected)
    assert fed.unscaled is None
    assert "scaled to mean 0 and std 1" in fed.about


def test_held_out_points_and_new_clients_get_the_scale_of_the_training_points() -> None:
    rng = np.random.default_rng(0)
    raw = Federation.from_clients([(rng.normal(50, 9, (30, 3)), rng.normal(size=30)) for _ in range(4)], held_out=0.3)
    fed = raw.standardized()
    mean, std = raw.train.x.mean(0), raw.train.x.std(0, correction=0)
    assert torch.allclose(fed.train.x.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(fed.train.x.std(0, correction=0), torch.ones(3, dtype=torch.float64))
    assert torch.allclose(fed.held_out.x, (raw.held_out.x - mean) / std)
    x, _ = fed.new_client(raw.held_out.x.numpy(), raw.held_out.y.numpy())
    assert torch.allclose(x, fed.held_out.x)
    assert fed.fingerprint != raw.fingerprint


def test_images_are_not_scaled() -> None:
    fed = Federation.from_clients([(np.zeros((3, 1, 4, 4), np.uint8), np.arange(3))])
    with pytest.raises(InputError, match=r"standardize = true is not allowed for images"):
        fed.standardized()


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_a_scale_leads_there_and_back(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64)[:, None]
    scale = Scale.of(x)
    assert bool((scale.std > 0).all())
    assert torch.allclose(scale.back(scale(x)), x, rtol=1e-9, atol=1e-9 * max(1.0, float(x.abs().max())))
    if len({*values}) > 1 and float(scale.std) != 1.0:
        assert float(scale(x).square().mean()) == pytest.approx(1.0, rel=1e-3)


def test_one_odd_number_among_class_labels_is_named() -> None:
    """It would turn a classification into a regression."""
    classes = [(np.ones((20, 2)), np.arange(20) % 3), (np.ones((20, 2)), np.append(np.arange(19) % 3, 3.5))]
    with pytest.raises(InputError, match=r"client '1': label 3\.5 of point 19 is not whole"):
        Federation.from_clients(classes)
    assert Federation.from_clients(classes, task="regression").shape.task == "regression"
    mixed = [(np.ones((20, 2)), np.arange(20) % 3), (np.ones((20, 2)), np.linspace(0.1, 1.9, 20))]
    assert Federation.from_clients(mixed).shape.task == "regression"


def test_a_task_that_was_guessed_wrongly_is_pointed_out() -> None:
    x = np.random.default_rng(0).standard_normal((60, 2))
    classes = np.arange(60) % 3

    def notices(y: np.ndarray, **settings: Any) -> tuple[str, ...]:
        return fs.Federation.from_clients([(x[:30], y[:30]), (x[30:], y[30:])], **settings).notices

    assert notices(classes) == ()
    (said,) = notices(classes.astype(float))
    assert "3 different values, all whole: give task = 'classification'" in said
    assert notices(classes.astype(float), task="regression") == ()
    assert notices(classes.astype(float), task="classification") == ()
    odd = classes.astype(float)
    odd[40] = 1.5
    (said,) = notices(odd)
    assert "all whole, but for 1 points (the first is 1.5)" in said
    wide = classes.copy()
    wide[40] = 77
    (said,) = notices(wide)
    assert "Labels go up to 77, but only 4 different ones occur (the rarest is 77)" in said
    assert notices(wide, classes=100) == ()
    assert notices(x[:, 0]) == ()
    assert notices(np.arange(60.0)) == ()


def test_a_loader_is_no_list_of_clients() -> None:
    from torch.utils.data import DataLoader, TensorDataset

    loader: Any = DataLoader(TensorDataset(torch.zeros(4, 2), torch.zeros(4)))
    with pytest.raises(fs.InputError, match="clients is a DataLoader"):
        fs.Federation.from_clients(loader)


def test_integer_labels_that_do_not_begin_at_0_are_classes_in_their_order() -> None:
    x = np.eye(4)
    fed = Federation.from_clients([(x, [1, -1, 1, 1]), (x, [5, 5, -1, 1])], held_out=0.0)
    assert (fed.shape.outputs, fed.columns.classes, fed.columns.whole) == (3, ("-1", "1", "5"), True)
    assert fed.train.y.tolist() == [1, 0, 1, 1, 2, 2, 0, 1]
    assert fed.notices == (
        "Labels are 3 whole numbers from -1 to 5: output j of a model is the j-th of them, fed.columns.classes[j]",
    )
    assert fed.new_client(x[:2], [5, -1])[1].tolist() == [2, 0]
    with pytest.raises(InputError, match="has a label of no class: unknown class '4'"):
        fed.new_client(x[:2], [5, 4])
    with pytest.raises(InputError, match="has text as labels"):
        fed.new_client(x[:2], ["5", "1"])
    with pytest.raises(InputError, match="label -1 is not allowed"):
        fed.uncoded()


def test_a_node_keeps_the_numbers_of_its_classes() -> None:
    fed = Federation.from_clients([(np.eye(4), [2, 1, 2, 2])], held_out=0.25).uncoded()
    assert sorted([*fed.train.y.tolist(), *fed.held_out.y.tolist()]) == [1, 2, 2, 2]
    assert (fed.shape.outputs, fed.columns.classes) == (3, None)


def test_integer_labels_from_0_stay_as_they_are() -> None:
    fed = Federation.from_clients([(np.eye(3), [0, 2, 2]), (np.eye(3), [2, 2, 2])], held_out=0.0)
    assert (fed.shape.outputs, fed.columns.classes, fed.train.y.tolist()) == (3, None, [0, 2, 2, 2, 2, 2])
    given = Federation.from_clients([(np.eye(3), [1, 2, 2])], classes=10, held_out=0.0)
    assert (given.shape.outputs, given.columns.classes, given.train.y.tolist()) == (10, None, [1, 2, 2])
