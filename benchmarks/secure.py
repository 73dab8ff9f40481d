"""What sums alone cost: in accuracy (the same runs with and without `secure = true`), and in time and bytes.

    python -m benchmarks.secure accuracy [--seeds 3] [--set rounds=5 dataset.clients=20] [--json FILE]
    python -m benchmarks.secure cost [--parties 4 16 64 100] [--parameters 10000]
    python -m benchmarks.secure choices

Accuracy: presets, all clients in every round; the score of personal models on held-out points, of the best centers
where sources are known, and the largest difference of a number in the centers after the last round, as a share of the
largest number. Cost: all of the protocol between parties in this process, in processor time: agreeing on keys, a sum
with everybody present, and one with a party missing after the keys; `benchmarks.secure_many` has very many parties.
Choices: where clients weigh by the number of a center times their points, how often the sums of these weights tell
which center each client has chosen, since no other choices have the same sums. With --json what is done is saved, and
not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric import ec

import fedsoft as fs
from benchmarks.reliability import table
from fedsoft.flower.secagg.aggregator import Aggregator, Keyring
from fedsoft.flower.secagg.messages import size_of
from fedsoft.flower.secagg.party import Book, Member, Party
from fedsoft.flower.secagg.primitives import public_of
from fedsoft.flower.secagg.session import Agreement, Session, graph
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.spec import read
from fedsoft.secure.coding import MODELS

RUNS = {
    "synthetic, fedsoft": ("synthetic-10-90", []),
    "synthetic, ifca": ("synthetic-10-90", ["algorithm.name=ifca"]),
    "synthetic, fedprior": ("synthetic-10-90", ["algorithm.name=fedprior", "solver.name=exact", "rounds=20"]),
    "electricity, fedsoft": ("electricity", []),
    "electricity, fedprior": ("electricity", ["algorithm.name=fedprior", "solver.name=newton", "rounds=20"]),
    "digits-conflict, fedsoft": ("digits-conflict", []),
    "digits-conflict, fedem": ("digits-conflict", ["algorithm.name=fedem"]),
    "digits-conflict, fedprior": ("digits-conflict", ["algorithm.name=fedprior", "rounds=20"]),
    "digits-4, fedsoft": ("digits-4", []),
}
THRESHOLD = 2 / 3
T = TypeVar("T")


def ended(case: str, seed: int, more: list[str], secure: bool) -> tuple[list[float], torch.Tensor]:
    """Scores of personal models and of the best centers, bytes up for each client and round; and the centers."""
    preset, changes = RUNS[case]
    given = [*changes, "K=all", "score_every=1000", *more, f"seed={seed}", f"secure={str(secure).lower()}"]
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


def accuracy(cases: list[str], seeds: int, more: list[str], path: Path | None) -> None:
    known: dict[str, list[float]] = {}
    if path is not None and path.exists():
        known = dict(json.loads(line) for line in path.read_text("utf-8").splitlines())
    for seed in range(seeds):
        for case in cases:
            if f"{case}, {seed}" in known:
                continue
            (plain, a), (secure, b) = (ended(case, seed, more, yes) for yes in (False, True))
            found = known[f"{case}, {seed}"] = [*plain, *secure, float((a - b).abs().max()), float(a.abs().max())]
            print(case, seed, found, file=sys.stderr, flush=True)
            if path is not None:
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([f"{case}, {seed}", found]) + "\n")
    rows = []
    for case in cases:
        found = [known[f"{case}, {seed}"] for seed in range(seeds)]
        mean = [statistics.mean(column) for column in zip(*found, strict=True)]
        rows.append([
            case, f"{mean[0]:.5g}", f"{mean[4]:.5g}", f"{mean[1]:.5g}", f"{mean[5]:.5g}",
            f"{max(one[8] / one[9] for one in found):.1e}", f"{mean[6] / mean[2]:.2f}",
            f"{sum(one[7] for one in found):g}",
        ])  # fmt: skip
    heads = ["run", "personal", "secure", "centers", "secure", "largest difference", "bytes", "clipped"]
    print(table(heads, rows))


def cost(counts: list[int], parameters: int) -> None:
    heads = [
        "parties", "neighbours", "agreeing on keys, s", "a sum, s", "server, s", "server, one missing, s",
        "bytes for keys", "bytes of a sum", "of float32",
    ]  # fmt: skip
    print(table(heads, [[f"{count:,}", *whole(count, parameters)] for count in counts]))


@dataclass
class Clock:
    """Calls functions, and adds up the processor time that they take."""

    spent: float = 0.0

    def __call__(self, work: Callable[..., T], *about: Any) -> T:
        began = time.process_time()
        done = work(*about)
        self.spent += time.process_time() - began
        return done

    def each(self, work: Callable[[str], T], names: Iterable[str]) -> dict[str, T]:
        return {name: self(work, name) for name in names}


def whole(count: int, parameters: int) -> list[str]:
    """Play the whole protocol in this process: all agree on keys, then two sums, the second with one missing."""
    names = tuple(f"party {k}" for k in range(count))
    agreement = Agreement("run", "1", names, THRESHOLD)
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in names}
    public = {name: public_of(key) for name, key in keys.items()}

    def known(name: str, key: bytes) -> bool:
        return public[name] == key

    ring, agree, serve = Keyring(agreement, known), Clock(), Clock()
    members = {name: Member(agreement, name, keys[name], known) for name in names}
    told = agree.each(lambda name: members[name].advertise(), names)
    rosters = serve(ring.rosters, told)
    shares = agree.each(lambda name: members[name].share(rosters[name]), names)
    mail = serve(ring.deliveries, shares)
    agree.each(lambda name: members[name].receive(mail[name]), names)
    for_keys, at_server = size_of(told[names[0]]) + size_of(shares[names[0]]), serve.spent
    print(f"{count} parties have agreed on keys: {agree.spent:.1f} s", file=sys.stderr, flush=True)
    timed = []
    for number in range(2):
        if number:  # the same keys, as if they had not been used: what they cost is known
            for member in members.values():
                member.used = False
        session = Session(agreement, 0, number, "", ((MODELS, parameters),))
        server, own, serve = Aggregator(session, ring), Clock(), Clock()
        parties = {name: Party(members[name], session, Book()) for name in names}
        there = names[: count - number]
        masked = own.each(lambda name, p=parties, s=session: p[name].mask(s.zeros()), there)
        missing = serve(server.missing, masked)
        signed = own.each(lambda name, p=parties, m=missing: p[name].confirm(m), there)
        confirmed = serve(server.confirmed, signed)
        unmasked = own.each(lambda name, p=parties, c=confirmed: p[name].unmask(c[name]), there)
        total = serve(server.opened, unmasked)
        assert not any(bool(MODELS.decoded(value).any()) for value in total)
        sent = sum(size_of(one[names[0]]) for one in (masked, signed, unmasked))
        timed.append((own.spent / len(there), serve.spent, sent))
        print(f"sum {number} of {count} parties: {timed[-1]}", file=sys.stderr, flush=True)
    (each, at, sent), (_, later, _) = timed
    return [f"{graph(count, THRESHOLD)[0]}", f"{agree.spent / count:.3f}", f"{each:.3f}", f"{at + at_server:.3f}",
            f"{later:.3f}", f"{for_keys:,}", f"{sent:,}", f"{sent / (4 * parameters):.2f}"]  # fmt: skip


def tells(sizes: list[int], chosen: list[int]) -> bool:
    """Whether the points of both centers together tell which of them each client has chosen."""
    ways = {0: 1}  # to have so many points at the first one, by the clients so far
    for n in sizes:
        after = dict(ways)
        for points, count in ways.items():
            after[points + n] = after.get(points + n, 0) + count
        ways = after
    return ways[sum(n for n, choice in zip(sizes, chosen, strict=True) if choice == 0)] == 1


def choices(draws: int = 1000) -> None:
    rng, rows = np.random.default_rng(0), []
    for count in (4, 8, 12, 16, 20):
        row = [f"{count}"]
        for least, most in ((5, 15), (100, 200), (1000, 2000)):
            found = [tells(rng.integers(least, most + 1, count).tolist(), rng.integers(0, 2, count).tolist())
                     for _ in range(draws)]  # fmt: skip
            row.append(f"{statistics.mean(found):.1%}")
        rows.append(row)
    print(table(["clients", "5-15 points", "100-200 points", "1,000-2,000 points"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("accuracy", "cost", "choices"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parameters", type=int, default=10_000)
    parser.add_argument("--parties", type=int, nargs="+", default=[4, 16, 64, 100])
    parser.add_argument("--only", nargs="+", choices=RUNS, help="of the runs whose accuracy is compared")
    parser.add_argument("--set", nargs="+", default=[], help="settings of all runs whose accuracy is compared")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "cost":
        cost(options.parties, options.parameters)
    elif options.what == "choices":
        choices()
    else:
        accuracy(options.only or [*RUNS], options.seeds, options.set, options.json)


if __name__ == "__main__":
    main()
