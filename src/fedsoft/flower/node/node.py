"""The clients' side of a federation: a node that does jobs on its own points and keeps its clients' memory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from fedsoft.core.client_data import ClientData
from fedsoft.core.client_metrics import Judged
from fedsoft.core.contract import State
from fedsoft.engine.client_host import Ticket
from fedsoft.errors import DivergedError, FedsoftError, InputError
from fedsoft.escape import shown
from fedsoft.flower.jobs import NO_JOBS
from fedsoft.flower.node.client_memory import Position
from fedsoft.flower.node.config import NodeConfig
from fedsoft.flower.node.experiment import Experiment, chain_of
from fedsoft.flower.node.experiments import Experiments
from fedsoft.flower.node.openings import Kept
from fedsoft.flower.node.privacy_budget import PrivacyBudget
from fedsoft.flower.node.refusals import Refusal, Refused
from fedsoft.flower.request import Request
from fedsoft.flower.secagg.messages import Stage
from fedsoft.flower.wire import WireMessage
from fedsoft.machine.resources import is_out_of_memory
from fedsoft.plugins import ConsentError
from fedsoft.safety.privacy import Released

FAILURE = 1.0  # what a job that failed costs of the privacy budget: as much as noise of 1


def log(text: str) -> None:
    """Write to the node's own log, which no server sees."""
    print(shown(text), file=sys.stderr, flush=True)


