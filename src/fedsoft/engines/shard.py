"""A shard of the clients in another process: a host that is spoken to in arrays, and keeps replies until asked.

Nothing here knows who carries the calls. Arrays come in read-only, in memory that belongs to whoever carried them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsoft.clientdata import Augment, ClientData
from fedsoft.contract import Algorithm, State
from fedsoft.host import Cost, Host, Room
from fedsoft.local import Solver
from fedsoft.machine import memory_size
from fedsoft.model import Model
from fedsoft.tensorfile import Form
from fedsoft.trust.attack import Attack
from fedsoft.trust.guards import Care, Facts
from fedsoft.vault import Vault

V = TypeVar("V", Tensor, np.ndarray)

Arrays = dict[str, np.ndarray]
Forms = dict[str, Form]


def arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    """Tensors as what can be sent."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def tensors(sent: Arrays) -> State:
    """What was sent, as tensors of one's own: a job may write into them."""
    return {name: torch.from_numpy(np.array(array)) for name, array in sent.items()}


def cuts(sizes: Tensor, shards: int) -> np.ndarray:
    """Where shards of clients that follow each other begin and end, `[shards + 1]`: about as many points in each.

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
    """The points of some clients, laid together to be sent."""

    x: np.ndarray
    y: np.ndarray
    sizes: np.ndarray
    augment: Augment | None

    @staticmethod
    def of(data: ClientData, begin: int, end: int) -> Points:
        """Those of the clients from `begin` to before `end`."""
        part = data.take(np.arange(begin, end))
        first = int(part.starts[0])
        if bool((part.starts == part.offsets + first).all()):  # they lie together already
            x, y = (pool[first : first + int(part.sizes.sum())] for pool in (part.x, part.y))
        else:
            x, y = part.x[part.points], part.y[part.points]
        sent = arrays({"x": x, "y": y, "sizes": part.sizes})
        return Points(sent["x"], sent["y"], sent["sizes"], data.augment)

    @property
    def bytes(self) -> int:
        """How much is sent."""
        return self.x.nbytes + self.y.nbytes + self.sizes.nbytes

    def data(self) -> ClientData:
        """As clients have them. Nothing is copied: nobody writes into points."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writ", UserWarning)
            x, y = torch.from_numpy(self.x), torch.from_numpy(self.y)
        sizes = torch.from_numpy(np.array(self.sizes))
        return ClientData(x, y, torch.cumsum(sizes, 0) - sizes, sizes, self.augment)


class Shard:
    """Some clients, by their rows in this shard. Computes on one thread. Empty until somebody settles there."""

    host: Host
    replies: dict[int, Vault]

    def settle(
        self, parts: tuple[Algorithm, Model, Solver], points: Points, names: Sequence[str], *,
        seed: int, dtype: torch.dtype, chunk: int, memory: int | str | None, beside: int,
        attack: Attack | None = None, liars: Set[str] = frozenset(), before: Points | None = None, change_at: int = 0,
        care: Care | None = None,
    ) -> None:  # fmt: skip
        """Take these clients in, in place of others.

        Arguments:
            parts: the algorithm, the model and the solver.
            points, names: of the clients.
            seed, dtype, chunk: see `Host`.
            memory: RAM for client memory and replies of all shards on this machine.
            beside: how many shards there are on this machine.
            attack, liars, before, change_at, care: see `Host`.
        """
        torch.set_num_threads(1)
        room = Room(chunk, workers=1, memory=memory_size(memory) // beside)
        self.host = Host(
            *parts, points.data(), names, seed=seed, dtype=dtype, room=room, attack=attack, liars=liars,
            before=None if before is None else before.data(), change_at=change_at, care=care,
        )  # fmt: skip
        self.replies = {}

    def leave(self) -> None:
        """Let go of the clients."""
        self.__dict__.clear()

    def ready(self) -> None:
        """Answers when everything asked before is done."""

    def use_folder(self, folder: str) -> None:
        """Keep scratch files there, if this machine has that folder."""
        self.host.scratch = Path(folder) if Path(folder).is_dir() else None

    # --- jobs and replies ---------------------------------------------------------------------------------------------

    def do(
        self, key: int, job: str, rows: np.ndarray | None, each: Arrays, shared: Arrays, t: int, gone: Sequence[int]
    ) -> tuple[Cost, Forms, Facts]:
        """Have clients (all for None) do a job of round t; what it cost, the forms of the replies kept as `key`,
        and what guards say of them.

        Nobody will ask for the replies `gone` any more.
        """
        self.forget(gone)
        at = np.arange(len(self.host)) if rows is None else rows.astype(np.int64)
        cost, self.replies[key], facts = self.host.do(job, at, tensors(each), tensors(shared), t)
        return cost, dict(self.replies[key].forms), facts

    def gather(self, key: int, name: str) -> np.ndarray:
        """All replies under a name."""
        return self.replies[key][name].numpy()

    def weighted(self, key: int, name: str, weights: np.ndarray) -> np.ndarray:
        """`weights[S, m] @ replies[m, ...]` in float64."""
        return self.replies[key].column(name).weighted(torch.from_numpy(np.array(weights))).numpy()

    def forget(self, keys: Iterable[int]) -> None:
        """Drop replies."""
        for key in keys:
            self.replies.pop(key, None)

    # --- memory -------------------------------------------------------------------------------------------------------

    def enrol(self) -> Forms:
        """Give everybody a first memory; its forms."""
        self.host.enrol()
        return dict(self.host.memory.forms)

    def clear(self, forms: Forms) -> None:
        """Make room for a memory that comes by `put`."""
        self.host.clear(forms)

    def put(self, name: str, begin: int, rows: np.ndarray) -> None:
        """Set the memory of some clients that follow each other."""
        self.host.memory.put(np.arange(begin, begin + len(rows)), tensors({name: rows}))

    def take(self, rows: np.ndarray, names: Sequence[str]) -> Arrays:
        """The memory of some clients."""
        return arrays(self.host.memory.take(rows, names))

    # --- predictions --------------------------------------------------------------------------------------------------

    def personal_scores(self, state: Arrays, own: Arrays, points: Points | None) -> np.ndarray:
        """See `Host`; the clients' own training points for None. `own` holds these clients' rows of `..._k`."""
        data = self.host.data if points is None else points.data()
        return self.host.personal_scores(tensors(state) | tensors(own), data).numpy()

    def predict_for(self, row: int, x: np.ndarray, state: Arrays, own: Arrays) -> np.ndarray:
        """See `Host`."""
        with torch.no_grad():
            return self.host.predict_for(row, tensors({"x": x})["x"], tensors(state) | tensors(own)).numpy()


def by_shard(state: State, begin: int, end: int) -> tuple[State, State]:
    """The server's state as one shard needs it: what all share, and its clients' rows of the rest."""
    own = {name: value[begin:end] for name, value in state.items() if name.endswith("_k")}
    return {name: value for name, value in state.items() if name not in own}, own
