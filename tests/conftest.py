from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

# The same examples in every run, and no time limit per example: the machines of CI are slow at times.
settings.register_profile("fedsoft", deadline=None, derandomize=True, database=None, max_examples=60)
settings.load_profile("fedsoft")

# A shell that starts the tests in the background has Ctrl-C ignored, and what the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)

# As in a run: sums that are split over threads round differently, and the tensors here are too small to gain by it.
torch.set_num_threads(1)


# The files that take longest, so that no process is left alone with one of them at the end.
FIRST = (
    "test_processes",
    "test_faults",
    "test_damage",
    "test_ray",
    "test_benchmarks",
    "test_process_pool",
    "test_conformance",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; all else stays in its order."""
    items.sort(key=lambda item: FIRST.index(item.path.stem) if item.path.stem in FIRST else len(FIRST))


@pytest.fixture(autouse=True)
def _gradients_stay_on() -> Iterator[None]:
    """What switches gradients off switches them on again: left off, they break whatever the process does next."""
    yield
    on = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    assert on, "gradients are switched off after this test"


@pytest.fixture(autouse=True)
def _modules_are_found() -> Iterator[None]:
    """The command line keeps what it starts from looking for modules in the current folder; other tests need them."""
    yield
    os.environ.pop("PYTHONSAFEPATH", None)


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes are not named by their content: archives hold the time, so that processes would name them differently."""
    return argname if isinstance(val, bytes | bytearray) else None
