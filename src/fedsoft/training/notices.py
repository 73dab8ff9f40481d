"""What a run's records give reason to say: centers that collapsed, clients that are silent, excluded or changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from fedsoft.clusters.collapse import COPY, unused
from fedsoft.evaluation.remarks import remarks_on
from fedsoft.evaluation.values import Scores
from fedsoft.safety.exclusions import Exclusion, Reason
from fedsoft.training.records import RoundRecord

STANDS = 5  # rounds in a row before a collapsed center is worth a notice
SILENT = 3  # rounds without any answer before it is worth a notice
SPOKEN = 5  # clients, or reasons, that get a notice each
NAMED = 10  # clients that a notice about changed mixtures names
ADVICE = " (lower the learning rate, or scale the data)"
POOLED = "pooled"  # a phase in which all centers are one on purpose


class Kind(StrEnum):
    """What a notice is about."""

    UNUSED = "unused center"
    COPY = "copied center"
    SILENCE = "no answers"
    EXCLUDED = "excluded clients"
    DRIFT = "changed mixtures"
    SCORES = "scores"
    MEMBERS = "other clients"


@dataclass(frozen=True)
class Notice:
    """Something to say about a run.

    Arguments:
        kind: what it is about.
        subject: which center, client or reason; notices of one kind and subject say the same thing again.
        text: a sentence for people, without a full stop; nothing reads it.
    """

    kind: Kind
    subject: str
    text: str

    @property
    def key(self) -> tuple[Kind, str]:
        return self.kind, self.subject

    @property
    def sentence(self) -> str:
        """The text with a capital letter."""
        return capital(self.text)

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def capital(text: str) -> str:
    """Return a sentence with a capital letter."""
    return text[:1].upper() + text[1:]


def warnings(records: Sequence[RoundRecord]) -> list[Notice]:
    """Return what is wrong with a run: nobody answers, or centers have collapsed."""
    return [*silence(records), *collapse(records)]


def of_scores(scores: Scores) -> list[Notice]:
    """Return what to keep in mind when reading the scores of a run; see `evaluation.remarks`."""
    return [Notice(Kind.SCORES, remark.subject, remark.text) for remark in remarks_on(scores)]


# --- centers ----------------------------------------------------------------------------------------------------------


def collapse(records: Sequence[RoundRecord]) -> list[Notice]:
    """Return the notices about the last round's centers that all of the last few rounds gave reason for."""
    if (early := unsplit(records)) is not None:
        return [early]
    if len(records) < STANDS:
        return []
    always = set.intersection(*({notice.key for notice in collapsed(record)} for record in records[-STANDS:]))
    return [notice for notice in collapsed(records[-1]) if notice.key in always]


def unsplit(records: Sequence[RoundRecord]) -> Notice | None:
    """Return a notice about a run that was over before its centers were made of the one that it starts with."""
    if not records or not records[-1].last or records[-1].phase != POOLED or len(records[-1].apart) < 2:
        return None
    text = (
        f"all {len(records[-1].apart)} centers are one: the run was over after {records[-1].round} rounds, all of "
        "them of its start (give it more rounds, or a smaller algorithm.warm)"
    )
    return Notice(Kind.COPY, "all", text)


def collapsed(record: RoundRecord) -> list[Notice]:
    """Return the notices about the centers of one round; none while all of them are one on purpose."""
    if record.phase == POOLED:
        return []
    found = []
    copies = [s for s, distance in enumerate(record.apart) if distance < COPY]
    # Which of two copies has the points is decided by rounding, and tells nothing.
    for s in (s for s in unused(record.use) if s not in copies):
        share, clients = 100 * record.use[s], record.effective[s]
        text = f"center {s} is hardly used: {share:.1f} % of the points, by {clients:.1f} clients"
        found.append(Notice(Kind.UNUSED, str(s), text))
    return found + [Notice(Kind.COPY, str(s), f"center {s} is a copy of another one") for s in copies]


