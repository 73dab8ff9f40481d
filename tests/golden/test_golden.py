"""Every algorithm ends where it did when `states.json` was written: on purpose only, and then the changelog says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .states import FILE, ended, summary

STATES = json.loads(FILE.read_text("utf-8"))


QUICK = ("fedsoft", "fedprior", "fedem")  # the others are for all tests
CASES = [case if case.endswith(QUICK) else pytest.param(case, marks=pytest.mark.slow) for case in STATES]


@pytest.mark.parametrize("case", CASES)
def test_states_are_as_they_were(case: str, tmp_path: Path) -> None:
    preset, algorithm = case.split(" ")
    found = summary(ended(preset, algorithm, tmp_path))
    assert found.keys() == STATES[case].keys()
    for name, values in STATES[case].items():
        assert found[name] == pytest.approx(values, rel=2e-4, abs=2e-5), name
