"""Secure aggregation without processes: sums, dropouts at every stage, lies, replays, and what a server can see."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr", reason='needs Flower: pip install "fedsoft[flower]"')

from cryptography.hazmat.primitives.asymmetric import ec

from fedsoft.flower.secagg import messages, primitives
from fedsoft.flower.secagg.aggregator import Aggregator
from fedsoft.flower.secagg.messages import Delivery, Missing, Roster, Unmasking, size_of
from fedsoft.flower.secagg.party import Accepts, Book, Party, Stage
from fedsoft.flower.secagg.session import CORRUPT, ProtocolError, Session, degree
from fedsoft.secure.coding import MODELS, NUMBERS

NAMES = ("anna", "ben", "carla", "dora", "emil")
SECTIONS = ((MODELS, 7), (NUMBERS, 2))
STAGES = ("keys", "shares", "masked", "unmasking")


@cache
def identity(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def known(name: str, key: bytes) -> bool:
    return key == primitives.public_of(identity(name))


def session(names: tuple[str, ...] = NAMES, **changes: Any) -> Session:
    about: dict[str, Any] = {"run": "run", "round": 3, "ask": 0, "what": "weights", "threshold": 0.6}
    return Session(parties=names, sections=SECTIONS, **about | changes)


def numbers(name: str) -> list[Tensor]:
    """The coded numbers of a party."""
    rng = np.random.default_rng(list(name.encode()))
    return [torch.from_numpy(rng.integers(-(2**36), 2**36, count)) for _, count in SECTIONS]


def plain(names: Collection[str]) -> list[Tensor]:
    return [torch.stack(parts).sum(0) for parts in zip(*(numbers(name) for name in names), strict=True)]


def decoded(values: list[Tensor]) -> list[list[float]]:
    return [coding.decoded(value).tolist() for (coding, _), value in zip(SECTIONS, values, strict=True)]


@dataclass
class Play:
    """A session played from the first message to the last; parties go missing, messages may be changed on the way."""

    session: Session
    gone: Mapping[str, Collection[str]] = field(default_factory=dict)  # who sends nothing from a stage on
    change: Callable[[str, str, Any], Any] = lambda stage, name, message: message
    books: dict[str, Book] = field(default_factory=dict)
    known: Accepts = known

    def __post_init__(self) -> None:
        names = self.session.parties
        self.server = Aggregator(self.session, self.known)
        self.parties = {
            name: Party(self.session, name, identity(name), self.known, self.books.setdefault(name, Book()))
            for name in names
        }
        self.up: dict[str, dict[str, Any]] = {}  # by stage and party
        self.down: dict[str, dict[str, Any]] = {}

    def _sent(self, stage: str, made: Callable[[str], Any], names: Collection[str]) -> dict[str, Any]:
        away = {name for one in STAGES[: STAGES.index(stage) + 1] for name in self.gone.get(one, ())}
        self.up[stage] = {name: self.change(stage, name, made(name)) for name in names if name not in away}
        return self.up[stage]

    def result(self) -> list[Tensor]:
        parties, server = self.parties, self.server
        rosters = self.down["keys"] = server.rosters(self._sent("keys", lambda n: parties[n].advertise(), parties))
        sent = self._sent("shares", lambda n: parties[n].share(rosters[n]), rosters)
        mail = self.down["shares"] = server.deliveries(sent)
        sent = self._sent("masked", lambda n: parties[n].mask(mail[n], numbers(n)), mail)
        missing = server.missing(sent)
        self.down["masked"] = dict.fromkeys(missing.present, missing)
        return server.opened(self._sent("unmasking", lambda n: parties[n].unmask(missing), missing.present))


# --- sums and dropouts ------------------------------------------------------------------------------------------------


def test_the_sum_is_that_of_all() -> None:
    assert decoded(Play(session()).result()) == decoded(plain(NAMES))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("count", [1, 2])
def test_parties_may_go_missing_at_any_stage(stage: str, count: int) -> None:
    """Three of five are enough. Who has sent its numbers is in the sum, whatever happens to it afterwards."""
    gone = NAMES[1 : 1 + count]
    there = NAMES if stage == "unmasking" else [name for name in NAMES if name not in gone]
    assert decoded(Play(session(), {stage: gone}).result()) == decoded(plain(there))


def test_parties_may_go_missing_at_several_stages() -> None:
    gone = {"shares": ["anna"], "masked": ["dora"]}
    assert decoded(Play(session(), gone).result()) == decoded(plain(["ben", "carla", "emil"]))


@pytest.mark.parametrize("stage", STAGES)
def test_below_the_threshold_nothing_is_opened_and_it_can_be_tried_again(stage: str) -> None:
    books: dict[str, Book] = {}
    with pytest.raises(ProtocolError, match=r"2 of 5 parties sent [\w ]+, at least 3 should have: nothing is opened"):
        Play(session(), {stage: NAMES[:3]}, books=books).result()
    if stage != "unmasking":
        again = Play(session(attempt=1), books=books).result()
        assert decoded(again) == decoded(plain(NAMES))


def test_two_parties_and_a_sparse_graph() -> None:
    assert decoded(Play(session(("anna", "ben"))).result()) == decoded(plain(["anna", "ben"]))
    names = tuple(f"client {k}" for k in range(9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedsoft.flower.secagg.session.degree", lambda parties, threshold: 6)
        one = session(names)
        assert all(len(one.neighbours(name)) == 6 for name in names)
        assert all(name in one.neighbours(other) for name in names for other in one.neighbours(name))
        play = Play(one, {"shares": names[:1], "masked": names[1:2]})
        assert decoded(play.result()) == decoded(plain(names[2:]))


def test_the_graph_of_many_is_sparse_and_safe() -> None:
    from scipy.stats import hypergeom

    assert degree(50, 2 / 3) == 49
    count = degree(1000, 2 / 3)
    assert count < 250
    enough = int(np.ceil(2 / 3 * (count + 1)))
    assert 1000 * hypergeom.sf(enough - 1, 999, int(CORRUPT * 1000), count) < 2**-40


# --- what a server can see --------------------------------------------------------------------------------------------


def seen_by(play: Play, colluding: Collection[str]) -> bytes:
    """Every byte that crossed the server, and all that some parties know."""

    def flat(thing: Any) -> bytes:
        if isinstance(thing, bytes | str):
            return thing if isinstance(thing, bytes) else thing.encode()
        if isinstance(thing, Mapping):
            return b"".join(flat(key) + flat(value) for key, value in thing.items())
        if isinstance(thing, tuple | list | frozenset | set):
            return b"".join(flat(one) for one in thing)
        return b"".join(flat(value) for value in vars(thing).values())

    inside = [(play.parties[name].held, play.parties[name].own, play.parties[name].seed) for name in colluding]
    return flat([list(play.up.values()), list(play.down.values()), inside])


def test_neither_numbers_nor_secrets_cross_the_server() -> None:
    play = Play(session(), {"masked": ["dora"]})
    play.result()
    seen = seen_by(play, ())
    for name, party in play.parties.items():
        assert play.session.packed(numbers(name)) not in seen
        values = numbers(name)[0]
        assert all(MODELS.packed(value[None]) not in seen for value in values)
        assert party.seed not in seen
        assert party.key_secret not in seen


def test_fewer_parties_than_the_threshold_cannot_open_another_with_the_server() -> None:
    """Two colluding parties of five, at a threshold of three: their shares of the seed of another do not open it."""
    play = Play(session(), {"unmasking": ["anna"]})
    play.result()
    target, colluding = play.parties["anna"], ("ben", "carla")
    shares = [play.parties[name].held["anna"] for name in colluding]
    for kind, secret in ((0, target.seed), (1, target.key_secret)):
        assert primitives.joined([share[kind] for share in shares]) != secret
    enough = [play.parties[name].held["anna"][1] for name in (*colluding, "dora")]
    assert primitives.joined(enough) == target.key_secret  # one more would


def test_a_masked_vector_looks_like_noise() -> None:
    """The same numbers twice: other masks, and bytes that are spread evenly."""
    first, other = (Play(session(attempt=k)) for k in range(2))
    for play in (first, other):
        play.result()
    one, two = (play.up["masked"]["anna"].data for play in (first, other))
    assert sum(a == b for a, b in zip(one, two, strict=True)) < len(one) / 4


@pytest.mark.parametrize("told", [
    Missing(frozenset(NAMES), frozenset({"ben"})), Missing(frozenset({"anna", "carla", "dora"}), frozenset({"ben"})),
    Missing(frozenset({"anna", "ben"}), frozenset({"carla", "dora", "emil"})),
    Missing(frozenset(NAMES) - {"anna"}, frozenset({"anna"})),
], ids=["both", "neither", "too few", "itself"])  # fmt: skip
def test_a_party_tells_no_more_than_one_share_of_each(told: Missing) -> None:
    """Nor anything where a server says that somebody is present and missing, or leaves somebody out."""
    play = Play(session())
    play.result()
    party = play.parties["anna"]
    party.stage, party.book = Stage.MASKED, Book()
    with pytest.raises(ProtocolError):
        party.unmask(told)


def test_who_was_told_something_else_only_adds_noise() -> None:
    """A server that gives parties different weights for one sum gets nothing: no common mask fits."""
    one, other = session(), session(what="other weights")
    play = Play(one)
    play.parties["anna"] = Party(other, "anna", identity("anna"), known, Book())
    rosters = play.server.rosters({name: party.advertise() for name, party in play.parties.items()})
    assert play.server.liars == {"anna"}  # her signature is about another sum
    assert "anna" not in rosters["ben"].keys
    with pytest.raises(ProtocolError, match="not signed by its node for this sum"):
        play.parties["anna"].share(Roster({"ben": play.server.keys["ben"]}))


# --- lies, replays and identity ---------------------------------------------------------------------------------------


def test_a_server_cannot_swap_keys() -> None:
    play = Play(session())
    rosters = play.server.rosters({name: party.advertise() for name, party in play.parties.items()})
    mine = primitives.KeyPair.of(primitives.draw()).public
    forged = replace(rosters["anna"].keys["ben"], sealing=mine)
    with pytest.raises(ProtocolError, match="keys of 'ben' are not signed by its node") as error:
        play.parties["anna"].share(Roster({**rosters["anna"].keys, "ben": forged}))
    assert error.value.parties == ("ben",)


def test_a_node_without_the_key_of_the_run_is_left_out() -> None:
    """The others go on without it."""
    play = Play(session(), known=lambda name, key: name != "emil" and known(name, key))
    assert decoded(play.result()) == decoded(plain(NAMES[:4]))
    assert play.server.liars == {"emil"}


def test_messages_of_another_round_are_not_accepted() -> None:
    before = Play(session(round=2))
    before.result()
    old = before.up["keys"]["ben"]
    play = Play(session(), change=lambda stage, name, sent: old if (stage, name) == ("keys", "ben") else sent)
    assert decoded(play.result()) == decoded(plain(["anna", "carla", "dora", "emil"]))
    assert play.server.liars == {"ben"}


def test_old_shares_do_not_open() -> None:
    before = Play(session(round=2))
    before.result()
    old = before.up["shares"]["ben"]

    def change(stage: str, name: str, sent: Any) -> Any:
        return replace(sent, sealed=old.sealed) if (stage, name) == ("shares", "ben") else sent

    play = Play(session(), change=change)
    with pytest.raises(ProtocolError, match="1 good shares of a secret of 'ben'"):  # its own
        play.result()
    assert "ben" in play.server.liars


@pytest.mark.parametrize("changes", [{}, {"attempt": 1}, {"what": "other weights"}], ids=str)
def test_no_sum_is_opened_twice(changes: dict[str, Any]) -> None:
    """Not even with other parties or weights: the difference of two sums would tell one party's numbers."""
    books: dict[str, Book] = {}
    Play(session(), books=books).result()
    with pytest.raises(ProtocolError, match="the sum 'run 3 0' was opened before"):
        Play(session(NAMES[:4], **changes), books=books)


