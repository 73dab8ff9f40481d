"""What algorithms say they need is what they are seen to use, and what the docs say."""

from __future__ import annotations

from typing import Any

import pytest

from fedsoft import plugins
from fedsoft.core.contract import Needs
from tests.secure.watching import PAGE, cases, table, watched, written

QUICK = ("fedavg", "ifca", "hypcluster")
CASES = [pytest.param(name, given, marks=() if name in QUICK else pytest.mark.slow) for name, given in cases()]


@pytest.mark.parametrize(("name", "given"), CASES, ids=str)
def test_needs_are_those_that_are_seen(name: str, given: dict[str, Any]) -> None:
    algorithm = plugins.build("algorithms", name, given)
    assert watched(algorithm).needs is algorithm.needs


def test_all_algorithms_are_watched() -> None:
    assert {name for name, _ in cases()} == set(plugins.names("algorithms"))


def test_mixtures_and_models_of_fedsoft_stay_with_their_clients() -> None:
    seen = watched(plugins.build("algorithms", "fedsoft", {}))
    assert (seen.needs, seen.summed, seen.single) == (Needs.SUMS, {"train.w": "u"}, {})


@pytest.mark.slow
def test_the_list_in_the_docs_is_what_was_seen() -> None:
    assert written(PAGE.read_text("utf-8")) == table(), "write it anew: python -m tests.secure.watching"
