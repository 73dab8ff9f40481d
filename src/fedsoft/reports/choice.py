"""Show the choice of the number of centers as a table and as a picture."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from fedsoft.reports.page import Axis, Figure, Level, Panel, Series
from fedsoft.reports.pictures import draw
from fedsoft.reports.results import WIDTH, StudyResult
from fedsoft.reports.tables import grid
from fedsoft.studies.center_count import Choice


@dataclass(frozen=True, repr=False)
class ChoiceReport(StudyResult):
    """The choice of the number of centers."""

    choice: Choice
    scratch: object = None

    @property
    def name(self) -> str:
        return self.choice.name

    @property
    def recommended(self) -> int:
        """The number of sources; 1 when there is no cluster structure."""
        return self.choice.recommended

    @property
    def structure(self) -> bool:
        """Whether there is cluster structure."""
        return self.choice.structure

    @property
    def sentences(self) -> list[str]:
        return [f"Recommended: {self.choice.verdict}", *(f"- {reason}" for reason in self.choice.reasons)]

    def rows(self) -> list[dict[str, Any]]:
        return [asdict(trial) | {"recommended": trial.S == self.recommended} for trial in self.choice.trials]

    def tables(self, width: int = WIDTH) -> list[Table]:
        return [choice_table(self.choice)]

    def to_dict(self) -> dict[str, Any]:
        return self.choice.to_dict()

    def files(self) -> dict[str, bytes]:
        files = {"choice.json": (json.dumps(self.to_dict(), indent=1) + "\n").encode()}
        return files | {f"choice.{kind}": choice_picture(self.choice, kind) for kind in ("png", "svg")}

    def png(self) -> bytes:
        return choice_picture(self.choice)


def choice_table(choice: Choice) -> Table:
    """Return one row for each S, the recommended one marked."""
    marks = "*: recommended, ~: still improving" if any(t.settled is False for t in choice.trials) else "*: recommended"
    title = f"{choice.label}: {choice.algorithm} with S centers, {len(choice.seeds)} seeds ({marks})"
    heads = ("S", "held-out log-likelihood", "std. error", "stability", "seeds that got there", "use of centers")
    view = grid(title, heads, left=("use of centers",))
    for trial in choice.trials:
        chosen = trial.S == choice.recommended
        restless = " ~" * (trial.settled is False)
        stable = "-" if trial.stability is None else f"{trial.stability:.2f}"
        use = " ".join(f"{u:.2f}" for u in trial.use)
        view.add_row(f"{'*' * chosen}{trial.S}{restless}", f"{trial.score:.4g}", f"{trial.error:.2g}", stable,
                     str(trial.arrived), use, style="bold" * chosen)  # fmt: skip
    return view


def choice_picture(choice: Choice, kind: str = "png") -> bytes:
    """Draw score with standard errors, stability, and use of centers over S; as PNG or SVG."""
    trials = choice.trials
    counts, scores, errors = zip(*((trial.S, trial.score, trial.error) for trial in trials), strict=True)
    low, high = zip(*((s - e, s + e) for s, e in zip(scores, errors, strict=True)), strict=True)
    best = max(trials, key=lambda trial: trial.score)
    score = Series("mean ± standard error", counts, scores, low=low, high=high, colour=0)
    stable = [(trial.S, trial.stability) for trial in trials if trial.stability is not None]
    across = Axis("number of centers S")
    panels = [Panel("", across, Axis("held-out log-likelihood"), (score,),
                    (Level("one standard error below the best", best.score - best.error),))]  # fmt: skip
    if stable:
        x, y = zip(*stable, strict=True)
        panels.append(Panel("", across, Axis("stability (ARI)", low=-0.1, high=1.05), (Series("stability", x, y),)))
    used = []
    for s in range(max(len(trial.use) for trial in trials)):
        having = [trial for trial in trials if s < len(trial.use)]
        shares = [trial.use[s] for trial in having]
        used.append(Series(f"center {s + 1} by use", [trial.S for trial in having], shares, "scatter"))
    panels.append(Panel("", across, Axis("use of centers", low=0, high=1.05), tuple(used)))
    title = f"{choice.label}: {choice.verdict}"
    return draw(Figure("choice", title, "", tuple(panels)), title, columns=1, kind=kind)
