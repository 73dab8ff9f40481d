"""The runs that a node takes part in: begun, found again on disk, and held in memory."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import cast

import torch

from fedsoft import plugins
from fedsoft.core.class_weights import fixed_weights
from fedsoft.core.client_metrics import read_metrics
from fedsoft.core.contract import Training
from fedsoft.core.federation import Federation
from fedsoft.engine.client_host import ClientHost, chunk_size
from fedsoft.engine.resources import Resources
from fedsoft.errors import InputError
from fedsoft.flower.node.client_memory import ClientMemory, Position
from fedsoft.flower.node.config import NodeConfig
from fedsoft.flower.node.experiment import Experiment, restore
from fedsoft.flower.node.refusals import Refusal, Refused
from fedsoft.flower.node.request_log import RequestLog, digest_of
from fedsoft.flower.node.sums import Identity, NodeSums
from fedsoft.flower.request import Request
from fedsoft.flower.server.expected_replies import Expected
from fedsoft.machine.resources import memory_size
from fedsoft.runs.spec import RunSpec
from fedsoft.safety.conditions import Conditions
from fedsoft.safety.exclusions import Diverged
from fedsoft.storage.files import read_text
from fedsoft.training import as_model
from fedsoft.training.prepare import DTYPES

EXPERIMENTS = 2  # held in memory at once


class Experiments:
    """The runs that a node takes part in. Few are held in memory at once; the others are on disk."""

    def __init__(self, config: NodeConfig, log: Callable[[str], object]) -> None:
        self.config, self.log = config, log
        config.memory.mkdir(parents=True, exist_ok=True, mode=0o700)
        config.runs.mkdir(exist_ok=True, mode=0o700)
        self.loaded: OrderedDict[str, Experiment] = OrderedDict()
        self.made: tuple[tuple[object, ...], Federation] | None = None  # the last federation, and what it was made from

    def of(self, request: Request) -> Experiment:
        """Return an experiment, as far as it has come here: from memory, from disk, or begun."""
        name, policy = request.experiment, self.config.policy
        folder = self.config.runs / name
        if name in self.loaded:
            self.loaded.move_to_end(name)
            self.loaded[name].requests.check(request.spec)
            return self.loaded[name]
        while len(self.loaded) >= EXPERIMENTS:
            self.loaded.popitem(last=False)
        spec = self.config.read(request.spec)
        if not folder.exists() and len([*self.config.runs.glob("*/")]) >= policy.runs:
            raise Refused(
                Refusal.RUNS, f"'{self.config.runs}' holds memory of policy.runs = {policy.runs} runs: delete old ones"
            )
        if request.begun and not folder.exists():
            raise Refused(Refusal.FORGOTTEN, f"'{folder}' does not exist, but the run has begun")
        requests = RequestLog(folder, policy, request.spec)
        federation = self._federation(spec)
        host, metrics = self._host(spec, federation, request), read_metrics(spec.metrics, federation.shape)
        memory = ClientMemory(folder, memory_size(policy.disk))
        at = memory.last
        if at is None:
            with torch.no_grad():
                host.init_clients()
            at = memory.keep(Position(request.attempt, -1, -1), host.names, dict(host.client_states))
            requests.save()
        else:
            restore(host, at)
        privacy = host.conditions.privacy
        expected = Expected(host.training, federation, privacy, secure=spec.secure)
        sums = None if spec.secure is None else NodeSums(
            folder, spec.secure, self._identity(), host.secret, privacy, policy.nodes, spec.rounds
        )  # fmt: skip
        self.loaded[name] = Experiment(
            host, federation.held_out, memory, requests, at, privacy, expected, metrics, sums
        )  # fmt: skip
        return self.loaded[name]

    def _host(self, spec: RunSpec, federation: Federation, request: Request) -> ClientHost:
        allow = self.config.allow
        model = as_model(plugins.build("models", spec.model.name, spec.model.settings, allow), federation).by("auto")
        most = chunk_size(model, federation.train)  # larger ones would take more memory than this node allows
        algorithm = plugins.build("algorithms", spec.algorithm.name, spec.algorithm.settings, allow)
        privacy = spec.privacy
        if privacy is not None:
            privacy.check(algorithm, model, len(federation), secure=spec.secure is not None)
        solver = plugins.build("solvers", spec.solver.name, spec.solver.settings, allow)
        weights = fixed_weights(spec.class_weights, federation.shape, federation.train, model.loss)
        # The data too: noise that stays while a point changes would reveal the change.
        known = f"{request.experiment} {digest_of(request.spec)} {federation.fingerprint}"
        chunk, file = min(request.chunk or most, most), self.config.file
        return ClientHost(
            Training(algorithm, model, solver, spec.seed, DTYPES[spec.dtype], weights),
            federation.train, federation.names,
            conditions=Conditions(diverged=cast(Diverged, spec.diverged), privacy=privacy, secure=spec.secure),
            resources=Resources(chunk, workers=file.workers, memory=file.cache),
            secret=f"{self._secret()} {known}" if spec.privacy or spec.secure else "",
            least_points=self.config.policy.points,
        )  # fmt: skip

    def _identity(self) -> Identity:
        """Return what makes this node a party of sums."""
        key = self.config.private_key
        if key is None:
            raise Refused(Refusal.SUM, "the run has secure = true, for which the node's file must name its 'key'")
        return Identity(key, frozenset(self.config.file.peers), self.log)

    def _federation(self, spec: RunSpec) -> Federation:
        key = (spec.dataset, spec.partition, spec.source, spec.seed, spec.data_seed)
        if self.made is None or self.made[0] != key:
            self.made = (key, self.config.points.federation(spec))
        return self.made[1]

    def _secret(self) -> str:
        """Return what this node alone knows. The server knows the seed: noise must not come from that alone."""
        path = self.config.memory / ".secret"
        with contextlib.suppress(FileExistsError), open(path, "x", opener=_private) as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(file.fileno())
        found = read_text(path)
        if not found:
            raise InputError(f"'{path}' is empty: delete it, so that another secret is made")
        return found


def _private(path: str, flags: int) -> int:
    """Open a file for its owner only."""
    return os.open(path, flags, 0o600)
