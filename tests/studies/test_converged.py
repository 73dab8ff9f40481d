from __future__ import annotations

from pathlib import Path

import pytest

from fedsoft.runs import spec
from fedsoft.studies.compare import compare
from fedsoft.studies.converged import Reached, improved
from fedsoft.studies.process_pool import ProcessPool


def test_one_percent_of_the_error_counts() -> None:
    before = [Reached(10.0, None), Reached(20.0, None)]
    assert improved(before, [Reached(9.0, None), Reached(20.0, None)], higher_is_better=False)
    assert not improved(before, [Reached(9.8, None), Reached(20.0, None)], higher_is_better=False)
    assert improved([Reached(None, 0.96)], [Reached(None, 0.961)], higher_is_better=True)  # a fortieth of the errors
    assert not improved([Reached(None, 0.5)], [Reached(None, 0.501)], higher_is_better=True)
    assert not improved([Reached(None, None)], [Reached(1.0, 1.0)], higher_is_better=True)


@pytest.mark.slow
def test_every_method_has_the_rounds_it_needs(tmp_path: Path) -> None:
    small = ["clients=8", "points=[8, 12]", "K=4", "epochs=4", "lr=0.1", "test_points=20", "rounds=2"]
    pool = ProcessPool(tmp_path, None)
    found = compare(spec.read("synthetic-10-90", small), "fedavg,local", [0, 1], pool, budget="converged")
    assert found is not None
    for folders in found.folders.values():
        rounds = {len(folder.records()) for folder in folders}
        assert len(rounds) == 1  # the same for all seeds
        assert rounds <= {2, 4, 8, 16, 32}
    assert {len(found.folders[label]) for label in ("fedavg", "local")} == {2}