def test_a_stage_comes_once_and_in_order() -> None:
    play = Play(session())
    party = play.parties["anna"]
    with pytest.raises(ProtocolError, match="stage shared is not due: this party has nothing"):
        party.share(Roster({}))
    play.result()
    with pytest.raises(ProtocolError, match="not due"):
        party.advertise()
    with pytest.raises(ProtocolError, match="not due"):
        party.unmask(Missing(frozenset(NAMES), frozenset()))


def test_a_party_does_nothing_after_a_stage_that_failed() -> None:
    party = Play(session()).parties["anna"]
    party.advertise()
    with pytest.raises(ProtocolError, match="holders are there"):
        party.share(Roster({}))
    for stage in (party.advertise, lambda: party.share(Roster({})), lambda: party.mask(Delivery({}), numbers("anna"))):
        with pytest.raises(ProtocolError, match="not due: this party has failed"):
            stage()
    with pytest.raises(ProtocolError, match="not due: this party has failed"):
        party.unmask(Missing(frozenset(NAMES), frozenset()))


def test_a_holder_that_lies_about_a_share_is_named_and_does_no_harm() -> None:
    def change(stage: str, name: str, sent: Any) -> Any:
        if (stage, name) != ("unmasking", "ben"):
            return sent
        return Unmasking({one: bytes(len(share)) for one, share in sent.seeds.items()}, sent.keys)

    play = Play(session(), change=change)
    assert decoded(play.result()) == decoded(plain(NAMES))
    assert play.server.liars == {"ben"}


