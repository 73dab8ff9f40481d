"""What a sum of very many parties costs: one party in full, at the server each kind of work once, times their number.

    python -m benchmarks.secure_many [--parties 1000] [--parameters 10000]

Neighbours, shares and signatures are as many as in a sum of all parties. What the party does and sends is measured. The
server's figures are an EXTRAPOLATION: from one secret put together out of as many shares as it takes, from a few checks
of keys, and from the masks of a few parties, each times the number of parties. Compare with `benchmarks.secure cost`.
"""

from __future__ import annotations

import argparse

import torch
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks.secure import THRESHOLD, Clock
from fedsoft.flower.secagg.messages import Confirmed, Delivery, Missing, Roster, size_of
from fedsoft.flower.secagg.party import KEY, SEED, Book, Member, Party, is_genuine, listed, seed_key
from fedsoft.flower.secagg.primitives import draw, joined, public_of, shared, signed
from fedsoft.flower.secagg.session import Agreement, Session, graph
from fedsoft.secure.coding import MODELS

FEW = 5


def measure(count: int, parameters: int) -> None:
    names = tuple(f"party {k}" for k in range(count))
    agreement = Agreement("run", "1", names, THRESHOLD)
    session, me = Session(agreement, 0, 0, "", ((MODELS, parameters),)), names[0]
    near, (degree, enough) = agreement.neighbours(me), graph(count, THRESHOLD)
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in (me, *near)}
    public = {name: public_of(key) for name, key in keys.items()}

    def known(name: str, key: bytes) -> bool:
        return public[name] == key

    own, server = Clock(), Clock()
    members = {name: Member(agreement, name, keys[name], known) for name in near}
    member = own(lambda: Member(agreement, me, keys[me], known))
    told = {name: one.advertise() for name, one in members.items()}
    mine = own(member.advertise)
    dealt = own(member.share, Roster(told))
    for one in members.values():  # they know this party alone: what they share with others is not measured here
        one.roster = {me: mine}
    # A share of the right length stands for that of a neighbour.
    share = {kind: draw() + bytes(5) for kind in (KEY, SEED)}
    mail = {name: one._sealed(KEY, agreement.context, me, share[KEY]) for name, one in members.items()}
    own(member.receive, Delivery(mail))
    for_keys = own.spent
    party = own(Party, member, session, Book())
    masked = own(party.mask, session.zeros())
    missing = Missing(frozenset(names), frozenset())
    signature = own(party.confirm, missing)
    text = listed(session, missing, member.seen)
    signatures = {name: signed(keys[name], text) for name in near}
    sealed = {name: one._sealed(SEED, session.context, me, share[SEED]) for name, one in members.items()}
    opened = own(party.unmask, Confirmed(signatures, sealed))

    for name in near[:FEW]:
        server(is_genuine, agreement, name, told[name], known)
        server(session.mask, seed_key(session, draw()))
        server(session.unpacked, masked.data)
    each = server.spent / FEW
    secret = draw()
    shares = shared(secret, enough, degree + 1)[:enough]
    lone = Clock()
    assert lone(joined, shares) == secret
    sent = sum(size_of(one) for one in (masked, signature, opened))
    print(f"{count:,} parties, {degree} neighbours, {enough} shares open a secret, {parameters:,} parameters")
    print(f"a party, measured: {for_keys:.2f} s and {size_of(mine) + size_of(dealt):,} bytes for keys")
    share = sent / (4 * parameters)
    print(f"a party, measured: {own.spent - for_keys:.2f} s and {sent:,} bytes for a sum, {share:.2f} of float32")
    print(f"the server, extrapolated: {count * each:.0f} s for keys and masks, {count * lone.spent:,.0f} s for seeds, "
          f"{lone.spent:.2f} s each")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", type=int, default=1000)
    parser.add_argument("--parameters", type=int, default=10_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measure(options.parties, options.parameters)


if __name__ == "__main__":
    main()