def drift(records: Sequence[RoundRecord]) -> list[Notice]:
    """Return a notice for each round after which clients' mixtures had changed."""
    found = []
    for record in records:
        if names := record.changed:
            who = f"{len(names)} client{'s' * (len(names) > 1)}"
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            text = f"after round {record.round} the mixture of {who} had changed: {', '.join(names[:NAMED])}{more}"
            found.append(Notice(Kind.DRIFT, str(record.round), text))
    return found


def members(records: Sequence[RoundRecord]) -> list[Notice]:
    """Return a notice for each round before which clients joined or left."""
    found = []
    for record in records:
        parts = [f"{len(names)} client{'s' * (len(names) > 1)} {did} ({', '.join(names[:NAMED])}"
                 f"{f' and {len(names) - NAMED} more' if len(names) > NAMED else ''})"
                 for names, did in ((record.joined, "joined"), (record.left, "left")) if names]  # fmt: skip
        if parts:
            text = f"before round {record.round} {' and '.join(parts)}"
            found.append(Notice(Kind.MEMBERS, str(record.round), text))
    return found


# --- clients ----------------------------------------------------------------------------------------------------------


def silence(records: Sequence[RoundRecord]) -> list[Notice]:
    """Return a notice about a run in which nobody answered, in none of its rounds or not any more."""
    if unheard(records):
        rounds = "its only round" if len(records) == 1 else f"any of its {len(records)} rounds"
        text = f"nobody answered in {rounds}: nothing was learned, all models are as they were drawn"
        return [Notice(Kind.SILENCE, "", text)]
    answered = [record.answered for record in records if record.answered is not None]
    last = next((i for i, count in enumerate(reversed(answered)) if count), len(answered))
    if last < SILENT:
        return []
    return [Notice(Kind.SILENCE, "", f"nobody answered in the last {last} rounds: all centers stayed as they were")]


def unheard(records: Sequence[RoundRecord]) -> bool:
    """Whether a run is over and never had an answer that could be used."""
    whole = bool(records) and records[0].round == 1 and records[-1].last
    return whole and all(record.answered == 0 for record in records)


def exclusions(records: Sequence[RoundRecord]) -> list[Notice]:
    """Return who was excluded over a run: a notice for each client, or for each reason where they are many."""
    rounds: dict[str, list[tuple[int, Exclusion]]] = {}
    more = sum(record.excluded_more for record in records)
    for record in records:
        for one in record.excluded:
            rounds.setdefault(one.client, []).append((record.round, one))
    often = sorted(rounds, key=lambda client: (-len(rounds[client]), client))
    if len(often) <= SPOKEN and not more:
        return [_about_client(client, rounds[client]) for client in often]
    reasons: dict[tuple[Reason, str], set[str]] = {}
    for client in often:
        for _, one in rounds[client]:
            reasons.setdefault((one.reason, one.text), set()).add(client)
    least = "at least " if more else ""  # a record names some of them only
    found = []
    for (reason, why), who in sorted(reasons.items(), key=lambda pair: (-len(pair[1]), pair[0][1]))[:SPOKEN]:
        were, some = "clients were" if len(who) > 1 else "client was", ", ".join(sorted(who)[:3])
        text = f"{least}{len(who)} {were} excluded, such as {some}: {why}{_advice(reason)}"
        found.append(Notice(Kind.EXCLUDED, why, text))
    return found


def _about_client(client: str, seen: Sequence[tuple[int, Exclusion]]) -> Notice:
    count, (t, last) = len({t for t, _ in seen}), seen[-1]
    often = f"{count} round{'s' * (count > 1)}, last in round {t}"
    text = f"client '{client}' was excluded in {often}: {last.text}{_advice(last.reason)}"
    return Notice(Kind.EXCLUDED, f"client {client}", text)


def _advice(reason: Reason) -> str:
    return ADVICE if reason is Reason.NOT_FINITE else ""
