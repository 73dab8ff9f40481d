"""What nodes may answer about scores: numbers of a fixed form, that a client can have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsoft.core.client_metrics import ClientMetric
from fedsoft.core.contract import State
from fedsoft.core.metrics import Metric
from fedsoft.flower.server.exchange import Content
from fedsoft.flower.server.expected_replies import Expectation, forms_of
from fedsoft.flower.server.reply_validator import Rows
from fedsoft.safety.privacy import Released

WHICH = ("train", "held_out")
HUGE = 1e30  # the largest score that is accepted


def score_content(state: State, names: Sequence[str]) -> Content:
    """Return what clients need of the server's state to score their personal models."""
    shared = State(state.centers, extra=state.extra).tensors()
    return Content(
        {f"state/{name}": value for name, value in shared.items()},
        {f"clients/{name}": value for name, value in state.per_client.items()},
        {client: row for row, client in enumerate(names)},
    )


@dataclass(frozen=True)
class ScoreReplies:
    """Scores by the model's own metric, and by others where the run asks for them."""

    metric: Metric
    metrics: tuple[ClientMetric, ...]

    @property
    def expected(self) -> Expectation:
        """A number for each client on its training points, one on those held out, and as many of every other metric."""
        forms: list[tuple[str, torch.dtype, tuple[int, ...]]] = [(which, torch.float64, ()) for which in WHICH]
        if self.metrics:
            forms += [(f"{which}_metrics", torch.float64, (len(self.metrics),)) for which in WHICH]
        return Expectation(tuple(sorted(forms)), {}, 0.0, 0.0, Released())

    def blank(self, clients: int) -> dict[str, Tensor]:
        """Return scores of clients that none have answered for."""
        return {
            name: torch.full((clients, *shape), torch.nan, dtype=dtype) for name, dtype, shape in self.expected.forms
        }

    def wrong(self, reply: Rows) -> str:
        """Return why scores are not accepted. NaN is: a client may hold no points out."""
        sent = reply.tensors
        ragged = any(not t.ndim or len(t) != len(reply.clients) for t in sent.values())
        if ragged or forms_of(sent) != self.expected.forms or any(self._impossible(*pair) for pair in sent.items()):
            return "its scores have a wrong form"
        return ""

    def _impossible(self, name: str, scores: Tensor) -> bool:
        """Whether no client can have such scores: errors are not negative, accuracies at most 1."""
        least, most = torch.tensor(0.0), torch.tensor(1.0 if self.metric.higher_is_better else HUGE)
        if name not in WHICH:
            least = torch.tensor([max(one.least, -HUGE) for one in self.metrics])
            most = torch.tensor([min(one.most, HUGE) for one in self.metrics])
        return bool(((scores < least) | (scores > most)).any())
