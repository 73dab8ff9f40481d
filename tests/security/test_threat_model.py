"""The pages that promise something name the tests that hold it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedsoft.flower.node.policy import BOUNDS, Policy
from fedsoft.flower.node.refusals import Refusal
from fedsoft.flower.node.request_log import SCORES

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"


def text(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text("utf-8")


def named(words: str) -> list[str]:
    """The tests that a text names."""
    return re.findall(r"`([\w/]*test_\w+\.py|fuzz)`", words)


def there(name: str) -> bool:
    """Without a folder it is one of the tests of security, or the only file of that name."""
    places = [TESTS / "security" / name, TESTS / name, ROOT / name]
    return any(place.exists() for place in places) or ("/" not in name and len([*TESTS.rglob(name)]) == 1)


@pytest.mark.parametrize("page", ["security", "privacy", "reliability", "flower", "secure"])
def test_every_test_that_is_named_exists(page: str) -> None:
    assert [name for name in named(text(page)) if not there(name)] == []
    functions = {
        name for file in TESTS.rglob("*.py") for name in re.findall(r"def (test_\w+)", file.read_text("utf-8"))
    }
    assert [name for name in re.findall(r"`(test_\w+)`", text(page)) if name not in functions] == []


def test_every_attack_names_a_test() -> None:
    rows = [line for line in text("security").splitlines() if line.startswith("| ") and line.count(" | ") == 2]
    attacks = [
        row for row in rows if not row.startswith(("| who ", "| ---", "| the **", "| a **", "| the server tries"))
    ]
    attacks = [row for row in attacks if not row.startswith(("| it tries", "| what is in it"))]
    assert len(attacks) > 30
    assert [row for row in attacks if not named(row.rpartition(" | ")[2])] == []


def test_every_file_of_these_tests_is_named() -> None:
    files = {path.name for path in Path(__file__).parent.glob("test_*.py")}
    shown = {name.rpartition("/")[2] for page in ("security", "privacy") for name in named(text(page))}
    assert files - shown == {Path(__file__).name}


def test_the_numbers_are_those_of_the_program() -> None:
    policy, page, table = Policy.of({}, synthetic=False), text("security"), text("flower")
    assert f"one of {len(Refusal)} codes" in page
    assert f"at most {policy.requests_per_round} requests a round and {policy.requests_per_run:,} a run" in page
    assert f"memory of at most {policy.runs} runs and {policy.disk[:-1]} GB" in page
    assert f"below `points` ({policy.points})" in page
    assert f"ended after `seconds` ({policy.seconds:g};" in page
    assert f"beyond `ram` ({policy.ram[:-1]} GB)" in page
    (s0, s1), (_, epochs), (_, batch) = (BOUNDS[key] for key in ("S", "epochs", "batch"))
    assert f"S {s0} to {s1}, {epochs} epochs, batches of {batch:,}" in page
    assert SCORES == 10
    assert "ten times a run at most" in page
    assert f"| {policy.requests_per_round}, {policy.requests_per_run:,} |" in table
    for setting in Policy.__dataclass_fields__:
        assert f"`{setting}`" in table, setting
