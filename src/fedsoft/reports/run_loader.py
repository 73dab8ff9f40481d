"""What a report is made from: finished runs, read once and grouped by what was run."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsoft.errors import InputError, StoreError
from fedsoft.evaluation.values import Scores
from fedsoft.reports.page import RunRef
from fedsoft.reports.withheld import withheld_centers, without_centers
from fedsoft.runs.find import find_run
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.info import RunInfo
from fedsoft.runs.spec import RunSpec
from fedsoft.storage.files import LONGEST_JSON, parse_json, read_text
from fedsoft.training.records import RoundRecord, Totals


@dataclass(frozen=True)
class Finished:
    """One finished run."""

    folder: RunFolder
    spec: RunSpec
    scores: Scores
    records: list[RoundRecord]
    info: RunInfo

    @property
    def ref(self) -> RunRef:
        """What a number of this run is traced by."""
        version = self.info.packages.get("fedsoft", "?")
        return RunRef(self.folder.name, self.info.hash, self.spec.seed, version, self.info.command)

    @property
    def clients(self) -> int:
        """The number of clients with training points."""
        return max(1, self.scores.clients)

    @property
    def local(self) -> float:
        """The mean over clients of the personal models on their own training points."""
        return math.nan if self.scores.personal_train is None else self.scores.personal_train.mean

    @property
    def totals(self) -> Totals:
        return Totals.of(self.records)

    @property
    def scored(self) -> list[RoundRecord]:
        """The rounds after which centers were scored on the sources."""
        return [record for record in self.records if record.centers]


@dataclass(frozen=True)
class Group:
    """Runs that differ only by their seed."""

    label: str
    runs: tuple[Finished, ...]

    @property
    def first(self) -> Finished:
        """The run that stands for all where one has to."""
        return self.runs[0]

    @property
    def refs(self) -> tuple[RunRef, ...]:
        return tuple(run.ref for run in self.runs)

    @property
    def scores(self) -> list[Scores]:
        return [run.scores for run in self.runs]

    @property
    def seeds(self) -> list[int]:
        return [run.spec.seed for run in self.runs]

    @property
    def recoveries(self) -> list[float | None]:
        return [scores.recovery for scores in self.scores]

    @property
    def one_to_one(self) -> bool:
        """Whether each source has exactly one center that stands for it in every run: then centers can be averaged."""
        sources = len(self.first.scores.sources)
        return all(sorted(scores.alignment or []) == list(range(sources)) for scores in self.scores)


def read(names: Sequence[str], root: Path, allow: Collection[str] = ()) -> list[Group]:
    """Read runs and comparisons by name, path or beginning of a name, grouped; raises for unfinished ones."""
    found: list[tuple[str | None, Finished]] = []
    for name in names:
        comparison = _comparison(name, root)
        if comparison is None:
            found.append((None, finished(find_run(root, name), allow)))
        else:
            found += [(label, finished(folder, allow)) for label, folder in _members(comparison)]
    once = {run.folder.path.resolve(): (label, run) for label, run in reversed(found)}
    taken = [path.name for path in once]
    if twice := sorted({name for name in taken if taken.count(name) > 1}):
        raise InputError(f"two different runs are called '{twice[0]}': report one of them, or rename its folder")
    groups = _grouped(list(reversed(once.values())))
    metrics = {group.first.scores.metric for group in groups}
    if len(metrics) > 1:
        raise InputError(f"these runs are scored by {' and '.join(sorted(metrics))}: report them one metric at a time")
    return groups


def _comparison(name: str, root: Path) -> Path | None:
    """The folder of a comparison, or None where the name does not mean one."""
    for path in (Path(name), root / name):
        if (path / "comparison.csv").is_file():
            return path
    if "/" in name or any(root.glob(f"{_literal(name)}*/run.json")):
        return None
    matches = sorted(path.parent for path in root.glob(f"{_literal(name)}*/comparison.csv"))
    if len(matches) > 1:
        raise InputError(f"'{name}' could be {', '.join(path.name for path in matches)}: give more of the name")
    return matches[0] if matches else None


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _members(path: Path) -> list[tuple[str, RunFolder]]:
    """The runs of a comparison with the name of their method; they stand beside its folder."""
    try:
        text = read_text(path / "comparison.csv", LONGEST_JSON)
        rows = [(row["algorithm"], row["run"]) for row in csv.DictReader(io.StringIO(text, newline=""))]
    except (OSError, KeyError, UnicodeDecodeError, csv.Error):
        rows = []
    if not rows or any(not run or Path(run).name != run for _, run in rows):
        raise StoreError(f"'{path / 'comparison.csv'}' is damaged: make it again with 'fedsoft compare'")
    return [(label, RunFolder.open(path.parent / run)) for label, run in rows]


def finished(folder: RunFolder, allow: Collection[str] = ()) -> Finished:
    """Read a run; raises where it is not finished, or its log and state do not belong together."""
    spec, scores, records = folder.spec(allow), folder.scores(), folder.records()
    if scores is None:
        raise InputError(
            f"run '{folder.name}' is not finished (round {len(records)} of {spec.rounds}): "
            f"go on with 'fedsoft resume {folder.path}'"
        )
    saved = _saved_rounds(folder)
    if len(records) != saved:
        raise StoreError(f"'{folder.path / 'rounds.jsonl'}' holds {len(records)} rounds, but {saved} were saved")
    scores = without_centers(scores, withheld_centers(spec, records))
    return Finished(folder, spec, scores, records, folder.info)


def _saved_rounds(folder: RunFolder) -> int:
    """After how many rounds the state was saved; reads its notes, not its tensors."""
    from fedsoft.storage.tensorfile import open_tensors

    path = folder.path / "state.safetensors"
    try:
        return int(parse_json(open_tensors(path)[0])["round"])
    except FileNotFoundError:
        raise StoreError(f"'{path}' is missing: the run cannot be reported without it") from None
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise StoreError(f"'{path}' is damaged ({type(error).__name__})") from None


def _grouped(found: list[tuple[str | None, Finished]]) -> list[Group]:
    """Runs that differ only by seed together. A budget is what the first method spent, so it differs by seed too."""
    groups: dict[str, list[tuple[str | None, Finished]]] = {}
    for label, run in found:
        content = {k: (True if k in ("work", "bytes") else v) for k, v in run.spec.to_dict().items()}
        key = json.dumps([label, {k: v for k, v in content.items() if k not in ("seed", "about")}], sort_keys=True)
        groups.setdefault(key, []).append((label, run))
    given = [members[0][0] for members in groups.values()]
    made = _labels([members[0][1].spec for members in groups.values()])
    labels = [own or other for own, other in zip(given, made, strict=True)]
    if len(set(labels)) < len(labels):
        labels = made
    ordered = [sorted((run for _, run in members), key=lambda run: run.spec.seed) for members in groups.values()]
    return [Group(label, tuple(runs)) for label, runs in zip(labels, ordered, strict=True)]


def _labels(specs: Sequence[RunSpec]) -> list[str]:
    """The algorithm's name, and in brackets what tells it from the others."""
    flat = [_flat(spec) for spec in specs]
    labels = []
    for spec, own in zip(specs, flat, strict=True):
        peers = [other for s, other in zip(specs, flat, strict=True) if s.algorithm.name == spec.algorithm.name]
        telling = {
            key: value
            for key, value in own.items()
            if any(other.get(key) != value for other in (peers if key.startswith("algorithm.") else flat))
        }
        inside = ", ".join(f"{key.removeprefix('algorithm.')}={value}" for key, value in telling.items())
        labels.append(f"{spec.algorithm.name}({inside})" if inside else spec.algorithm.name)
    return labels


def _flat(spec: RunSpec) -> dict[str, Any]:
    """All settings but those that the seed decides, `algorithm.lam` and so on."""
    found: dict[str, Any] = {}
    for key, value in spec.to_dict().items():
        if isinstance(value, dict):
            found |= {f"{key}.{name}": inner for name, inner in value.items() if (key, name) != ("algorithm", "name")}
        elif key not in ("seed", "about", "work", "bytes"):
            found[key] = value
    return found
