from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from fedsoft.errors import InputError
from fedsoft.machine.resources import available, check_workers, cores, memory_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500M", 500_000_000),
        ("4G", 4 * 10**9),
        ("2GiB", 2 * 2**30),
        ("1.5 kib", 1536),
        (" 3 gb ", 3 * 10**9),
        ("0.5T", 5 * 10**11),
        ("17", 17),
        ("17B", 17),
        ("0", 0),
        (123, 123),
        (0, 0),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert memory_size(text) == size


@pytest.mark.parametrize("bad", ["", "4Q", "-1G", "4 G B", "GiB", "1e9", "4GIBB", "4iB", "nan", -1, 1.5, True])
def test_what_is_no_size_is_named(bad: Any) -> None:
    with pytest.raises(InputError, match=r"memory = .* is not allowed: should be a size such as 500M, 4G or 2GiB"):
        memory_size(bad)


def test_half_of_what_is_available_unless_told() -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < available() <= total
    assert 0 < memory_size(None) <= total // 2


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system does not bind processes to cores")
def test_cores_are_those_that_the_process_may_use() -> None:
    assert cores() == len(os.sched_getaffinity(0))
    bind = "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])"
    code = f"import os; from fedsoft.machine.resources import cores; {bind}; print(cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


@pytest.mark.parametrize("bad", [0, -2, 1.5, True, "2"])
def test_what_is_no_number_of_threads_is_named(bad: Any) -> None:
    with pytest.raises(InputError, match=r"workers = .* is not allowed: should be a whole number of at least 1"):
        check_workers(bad)
