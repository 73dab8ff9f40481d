"""A shard of the clients in another process: a client host that takes and returns arrays, and keeps replies.

Nothing here depends on how calls are sent. Arrays arrive read-only, in memory that belongs to the sender.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.client_data import Augment, ClientData
from fedsoft.core.contract import State, Training
from fedsoft.core.mapped import in_memory
from fedsoft.engine.client_host import ClientHost, Ticket
from fedsoft.engine.client_store import ClientStore
from fedsoft.engine.cost import Cost
from fedsoft.engine.resources import Resources
from fedsoft.machine.resources import memory_size
from fedsoft.safety.conditions import Conditions
from fedsoft.safety.guards import Facts
from fedsoft.safety.privacy import Released
from fedsoft.secure.weighing import Weighing
from fedsoft.storage.tensorfile import Form

Arrays = dict[str, np.ndarray]
Forms = dict[str, Form]


def arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    """Return tensors as arrays, to be sent."""
    return {name: in_memory(tensor).detach().cpu().numpy() for name, tensor in tensors.items()}


def tensors(sent: Arrays) -> dict[str, Tensor]:
    """Return arrays as copied tensors: a job may write into them."""
    return {name: torch.from_numpy(np.array(array)) for name, array in sent.items()}


def cuts(sizes: Tensor, shards: int) -> np.ndarray:
    """Return where contiguous shards of clients begin and end, `[shards + 1]`, with about as many points in each.

    >>> cuts(torch.tensor([1, 1, 1, 1, 4]), 2).tolist()
    [0, 4, 5]
    """
    clients = len(sizes)
    total = np.cumsum(sizes.cpu().numpy())
    inner = np.searchsorted(total, total[-1] * np.arange(1, shards) / shards, side="left") + 1
    least = np.arange(1, shards)  # every shard has a client
    inner = np.clip(np.maximum.accumulate(np.maximum(inner - least, 0)) + least, None, clients - shards + least)
    return np.array([0, *inner, clients])


@dataclass(frozen=True)
class Points:
    """The points of some clients, packed to be sent."""

    x: np.ndarray
    y: np.ndarray
    sizes: np.ndarray
    augment: Augment | None

    @staticmethod
    def of(data: ClientData, begin: int, end: int) -> Points:
        """Pack the points of the clients from `begin` to before `end`."""
        part = data.take(np.arange(begin, end))
        first = int(part.starts[0])
        if bool((part.starts == part.offsets + first).all()):  # they are contiguous already
            x, y = (pool[first : first + int(part.sizes.sum())] for pool in (part.x, part.y))
        else:
            x, y = part.x[part.points], part.y[part.points]
        sent = arrays({"x": x, "y": y, "sizes": part.sizes})
        return Points(sent["x"], sent["y"], sent["sizes"], data.augment)

    @property
    def bytes(self) -> int:
        return self.x.nbytes + self.y.nbytes + self.sizes.nbytes

    def data(self) -> ClientData:
        """Unpack the points. Nothing is copied: points are never written to."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writ", UserWarning)
            x, y = torch.from_numpy(self.x), torch.from_numpy(self.y)
        sizes = torch.from_numpy(np.array(self.sizes))
        return ClientData(x, y, torch.cumsum(sizes, 0) - sizes, sizes, self.augment)


