"""What names the jobs of a run, and which others a node accepts before its own."""

from __future__ import annotations

import pytest
import torch

from fedsoft.errors import InputError
from fedsoft.flower.jobs import NO_JOBS, Past, mark_of_job

CENTERS = torch.zeros(2, 3)


def test_a_mark_names_all_that_is_sent() -> None:
    about: tuple[str, int, dict[str, torch.Tensor]] = ("train", 1, {"centers": CENTERS})
    others: list[tuple[str, int, dict[str, torch.Tensor]]] = [
        ("estimate", *about[1:]), ("train", 2, about[2]), ("train", 1, {"centers": CENTERS + 1e-7}),
        ("train", 1, {"centers": CENTERS.double()}), ("train", 1, {"centers": CENTERS.view(3, 2)}),
        ("train", 1, {"w": CENTERS}), ("train", 1, {}),
    ]  # fmt: skip
    marks = {mark_of_job(*one) for one in (about, *others)}
    assert len(marks) == 8
    assert mark_of_job("train", 1, {"centers": CENTERS.T.contiguous().T}) in marks


def test_jobs_that_a_node_has_missed_may_come_after_its_own() -> None:
    own = Past.of(["a", "b"])
    own.check(["a", "b"])
    own.check(["a", "b", "c", "d"])
    NO_JOBS.check(["x"])
    for wrong in ([], ["a"], ["b", "a"], ["a", "c", "b"], ["x", "a", "b"], ["a b"]):
        with pytest.raises(InputError, match="other jobs before this one"):
            own.check(wrong)
