from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.mutation import CASES, bounded


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if CASES and "fuzz" in item.path.parts:
            item.add_marker(pytest.mark.timeout(0))


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    with bounded():
        yield
