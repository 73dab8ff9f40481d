"""FedSoft as a strategy for an existing Flower app. For the server:

    strategy = FedSoftStrategy(S=2, K=10, lam=0.1, tau=2)
    strategy.start(grid, join([ArrayRecord(model().state_dict()) for _ in range(2)]), num_rounds=50)

and at the client, beside the usual `@app.train()`, a query which center explains each point best:

    @app.query("importance")
    def importance(message, context):
        losses = torch.stack([loss_of_each_point(center.to_torch_state_dict()) for center in split(message)], dim=1)
        return Message(RecordDict({"importance": votes(losses)}), reply_to=message)

    @app.train()
    def train(message, context):
        ...  # start from what this client trained last, and add to its loss in every step:
        loss = loss + proximal(model.parameters(), centers, message)

A client answers `train` with its model under "arrays". It needs nothing of the rest of this package: `server_app` runs
every algorithm, with resume and quorum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from logging import INFO, WARNING
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log
from torch import Tensor

from fedsoft.algorithms.fedsoft import FedSoft
from fedsoft.clusters.importance_weights import aggregation_weights
from fedsoft.clusters.selection import ids_of, select
from fedsoft.core.client_draws import Draws

ARRAYS, CONFIG, IMPORTANCE, QUESTION = "arrays", "config", "importance", "query.importance"


def join(models: Sequence[ArrayRecord]) -> ArrayRecord:
    """Return S centers as one record: the arrays of center s are named `s/...`."""
    return ArrayRecord({f"{s}/{name}": array for s, model in enumerate(models) for name, array in model.items()})


def split(centers: ArrayRecord | Message) -> list[ArrayRecord]:
    """Return the centers in a record, or in a message to a client."""
    record = centers.content[ARRAYS] if isinstance(centers, Message) else centers
    assert isinstance(record, ArrayRecord)
    found: dict[int, dict[str, Array]] = {}
    for key, array in record.items():
        s, _, name = key.partition("/")
        found.setdefault(int(s), {})[name] = array
    return [ArrayRecord(found[s]) for s in sorted(found)]


def votes(losses: Tensor) -> MetricRecord:
    """Return a client's answer: the share of its points that each center explains best, from `losses[points, S]`."""
    best = torch.bincount(losses.argmin(1), minlength=losses.shape[1]).double() / len(losses)
    return MetricRecord({"shares": best.tolist(), "num-examples": len(losses)})


def proximal(parameters: Iterable[Tensor], centers: Sequence[Iterable[Tensor]], message: Message) -> Tensor:
    """Return lambda/2 sum_s u_ks |w - c_s|^2, for a client's loss; parameters and centers in the same order."""
    config: Any = message.content[CONFIG]
    own = list(parameters)
    pulls = [
        float(u) * torch.stack([(w - c).square().sum() for w, c in zip(own, center, strict=True)]).sum()
        for u, center in zip(config["u"], centers, strict=True)
    ]
    return float(config["lambda"]) / 2 * torch.stack(pulls).sum()


