"""The clients' side of a federation: a node that does jobs on its own points and keeps its clients' memory."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections import OrderedDict
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from fedsoft import plugins
from fedsoft.clientdata import ClientData
from fedsoft.engines.flower.memory import Moment, NodeMemory, Version
from fedsoft.engines.flower.nodefile import NodeConfig
from fedsoft.engines.flower.wire import Parcel
from fedsoft.errors import FedsoftError, InputError, unknown
from fedsoft.federation import Federation
from fedsoft.host import Host, Room
from fedsoft.runs.spec import RunSpec
from fedsoft.runs.stage import federation_of
from fedsoft.training import as_model
from fedsoft.training.preparing import DTYPES
from fedsoft.trust.guards import Care, Diverged
from fedsoft.trust.privacy import Privacy

EXPERIMENTS = 2  # that are held in memory at once; the others are on disk


@dataclass
class Loaded:
    """An experiment that is held in memory: its clients, and up to where they have come."""

    host: Host
    held_out: ClientData
    memory: NodeMemory
    at: Version


class Node:
    """Answers what a server asks. One message at a time."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.loaded: OrderedDict[str, Loaded] = OrderedDict()
        self.made: tuple[tuple[object, ...], Federation] | None = None  # the last federation, and what it was made from

    def answer(self, asked: Parcel) -> Parcel:
        """The reply to a message: always one, if only a refusal that says why."""
        try:
            kinds = {"hello": self._hello, "job": self._job, "scores": self._scores}
            kind = asked.head.get("kind")
            if kind not in kinds:
                raise unknown("kind of message", kind, kinds)
            return kinds[kind](asked)
        except FedsoftError as error:
            return self._refusal(str(error))
        except Exception as error:  # whatever a user's loader or module raises: the node stays, the server is told
            return self._refusal(f"{type(error).__name__}: {error}")

    def _refusal(self, why: str) -> Parcel:
        return Parcel({"node": self.config.name, "refused": why}, {})

    # --- the kinds of messages ----------------------------------------------------------------------------------------

    def _hello(self, asked: Parcel) -> Parcel:
        """Who is here, and with how many points."""
        host = self._experiment(asked.head).host
        head = {"node": self.config.name, "clients": host.names, "sizes": host.data.sizes.tolist()}
        return Parcel(head, {})

    def _job(self, asked: Parcel) -> Parcel:
        """Have some clients do a job. What they change of their memory is on disk before the reply goes out."""
        head = asked.head
        here = self._experiment(head)
        moment = Moment(int(head["attempt"]), int(head["round"]), int(head["ask"]))
        base = here.memory.before(moment)
        if base is None:
            raise InputError(f"node '{self.config.name}' has no memory of experiment '{head['experiment']}'")
        if base != here.at:
            _restore(here.host, base)
            here.at = base
        names = [str(name) for name in head["clients"]]
        rows = self._rows(here, names)
        try:
            cost, replies, facts = here.host.do(
                str(head["job"]), rows, asked.under("each/"), asked.under("shared/"), moment.round
            )
            here.at = here.memory.keep(moment, here.host.names, dict(here.host.memory), base)
        except BaseException:
            self.loaded.pop(str(head["experiment"]), None)  # what is on disk is whole, what is in memory may not be
            raise
        sent = {name: _lost(value, [*facts.refused]) for name, value in replies.items()}
        return Parcel({"node": self.config.name, "clients": names, "cost": asdict(cost)}, sent)

    def _scores(self, asked: Parcel) -> Parcel:
        """The metric of each client's personal predictions on its own points: two numbers for each client leave."""
        here = self._experiment(asked.head)
        names = [str(name) for name in asked.head["clients"]]
        rows = self._rows(here, names)
        state, every = {}, np.arange(len(here.host))
        if here.at != here.memory.last and here.memory.last is not None:
            _restore(here.host, here.memory.last)
            here.at = here.memory.last
        for name, value in asked.under("state/").items():
            if name.endswith("_k"):  # rows of the asked clients only: put at their places
                wide = value.new_zeros((len(every), *value.shape[1:]))
                wide[torch.as_tensor(rows)] = value
                value = wide
            state[name] = value
        with torch.no_grad():
            scores = {
                "train": here.host.personal_scores(state, here.host.data)[rows],
                "held_out": here.host.personal_scores(state, here.held_out)[rows],
            }
        return Parcel({"node": self.config.name, "clients": names}, scores)

    # --- experiments --------------------------------------------------------------------------------------------------

    def _secret(self) -> str:
        """What this node alone knows. The server knows the seed: noise must not come from that alone."""
        path = self.config.memory / ".secret"
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), open(path, "x", opener=_private) as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(file.fileno())
        found = path.read_text("utf-8")
        if not found:
            raise InputError(f"'{path}' is empty: remove it, so that another secret is made")
        return found

    def _rows(self, here: Loaded, names: list[str]) -> np.ndarray:
        for name in names:
            if name not in here.host.names:
                raise unknown(f"client of node '{self.config.name}'", name, here.host.names)
        return np.array([here.host.names.index(name) for name in names], dtype=np.int64)

    def _experiment(self, head: dict[str, Any]) -> Loaded:
        """An experiment, as far as it has come here: from memory, from disk, or begun."""
        name = str(head.get("experiment"))
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", name) or name.startswith("."):
            raise InputError(f"experiment = {name!r} is not allowed: should be letters, digits, '.', '_' and '-'")
        if name in self.loaded:
            self.loaded.move_to_end(name)
            return self.loaded[name]
        while len(self.loaded) >= EXPERIMENTS:
            self.loaded.popitem(last=False)
        self.config.check_names(head["spec"])
        spec = RunSpec.from_dict(head["spec"])
        federation = self._federation(spec)
        host = Host(
            plugins.build("algorithms", spec.algorithm.name, spec.algorithm.settings),
            as_model(plugins.build("models", spec.model.name, spec.model.settings), federation).by("auto"),
            plugins.build("solvers", spec.local.name, spec.local.settings),
            federation.train,
            federation.names,
            seed=spec.seed,
            dtype=DTYPES[spec.dtype],
            care=Care(
                diverged=cast(Diverged, spec.diverged), privacy=Privacy(**spec.privacy) if spec.privacy else None
            ),
            secret=self._secret() if spec.privacy else "",
            room=Room(head.get("chunk"), workers=self.config.file.workers, memory=self.config.file.ram),
        )
        memory = NodeMemory(self.config.memory / name)
        at = memory.last
        if at is None:
            with torch.no_grad():
                host.enrol()
            at = memory.keep(Moment(int(head["attempt"]), -1, -1), host.names, dict(host.memory))
        else:
            _restore(host, at)
        self.loaded[name] = Loaded(host, federation.held_out, memory, at)
        return self.loaded[name]

    def _federation(self, spec: RunSpec) -> Federation:
        """The clients of this node."""
        shard = self.config.data.shard
        key = (spec.dataset, spec.partition, spec.source, spec.seed)
        if self.made is None or self.made[0] != key:
            whole = federation_of(spec)
            if shard is None:
                if whole.scale is not None:
                    raise InputError("dataset.standardize = true is not allowed for points at nodes: scale them there")
                whole = self.config.own_points(whole.shape)
            else:
                rows = np.array_split(np.arange(len(whole)), shard[1])[shard[0]].tolist()
                if not rows:
                    raise InputError(
                        f"node '{self.config.name}' has no clients: there are {len(whole)} for {shard[1]} nodes"
                    )
                whole = replace(
                    whole, train=whole.train.take(rows), held_out=whole.held_out.take(rows),
                    names=tuple(whole.names[k] for k in rows), truth=None,
                )  # fmt: skip
            self.made = (key, whole)
        return self.made[1]


def _restore(host: Host, version: Version) -> None:
    """Give the clients what they had; those that were not here then begin anew."""
    tensors = version.tensors()
    if list(version.clients) == host.names:
        host.restore(tensors)
        return
    with torch.no_grad():
        host.enrol()
    known = [name for name in version.clients if name in host.names]
    rows = np.array([host.names.index(name) for name in known], dtype=np.int64)
    places = torch.tensor([version.clients.index(name) for name in known], dtype=torch.int64)
    host.memory.put(rows, {name: tensors[name][places] for name in tensors})


def _private(path: str, flags: int) -> int:
    """For the eyes of its owner only."""
    return os.open(path, flags, 0o600)


def _lost(value: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """What clients send whose training diverged: nothing that a server could take for a reply."""
    return value.index_fill(0, torch.tensor(rows), torch.nan) if rows and value.is_floating_point() else value
