"""What every algorithm does with replies, found by watching it: sums alone, or rows of single clients.

python -m tests.secure.watching    writes the list in docs/secure.md, which `test_watching.py` holds
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

import fedsoft as fs
from fedsoft import plugins
from fedsoft.core.contract import Algorithm, Needs, State, Training
from fedsoft.core.replies import Answer, Kind, Rows
from fedsoft.engine.local import LocalEngine
from fedsoft.machine.threads import one_thread
from fedsoft.safety.conditions import Conditions
from fedsoft.secure.protection import Secure
from fedsoft.secure.sums import Ledger, summed
from tests.helpers import class_clients, federation, regression_clients

PAGE = Path(__file__).parents[2] / "docs" / "secure.md"
BEGIN, END = "<!-- watched -->\n", "<!-- /watched -->\n"
ROUNDS = 8
MOST = 1 - 1e-9  # of a reply that sums may show here: less than all of it
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "fedsoft": [
        {}, {"weights": "soft"}, {"start": "mixture"}, {"K": 4}, {"aggregate": "unmix"}, {"reseed": True},
        {"first": "simplex"}, {"first": "warm", "warm": 1},
    ],
    "fedem": [{}, {"K": 4}, {"first": "simplex"}, {"first": "warm", "warm": 1}],
    "fedprior": [{}, {"K": 4}, {"covariance": "diagonal"}, {"predict_with": "mean"}],
    "hypcluster": [{}, {"K": 4}, {"first": "spread"}],
    "ifca": [{}, {"K": 4}, {"average": "gradient"}, {"reseed": True}],
    "fedroute": [{"warm": 1, "hard": 1, "trial": 1}],
    "cfl": [{"after": 1}],
    "flhc": [{"warm": 1}],
}  # fmt: skip
"""Settings under which an algorithm is watched beside its defaults: those that change what it does with replies."""


@dataclass
class Seen:
    """The entries of replies that were summed, with what clients weighed them by themselves, and those that were looked
    at one by one, with their kinds."""

    summed: dict[str, str] = field(default_factory=dict)
    single: dict[str, Kind] = field(default_factory=dict)

    @property
    def needs(self) -> Needs:
        """What that comes to."""
        kinds = set(self.single.values())
        return Needs.MODELS if Kind.MODEL in kinds else Needs.MIXTURES if kinds else Needs.SUMS


class Watched(LocalEngine):
    """Replies are seen as sums, as with `secure = true`; single rows are handed out, and noted."""

    @override
    def __init__(self, training: Training, federation: fs.Federation) -> None:
        super().__init__(training, federation, Conditions(secure=True))
        self.seen = Seen()

    @override
    def initial_state(self) -> State:
        return self.algorithm.init(self._site(self.nobody, []), len(self.names))

    @override
    def _summed(self, job: str, answer: Answer, secure: Secure) -> Answer:
        kinds, seen = self.algorithm.jobs[job].replies, self.seen

        def single(name: str, rows: Rows) -> Tensor:
            seen.single[f"{job}.{name}"] = kinds[name]
            return rows.gather()

        return summed(answer, kinds, Noted(job, kinds, seen), single)


class Noted(Ledger):
    """Weights that pick out one client are as good as its row."""

    def __init__(self, job: str, kinds: Any, seen: Seen) -> None:
        super().__init__(Secure(share=MOST), lambda each, clipped: None)
        self.job, self.kinds, self.seen = job, kinds, seen

    @override
    def use(self, name: str, weights: Tensor) -> None:
        try:
            super().use(name, weights)
        except fs.errors.InputError:
            self.seen.single[f"{self.job}.{name}"] = self.kinds[name]
        else:
            self.seen.summed[f"{self.job}.{name}"] = ""

    @override
    def weigh(self, name: str, by: str, factor: Tensor) -> None:
        self.seen.summed[f"{self.job}.{name}"] = by


def watched(algorithm: Algorithm) -> Seen:
    """Play a few rounds with a regression and, where the algorithm can, with classes."""
    seen = Seen()
    sizes = (9, 12, 8, 10, 11, 7, 13, 9)
    tasks = [(federation(regression_clients(sizes)), fs.models.linear())]
    linear = isinstance(algorithm, fs.MOCHA) or (isinstance(algorithm, fs.FedSoft) and algorithm.aggregate == "unmix")
    if not linear:
        tasks.append((federation(class_clients(sizes)), fs.models.mlp(hidden=[3])))
    for data, model in tasks:
        training = Training(algorithm, model(data.shape), fs.SGD(lr=0.05, epochs=1, batch=5), seed=0)
        engine = Watched(training, data)
        engine.seen = seen
        with torch.no_grad(), one_thread():
            state = engine.start()
            for t in range(ROUNDS):
                state, _ = engine.round(state, t, last=t == ROUNDS - 1)
    return seen


def cases() -> list[tuple[str, dict[str, Any]]]:
    """All algorithms that there are, with their defaults and the variants of their settings."""
    return [(name, given) for name in plugins.names("algorithms") for given in VARIANTS.get(name, [{}])]


def table() -> str:
    """Return the list for the docs."""
    lines = ["| algorithm | settings | needs | summed | seen of single clients |", "| --- | --- | --- | --- | --- |"]
    for name, given in cases():
        seen = watched(plugins.build("algorithms", name, given))
        shown = ", ".join(f"`{key} = {str(value).lower()}`" for key, value in given.items()) or "as they are"
        summed = ", ".join(f"`{one}`" + f" by `{by}`" * bool(by) for one, by in sorted(seen.summed.items())) or "-"
        single = ", ".join(f"`{one}`" for one in sorted(seen.single)) or "-"
        lines.append(f"| `{name}` | {shown} | {seen.needs.value} | {summed} | {single} |")
    return "\n".join(lines) + "\n"


def written(page: str) -> str:
    """Return the list that stands in a page."""
    return re.split(f"{BEGIN}|{END}", page)[1].strip() + "\n"


def main() -> None:
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}", "utf-8")


if __name__ == "__main__":
    main()
