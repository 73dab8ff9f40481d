"""One side of a row in a process of its own, so that the memory of one is no business of the other.

    python -m benchmarks.sides ROW theirs|ours [--small]

Every line that comes in asks for a piece of work (`go`), for the check that both sides compute the same (`check`), or
for the most bytes held so far beyond what the imports take (`memory`); every line that goes out is the answer, as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


class Process:
    """A side as its caller sees it."""

    def __init__(self, row: str, side: str, small: bool) -> None:
        command = [sys.executable, "-m", "benchmarks.sides", row, side, *(["--small"] if small else [])]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, what: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self._answer()

    def wait(self) -> None:
        """Until it is ready: nothing is timed before."""
        self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a benchmark stopped: {self.process.args}")
        return json.loads(line)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def main() -> None:
    import torch

    from benchmarks.machine import memory
    from benchmarks.rows import ROWS

    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("row", choices=ROWS)
    options.add_argument("side", choices=["theirs", "ours"])
    options.add_argument("--small", action="store_true")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    row, (imported, _) = ROWS[chosen.row], memory()
    side = (row.theirs if chosen.side == "theirs" else row.ours)(chosen.small)
    side()  # warms up
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        if line.strip() == "check":
            print(json.dumps(row.check() if row.check else None), flush=True)
        elif line.strip() == "memory":
            print(json.dumps(memory()[1] - imported), flush=True)
        else:
            print(json.dumps(side()), flush=True)


if __name__ == "__main__":
    main()
