"""The server's side of a federation: carries the questions of an algorithm to nodes, and what they answer back.

Clients are found by name: every node says which ones it holds. What comes back is looked at before it is used (see
`screen`). A client that does not answer in time, refuses, or is not believed is dropped for this ask, and named in
`federation.jsonl` in the run's folder; `wire.jsonl` beside it lists every message that crossed the wire. What clients
keep stays with them: the run's saved state holds none of it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedsoft.clientdata import ClientData
from fedsoft.contract import Algorithm, Answer, Ids, Reply, State
from fedsoft.engines.flower.journal import Journal
from fedsoft.engines.flower.roster import Roster
from fedsoft.engines.flower.screen import Forms, Rows, Screen
from fedsoft.engines.flower.terms import Post, QuorumError, Rules
from fedsoft.engines.flower.wire import Parcel, pack
from fedsoft.errors import InputError
from fedsoft.federation import Federation
from fedsoft.host import Cost, size_of
from fedsoft.local import Solver
from fedsoft.machine import memory_size
from fedsoft.model import Model
from fedsoft.runs.folder import RunFolder
from fedsoft.simulate import Engine
from fedsoft.tensorfile import Blocks
from fedsoft.trust.absence import Absent
from fedsoft.trust.attack import Attack
from fedsoft.trust.guards import Care, Guards
from fedsoft.trust.robust import Rule
from fedsoft.vault import Budget, ClientRows, Vault

WHICH = ("train", "held_out")
SMALL, MODELS = 2**20, 64  # an answer has at most so many bytes, and so many models for each client


class _Elsewhere(ClientRows):
    """What clients keep, seen from the server: nothing."""

    def __init__(self) -> None:
        self.forms = {}

    def take(self, rows: np.ndarray, names: Any = None) -> dict[str, Tensor]:
        return {}

    def blocks(self, name: str) -> Iterator[tuple[int, Tensor]]:
        raise KeyError(name)

    def __getitem__(self, name: str) -> Tensor:
        raise KeyError(name)


@dataclass
class _Tally:
    """What happened to clients in one round."""

    dropped: set[str] = field(default_factory=set)
    late: int = 0


class FlowerEngine(Engine):
    """All clients of a federation, at nodes that a `Post` reaches. For other arguments see `Engine` and `Room`.

    Arguments:
        post: the way to the nodes.
        spec: the run as plain values; nodes build algorithm, model and solver from it.
        rules: when an ask is over.
        tell: is told in one sentence what goes wrong.
    """

    saves_every_round = True

    def __init__(
        self, algorithm: Algorithm, model: Model, solver: Solver, federation: Federation, *,
        seed: int, chunk: int | None = None, device: str = "cpu", dtype: torch.dtype = torch.float32,
        absent: Absent | None = None, workers: int | None = None, memory: int | str | None = None,
        rule: Rule | None = None, attack: Attack | None = None, liars: Set[str] = frozenset(),
        post: Post, spec: dict[str, Any], rules: Rules, tell: Callable[[str], object] = print,
        care: Care | None = None,
    ) -> None:  # fmt: skip
        if attack is not None or federation.before is not None:
            raise InputError(
                "engine 'flower' has real clients: [attack] and data that changes are for 'local' and 'ray'"
            )
        super().__init__(
            algorithm, model, solver, federation, seed=seed, device=device, dtype=dtype, absent=absent, rule=rule,
            care=care,
        )  # fmt: skip
        self.federation, self.post, self.spec, self.rules = federation, post, spec, rules
        self.chunk, self.budget = chunk, Budget(memory_size(memory))
        # Clients are strangers here: their norms are looked at even if the run does not ask for it.
        self.guards = Guards.of(replace(self.care, norm=self.care.norm or rules.norm), algorithm, model.size)
        self.screen = Screen(self.guards)
        counted = dict(zip(self.names, self.sizes.tolist(), strict=True)) if len(federation.train.x) else {}
        self.journal = Journal(tell)
        self.roster = Roster(self.names, counted, post, rules, self.journal)
        self.forms: dict[str, Forms] = {}
        self.folder: Path | None = None
        self.experiment, self.asks = f"run-{secrets.token_hex(8)}", 0
        self.tally = _Tally()
        self.scored: tuple[State, dict[str, Tensor]] | None = None

    # --- the run ------------------------------------------------------------------------------------------------------

    @property
    @override
    def memory(self) -> ClientRows:
        return _Elsewhere()

    @override
    def use_folder(self, folder: Path) -> None:
        """Nodes keep memory under the name of the experiment; every start of the server is a new attempt at it."""
        self.folder = self.journal.folder = folder
        path = folder / "federation.json"
        name = f"{folder.name[:80]}-{secrets.token_hex(8)}"
        known: dict[str, Any] = {"experiment": name, "attempt": 0, "secret": secrets.token_hex(16)}
        if path.exists():
            try:
                known |= json.loads(path.read_text("utf-8"))
            except (OSError, ValueError) as error:
                raise InputError(f"'{path}' is damaged: {error}") from None
        self.experiment, self.journal.attempt = str(known["experiment"]), int(known["attempt"]) + 1
        self.roster.counted |= known.get("sizes", {})
        self.secret = str(known["secret"])  # nodes know the seed: noise that hides clients must not come from it alone
        self._remember()

    def _remember(self) -> None:
        if self.folder is not None:
            known = {"experiment": self.experiment, "attempt": self.journal.attempt, "sizes": self.roster.counted}
            known["secret"] = self.secret
            RunFolder(self.folder).write("federation.json", (json.dumps(known, indent=1) + "\n").encode())

    @override
    def enrol(self) -> None:
        self._assemble()

    @override
    def restore(self, memory: Blocks) -> None:
        """Nodes have their clients' memory, and go back to the beginning of the round that is asked for."""
        if memory.forms:
            raise InputError("this run was begun by another engine, which saved what its clients keep: use that one")
        self._assemble()

    @override
    def round(self, state: State, t: int, last: bool = False) -> tuple[State, dict[str, Any]]:
        self.asks, self.tally, self.scored, self.journal.t = 0, _Tally(), None, t
        state, notes = super().round(state, t, last)
        return state, notes | {"dropped": len(self.tally.dropped), "late": self.tally.late}

    # --- asking -------------------------------------------------------------------------------------------------------

    @override
    def carry(self, job: str, ids: Ids, each: Reply, shared: Mapping[str, Tensor]) -> Answer:
        number, self.asks = self.asks, self.asks + 1
        if not len(ids):
            return Answer(ids, {})
        head = {"kind": "job", "job": job, "round": self.t, "ask": number}
        body = {f"shared/{name}": value for name, value in shared.items()}
        rows = {f"each/{name}": value for name, value in each.items()}
        good = self._ask(head, [self.names[k] for k in ids], body, rows, job)
        places = {self.names[k]: int(k) for k in ids}
        found = sorted((places[client], tensors) for client, tensors in good.items())
        return self._answer([k for k, _ in found], [tensors for _, tensors in found])

    def _answer(self, ids: list[int], rows: list[dict[str, Tensor]]) -> Answer:
        if not ids:
            return Answer(np.array([], dtype=np.int64), {})
        vault = Vault(len(ids), self.budget, folder=self.folder, device=self.device)
        vault.put(np.arange(len(ids)), {name: torch.stack([row[name] for row in rows]) for name in rows[0]})
        self.cost.bytes_up += sum(size_of(row) for row in rows)
        return Answer(np.array(ids, dtype=np.int64), {name: vault.column(name) for name in vault})

    def _ask(
        self, head: dict[str, Any], clients: list[str], body: Mapping[str, Tensor], rows: Mapping[str, Tensor],
        kind: str,
    ) -> dict[str, dict[str, Tensor]]:  # fmt: skip
        """Rows of those that answered and are believed. Asks the others again while there are too few."""
        good: dict[str, dict[str, Tensor]] = {}
        bad: dict[str, str] = {}
        for _ in range(1 + self.rules.patience):
            missing = [client for client in clients if client not in good]
            believed, bad = self._once(head, missing, clients, body, rows, kind)
            good |= believed
            if len(good) >= self.rules.quorum * len(clients):
                break
            self.journal.say(
                "too few", clients=[*bad], reason=f"{len(good)} of {len(clients)} clients answered '{kind}'"
            )
        else:
            raise QuorumError(
                f"{len(good)} of {len(clients)} clients answered '{kind}' of round {self.t}, at least "
                f"{self.rules.quorum:.0%} should: the run is saved as it was, take it up when they are back"
            )
        self.tally.dropped |= set(bad)
        return good

    def _once(
        self, head: dict[str, Any], missing: list[str], clients: list[str], body: Mapping[str, Tensor],
        rows: Mapping[str, Tensor], kind: str,
    ) -> tuple[dict[str, dict[str, Tensor]], dict[str, str]]:  # fmt: skip
        self.roster.meet(self._about({"kind": "hello"}))
        index = {client: k for k, client in enumerate(clients)}
        groups, nowhere = self.roster.groups(missing)
        bad = dict.fromkeys(nowhere, "no node holds it")
        letters = {}
        whole = pack(body) if not rows else b""  # the same bytes for everybody, unless each has rows of its own
        for node, names in groups.items():
            part = torch.tensor([index[name] for name in names])
            text, _ = Parcel(self._about(head) | {"clients": names}, {}).packed()
            letters[node] = (text, whole or pack({**body, **{name: value[part] for name, value in rows.items()}}))
            self.journal.note("down", node, head, letters[node])
        replies, seen = [], set()
        for node, answer in self.post.exchange(letters, self.rules.timeout):
            seen.add(node)
            if isinstance(answer, str):
                told = answer
            else:
                self.journal.note("up", node, head, answer)
                told, reply, cost = self._opened(node, answer, groups[node])
                if reply is not None:
                    replies.append(reply)
                    self.cost += cost
            if told:
                bad |= dict.fromkeys(groups[node], told)
        for node in groups.keys() - seen:
            bad |= dict.fromkeys(groups[node], f"no answer within {self.rules.timeout:g} s")
        known = None if self.clusters is None else dict(zip(self.names, self.clusters.tolist(), strict=True))
        centers = len(body["shared/centers"]) if "shared/centers" in body else None
        good, unlikely = self.screen.sift(replies, self.forms.get(kind), self.roster.counted, known, centers)
        bad |= unlikely
        self.excluded += unlikely.items()
        if good and not unlikely and kind not in self.forms:
            self.forms[kind] = replies[0].forms()
        for client, why in bad.items():
            self.journal.say("dropped", clients=[client], reason=why, node=self.roster.homes.get(client), ask=head)
        for node in self.post.late():
            self.tally.late += 1
            self.journal.say("late", clients=[c for c, home in self.roster.homes.items() if home == node], node=node,
                     reason="its answer came after the time was over")  # fmt: skip
        return good, bad

    def _opened(self, node: int, answer: tuple[str, bytes], clients: list[str]) -> tuple[str, Rows | None, Cost]:
        """A reply as rows, and what it cost; or why it is none."""
        if len(answer[1]) > SMALL + MODELS * 8 * self.model.size * len(clients):
            return f"its answer is far too long: {len(answer[1])} bytes", None, Cost()
        try:
            parcel = Parcel.unpacked(*answer)
        except InputError as error:
            return str(error), None, Cost()
        if "refused" in parcel.head:
            return f"it refused: {parcel.head['refused']}", None, Cost()
        if parcel.head.get("clients") != clients:
            return "it answered for other clients than those asked", None, Cost()
        told = parcel.head.get("cost", {})
        spent = [told.get(key, 0) if isinstance(told, dict) else None for key in ("gradients", "evaluations")]
        if not all(type(value) is int and 0 <= value < 2**62 for value in spent):
            return "it told no cost", None, Cost()
        return (
            "",
            Rows(self.journal.title(node), clients, parcel.tensors),
            Cost(*[int(value or 0) for value in spent]),
        )

    def _about(self, head: dict[str, Any]) -> dict[str, Any]:
        """A head with what every message says."""
        named = {"experiment": self.experiment, "attempt": self.journal.attempt, "spec": self.spec}
        return head | named | ({"chunk": self.chunk} if self.chunk is not None else {})

    def _assemble(self) -> None:
        self.roster.assemble(self._about({"kind": "hello"}))
        self.sizes = torch.tensor([self.roster.counted[name] for name in self.names], device=self.device)
        self._remember()

    # --- scores -------------------------------------------------------------------------------------------------------

    @override
    def personal_scores(self, state: State, data: ClientData) -> Tensor:
        """Clients score themselves, on training and held-out points at once."""
        if self.scored is None or self.scored[0] is not state:
            body = {f"state/{n}": value for n, value in state.items() if n != "u" and not n.endswith("_k")}
            rows = {f"state/{n}": value for n, value in state.items() if n.endswith("_k")}
            found = {which: torch.full((len(self.names),), torch.nan, dtype=torch.float64) for which in WHICH}
            # A score may be NaN where a client holds no points out: it is looked at without the screen.
            for client, tensors in self._scores(body, rows).items():
                for which in WHICH:
                    found[which][self.names.index(client)] = tensors[which]
            self.scored = (state, found)
        return self.scored[1]["train" if data is self.federation.train else "held_out"]

    def _scores(self, body: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        self.roster.meet(self._about({"kind": "hello"}))
        head, index = {"kind": "scores"}, {name: k for k, name in enumerate(self.names)}
        groups, _ = self.roster.groups(self.names)
        letters = {}
        for node, names in groups.items():
            part = torch.tensor([index[name] for name in names])
            sent = {**body, **{name: value[part] for name, value in rows.items()}}
            letters[node] = Parcel(self._about(head) | {"clients": names}, sent).packed()
            self.journal.note("down", node, head, letters[node])
        found: dict[str, dict[str, Tensor]] = {}
        for node, answer in self.post.exchange(letters, self.rules.timeout):
            told, reply = answer if isinstance(answer, str) else "", None
            if not isinstance(answer, str):
                self.journal.note("up", node, head, answer)
                told, reply, _ = self._opened(node, answer, groups[node])
            like = (torch.float64, (len(groups[node]),))
            sent = {} if reply is None else reply.tensors
            if sent.keys() == set(WHICH) and all((t.dtype, tuple(t.shape)) == like for t in sent.values()):
                found |= {client: {which: sent[which][k] for which in WHICH} for k, client in enumerate(groups[node])}
                continue
            self.journal.say("unscored", node=node, clients=groups[node], reason=told or "its scores have a wrong form")
        return found

    @override
    def predict_for(self, k: int, x: Tensor, state: State) -> Tensor:
        raise InputError(f"client '{self.names[k]}' keeps its personal model at its node: predict there")
