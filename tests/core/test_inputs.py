"""Several inputs, integers and sequences: what users give reaches a network as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

import fedsoft as fs
from fedsoft.core.inputs import DTYPES, InputField, Kind, Part, as_read, extremes, made_up, pack, unpack, words
from fedsoft.errors import InputError

KINDS: list[Kind] = list(DTYPES)


@st.composite
def several(draw: st.DrawFn) -> tuple[tuple[InputField, ...], dict[str, Part]]:
    points = draw(st.integers(1, 4))
    fields, parts = [], {}
    for i in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(KINDS))
        shape = tuple(draw(st.lists(st.integers(1, 5), max_size=3)))
        ragged = bool(shape) and draw(st.booleans())
        bits = torch.from_numpy(np.random.default_rng(draw(st.integers(0, 99))).integers(0, 2, (points, *shape)))
        values = (bits * 3.7).to(DTYPES[kind])
        lengths = torch.full((points,), draw(st.integers(1, shape[0]))) if ragged else None
        fields.append(InputField(f"f{i}", kind, shape, ragged))
        parts[f"f{i}"] = Part(values, lengths)
    return tuple(fields), parts


@given(several())
def test_what_is_packed_is_unpacked_bit_by_bit(case: tuple[tuple[InputField, ...], dict[str, Part]]) -> None:
    fields, parts = case
    x = pack(fields, parts)
    assert x.dtype == torch.int32
    assert x.shape[1] == words(fields)
    for rows, taken in ((x, slice(None)), (x[:1], slice(1)), (x[None].expand(2, *x.shape), None)):
        for name, part in unpack(fields, rows).items():
            for found, want in ((part.values, parts[name].values), (part.lengths, parts[name].lengths)):
                if found is None or want is None:
                    assert found is want
                    continue
                assert found.dtype == want.dtype
                assert torch.equal(found, torch.stack([want] * 2) if taken is None else want[taken])


def test_floats_keep_every_bit() -> None:
    values = torch.tensor([[0.1, -0.0, 1e-310, 3e300]], dtype=torch.float64)
    field = InputField("x", "float64", (4,))
    found = unpack([field], pack([field], {"x": Part(values)}))["x"].values
    assert torch.equal(found.view(torch.int64), values.view(torch.int64))


def test_networks_read_integers_as_int64_bytes_from_0_to_1_and_floats_in_their_own_type() -> None:
    assert as_read(torch.tensor([3], dtype=torch.int32), torch.float64).dtype == torch.int64
    assert as_read(torch.tensor([255, 51], dtype=torch.uint8), torch.float64).tolist() == [1.0, 0.2]
    assert as_read(torch.ones(1, dtype=torch.float64), torch.float32).dtype == torch.float32
    assert as_read(torch.tensor([True]), torch.float32).dtype == torch.bool


def test_a_mask_is_true_where_a_sequence_has_an_element() -> None:
    part = Part(torch.zeros(2, 3, 4), torch.tensor([1, 3]))
    assert part.mask.tolist() == [[True, False, False], [True, True, True]]


def test_extremes_are_the_points_with_the_smallest_and_the_largest_integer() -> None:
    x = torch.tensor([[1, 2], [0, 5], [9, 1], [3, 3]], dtype=torch.int32)
    assert extremes(x, ()) == [1, 2]
    fields = (InputField("a", "float32", (2,)), InputField("b", "int32", (2,)))
    assert extremes(pack(fields, {"a": Part(torch.randn(4, 2)), "b": Part(x)}), fields) == [1, 2]
    assert extremes(torch.randn(4, 2), ()) == []


def test_points_that_are_made_up_have_the_form_of_clients() -> None:
    fields = (InputField("0", "int32", (3,), ragged=True), InputField("n", "float32", ()))
    found = unpack(fields, made_up((5,), fields, torch.int32, 4))
    assert found["0"].lengths is not None
    assert found["0"].lengths.tolist() == [3, 2, 1, 3]
    assert not found["0"].values.any()
    assert len(found["n"].values.unique()) == 4


# --- from users -------------------------------------------------------------------------------------------------------


def inputs_of(fed: fs.Federation, k: int = 0) -> dict[str, Part]:
    return unpack(fed.shape.fields, fed.train.client(k)[0])


def test_integers_stay_integers_in_half_of_the_memory() -> None:
    x = np.arange(12).reshape(6, 2)
    fed = fs.Federation.from_clients([(x, np.zeros(6, int))], held_out=0)
    assert fed.train.x.dtype == torch.int32
    assert fed.train.x.tolist() == x.tolist()
    large = fs.Federation.from_clients([(x + 2**40, np.zeros(6, int))], held_out=0)
    assert large.train.x.dtype == torch.int64
    assert large.train.x.tolist() == (x + 2**40).tolist()
    assert "inputs of 2 (integers)" in fed.about


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.uint16, np.uint32, np.int64])
def test_every_type_of_integer_is_taken(kind: type) -> None:
    fed = fs.Federation.from_clients([(np.full((2, 3), 7, kind), [0, 1])], held_out=0)
    assert fed.train.x.dtype == torch.int32
    assert fed.train.x.unique().tolist() == [7]


def test_a_linear_model_takes_integers_as_numbers() -> None:
    x = np.arange(20).reshape(10, 2) % 7
    runs = [
        fs.fit(fs.FedAvg(), fs.Federation.from_clients([(x.astype(t), x.sum(1) * 0.5)]), fs.models.linear(), rounds=2)
        for t in (np.int64, np.float32)
    ]
    assert torch.equal(runs[0].state.centers, runs[1].state.centers)
    assert torch.equal(runs[0].predict(x, center=0), runs[1].predict(x, center=0))
    assert torch.equal(runs[0].predict(x + 0.5, center=0), runs[1].predict(x + 0.5, center=0))


def test_inputs_by_name_keep_their_types_and_values() -> None:
    x = {
        "tokens": np.array([[1, 2], [3, 4], [5, 6]]), "mask": np.array([[True, False]] * 3),
        "age": np.array([0.1, 0.2, 0.3]), "photo": np.full((3, 1, 2, 2), 9, np.uint8),
    }  # fmt: skip
    fed = fs.Federation.from_clients([(x, [0, 1, 0])], held_out=0)
    assert [(one.name, one.kind, one.shape) for one in fed.shape.fields] == [
        ("tokens", "int32", (2,)), ("mask", "bool", (2,)), ("age", "float64", ()), ("photo", "uint8", (1, 2, 2)),
    ]  # fmt: skip
    found = inputs_of(fed)
    for name, value in x.items():
        assert np.array_equal(found[name].values.numpy(), value)


def test_held_out_points_go_with_their_targets() -> None:
    n = 30
    x = {"a": np.arange(n), "b": np.arange(n)[:, None] * 0.5}
    fed = fs.Federation.from_clients([(x, np.arange(n) % 2)], held_out=0.3)
    for data in (fed.train, fed.held_out):
        part = unpack(fed.shape.fields, data.x)
        assert torch.equal(part["a"].values * 0.5, part["b"].values[:, 0])
        assert torch.equal(part["a"].values % 2, data.y)


def test_sequences_are_padded_to_the_longest_or_to_a_length() -> None:
    pairs = [([[1, 2, 3], [4]], [0, 1]), ([[5, 6], [7, 8]], [1, 0])]
    for length, longest in ((None, 3), (5, 5)):
        fed = fs.Federation.from_clients(pairs, held_out=0, length=length)
        assert fed.shape.fields == (InputField("0", "int32", (longest,), ragged=True),)
        first, second = inputs_of(fed, 0)["0"], inputs_of(fed, 1)["0"]
        assert first.values[:, :3].tolist() == [[1, 2, 3], [4, 0, 0]]
        assert not first.values[:, 3:].any()
        assert first.lengths is not None
        assert second.lengths is not None
        assert (first.lengths.tolist(), second.lengths.tolist()) == ([3, 1], [2, 2])


def test_sequences_may_be_of_vectors() -> None:
    rows = [np.random.default_rng(n).standard_normal((n, 2)) for n in (3, 1)]
    fed = fs.Federation.from_clients([({"signal": rows}, [0, 1])], held_out=0)
    part = inputs_of(fed)["signal"]
    assert part.values.shape == (2, 3, 2)
    assert np.array_equal(part.values[0].numpy(), rows[0])
    assert np.array_equal(part.values[1, :1].numpy(), rows[1])


class Points(Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


@pytest.mark.parametrize(
    ("items", "fields"),
    [
        ([({"a": torch.tensor([1, 2]), "b": 0.5}, 0), ({"a": torch.tensor([3, 4]), "b": 1.5}, 1)],
         (InputField("a", "int32", (2,)), InputField("b", "float64", ()))),
        ([((np.ones(2), np.array([True])), 0), ((np.ones(2), np.array([False])), 1)],
         (InputField("0", "float64", (2,)), InputField("1", "bool", (1,)))),
        ([(torch.tensor([1, 2, 3]), 0), (torch.tensor([4]), 1)], (InputField("0", "int32", (3,), ragged=True),)),
    ],
    ids=["dictionaries", "pairs", "sequences"],
)  # fmt: skip
def test_data_sets_of_points_with_several_inputs(items: list[Any], fields: tuple[InputField, ...]) -> None:
    assert fs.Federation.from_clients([Points(items)], held_out=0).shape.fields == fields


def test_a_tensor_data_set_ends_in_its_targets() -> None:
    given = TensorDataset(torch.zeros(3, 2), torch.zeros(3, 4, dtype=torch.int64), torch.tensor([0, 1, 0]))
    fed = fs.Federation.from_clients([given], held_out=0)
    assert [one.kind for one in fed.shape.fields] == ["float32", "int32"]


def test_clients_of_several_types_share_the_wider_one() -> None:
    fed = fs.Federation.from_clients([({"a": np.ones((2, 1), t)}, [0, 1]) for t in (bool, int, np.float32)])
    assert fed.shape.fields[0].kind == "float32"


Clients = list[tuple[Any, Any]]
Y = [0, 1]


@pytest.mark.parametrize(
    ("clients", "settings", "sentence"),
    [
        ([({"a": np.ones((2, 1))}, Y), ({"b": np.ones((2, 1))}, Y)], {},
         "client '1' has the inputs 'b', but client '0' has 'a'"),
        ([({"a": np.ones((2, 1))}, Y), ({"a": np.ones((2, 3))}, Y)], {}, "x['a'] of a point is [3], but that of"),
        ([({"a": np.ones((3, 1))}, Y)], {}, "client '0': x['a'] has 3 points, y has 2"),
        ([({"a": np.array([[1.0], [np.nan]])}, Y)], {}, "client '0': x['a'] holds NaN"),
        ([({"a b": np.ones((2, 1))}, Y)], {}, "x has the keys ['a b'], should be the names"),
        ([({}, Y)], {}, "x has the keys [], should be the names"),
        ([([[1], []], Y)], {}, "client '0': x of point 1 is empty, drop that point"),
        ([([[1], [2, 3]], Y)], {"length": 1}, "x[0] of point 1 has 2 elements, sequences should have at most 1"),
        ([([[1], [2, 3]], Y)], {"length": 0}, "length = 0 is not allowed"),
        ([(np.ones((2, 3)), Y)], {"length": 4}, "length = 4 is for sequences"),
        ([([[[1, 2]], [[1, 2], [3]]], Y)], {}, "client '0'"),
        ([({"a": np.full((2, 1), 2**40)}, Y)], {}, "x['a'] holds 1099511627776, integers should be below 2^31"),
        ([({"a": np.ones((2, 1), np.uint8)}, Y), ({"a": np.ones((2, 1))}, Y)], {}, "x['a'] is float64, but that of"),
        ([({"a": [[1], [2, 3]]}, Y), ({"a": np.ones(2)}, Y)], {}, "x['a'] holds one number per point"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named(clients: Clients, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as error:
        fs.Federation.from_clients(clients, **settings)
    assert sentence in str(error.value)


def test_points_from_outside_are_brought_into_the_form_of_the_clients() -> None:
    fed = fs.Federation.from_clients([({"a": [[1, 2, 3], [4]], "b": np.ones((2, 1))}, Y)])
    x, y = fed.new_client({"b": [[2]], "a": [[7.0]]}, [1])
    found = unpack(fed.shape.fields, x)
    assert found["a"].values.tolist() == [[7, 0, 0]]
    assert found["b"].values.tolist() == [[2.0]]
    assert torch.equal(fed.new_inputs({"a": [[7]], "b": [[2.0]]}), x)
    assert y.tolist() == [1]


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        ({"a": [[1]]}, "has the inputs 'a', should have 'a', 'b'"),
        ({"a": [[1, 2, 3, 4]], "b": [[1.0]]}, "has 4 elements, sequences should have at most 3"),
        ({"a": [[1.5]], "b": [[1.0]]}, "holds 1.5, should be whole numbers"),
        ({"a": [[1]], "b": [[1.0, 2.0]]}, "x['b'] of a point is [2], should be [1]"),
        (np.ones((1, 3)), "has the inputs '0', should have"),
    ],
)
def test_points_from_outside_that_do_not_fit_are_named(x: Any, sentence: str) -> None:
    fed = fs.Federation.from_clients([({"a": [[1, 2, 3], [4]], "b": np.ones((2, 1))}, Y)])
    for call in (lambda: fed.new_inputs(x), lambda: fed.new_client(x, [1])):
        with pytest.raises(InputError) as error:
            call()
        assert sentence in str(error.value)


def fingerprints(x: Tensor) -> str:
    return fs.Federation.from_clients([((x, x[:, :1]), [0, 1])], held_out=0).fingerprint


def test_a_fingerprint_changes_with_any_input() -> None:
    x = torch.arange(4).reshape(2, 2)
    assert fingerprints(x) != fingerprints(x + 1)
    assert fingerprints(x) == fingerprints(x.clone())
