"""The server of a federation logs rounds for TensorBoard as a run in one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsoft.errors import InputError
from fedsoft.flower import submit
from fedsoft.flower.server import server_app
from fedsoft.flower.server.terms import Terms
from fedsoft.flower.submission import Submission
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions
from fedsoft.training.callbacks import TensorBoard
from tests.flower.places import Direct, describe, key_of, node_at, shard, spec

readers: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="needs TensorBoard")


def logged(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found = readers.EventAccumulator(str(folder))
    found.Reload()
    tags = found.Tags()
    assert tags["histograms"]  # mixtures
    return {name: [(one.step, one.value) for one in found.Scalars(name)] for name in tags["scalars"]}


@pytest.mark.slow
def test_what_the_server_writes_is_what_one_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    what, nodes = spec(rounds=3), {k + 1: node_at(tmp_path / f"node{k}", shard(k)) for k in range(4)}
    for node in nodes.values():
        describe(what, node)
    monkeypatch.setattr(server_app, "GridTransport", lambda grid: grid)
    submission = Submission(
        spec=what.to_dict(), label="", folder=tmp_path / "far", terms=Terms(assembly=0.001), allow=[], chunk=1,
        keys=[key_of(k + 1) for k in range(4)], tensorboard=tmp_path / "far" / "tensorboard",
    )  # fmt: skip
    grid: Any = Direct(nodes)
    assert server_app.run_submission(submission, grid)
    here = TensorBoard(tmp_path / "local" / "tensorboard")
    execute(what, tmp_path / "local", RunOptions(chunk=1, callbacks=[here]))
    far, local = logged(tmp_path / "far" / "tensorboard"), logged(here.folder)
    for name in local.keys() - {name for name in local if "seconds" in name or "bytes" in name}:
        assert np.allclose(far[name], local[name], rtol=1e-5), name
    assert all(len(values) == 3 for values in far.values())


def test_what_needs_clients_is_refused(tmp_path: Path) -> None:
    stage = RunOptions(engine="flower", callbacks=[TensorBoard(tmp_path, held_out=("mse",))])
    with pytest.raises(InputError, match="or TensorBoard without held_out"):
        submit.submit(spec(rounds=1), tmp_path / "run", stage)
