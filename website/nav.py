"""Where pages stand. A page of `docs/` that is not named here stands under "How to"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Nav = list[dict[str, Any]]

ORDER: dict[str, list[str]] = {
    "Learn": [
        "learn/index.md", "learn/first_federation.md", "learn/own_csv.md", "learn/own_model.md", "learn/which_model.md",
        "learn/people_who_come_later.md", "learn/real_federation.md",
    ],
    "How to": [
        "questions.md", "install.md", "data.md", "models.md", "training.md", "callbacks.md", "runs.md", "recommend.md",
        "choose.md", "new_clients.md", "engines.md", "flower.md", "privacy.md", "secure.md",
    ],
    "Explain": [
        "explain/index.md", "explain/idea.md", "explain/averages.md", "explain/hierarchy.md", "explain/what_leaves.md",
        "beyond.md", "prior.md", "theory.md",
    ],
    "Algorithms": ["algorithms/index.md"],
    "Reference": ["reference/index.md"],
    "Evidence": [
        "evidence.md", "leaderboard.md", "leaderboard/board.md", "audits.md", "baselines.md", "comparison.md",
        "findings.md",
        "paper/report.md", "speed.md",
        "reliability.md", "security.md",
    ],
    "Project": ["design.md", "tour.md", "stability.md", "project/contributing.md", "project/changelog.md",
    "project/security.md"],
}  # fmt: skip
ELSEWHERE = ("index.md", "algorithms.md")  # the home page; what is split into a page for each algorithm


def nav(source: Path, made: dict[str, list[str]]) -> Nav:
    """Return MkDocs' navigation over the pages that are there.

    Arguments:
        source: the folder of gathered pages.
        made: pages that were made from code, by section.
    """
    sections = {title: [page for page in pages if (source / page).is_file()] for title, pages in ORDER.items()}
    for title, pages in made.items():
        sections[title] += [page for page in pages if page not in sections[title]]
    named = {page for pages in sections.values() for page in pages}
    found = {path.relative_to(source).as_posix() for path in source.rglob("*.md")}
    sections["How to"] += sorted(page for page in found - named - {*ELSEWHERE} if not page.startswith("source/"))
    return [{"Home": "index.md"}, *({title: pages} for title, pages in sections.items() if pages)]
