"""A run that a node holds in memory: its clients, and the position up to which they have come."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.client_data import ClientData
from fedsoft.core.client_metrics import ClientMetric
from fedsoft.engine.client_host import ClientHost
from fedsoft.flower.node.client_memory import ClientMemory, Version
from fedsoft.flower.node.refusals import Refusal, Refused
from fedsoft.flower.node.request_log import RequestLog
from fedsoft.flower.node.sums import NodeSums
from fedsoft.flower.request import Request
from fedsoft.flower.server.expected_replies import Expected
from fedsoft.flower.wire import WireMessage
from fedsoft.safety.privacy import Privacy


@dataclass
class Experiment:
    """A run at this node. `at`: the state that its clients are in."""

    host: ClientHost
    held_out: ClientData
    memory: ClientMemory
    requests: RequestLog
    at: Version
    privacy: Privacy | None
    expected: Expected
    metrics: tuple[ClientMetric, ...]  # that the run asks for, beside the model's own
    sums: NodeSums | None = None  # where replies leave as sums only

    def go_to(self, version: Version) -> None:
        """Give the clients the state of a version."""
        if version != self.at:
            restore(self.host, version)
            self.at = version

    def rows(self, names: list[str]) -> np.ndarray:
        """Return the rows of the named clients."""
        known = {name: row for row, name in enumerate(self.host.names)}
        for name in names:
            if name not in known:
                raise Refused(Refusal.CLIENT, f"there is no client '{name}' here")
        if not names:
            raise Refused(Refusal.MESSAGE, "no client is named")
        return np.array([known[name] for name in names], dtype=np.int64)

    def check_sent(self, clients: int, each: dict[str, Tensor], shared: dict[str, Tensor], most: int) -> None:
        """Refuse tensors that are not one row for each client, or more models than `most`."""
        if twice := each.keys() & shared.keys():
            raise Refused(Refusal.MESSAGE, f"{sorted(twice)} are sent for each client and for all")
        centers, size = shared.get("centers"), self.host.model.size
        if centers is not None and (centers.ndim, centers.dtype) != (2, self.host.training.dtype):
            raise Refused(Refusal.MESSAGE, f"'centers' of shape {list(centers.shape)} and type {centers.dtype}")
        if centers is not None and centers.shape[1] != size:
            raise Refused(Refusal.MESSAGE, f"'centers' of shape {list(centers.shape)}: models have {size} parameters")
        for name, value in each.items():
            if not value.ndim or len(value) != clients:
                raise Refused(Refusal.MESSAGE, f"'{name}' has not one row for each client")
        for name, value in {**each, **shared}.items():
            if value.is_complex():
                raise Refused(Refusal.MESSAGE, f"'{name}' holds complex numbers")
            models = value.numel() / max(self.host.model.size, 1) / (clients if name in each else 1)
            if models > most and value.numel() > most * len(self.host):  # neither centers nor a mixture of all clients
                detail = f"'{name}' of shape {list(value.shape)} is more than {most} models, the most in policy.bounds"
                raise Refused(Refusal.NOT_ALLOWED, detail)


def restore(host: ClientHost, version: Version) -> None:
    """Give clients what they kept; clients that are new since then start afresh."""
    tensors = version.tensors()
    if list(version.clients) == host.names:
        host.restore(tensors)
        return
    with torch.no_grad():
        host.init_clients()
    known = [name for name in version.clients if name in host.names]
    rows = np.array([host.names.index(name) for name in known], dtype=np.int64)
    places = torch.tensor([version.clients.index(name) for name in known], dtype=torch.int64)
    host.client_states.put(rows, {name: tensors[name][places] for name in tensors})


def chain_of(before: str, request: Request, message: WireMessage) -> str:
    """Return a hash of this request and of all answered before it: all that the answer depends on, except the data.

    Noise is drawn by it. The same request gets the same answer; anything else that could change the answer, if only the
    order of sums, changes the noise too.
    """
    about = [before, request.job, request.round, request.clients, request.chunk]
    found = hashlib.blake2b(json.dumps(about).encode(), digest_size=16)
    for name in sorted(message.tensors):
        value = message.tensors[name].detach().cpu().contiguous()
        found.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        found.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
