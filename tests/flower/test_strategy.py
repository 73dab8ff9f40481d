"""FedSoft in somebody else's Flower app: a real strategy and a real client app, over a grid in this process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from fedsoft.flower.server.strategy import FedSoftStrategy, join, proximal, split, votes

from .grids import OwnGrid

LAM = 0.5
# Points of four clients: they come from around 0 and around 10, in different shares.
POINTS = {
    11: [0.0, 1.0, -1.0, 10.0], 12: [0.5, 9.0, 11.0], 13: [10.5, 9.5], 14: [0.2, -0.2, 0.4, 0.0, 10.0],
}  # fmt: skip


def model(value: float) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array([value], dtype=np.float64))})


def value(record: ArrayRecord) -> float:
    return float(record["w"].numpy()[0])


def solved(points: list[float], u: list[float], centers: list[float]) -> float:
    """The minimum of mean (w - x)^2 + lambda/2 sum u (w - c)^2."""
    return (2 * np.mean(points) + LAM * np.dot(u, centers)) / (2 + LAM * sum(u))


app = ClientApp()


@app.query("importance")
def importance(message: Message, context: Context) -> Message:
    x = torch.tensor(POINTS[context.node_id], dtype=torch.float64)
    losses = torch.stack([(x - value(center)).square() for center in split(message)], dim=1)
    return Message(RecordDict({"importance": votes(losses)}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Gradient descent on the client's own loss and the proximal term."""
    x = torch.tensor(POINTS[context.node_id], dtype=torch.float64)
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    centers = [[torch.tensor([value(center)], dtype=torch.float64)] for center in split(message)]
    for _ in range(300):
        loss = (w - x).square().mean() + proximal([w], centers, message)
        (slope,) = torch.autograd.grad(loss, w)
        w = (w - 0.2 * slope).detach().requires_grad_()
    return Message(RecordDict({"arrays": model(float(w.detach()))}), reply_to=message)


@pytest.fixture(autouse=True)
def _in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages belong to a run and a node, which Flower sets in the processes that it starts."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1, raising=False)


class Here(OwnGrid):
    """All nodes in this process."""

    def __init__(self, silent: set[int] | None = None, spoilt: dict[int, float] | None = None) -> None:
        self.silent, self.spoilt = silent or set(), spoilt or {}

    def get_node_ids(self) -> Iterable[int]:
        return list(POINTS)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            if message.metadata.message_type == "train" and node in self.silent:
                continue
            context = Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
            reply = app(message, context)
            if message.metadata.message_type == "train" and node in self.spoilt:
                reply.content["arrays"] = model(self.spoilt[node])
            reply.metadata.__dict__["_src_node_id"] = node
            replies.append(reply)
        return replies


def by_hand(centers: list[float], answering: set[int]) -> list[float]:
    """One round in which everybody takes part."""
    u, w = {}, {}
    for node, points in POINTS.items():
        best = [int(np.argmin([(x - c) ** 2 for c in centers])) for x in points]
        u[node] = [max(best.count(s) / len(points), 1e-4) for s in range(2)]
        w[node] = solved(points, u[node], centers)
    new = []
    for s in range(2):
        weights = {node: u[node][s] * len(POINTS[node]) for node in answering}
        new.append(sum(weights[node] * w[node] for node in answering) / sum(weights.values()))
    return new


@pytest.mark.parametrize("silent", [set(), {12}])
def test_rounds_are_those_of_the_paper(silent: set[int]) -> None:
    strategy = FedSoftStrategy(S=2, K="all", lam=LAM, tau=1)
    result = strategy.start(Here(silent), join([model(1.0), model(8.0)]), num_rounds=3)
    expected = [1.0, 8.0]
    for _ in range(3):
        expected = by_hand(expected, set(POINTS) - silent)
    assert result.arrays is not None
    assert [value(center) for center in split(result.arrays)] == pytest.approx(expected, rel=1e-9)


def test_an_answer_that_is_not_finite_is_not_used_and_a_center_without_answers_stays() -> None:
    strategy = FedSoftStrategy(S=2, K="all", lam=LAM, tau=1)
    once = strategy.start(Here(spoilt={12: float("nan")}), join([model(1.0), model(8.0)]), num_rounds=1)
    assert once.arrays is not None
    expected = by_hand([1.0, 8.0], set(POINTS) - {12})
    assert [value(center) for center in split(once.arrays)] == pytest.approx(expected, rel=1e-9)
    nobody = strategy.start(Here(silent=set(POINTS)), join([model(1.0), model(8.0)]), num_rounds=1)
    assert nobody.arrays is not None
    assert [value(center) for center in split(nobody.arrays)] == [1.0, 8.0]


def test_k_clients_are_drawn_for_each_center_and_the_weights_stay_between_estimates() -> None:
    strategy = FedSoftStrategy(S=2, K=1, lam=LAM, tau=2, seed=3)
    grid, arrays = Here(), join([model(1.0), model(8.0)])
    first: dict[int, list[float]] = {}
    for server_round in (1, 2):
        messages = list(strategy.configure_train(server_round, arrays, ConfigRecord(), grid))
        assert 1 <= len(messages) <= 2
        assert sum(strategy.drawn.values()) == pytest.approx(np.ones(2))
        if server_round == 1:
            first = {node: list(u) for node, u in strategy.u.items()}
            strategy.u[11] = [0.5, 0.5]
    assert strategy.u[11] == [0.5, 0.5]  # the second round asked nobody
    assert first[13] == [1e-4, 1.0]
    with pytest.raises(ValueError, match="the arrays hold 1 centers, should hold S = 2"):
        strategy.configure_train(3, model(1.0).__class__({"0/w": model(1.0)["w"]}), ConfigRecord(), grid)


def test_a_client_that_claims_far_more_points_than_the_others_is_left_out() -> None:
    class Claims(Here):
        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
            for reply in super().send_and_receive(messages, timeout=timeout):
                record: Any = reply.content.get("importance")
                if record is not None and reply.metadata.src_node_id == 12:
                    record["num-examples"] = 2**40
                yield reply

    strategy = FedSoftStrategy(S=2, K="all", lam=LAM, tau=1)
    strategy.start(Claims(), join([model(1.0), model(8.0)]), num_rounds=1)
    assert set(strategy.n) == set(POINTS) - {12}