class FedSoftStrategy(Strategy):
    """Algorithm 1 over Flower's messages: estimate every tau rounds, draw clients for each center, average.

    Arguments:
        seed: of the draws; see `selection.select`.
        timeout: seconds for the query of importance weights.
        points: a client that claims more than this many times the median number of points is left out; 0 for any.
        settings: of `FedSoft`: S, K, lam, tau, sigma, replacement.
    """

    def __init__(self, *, seed: int = 0, timeout: float = 3600.0, points: float = 100.0, **settings: Any) -> None:
        self.algorithm = FedSoft(**settings)
        self.seed, self.timeout, self.points = seed, timeout, points
        self.u: dict[int, list[float]] = {}  # importance weights by node
        self.n: dict[int, float] = {}  # points by node
        self.drawn: dict[int, np.ndarray] = {}  # for which centers a node trains in this round, with which weight
        self.centers: list[ArrayRecord] = []

    def summary(self) -> None:
        log(INFO, "\t└──> %s", self.algorithm)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Estimate when it is time, draw clients, and send them the centers with their own weights."""
        self.centers = split(arrays)
        if len(self.centers) != self.algorithm.S:
            raise ValueError(f"the arrays hold {len(self.centers)} centers, should hold S = {self.algorithm.S}")
        if (server_round - 1) % self.algorithm.tau == 0 or not self.u:
            self._estimate(server_round, arrays, grid)
        there = sorted(set(grid.get_node_ids()) & self.u.keys())
        self.drawn = self._draw(server_round, there)
        return [
            Message(
                RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord({
                    **config, "server-round": server_round, "lambda": self.algorithm.lam, "u": self.u[node],
                })}),
                dst_node_id=node, message_type="train", group_id=str(server_round),
            )
            for node in self.drawn
        ]  # fmt: skip

    def _estimate(self, server_round: int, arrays: ArrayRecord, grid: Grid) -> None:
        """Lines 5 to 11: ask all clients; those that do not answer keep their last weights."""
        record = RecordDict({ARRAYS: arrays})
        asked = [
            Message(record, dst_node_id=node, message_type=QUESTION, group_id=str(server_round))
            for node in grid.get_node_ids()
        ]
        for reply in grid.send_and_receive(asked, timeout=self.timeout):
            node = reply.metadata.src_node_id
            record: Any = {} if reply.has_error() else reply.content.get(IMPORTANCE, {})
            shares, points = record.get("shares", ()), record.get("num-examples", 0)
            valid = len(shares) == self.algorithm.S and all(0 <= share <= 1 for share in shares) and points >= 1
            if valid and abs(sum(shares) - 1) < 1e-6:
                self.u[node] = [max(share, self.algorithm.sigma) for share in shares]
                self.n[node] = float(points)
            else:
                log(WARNING, "node %d did not send its importance weights", node)
        middle = sorted(self.n.values())[(len(self.n) - 1) // 2] if self.n else 0.0
        for node in [node for node, n in self.n.items() if self.points and n > self.points * middle]:
            log(WARNING, "node %d claims %g points, the median is %g: it is left out", node, self.n[node], middle)
            del self.n[node], self.u[node]

    def _draw(self, server_round: int, there: list[int]) -> dict[int, np.ndarray]:
        """Line 13: return how often each node was drawn for each center; v itself when all take part."""
        if not there:
            return {}
        u = torch.tensor([self.u[k] for k in there], dtype=torch.float64)
        v = aggregation_weights(u, torch.tensor([self.n[k] for k in there], dtype=torch.float64))
        if self.algorithm.K == "all":
            chosen = v
        else:
            draws = Draws(self.seed, "select", server_round, names=[str(node) for node in there])
            chosen = select(v, self.algorithm.K, draws, replacement=self.algorithm.replacement)
        return {there[k]: chosen[:, k].numpy() for k in ids_of(chosen.sum(0))}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Line 18: each center is the mean of the clients drawn for it that answered; without any it stays."""
        sums = [{name: np.zeros(array.shape) for name, array in center.items()} for center in self.centers]
        total = np.zeros(len(self.centers))
        answered = 0
        for reply in replies:
            node = reply.metadata.src_node_id
            arrays = None if reply.has_error() else reply.content.get(ARRAYS)
            if node not in self.drawn or not isinstance(arrays, ArrayRecord) or not self._fits(arrays):
                log(WARNING, "round %d: the answer of node %d is not used", server_round, node)
                continue
            answered += 1
            total += self.drawn[node]
            for name, array in arrays.items():
                values = array.numpy().astype(np.float64)
                for s in np.flatnonzero(self.drawn[node]):
                    sums[s][name] += self.drawn[node][s] * values
        new = [
            center if total[s] == 0 else ArrayRecord({
                name: Array(np.asarray(sums[s][name] / total[s], dtype=array.numpy().dtype))
                for name, array in center.items()
            })
            for s, center in enumerate(self.centers)
        ]  # fmt: skip
        return join(new), MetricRecord({"selected": len(self.drawn), "answered": answered})

    def _fits(self, arrays: ArrayRecord) -> bool:
        """Whether arrays are finite and have the names, types and shapes of a center."""
        like = self.centers[0]
        return set(arrays) == set(like) and all(
            (array.dtype, tuple(array.shape)) == (like[name].dtype, tuple(like[name].shape))
            and bool(np.isfinite(array.numpy()).all())
            for name, array in arrays.items()
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Evaluate nothing: a client scores its personal model itself. Override it to change that."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None