class Node:
    """Answers a server's requests, as far as its owner's file allows. One at a time.

    Arguments:
        config: the owner's file.
        log: gets a line for each refusal.
    """

    def __init__(self, config: NodeConfig, log: Callable[[str], object] = log) -> None:
        self.config, self.log = config, log
        self.budget = PrivacyBudget(config.memory, config.policy)
        self.experiments = Experiments(config, log)
        self.most_models = int(config.policy.bound("S")[1])  # that a message may hold

    def answer(self, message: WireMessage) -> WireMessage:
        """Return the reply to a message: always one, if only a code from a fixed list. The reason is only logged."""
        try:
            request = _request(message)
            kinds = {"hello": self._hello, "job": self._job, "sum": self._sum, "scores": self._scores}
            return kinds[request.kind](request, message)
        except Exception as error:  # whatever a loader or a module of the owner's raises: the node goes on
            code = _code(error)
            self.log(f"refused ({code}): {error if isinstance(error, FedsoftError) else repr(error)}")
            return self.refusal(code)

    def refusal(self, code: Refusal) -> WireMessage:
        """Return all that a server learns."""
        return WireMessage({"node": self.config.name, "refused": str(code)}, {})

    # --- the kinds of requests ----------------------------------------------------------------------------------------

    def _hello(self, request: Request, message: WireMessage) -> WireMessage:
        """Return the names of the clients, and their numbers of points."""
        host = self.experiments.of(request).host
        head = {"node": self.config.name, "clients": host.names, "sizes": host.data.sizes.tolist()}
        return WireMessage(head, {})

    def _job(self, request: Request, message: WireMessage) -> WireMessage:
        """Have some clients do a job. Their new memory is on disk before the reply is sent."""
        here, names = self.experiments.of(request), request.clients
        position = Position(request.attempt, request.round, request.ask)
        rows, each, shared = here.rows(names), message.under("each/"), message.under("shared/")
        here.check_sent(len(rows), each, shared, self.most_models)
        base = here.memory.before(position)
        if base is None:
            raise Refused(Refusal.OVERTAKEN, f"nothing is kept of experiment '{request.experiment}'")
        here.requests.count(position.round)
        here.go_to(base)
        chain, past = chain_of(base.chain, request, message), NO_JOBS
        if here.sums is not None:
            past = here.sums.past_of(request, base.past, each, shared)
        if self.config.policy.requires_noise:  # before any point is looked at, so that the refusal reveals nothing
            right = here.expected.of(request.job, shared, each, request.round)
            self.config.policy.check_reply([name for name, _, _ in right.forms], right.released)
        try:
            with self._paid(here, request) as releases:
                ticket = Ticket(position.round, chain)
                cost, replies, facts, released = here.host.run_job(request.job, rows, each, shared, ticket)
                self.config.policy.check_reply(replies, released)
                releases.append(released)
            states = dict(here.host.client_states)
            here.at = here.memory.keep(position, here.host.names, states, base, chain, past)
        except BaseException:
            # What is on disk is whole, what is in memory may not be.
            self.experiments.loaded.pop(request.experiment, None)
            raise
        spent = {"gradients": cost.gradients, "evaluations": cost.evaluations}
        if here.sums is not None:
            if facts.refused:
                raise Refused(Refusal.DIVERGED, f"{len(facts.refused)} clients have nothing to sum")
            kinds = here.host.algorithm.jobs[request.job].replies
            points = here.host.data.sizes[torch.as_tensor(rows)].tolist()
            here.sums.keep(request, Kept(chain, past, request.job, names, points, dict(replies), kinds, shared))
            return WireMessage({"node": self.config.name, "clients": names, "cost": spent}, {})
        sent = {name: _lost(value, [*facts.refused]) for name, value in replies.items()}
        return WireMessage({"node": self.config.name, "clients": names, "cost": spent}, sent)

    def _sum(self, request: Request, message: WireMessage) -> WireMessage:
        """Take part in one stage of a sum over replies that stay here."""
        here = self.experiments.of(request)
        if here.sums is None:
            raise Refused(Refusal.SUM, "the run does not have secure = true")
        if request.sum.get("stage") == Stage.NUMBERS:
            here.requests.count(request.round)
        return here.sums.answer(request, message)

    @contextlib.contextmanager
    def _paid(self, here: Experiment, request: Request) -> Iterator[list[Released]]:
        """Charge the budget for what a job releases. One that fails costs as if it had released all it could.

        That it failed may reveal something about points, so the reason is not sent where noise is mandatory. It is paid
        for in advance: a job may also end with its process. One that the owner stopped costs nothing.
        """
        releases: list[Released] = []
        if here.privacy is None:
            yield releases
            return
        most = here.privacy.precision(Released(1, 1))
        before = self.budget.check(request.clients, most)
        # A server chooses the noise, and so the price of an answer; that of a failure is fixed.
        self.budget.spend(before, request.clients, max(most, FAILURE))
        try:
            yield releases
        except Exception as error:
            if self.config.policy.requires_noise:
                raise Refused(Refusal.FAILED, f"{error!r}, after job '{request.job}' had begun") from None
            raise
        except BaseException:
            self.budget.spend(before, request.clients, 0.0)
            raise
        self.budget.spend(before, request.clients, here.privacy.precision(releases[0]))

    def _scores(self, request: Request, message: WireMessage) -> WireMessage:
        """Return metrics of each client's personal predictions on its own points: two numbers of each."""
        if not self.config.policy.sends_scores:
            raise Refused(Refusal.NOT_ALLOWED, "policy.scores is off, or noise is mandatory")
        here = self.experiments.of(request)
        if here.privacy is not None and here.privacy.covers_scores(here.sums is not None):
            raise Refused(Refusal.PRIVACY, "scores have no noise, but what else leaves clients in this run has")
        rows = here.rows(request.clients)
        here.check_sent(len(rows), message.under("clients/"), message.under("state/"), self.most_models)
        here.requests.count_scores(request.round)
        if here.memory.last is not None:
            here.go_to(here.memory.last)
        own = {}
        for name, value in message.under("clients/").items():  # rows of the named clients only: put at their places
            own[name] = value.new_zeros((len(here.host), *value.shape[1:]))
            own[name][torch.as_tensor(rows)] = value
        state = replace(_state(message.under("state/")), per_client=own)
        with torch.no_grad():
            scores = {
                "train": self._scored(here, state, here.host.data)[rows],
                "held_out": self._scored(here, state, here.held_out)[rows],
            }
            if here.metrics:
                scores |= {
                    "train_metrics": self._metrics(here, state, here.host.data)[rows],
                    "held_out_metrics": self._metrics(here, state, here.held_out)[rows],
                }
        return WireMessage({"node": self.config.name, "clients": request.clients}, scores)

    def _scored(self, here: Experiment, state: State, data: ClientData) -> torch.Tensor:
        """Return scores; NaN for means over fewer points than the owner requires."""
        scores = here.host.personal_scores(state, data)
        return torch.where(data.sizes >= self.config.policy.points, scores, torch.nan)

    def _metrics(self, here: Experiment, state: State, data: ClientData) -> torch.Tensor:
        """Return the other metrics, `[clients, metrics]`; NaN for what the owner does not let clients send."""
        judged = Judged.of(data, here.host.personal_predictions(state, data))
        unsent = torch.full((len(data),), torch.nan, dtype=torch.float64)
        allowed, enough = self.config.policy.metrics, (data.sizes >= self.config.policy.points)[:, None]
        found = [one.values(judged) if one.name in allowed else unsent for one in here.metrics]
        return torch.where(enough, torch.stack(found, 1), torch.nan)


def _request(message: WireMessage) -> Request:
    try:
        return Request.read(message.head)
    except InputError as error:
        raise Refused(Refusal.MESSAGE, str(error)) from None


def _state(sent: dict[str, torch.Tensor]) -> State:
    """Return the server's state, as far as clients predict by it."""
    if "centers" not in sent:
        raise Refused(Refusal.MESSAGE, "no centers are sent")
    return State.from_tensors(sent)


def _code(error: Exception) -> Refusal:
    """Return what a server learns about an error."""
    if isinstance(error, Refused):
        return error.code
    if isinstance(error, ConsentError):
        return Refusal.NOT_ALLOWED
    if isinstance(error, DivergedError):
        return Refusal.DIVERGED
    if is_out_of_memory(error):
        return Refusal.MEMORY
    return Refusal.FAILED


def _lost(value: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Replace what clients send whose training diverged by NaN, which no server takes for a reply."""
    return value.index_fill(0, torch.tensor(rows), torch.nan) if rows and value.is_floating_point() else value
