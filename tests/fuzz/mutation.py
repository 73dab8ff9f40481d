"""Good files made bad: bits flipped, bytes cut out, put in, spliced, and numbers made extreme.

`FEDSOFT_FUZZ=20000 pytest tests/fuzz`, or `make fuzz`, tries so many cases for each target, other ones every time.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fedsoft.errors import FedsoftError

CASES = int(os.environ.get("FEDSOFT_FUZZ", "0"))
FEW = 150
SECONDS = 60  # for one case: anything above is a hang
MEMORY = 600  # megabytes that all cases of a target may add to the peak
EXTREME = (0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**60, 2**62, 2**63 - 1, 2**64 - 1)
NUMBERS = (
    "0",
    "-1",
    "1e999",
    "1" + "0" * 30,
    "1152921504606846976",
    "nan",
    "1.5",
    "true",
    '""',
    "[]",
    "{}",
    "9" * 5000,
)
TOKENS = (b"\0", b"\n", b"\r\n", b'"', b"'", b"{", b"}", b"[" * 3000, b"=", b",", b"..", b"/", b"\xff", b"\xed\xa0\x80",
          b"\xef\xbb\xbf", b"\x1b[31m", b"#", b"inf", b"null", b"[[x]]")  # fmt: skip


def cases(few: int = FEW) -> Callable[[Any], Any]:
    """How many cases a target has: few, and always the same, unless told. Slow ones have fewer of them."""
    return settings(
        max_examples=CASES * few // FEW or few, derandomize=not CASES, deadline=None, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture,
                               HealthCheck.filter_too_much, HealthCheck.large_base_example],
    )  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds after a few changes."""
    content = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        where = draw(st.integers(0, len(content))) if content else 0
        change = draw(st.sampled_from(("flip", "cut", "tail", "insert", "token", "repeat", "splice", "number", "word")))
        if change == "flip" and where < len(content):
            content[where] ^= 1 << draw(st.integers(0, 7))
        elif change == "cut":
            del content[where : where + draw(st.integers(1, 40))]
        elif change == "tail":
            del content[where:]
        elif change == "insert":
            content[where:where] = draw(st.binary(max_size=16))
        elif change == "token":
            content[where:where] = draw(st.sampled_from(TOKENS))
        elif change == "repeat":
            content[where:where] = content[where : where + draw(st.integers(1, 200))]
        elif change == "splice":
            other = draw(st.sampled_from(seeds))
            content[where:] = other[draw(st.integers(0, len(other))) :]
        elif change == "number":  # as text
            found = [match.span() for match in re.finditer(rb"-?\d+(\.\d+)?", bytes(content[:100_000]))]
            if found:
                begin, end = draw(st.sampled_from(found))
                content[begin:end] = draw(st.sampled_from(NUMBERS)).encode()
        elif change == "word":  # as bytes
            size, order = draw(st.sampled_from((2, 4, 8))), draw(st.sampled_from(("little", "big")))
            value = draw(st.sampled_from(EXTREME)) % 2 ** (8 * size)
            content[where : where + size] = value.to_bytes(size, order)
    return bytes(content)


def refused(work: Callable[[], object], *others: type[Exception]) -> str:
    """Do something with bad input: why it was refused, in one sentence, or nothing. Other errors are not caught."""

    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it hangs: {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        work()
    except (FedsoftError, *others) as error:
        text = str(error)
        assert text
        assert len(text.splitlines()) == 1, text
        assert len(text) < 4000, len(text)
        return text
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return ""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Complains when the peak of this process grows beyond all bounds."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < MEMORY, f"{grown:.0f} MB more"
