"""A process that is killed, or whose disk fails, at any operation on a run's folder loses nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults import KILLED

pytestmark = pytest.mark.engine


def faults(root: Path, kinds: Sequence[str]) -> tuple[list[str], list[dict[str, Any]]]:
    """All operations of a run, and what became of a fault at each of them."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", str(root / "faults"), *kinds],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, *found = [json.loads(line) for line in done.stdout.splitlines()]
    assert count["unseen"] == []  # nothing else was opened for writing
    return count["steps"], found


def assert_all_taken_up(found: list[dict[str, Any]]) -> None:
    bad = [(one["kind"], one["at"], one["step"], one["after"][-600:]) for one in found if not one["same"]]
    assert bad == []


@pytest.mark.slow
def test_killed_at_every_operation_a_run_ends_in_the_same_bits(tmp_path: Path) -> None:
    """Also in the middle of each write, and when the power fails: what was not synced is zeros, or has its old name."""
    steps, found = faults(tmp_path, ["kill", "torn", "hollow", "behind"])
    assert_all_taken_up(found)
    assert {one["code"] for one in found} == {KILLED}
    writes = [step for step in steps if step.startswith("write")]
    assert len(found) == 3 * len(steps) + len(writes)
    names = {step.split(" ")[0] for step in steps}
    assert names == {"mkdir", "open", "write", "fsync", "chmod", "rename", "replace", "unlink"}
    assert sum("rounds.jsonl" in step for step in writes) == 2
    for name in ("state.safetensors", "state-before.safetensors", "state-2.safetensors", "scores.json"):
        assert any(step.startswith("replace") and step.endswith(f"/{name}") for step in steps), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "readonly"])
def test_a_disk_that_fails_at_any_operation_is_named_and_harms_nothing(tmp_path: Path, kind: str) -> None:
    _, found = faults(tmp_path, [kind])
    assert_all_taken_up(found)
    reason = {"full": "No space left on device", "readonly": "Read-only file system"}[kind]
    for one in found:
        lines = [line for line in one["said"].splitlines() if line.startswith("error: ")]
        assert "Traceback" not in one["said"], one["said"]
        if (one["code"], one["kind"]) != (0, "readonly"):  # syncing a folder is no change
            assert (one["code"], len(lines)) == (2, 1), one
            assert reason in lines[0]
    assert sum(one["code"] == 0 for one in found) <= 1
    assert any(one["step"].endswith("/figure.png") for one in found)
