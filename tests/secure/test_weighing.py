"""How many bits sums get, and how they follow the size of what is summed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsoft as fs
from fedsoft.core.replies import Kind
from fedsoft.secure.coding import MODELS, NUMBERS, weights_coding
from fedsoft.secure.weighing import Reaches, Weighing
from tests.test_conformance import fitted


@pytest.mark.parametrize("sums", [1, 2, 3])
@pytest.mark.parametrize("clients", [4, 100, 1000])
def test_all_sums_together_take_at_most_1_3_times_the_bytes_of_a_float32(sums: int, clients: int) -> None:
    coding = Reaches({"train.w": 0.5}).coding("train.w", Kind.MODEL, 1000, sums, clients, 0)
    assert coding.size(sums * 1000) <= 1.3 * 4 * 1000


def test_many_sums_take_more_and_not_much_more() -> None:
    """So many bits that what a client sends is not lost in rounding: 3, and the logarithm of the number of clients."""
    sizes = {(S, m): Reaches({"w": 1.0}).coding("w", Kind.MODEL, 1000, S, m, 0).size(S * 1000) / 4000
             for S in (4, 8) for m in (4, 100, 1000)}  # fmt: skip
    assert sizes[4, 4] == sizes[4, 100] == 1.25
    assert sizes[4, 1000] == pytest.approx(13 * 4 / 32)
    assert sizes[8, 100] == pytest.approx(10 * 8 / 32)


def test_the_first_sum_is_coded_in_full() -> None:
    """Nothing is known of the size of its values, which it tells."""
    reaches = Reaches()
    first = reaches.coding("w", Kind.MODEL, 1000, 2, 9, 0)
    assert (first.bits, first.reach) == (MODELS.bits, MODELS.reach)
    reaches.learn("w", first, first.counts(torch.tensor([0.3, -0.01, 0.0])))
    assert reaches.known["w"] == 1.5 * 0.5
    assert reaches.coding("w", Kind.MODEL, 1000, 2, 9, 0).reach == 0.75


def test_reaches_grow_when_something_was_clipped_and_shrink_when_all_is_small() -> None:
    reaches = Reaches({"w": 1.0})
    coding = reaches.coding("w", Kind.MODEL, 1000, 2, 9, 0)
    reaches.learn("w", coding, coding.counts(torch.tensor([1.5, 0.1])))
    assert reaches.known["w"] == 16
    reaches.learn("w", coding, coding.counts(torch.tensor([0.0, 0.001])))
    assert reaches.known["w"] == pytest.approx(1.5 / 512)
    reaches.learn("w", coding, coding.counts(torch.zeros(3)))
    assert reaches.known["w"] == 1.0


def test_short_entries_are_coded_in_full() -> None:
    assert Reaches({"e": 1.0}).coding("e", Kind.NUMBER, 3, 2, 9, 0) is NUMBERS


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), m=st.integers(2, 30), S=st.integers(1, 4))
def test_sums_that_clients_weigh_are_right_within_the_error(seed: int, m: int, S: int) -> None:
    """Seen from centers, weighed by shares of their own, and by what the server knows of them."""
    rng = np.random.default_rng(seed)
    rows, around = torch.from_numpy(rng.standard_normal((m, 6))), torch.from_numpy(rng.standard_normal((S, 6)))
    own, known = torch.from_numpy(rng.dirichlet(np.ones(S), m).T), torch.from_numpy(rng.dirichlet(np.ones(m)))
    coding = Reaches({"w": 12.0}).coding("w", Kind.MODEL, 6, S + 1, m, seed)
    what = Weighing(coding, known.expand(S, -1), own, around)
    found = what.sum(rows)
    wanted = torch.stack([(own[s] * known) @ (rows - around[s]) for s in range(S)])
    assert float((coding.decoded(found.total) - wanted).abs().max()) <= coding.error(m)
    parts = [what.of(slice(k, k + 1)).sum(rows[k : k + 1]) for k in range(m)]
    assert torch.equal(torch.stack([part.total for part in parts]).sum(0), found.total)


@pytest.mark.parametrize(("name", "made"), [
    ("fedsoft", fs.FedSoft()), ("ifca", fs.IFCA()), ("fedsoft", fs.FedSoft(S=3)),
], ids=["fedsoft", "ifca", "three centers"])  # fmt: skip
def test_bytes_of_a_run_are_at_most_1_3_times_those_of_float32_models(name: str, made: Any) -> None:
    """After the first round, and beside S numbers of 8 bytes: the sums of weights."""
    run = fitted(name, made=made, secure=True, rounds=3)
    S, size = run.state.centers.shape
    for record in run.history[1:]:
        assert record.bytes_up <= 9 * (1.3 * 4 * size + 8 * S + 1)
        assert record.notes["reaches"]["train.w"] < 16


def test_a_run_that_goes_on_has_the_same_numbers() -> None:
    """The size of values stands in the record of the round."""
    whole, part = (fitted("fedsoft", made=fs.FedSoft(), secure=True, rounds=4) for _ in range(2))
    engine = part.engine
    state = engine.start()
    for t in range(4):
        engine.recall(part.history[t - 1].notes if t else {})
        state, _ = engine.round(state, t, last=t == 3)
    assert torch.equal(state.centers, whole.state.centers)


def test_mixtures_are_coded_as_weights_are() -> None:
    """Their digits would tell single ones: see `weights_coding`."""
    assert Reaches().coding("r", Kind.MIXTURE, 2, 1, 9, 5) == weights_coding(9, 5)


@pytest.mark.parametrize("sums", [1, 2, 4, 8, 32])
@pytest.mark.parametrize("clients", [2, 8, 100, 100_000])
def test_nodes_take_all_numbers_of_bits_that_there_are(sums: int, clients: int) -> None:
    pytest.importorskip("flwr", reason='needs Flower: pip install "fedsoft[flower]"')
    from fedsoft.flower.sum_request import coded_by

    coding = Reaches({"w": 1.0}).coding("w", Kind.MODEL, 1000, sums, clients, 0)
    assert coded_by(coding).coding() == coding
