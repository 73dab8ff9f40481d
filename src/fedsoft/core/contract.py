"""What an algorithm is: a straight-line program that asks clients to do jobs.

An algorithm never holds clients. It calls `ask(job, ids, ...)`; the engine behind it knows where the clients live (rows
of a stack in this process, other processes, other machines). A job runs on the clients' side on a `Site`, which holds
their own training points and nothing else: no sources, no mixtures, no test data.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsoft.core.class_weights import FixedWeights
from fedsoft.core.client_draws import Draws
from fedsoft.core.local_solve import Solver
from fedsoft.core.model import Model
from fedsoft.core.replies import Answer, ClientState, Ids, Kind, Reply, under
from fedsoft.core.site import Site
from fedsoft.errors import SettingError


@dataclass(frozen=True)
class State:
    """What the server knows between rounds.

    Arguments:
        centers: the cluster models, `[S, P]`.
        mixture: the estimated mixtures u of the clients, `[N, S]`, where the algorithm estimates them.
        per_client: further tensors with one row for each client; a client that predicts sees only its own rows.
        extra: anything else.
    """

    centers: Tensor
    mixture: Tensor | None = None
    per_client: Mapping[str, Tensor] = field(default_factory=dict)
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def u(self) -> Tensor:
        """Return the mixtures; raise if the algorithm estimates none."""
        if self.mixture is None:
            raise KeyError("this algorithm estimates no mixtures")
        return self.mixture

    def update(
        self, *, centers: Tensor | None = None, u: Tensor | None = None,
        per_client: Mapping[str, Tensor] | None = None, extra: Mapping[str, Tensor] | None = None,
    ) -> State:  # fmt: skip
        """Return the same state with these entries replaced."""
        return State(
            self.centers if centers is None else centers, self.mixture if u is None else u,
            {**self.per_client, **(per_client or {})}, {**self.extra, **(extra or {})},
        )  # fmt: skip

    def seen_by(self, rows: Tensor | slice) -> State:
        """Return the state as some clients see it: their own rows of what is kept for each client."""
        own = {name: value[rows] for name, value in self.per_client.items()}
        return State(self.centers, None, own, self.extra)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, for files and messages."""
        named = {"centers": self.centers} | ({} if self.mixture is None else {"u": self.mixture})
        named |= {f"per_client.{name}": value for name, value in self.per_client.items()}
        return named | {f"extra.{name}": value for name, value in self.extra.items()}

    @staticmethod
    def from_tensors(named: Mapping[str, Tensor]) -> State:
        """Rebuild a state from what `tensors` returned."""
        return State(named["centers"], named.get("u"), under("per_client", named), under("extra", named))


class Needs(enum.Enum):
    """What an algorithm has to see of replies: sums over clients, or those of single ones."""

    SUMS = "sums only"
    MIXTURES = "single mixtures"
    MODELS = "single models"


class Ask(Protocol):
    """The algorithm's only way to its clients."""

    sizes: Tensor  # [N]: n_k, as clients report them
    last: bool  # whether this is the last round of the run
    secure: bool  # whether replies are seen as sums only

    def __call__(self, job: str, ids: Ids, *, each: Reply | None = None, **shared: Tensor) -> Answer:
        """Have the clients `ids` do a job; return the replies of those that answer.

        `shared` is sent to all of them, `each` holds one row for each of them.
        """
        ...

    @property
    def everyone(self) -> Ids: ...

    def generator(self, *labels: str | int) -> np.random.Generator:
        """Return a generator of this run and round, for draws by the server."""
        ...

    def generators(self, *labels: str | int) -> Draws:
        """Return draws of this run and round for each client, for what the server draws about clients."""
        ...


class Gate(Protocol):
    """How the predictions of several models become one, where that depends on the input, too."""

    def combined(self, x: Tensor, owners: Tensor, each: Tensor) -> Tensor:
        """Return predictions for inputs `x[points, ...]` of clients `owners[points]`, from `each[J, points, ...]`."""
        ...

    def row(self, k: int) -> Gate:
        """Return the gate of one client alone."""
        ...


@dataclass(frozen=True)
class PersonalModels:
    """What m clients predict with.

    Arguments:
        models: a model for each client, `[m, P]`; with `shares`, models `[J, P]` that all of them use, or J models for
            each client, `[m, J, P]`.
        shares: the weights with which each client adds up their predictions, `[m, J]`.
        gate: how their predictions become one, where `shares` alone do not say so.
    """

    models: Tensor
    shares: Tensor | None = None
    gate: Gate | None = None


@dataclass(frozen=True)
class Way:
    """How a client comes from a center to a model of its own, see `clusters.personal_way`.

    Arguments:
        strengths: of the pull towards the center, divided by n_k, in each of its tasks.
        scale: what the mean difference from the center is multiplied by in the end.
        rate: what the learning rate of the run is multiplied by.
    """

    strengths: tuple[float, ...]
    scale: float
    rate: float = 1.0