class Shard:
    """Some clients, by their rows in this shard. Computes on one thread. Empty until `settle` is called."""

    host: ClientHost
    replies: dict[int, ClientStore]

    def settle(
        self, training: Training, points: Points, names: Sequence[str], conditions: Conditions, resources: Resources,
        before: tuple[Points, int] | None, secret: str, beside: int,
    ) -> None:  # fmt: skip
        """Take these clients, in place of others.

        Arguments:
            points, names: of the clients.
            training, conditions, before, secret: see `ClientHost`.
            resources: its memory is for the client states and replies of all shards on this machine.
            beside: how many shards there are on this machine.
        """
        torch.set_num_threads(1)
        self.host = ClientHost(
            training, points.data(), names, conditions=conditions,
            resources=replace(resources, workers=1, memory=memory_size(resources.memory) // beside),
            before=None if before is None else (before[0].data(), before[1]), secret=secret,
        )  # fmt: skip
        self.replies = {}

    def leave(self) -> None:
        """Release the clients."""
        self.__dict__.clear()

    def ready(self) -> None:
        """Return when all earlier calls are done."""

    def use_folder(self, folder: str) -> None:
        """Keep scratch files in this folder, if this machine has it."""
        self.host.scratch = Path(folder) if Path(folder).is_dir() else None

    # --- jobs and replies ---------------------------------------------------------------------------------------------

    def run_job(
        self, key: int, job: str, rows: np.ndarray | None, each: Arrays, shared: Arrays, ticket: Ticket,
        gone: Sequence[int],
    ) -> tuple[Cost, Forms, Facts, Released]:  # fmt: skip
        """Have clients (None: all) do a job, and keep the replies as `key`.

        Return the cost, the forms of the replies, what guards say about them, and noisy releases. The replies `gone`
        are dropped first.
        """
        self.forget(gone)
        at = np.arange(len(self.host)) if rows is None else rows.astype(np.int64)
        cost, replies, facts, released = self.host.run_job(job, at, tensors(each), tensors(shared), ticket)
        self.replies[key] = replies
        return cost, dict(replies.forms), facts, released

    def gather(self, key: int, name: str) -> np.ndarray:
        """Return all replies under a name."""
        return self.replies[key][name].numpy()

    def weighted(self, key: int, name: str, weights: np.ndarray) -> np.ndarray:
        """Return `weights[S, m] @ replies[m, ...]` in float64."""
        return self.replies[key].column(name).weighted(torch.from_numpy(np.array(weights))).numpy()

    def coded(self, key: int, name: str, what: Weighing) -> tuple[np.ndarray, np.ndarray]:
        """Return the sum of what clients code for themselves, and counts of its values."""
        found = self.replies[key].column(name).coded(what)
        return found.total.cpu().numpy(), found.counts.cpu().numpy()

    def forget(self, keys: Iterable[int]) -> None:
        for key in keys:
            self.replies.pop(key, None)

    # --- client states ------------------------------------------------------------------------------------------------

    def init_clients(self) -> Forms:
        """Give all clients an initial state; return its forms."""
        self.host.init_clients()
        return dict(self.host.client_states.forms)

    def clear(self, forms: Forms) -> None:
        """Prepare for states that arrive by `put`."""
        self.host.clear(forms)

    def put(self, name: str, begin: int, rows: np.ndarray) -> None:
        """Set the states of consecutive clients."""
        self.host.client_states.put(np.arange(begin, begin + len(rows)), tensors({name: rows}))

    def take(self, rows: np.ndarray, names: Sequence[str]) -> Arrays:
        """Return the states of some clients."""
        return arrays(self.host.client_states.take(rows, names))

    # --- predictions --------------------------------------------------------------------------------------------------

    def personal_scores(self, state: Arrays, own: Arrays, points: Points | None) -> np.ndarray:
        """See `ClientHost`; `points` default to the clients' training points, `own` holds these clients' rows."""
        data = self.host.data if points is None else points.data()
        return self.host.personal_scores(_joined(state, own), data).numpy()

    def personal_predictions(self, state: Arrays, own: Arrays, points: Points | None) -> np.ndarray:
        """See `ClientHost`, and `personal_scores` for the arguments."""
        data = self.host.data if points is None else points.data()
        return self.host.personal_predictions(_joined(state, own), data).numpy()

    def predict_for(self, row: int, x: np.ndarray, state: Arrays, own: Arrays) -> np.ndarray:
        """See `ClientHost`."""
        with torch.no_grad():
            return self.host.predict_for(row, tensors({"x": x})["x"], _joined(state, own)).numpy()


def by_shard(state: State, begin: int, end: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the server's state for one shard: what all share, and its clients' rows of the rest."""
    seen = state.seen_by(slice(begin, end))
    return replace(seen, per_client={}).tensors(), dict(seen.per_client)


def _joined(state: Arrays, own: Arrays) -> State:
    return replace(State.from_tensors(tensors(state)), per_client=tensors(own))