def test_a_party_that_shares_another_secret_than_it_uses_is_named() -> None:
    play = Play(session())
    party = play.parties["ben"]
    share = party.share

    def cheat(roster: Roster) -> Any:
        honest, party.seed = party.seed, primitives.draw()
        try:
            return share(roster)
        finally:
            party.seed = honest

    party.share = cheat  # pyright: ignore[reportAttributeAccessIssue]
    change = play.change
    play.change = lambda stage, name, sent: (
        replace(sent, seed_hash=primitives.digest(b"the seed", play.session.context, b"ben", party.seed))
        if (stage, name) == ("shares", "ben") else change(stage, name, sent)
    )  # fmt: skip
    with pytest.raises(ProtocolError, match="'ben' shared another seed than it used") as error:
        play.result()
    assert error.value.parties == ("ben",)


@pytest.mark.parametrize("stage", ["keys", "shares", "masked"])
def test_malformed_messages_leave_their_party_out(stage: str) -> None:
    wrong = {
        "keys": lambda sent: replace(sent, masking=bytes(32)),
        "shares": lambda sent: replace(sent, sealed=dict([*sent.sealed.items()][1:])),
        "masked": lambda sent: replace(sent, data=sent.data[1:]),
    }
    play = Play(session(), change=lambda at, name, sent: wrong[at](sent) if (at, name) == (stage, "ben") else sent)
    assert decoded(play.result()) == decoded(plain([name for name in NAMES if name != "ben"]))
    assert play.server.liars == {"ben"}


def test_bytes_are_those_of_the_numbers_and_a_constant_for_each_neighbour() -> None:
    """What docs/secure.md says that one client sends."""
    play = Play(session())
    play.result()
    for name in NAMES:
        sent = sum(size_of(play.up[stage][name]) for stage in STAGES)
        near = len(play.session.neighbours(name))
        assert sent - play.session.bytes <= 440 + near * 260
    assert isinstance(play.up["masked"]["anna"], messages.Masked)
    assert len(play.up["masked"]["anna"].data) == 7 * 5 + 2 * 8