@dataclass(frozen=True)
class Means:
    """Centers as means over a fixed number of clients, drawn uniformly or not."""

    members: int
    uniform: bool


JobFunction = Callable[..., tuple[ClientState, Reply]]
"""The method of a job: `(self, site, mine, shared) -> (mine, reply)`, over a stack of m >= 1 clients."""


@dataclass(frozen=True)
class Job:
    """What clients can be asked to do, and the kind of every entry that its reply may have."""

    function: JobFunction
    replies: Mapping[str, Kind]


class Algorithm(abc.ABC):
    """The contract: settings (a frozen dataclass), `init`, `round` and `predict`. Jobs are methods marked with `@job`.

    The other members have defaults that suit most algorithms; engines and safeguards use them.
    """

    K: Any = None
    """Clients drawn in a round, where that is a setting of the algorithm: a number, or "all"."""
    S: Any = None
    """The number of centers, where that is a setting of the algorithm."""
    partial_jobs: ClassVar[frozenset[str]] = frozenset()
    """Jobs that train on some of a client's points: their work is anything up to that of a task."""
    jobs: ClassVar[Mapping[str, Job]] = {}
    """What clients can be asked to do, by name: the methods marked with `@job`."""

    def __init_subclass__(cls) -> None:
        members = {name: member for base in reversed(cls.__mro__) for name, member in vars(base).items()}
        functions = {name: member for name, member in members.items() if isinstance(member, FunctionType)}
        cls.jobs = {
            name: Job(function, function.__dict__[REPLIES])
            for name, function in functions.items()
            if REPLIES in function.__dict__
        }

    def closing_tasks(self, model: Model) -> int:
        """Return the extra tasks of all clients in the last round: reserved when work is limited."""
        return 0

    def check(self, clients: int) -> None:
        """Raise an `InputError` for settings that do not fit this many clients: here, for a K above their number."""
        if isinstance(self.K, int) and self.K > clients:
            raise SettingError(type(self).__name__, "K", self.K, f"should be at most {clients}, the number of clients")

    @abc.abstractmethod
    def init(self, site: Site, clients: int) -> State:
        """Return the server's initial state. The site has no clients; it offers the model and draws."""

    def init_client(self, site: Site) -> ClientState:
        """Return the initial state of the clients; by default they keep nothing."""
        return {}

    @abc.abstractmethod
    def round(self, state: State, t: int, ask: Ask) -> tuple[State, dict[str, Any]]:
        """Play one communication round; return the new state and what to log about the round."""

    @abc.abstractmethod
    def predict(self, site: Site, mine: ClientState, state: State) -> PersonalModels:
        """Return what the clients of the site predict with. `state` holds only their rows of `per_client`."""

    @property
    def center_count(self) -> int:
        """The largest number of centers: the setting S, where there is one."""
        return self.S or 1

    @property
    def pull(self) -> float:
        """The strength of the proximal pull towards the centers, also for new clients."""
        return 1.0

    def adopt(self, site: Site, state: State) -> PersonalModels | None:
        """Return personal models of clients that join after training, from shared models as they are.

        None: each is given one proximal solve, see `onboarding`.
        """
        return None

    def way(self, state: State) -> Way | None:
        """Return how clients that join later come to a model of their own; None: by one solve under `pull`."""
        return None

    @property
    def smallest_share(self) -> float:
        """The smallest share of a mixture; its sum may exceed 1 by it."""
        return 0.0

    @property
    def rates(self) -> tuple[str, ...]:
        """The settings to lower when training diverges, where the local solver's rate is not used."""
        return ()

    @property
    def counting(self) -> int:
        """How often one estimation uses clients' counts of points; 0 where no counts leave the clients."""
        return 0

    @property
    def needs(self) -> Needs:
        """What has to be seen of replies with these settings. Where it is not sums, `secure = true` is refused."""
        return Needs.SUMS

    @property
    def weighs(self) -> bool:
        """Whether, where replies are seen as sums only, clients send models that they weigh themselves, no more."""
        return False

    def means(self, clients: int) -> Means | None:
        """Return how centers are means over a fixed number of clients; None if they are not."""
        return None


@dataclass(frozen=True)
class Training:
    """What is trained: everything that the numbers of a run depend on, besides the clients."""

    algorithm: Algorithm
    model: Model
    solver: Solver
    seed: int
    dtype: torch.dtype = torch.float32
    class_weights: FixedWeights | None = None


J = TypeVar("J", bound=JobFunction)
REPLIES = "replies"  # the mark of a job


def job(**replies: Kind) -> Callable[[J], J]:
    """Mark a method as a job.

    Arguments:
        replies: the entries that its reply may have, and the kind of each.
    """

    def mark(function: J) -> J:
        function.__dict__[REPLIES] = replies
        return function

    return mark
