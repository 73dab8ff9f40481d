"""What sums alone cost: in accuracy (the same runs with and without `secure = true`), and in time and bytes.

    python -m benchmarks.secure accuracy [--seeds 3] [--json FILE]
    python -m benchmarks.secure cost [--parameters 10000]

Accuracy: presets, all clients in every round; the score of personal models on held-out points, of the best centers
where sources are known, and the largest difference of a number in the centers after the last round, as a share of the
largest number. Cost: one sum, with everybody present and with one party missing after it shared its keys; for 1,000
parties one of them and the server's part for it are timed, since all of them would take long on one core. With --json
what is done is saved, and not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from cryptography.hazmat.primitives.asymmetric import ec

import fedsoft as fs
from benchmarks.reliability import table
from fedsoft.flower.secagg.aggregator import Aggregator
from fedsoft.flower.secagg.messages import Delivery, Missing, Roster, size_of
from fedsoft.flower.secagg.party import Accepts, Book, Party, about
from fedsoft.flower.secagg.primitives import joined, public_of, shared
from fedsoft.flower.secagg.primitives import sealed as seal
from fedsoft.flower.secagg.session import Session, degree
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import read
from fedsoft.secure.coding import MODELS

RUNS = {
    "synthetic, fedsoft": ("synthetic-10-90", []),
    "synthetic, ifca": ("synthetic-10-90", ["algorithm.name=ifca"]),
    "digits-conflict, fedsoft": ("digits-conflict", []),
    "digits-conflict, fedem": ("digits-conflict", ["algorithm.name=fedem"]),
    "electricity, fedsoft": ("electricity", []),
    "electricity, fedprior": ("electricity", ["algorithm.name=fedprior", "solver.name=newton", "rounds=20"]),
}
THRESHOLD = 2 / 3
T = TypeVar("T")


def ended(case: str, seed: int, secure: bool) -> tuple[list[float], torch.Tensor]:
    """Scores of personal models and of the best centers, bytes up for each client and round; and the centers."""
    preset, changes = RUNS[case]
    given = [*changes, "K=all", "score_every=1000", f"seed={seed}", f"secure={str(secure).lower()}"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        execute(read(preset, given), path, RunOptions(signals=False, workers=1))
        run = fs.load(path)
        scores = run.scores()
    held = scores.personal_held_out or scores.personal_train
    assert held is not None
    best = scores.of_best
    sent = sum(record.bytes_up for record in run.history) / len(run.history) / len(run.federation)
    clipped = sum(record.notes.get("clipped_values", 0) for record in run.history)
    return [held.mean, statistics.mean(best) if best else float("nan"), sent, clipped], run.state.centers


def accuracy(seeds: int, path: Path | None) -> None:
    known: dict[str, list[float]] = {}
    if path is not None and path.exists():
        known = dict(json.loads(line) for line in path.read_text("utf-8").splitlines())
    for seed in range(seeds):
        for case in RUNS:
            if f"{case}, {seed}" in known:
                continue
            (plain, a), (secure, b) = (ended(case, seed, yes) for yes in (False, True))
            found = known[f"{case}, {seed}"] = [*plain, *secure, float((a - b).abs().max()), float(a.abs().max())]
            print(case, seed, found, file=sys.stderr, flush=True)
            if path is not None:
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([f"{case}, {seed}", found]) + "\n")
    rows = []
    for case in RUNS:
        found = [known[f"{case}, {seed}"] for seed in range(seeds)]
        mean = [statistics.mean(column) for column in zip(*found, strict=True)]
        rows.append([
            case, f"{mean[0]:.5g}", f"{mean[4]:.5g}", f"{mean[1]:.5g}", f"{mean[5]:.5g}",
            f"{max(one[8] / one[9] for one in found):.1e}", f"{mean[6] / mean[2]:.2f}",
            f"{sum(one[7] for one in found):g}",
        ])  # fmt: skip
    heads = ["run", "personal", "secure", "centers", "secure", "largest difference", "bytes", "clipped"]
    print(table(heads, rows))


def cost(parameters: int) -> None:
    rows = [[str(count), *whole(count, parameters)] for count in (4, 16)]
    rows.append(["1000", *one_of(1000, parameters)])
    heads = ["parties", "neighbours", "one party, s", "server, s", "server, one missing, s", "bytes up", "of float32"]
    print(table(heads, rows))


def _session(count: int, parameters: int, attempt: int = 0) -> Session:
    names = tuple(f"party {k}" for k in range(count))
    return Session("run", 0, 0, "", names, ((MODELS, parameters),), THRESHOLD, attempt)


def accepted(keys: Mapping[str, ec.EllipticCurvePrivateKey]) -> Accepts:
    public = {name: public_of(key) for name, key in keys.items()}
    return lambda name, key: public[name] == key


@dataclass
class Clock:
    """Calls functions, and adds up how long they take."""

    spent: float = 0.0

    def __call__(self, work: Callable[..., T], *about: Any) -> T:
        began = time.perf_counter()
        done = work(*about)
        self.spent += time.perf_counter() - began
        return done


def whole(count: int, parameters: int) -> list[str]:
    """Play a whole session in this process: with everybody, then with one missing."""
    timed = []
    for missing in (0, 1):
        session = _session(count, parameters, missing)
        keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in session.parties}
        known = accepted(keys)
        server = Aggregator(session, known)
        party, serve = Clock(), Clock()
        parties = {name: Party(session, name, keys[name], known, Book()) for name in keys}
        first, sent = session.parties[0], 0
        up = {name: party(one.advertise) for name, one in parties.items()}
        sent += size_of(up[first])
        down = serve(server.rosters, up)
        up = {name: party(parties[name].share, roster) for name, roster in down.items()}
        sent += size_of(up[first])
        down = serve(server.deliveries, up)
        there = list(down)[: len(down) - missing]
        up = {name: party(parties[name].mask, down[name], session.zeros()) for name in there}
        sent += size_of(up[first])
        told = serve(server.missing, up)
        up = {name: party(parties[name].unmask, told) for name in told.present}
        sent += size_of(up[first])
        assert not any(bool(MODELS.decoded(value).any()) for value in serve(server.opened, up))
        timed.append((party.spent / count, serve.spent, sent))
    (own, at, sent), (_, later, _) = timed
    return [str(degree(count, THRESHOLD)), f"{own:.3f}", f"{at:.3f}", f"{later:.3f}", f"{sent:,}",
            f"{sent / (4 * parameters):.2f}"]  # fmt: skip


def one_of(count: int, parameters: int) -> list[str]:
    """Time one party among many with real keys of all its neighbours, and what the server does for it."""
    session = _session(count, parameters)
    me = session.parties[0]
    near = session.neighbours(me)
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in (me, *near)}
    known = accepted(keys)
    others = {name: Party(session, name, keys[name], known, Book()) for name in near}
    party = Party(session, me, keys[me], known, Book())
    roster = Roster({name: one.advertise() for name, one in others.items()})
    began = time.perf_counter()
    mine = party.advertise()
    shares = party.share(roster)
    own = time.perf_counter() - began
    sealed = {}
    for name, one in others.items():  # what each would seal for this party: the same length, under the right key
        one.roster = {me: mine}
        sealed[name] = seal(one._sealing(me), party.own[0] + party.own[1], about(session, name, me))
    began = time.perf_counter()
    masked = party.mask(Delivery(sealed), session.zeros())
    own += time.perf_counter() - began
    unmasking = party.unmask(Missing(frozenset(session.parties), frozenset()))
    began = time.perf_counter()
    joined(list(shares_of(party, session))[: session.enough(me)])
    session.mask(bytes(32))
    session.unpacked(masked.data)
    at = time.perf_counter() - began
    began = time.perf_counter()
    for _ in near:
        session.mask(bytes(32))
    more = time.perf_counter() - began
    sent = sum(size_of(one) for one in (mine, shares, masked, unmasking))
    return [str(len(near)), f"{own:.3f}", f"{count * at:.0f}", f"{count * at + at + more:.0f}", f"{sent:,}",
            f"{sent / (4 * parameters):.2f}"]  # fmt: skip


def shares_of(party: Party, session: Session) -> list[bytes]:
    return shared(party.seed, session.enough(party.name), len(session.holders(party.name)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("accuracy", "cost"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parameters", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "cost":
        cost(options.parameters)
    else:
        accuracy(options.seeds, options.json)


if __name__ == "__main__":
    main()
