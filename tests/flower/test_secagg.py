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
from fedsoft.flower.secagg.aggregator import Aggregator, Keyring
from fedsoft.flower.secagg.messages import Confirmed, Delivery, Missing, Roster, Unmasking, size_of
from fedsoft.flower.secagg.party import Accepts, Book, Member, Party, hash_of_seed, listed, pair, seed_key
from fedsoft.flower.secagg.session import CORRUPT, Agreement, ProtocolError, Session, graph
from fedsoft.secure.coding import MODELS, NUMBERS

NAMES = ("anna", "ben", "carla", "dora", "emil")
SECTIONS = ((MODELS, 7), (NUMBERS, 2))
STAGES = ("keys", "shares", "masked", "check", "unmasking")


@cache
def identity(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def known(name: str, key: bytes) -> bool:
    return key == primitives.public_of(identity(name))


def session(names: tuple[str, ...] = NAMES, **changes: Any) -> Session:
    about: dict[str, Any] = {"round": 3, "ask": 0, "what": "weights"}
    return Session(agreement(names), sections=SECTIONS, **about | changes)


def agreement(names: tuple[str, ...] = NAMES, **changes: Any) -> Agreement:
    return Agreement(**{"run": "run", "number": "1", "parties": names, "threshold": 0.6} | changes)


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
        agreed = self.session.agreement
        self.ring = Keyring(agreed, self.known)
        self.members = {name: Member(agreed, name, identity(name), self.known) for name in agreed.parties}
        self.parties: dict[str, Party] = {}
        self.up: dict[str, dict[str, Any]] = {}  # by stage and party
        self.down: dict[str, dict[str, Any]] = {}

    def _sent(self, stage: str, made: Callable[[str], Any], names: Collection[str]) -> dict[str, Any]:
        away = {name for one in STAGES[: STAGES.index(stage) + 1] for name in self.gone.get(one, ())}
        self.up[stage] = {name: self.change(stage, name, made(name)) for name in names if name not in away}
        return self.up[stage]

    def agree(self) -> None:
        """The first two stages: keys for several sums."""
        members, ring = self.members, self.ring
        rosters = self.down["keys"] = ring.rosters(self._sent("keys", lambda n: members[n].advertise(), members))
        sent = self._sent("shares", lambda n: members[n].share(rosters[n]), rosters)
        mail = self.down["shares"] = ring.deliveries(sent)
        for name, delivery in mail.items():
            members[name].receive(delivery)

    def sum(self, session: Session | None = None) -> list[Tensor]:
        """The other three: one sum."""
        session = session or self.session
        server = self.server = Aggregator(session, self.ring)
        books = {name: self.books.setdefault(name, Book()) for name in self.ring.shares}
        self.parties = parties = {name: Party(self.members[name], session, books[name]) for name in books}
        missing = server.missing(self._sent("masked", lambda n: parties[n].mask(numbers(n)), parties))
        self.down["masked"] = dict.fromkeys(missing.present, missing)
        told = self.down["check"] = server.confirmed(
            self._sent("check", lambda n: parties[n].confirm(missing), missing.present)
        )
        return server.opened(self._sent("unmasking", lambda n: parties[n].unmask(told[n]), told))

    def result(self) -> list[Tensor]:
        self.agree()
        return self.sum()

    @property
    def liars(self) -> set[str]:
        return self.ring.liars

    @property
    def doubts(self) -> set[tuple[str, str]]:
        return self.ring.doubts


# --- sums and dropouts ------------------------------------------------------------------------------------------------


def test_the_sum_is_that_of_all() -> None:
    assert decoded(Play(session()).result()) == decoded(plain(NAMES))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("count", [1, 2])
def test_parties_may_go_missing_at_any_stage(stage: str, count: int) -> None:
    """Three of five are enough. Who has sent its numbers is in the sum, whatever happens to it afterwards."""
    gone = NAMES[1 : 1 + count]
    there = NAMES if stage in ("check", "unmasking") else [name for name in NAMES if name not in gone]
    assert decoded(Play(session(), {stage: gone}).result()) == decoded(plain(there))


def test_parties_may_go_missing_at_several_stages() -> None:
    gone = {"shares": ["anna"], "masked": ["dora"]}
    assert decoded(Play(session(), gone).result()) == decoded(plain(["ben", "carla", "emil"]))


@pytest.mark.parametrize("stage", STAGES)
def test_below_the_threshold_nothing_is_opened_and_it_can_be_tried_again(stage: str) -> None:
    books: dict[str, Book] = {}
    with pytest.raises(ProtocolError, match=r"2 of 5 parties (sent|signed) [\w ]+, at least 3 should have: nothing"):
        Play(session(), {stage: NAMES[:3]}, books=books).result()
    if stage != "unmasking":  # else some have told their shares
        again = Play(session(attempt=1), books=books).result()
        assert decoded(again) == decoded(plain(NAMES))


def test_two_parties_and_a_sparse_graph() -> None:
    assert decoded(Play(session(("anna", "ben"))).result()) == decoded(plain(["anna", "ben"]))
    names = tuple(f"client {k}" for k in range(9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedsoft.flower.secagg.session.graph", lambda parties, threshold: (6, 5))
        one = session(names)
        ring = one.agreement
        assert all(len(ring.neighbours(name)) == 6 for name in names)
        assert all(name in ring.neighbours(other) for name in names for other in ring.neighbours(name))
        play = Play(one, {"shares": names[:1], "masked": names[1:2]})
        assert decoded(play.result()) == decoded(plain(names[2:]))


@pytest.mark.parametrize("parties", [65, 100, 1000])
@pytest.mark.parametrize("threshold", [2 / 3, 0.8])
def test_the_graph_of_many_is_sparse_and_safe(parties: int, threshold: float) -> None:
    """From a server that lies, too: see `graph` for what it would need."""
    from scipy.stats import hypergeom

    assert graph(50, 2 / 3) == (49, 34)
    count, t = graph(parties, threshold)
    assert count < (300 if parties == 1000 else parties - 1)
    assert t >= threshold * (count + 1)
    corrupt = int(CORRUPT * parties)
    assert parties * hypergeom.sf(2 * t - (count + 1) - 1, parties - 1, corrupt, count) < 2**-40
    assert parties * hypergeom.sf(t - count // 2 - 2, parties, corrupt, count // 2) < 2**-40
    assert parties * hypergeom.cdf(t - 1, parties - 1, parties - 1 - int(0.1 * parties), count) < 2**-20


def test_two_lists_cannot_both_have_enough_signatures() -> None:
    """However near to a half the threshold is: half of the parties for each list would be enough."""
    for parties in range(2, 12):
        names = NAMES[:2] + tuple(f"party {k}" for k in range(2, parties))
        agreed = agreement(names, threshold=0.5000000001)
        assert 2 * agreed.enough(names[0]) > parties
        assert 2 * agreed.least > parties


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

    inside = [(play.members[name].held, play.members[name].own, play.parties[name].seed) for name in colluding]
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
        assert party.member.key_secret not in seen


def test_fewer_parties_than_the_threshold_cannot_open_another_with_the_server() -> None:
    """Two colluding parties of five, at a threshold of three: their shares of the seed of another do not open it."""
    play = Play(session(), {"unmasking": ["anna"]})
    play.result()
    target, colluding = play.members["anna"], ("ben", "carla")
    keys = [play.members[name].held["anna"] for name in (*colluding, "dora")]
    seeds = [play.up["unmasking"][name].seeds["anna"] for name in (*colluding, "dora")]
    for shares, secret in ((seeds, play.parties["anna"].seed), (keys, target.key_secret)):
        assert primitives.joined(shares[:2]) != secret
        assert primitives.joined(shares) == secret  # one more would


def test_what_colluding_parties_take_away_leaves_masks_that_they_do_not_know() -> None:
    """Two of five, one fewer than the threshold, and the server: without the masks that they know numbers are noise."""
    play = Play(session(), {"unmasking": ["anna"]})
    play.result()
    target, colluding = play.members["anna"], ("ben", "carla")
    left = play.session.unpacked(play.up["masked"]["anna"].data)
    for name in colluding:
        other = play.members[name]
        key = other.masking.agreed(other.roster["anna"].masking, *pair(play.session, "anna", name))
        left = [a - b for a, b in zip(left, play.session.mask(key), strict=True)]
    own = play.session.mask(seed_key(play.session, play.parties["anna"].seed))
    opened = [a - b for a, b in zip(left, own, strict=True)]  # even with the seed of her own mask
    for found in (left, opened):
        pairs = zip(decoded(found), decoded(numbers("anna")), strict=True)
        assert not any(a == b for one, other in pairs for a, b in zip(one, other, strict=True))
    for name in ("dora", "emil"):  # only with the masks of all others there are her numbers
        key = target.masking.agreed(target.roster[name].masking, *pair(play.session, "anna", name))
        left = [a - b for a, b in zip(left, play.session.mask(key), strict=True)]
    assert decoded([a - b for a, b in zip(left, own, strict=True)]) == decoded(numbers("anna"))


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
    Missing(frozenset({"anna", "ben", "nobody"}), frozenset({"carla", "dora", "emil"})),
], ids=["both", "neither", "too few", "itself", "made up"])  # fmt: skip
def test_a_party_tells_no_more_than_one_share_of_each(told: Missing) -> None:
    """Nor anything where a server says that somebody is present and missing, or leaves somebody out."""
    play = Play(session())
    play.agree()
    party = Party(play.members["anna"], play.session, Book())
    party.mask(numbers("anna"))
    with pytest.raises(ProtocolError):
        party.confirm(told)


def test_a_server_that_tells_parties_different_lists_opens_nothing() -> None:
    """Anna and Ben are told that Emil is missing, the others that he is there: each list has too few signatures."""
    play = Play(session())
    play.agree()
    parties = {name: Party(play.members[name], play.session, Book()) for name in NAMES}
    masked = {name: party.mask(numbers(name)) for name, party in parties.items()}
    without = Missing(frozenset(NAMES) - {"emil"}, frozenset({"emil"}))
    lists: dict[str, Missing] = dict.fromkeys(("anna", "ben"), without)
    lists |= dict.fromkeys(NAMES[2:], Missing(frozenset(NAMES), frozenset()))
    signed = {name: party.confirm(lists[name]).signature for name, party in parties.items()}
    for name in ("anna", "ben"):
        sealed = {one: masked[one].seed.sealed[name] for one in NAMES if one != name}
        others = {one: signature for one, signature in signed.items() if one != name}
        with pytest.raises(ProtocolError, match="2 parties have signed the same list of who is there, at least 3"):
            parties[name].unmask(Confirmed(others, sealed))
        with pytest.raises(ProtocolError, match="not due: this party has failed"):
            parties[name].unmask(Confirmed(others, sealed))


def test_a_signature_is_that_of_its_node() -> None:
    """A server cannot sign for others, nor pass on the signature of one for another, or of another sum."""
    play = Play(session())
    play.agree()
    parties = {name: Party(play.members[name], play.session, Book()) for name in NAMES}
    everybody = Missing(frozenset(NAMES), frozenset())
    for name, party in parties.items():
        party.mask(numbers(name))
        party.confirm(everybody)
    mine = ec.generate_private_key(ec.SECP384R1())
    text = listed(play.session, everybody, play.members["anna"].seen)
    forged = primitives.signed(mine, text)
    other = primitives.signed(identity("ben"), listed(session(ask=1), everybody, play.members["anna"].seen))
    ben = primitives.signed(identity("ben"), text)
    signatures = {"ben": other, "carla": forged, "dora": ben, "emil": ben}
    with pytest.raises(ProtocolError, match="1 parties have signed the same list"):
        parties["anna"].unmask(Confirmed(signatures, {}))


def test_parties_that_were_shown_other_keys_sign_something_else() -> None:
    """A server that shows some parties fewer keys than others: no list has enough signatures."""
    play = Play(session())
    members, ring = play.members, play.ring
    rosters = ring.rosters({name: member.advertise() for name, member in members.items()})
    for name in ("anna", "ben"):
        rosters[name] = Roster({one: keys for one, keys in rosters[name].keys.items() if one != "emil"})
    assert len({members[name].share(rosters[name]) and members[name].seen for name in NAMES}) == 2


def test_who_was_told_something_else_only_adds_noise() -> None:
    """A server that gives parties different weights for one sum gets nothing: no common mask fits."""
    play = Play(session())
    play.agree()
    other = session(what="other weights")
    told = {name: other if name == "anna" else play.session for name in NAMES}
    parties = {name: Party(play.members[name], told[name], Book()) for name in NAMES}
    server = Aggregator(play.session, play.ring)
    missing = server.missing({name: party.mask(numbers(name)) for name, party in parties.items()})
    confirmed = server.confirmed({name: party.confirm(missing) for name, party in parties.items()})
    with pytest.raises(ProtocolError, match="1 parties have signed the same list"):  # she herself
        parties["anna"].unmask(confirmed["anna"])
    unmasked = {name: parties[name].unmask(confirmed[name]) for name in NAMES[1:]}
    with pytest.raises(ProtocolError, match="0 good shares of a secret of 'anna'"):
        server.opened(unmasked)
    assert all("anna" not in one.seeds for one in unmasked.values())


def test_keys_serve_one_sum() -> None:
    """With more, the key of a party that goes missing in a later one would tell its masks in those before."""
    play = Play(session())
    assert decoded(play.result()) == decoded(plain(NAMES))
    for other in (session(ask=1), session(round=4), play.session):
        with pytest.raises(ProtocolError, match=r"the keys of this sum were used before|was opened before"):
            play.sum(other)
    with pytest.raises(ProtocolError, match="not under the keys that were agreed on"):
        Party(play.members["anna"], replace(session(ask=1), agreement=agreement(number="2")), Book())


# --- lies, replays and identity ---------------------------------------------------------------------------------------


def test_a_server_cannot_swap_keys() -> None:
    play = Play(session())
    rosters = play.ring.rosters({name: member.advertise() for name, member in play.members.items()})
    mine = primitives.KeyPair.of(primitives.draw()).public
    forged = replace(rosters["anna"].keys["ben"], sealing=mine)
    with pytest.raises(ProtocolError, match="keys of 'ben' are not signed by its node") as error:
        play.members["anna"].share(Roster({**rosters["anna"].keys, "ben": forged}))
    assert error.value.parties == ("ben",)


def test_a_party_does_not_take_its_own_keys_for_those_of_another() -> None:
    play = Play(session(), known=lambda name, key: True)
    rosters = play.ring.rosters({name: member.advertise() for name, member in play.members.items()})
    own = play.members["anna"]
    text = primitives.digest(b"keys", own.agreement.context, b"ben", own.sealing.public, own.masking.public)
    mirrored = replace(
        rosters["ben"].keys["anna"], identity=primitives.public_of(identity("ben")),
        signature=primitives.signed(identity("ben"), text),
    )  # fmt: skip
    with pytest.raises(ProtocolError, match="two parties have the same key"):
        own.share(Roster({**rosters["anna"].keys, "ben": mirrored}))


def test_a_node_without_the_key_of_the_run_is_left_out() -> None:
    """The others go on without it."""
    play = Play(session(), known=lambda name, key: name != "emil" and known(name, key))
    assert decoded(play.result()) == decoded(plain(NAMES[:4]))
    assert play.liars == {"emil"}


def test_keys_of_another_agreement_are_not_accepted() -> None:
    before = Play(replace(session(), agreement=agreement(number="0")))
    before.result()
    old = before.up["keys"]["ben"]
    play = Play(session(), change=lambda stage, name, sent: old if (stage, name) == ("keys", "ben") else sent)
    assert decoded(play.result()) == decoded(plain(["anna", "carla", "dora", "emil"]))
    assert play.liars == {"ben"}


@pytest.mark.parametrize("stage", ["shares", "masked"])
def test_old_shares_do_not_open(stage: str) -> None:
    before = Play(replace(session(), agreement=agreement(number="0")))
    before.result()
    old = before.up[stage]["ben"]

    def change(at: str, name: str, sent: Any) -> Any:
        if (at, name) != (stage, "ben"):
            return sent
        return replace(sent, sealed=old.sealed) if stage == "shares" else replace(sent, seed=old.seed)

    play = Play(session(), change=change)
    told = "shares of 'ben' could not be opened by" if stage == "shares" else "0 good shares of a secret of 'ben'"
    with pytest.raises(ProtocolError, match=told):
        play.result()
    assert play.liars == (set() if stage == "shares" else {"ben"})
    assert play.doubts == ({("ben", name) for name in NAMES if name != "ben"} if stage == "shares" else set())


@pytest.mark.parametrize("changes", [{}, {"attempt": 1}, {"what": "other weights"}], ids=str)
def test_no_sum_is_opened_twice(changes: dict[str, Any]) -> None:
    """Not even with other parties or weights: the difference of two sums would tell one party's numbers."""
    books: dict[str, Book] = {}
    Play(session(), books=books).result()
    with pytest.raises(ProtocolError, match="the sum 'run 3 0' was opened before"):
        Play(session(NAMES[:4], **changes), books=books).result()


def test_a_stage_comes_once_and_in_order() -> None:
    play = Play(session())
    member = play.members["anna"]
    with pytest.raises(ProtocolError, match="stage 'shares' is not due: this party has done 0 of its stages"):
        member.share(Roster({}))
    play.result()
    party = play.parties["anna"]
    stages = (
        member.advertise, lambda: member.receive(Delivery({})), lambda: party.mask(numbers("anna")),
        lambda: party.confirm(Missing(frozenset(NAMES), frozenset())), lambda: party.unmask(Confirmed({}, {})),
    )  # fmt: skip
    for stage in stages:
        with pytest.raises(ProtocolError, match="not due"):
            stage()


def test_a_party_does_nothing_after_a_stage_that_failed() -> None:
    member = Play(session()).members["anna"]
    member.advertise()
    with pytest.raises(ProtocolError, match="holders are there"):
        member.share(Roster({}))
    for stage in (member.advertise, lambda: member.share(Roster({})), lambda: member.receive(Delivery({}))):
        with pytest.raises(ProtocolError, match="not due: this party has failed"):
            stage()


def test_a_holder_that_lies_about_a_share_does_no_harm() -> None:
    """It or the one who shared: nobody can tell which, but for what it shared with itself."""

    def change(stage: str, name: str, sent: Any) -> Any:
        if (stage, name) != ("unmasking", "ben"):
            return sent
        return Unmasking({one: bytes(len(share)) for one, share in sent.seeds.items()}, sent.keys)

    play = Play(session(), change=change)
    assert decoded(play.result()) == decoded(plain(NAMES))
    assert play.liars == {"ben"}  # his own share
    assert {holder for _, holder in play.doubts} == {"ben"}


@pytest.mark.parametrize("lie", ["a hash", "a share that cannot be opened"])
def test_a_party_cannot_have_an_honest_one_taken_for_a_liar(lie: str) -> None:
    """Ben says another hash of what he shares with Anna, or that he cannot open what she sent."""

    def change(stage: str, name: str, sent: Any) -> Any:
        if (stage, name) != ("masked", "ben"):
            return sent
        seed = sent.seed
        if lie == "a hash":
            return replace(sent, seed=replace(seed, hashes={**seed.hashes, "anna": bytes(32)}))
        left = {name: {one: text for one, text in part.items() if one != "anna"}
                for name, part in (("sealed", seed.sealed), ("hashes", seed.hashes))}  # fmt: skip
        return replace(sent, seed=replace(seed, **left), broken=frozenset({"anna"}))

    play = Play(session(), change=change)
    if lie == "a hash":
        assert decoded(play.result()) == decoded(plain(NAMES))
    else:
        with pytest.raises(ProtocolError, match="could not be opened by 'ben'"):
            play.result()
    assert not play.liars
    assert play.doubts == ({("ben", "anna")} if lie == "a hash" else {("anna", "ben")})


def test_a_party_that_shares_another_secret_than_it_uses_is_named() -> None:
    play = Play(session())
    play.agree()
    used = primitives.draw()

    def cheat(stage: str, name: str, sent: Any) -> Any:
        if (stage, name) == ("masked", "ben"):
            return replace(sent, seed_hash=hash_of_seed(play.session, "ben", used))
        return sent

    play.change = cheat
    with pytest.raises(ProtocolError, match="'ben' shared another seed than it used") as error:
        play.sum()
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
    assert play.liars == {"ben"}


def test_bytes_are_those_of_the_numbers_and_a_constant_for_each_neighbour() -> None:
    """What docs/secure.md says that one client sends."""
    play = Play(session())
    play.result()
    for name in NAMES:
        near = len(play.session.agreement.neighbours(name))
        agreed = sum(size_of(play.up[stage][name]) for stage in ("keys", "shares"))
        assert agreed <= 430 + near * 130
        sent = sum(size_of(play.up[stage][name]) for stage in ("masked", "check", "unmasking"))
        assert sent - play.session.bytes <= 250 + near * 180
    assert isinstance(play.up["masked"]["anna"], messages.Masked)
    assert len(play.up["masked"]["anna"].data) == 7 * 5 + 2 * 8
