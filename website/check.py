"""Looks over the finished site: links, anchors, anything that would need a network, and what screen readers need."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

from typing_extensions import override

LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
HARMLESS = ("canonical", "next", "prev", "alternate", "license")  # links of a head that load nothing
SELF_MADE = ("paper/report.html", "leaderboard/board.html")  # pages of their own, with checks of their own


@dataclass
class Page:
    """What matters of a page."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    headings: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Reader(HTMLParser):
    """Reads a page."""

    def __init__(self) -> None:
        super().__init__()
        self.page = Page()
        self.labelled: set[str] = set()
        self.fields: list[tuple[str, dict[str, str | None]]] = []

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if identity := found.get("id"):
            if identity in self.page.ids and not identity.startswith("__"):  # those of the theme's own switches
                self.page.problems.append(f"two elements have the id {identity}")
            self.page.ids.add(identity)
        if tag == "a" and (target := found.get("href")) is not None:
            self.page.links.append(target)
        if tag in LOADING and (target := found.get(LOADING[tag])) and found.get("rel") not in HARMLESS:
            self.page.loads.append(target)
        if tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            self.page.headings.append(int(tag[1]))
        if tag == "img" and found.get("alt") is None:
            self.page.problems.append(f"image {found.get('src')} has no text for those who do not see it")
        if tag == "svg" and found.get("role") == "img" and not found.get("aria-label"):
            self.page.problems.append("a figure has no label")
        if tag == "html" and not found.get("lang"):
            self.page.problems.append("the page does not tell its language")
        if tag == "label" and (whom := found.get("for")):
            self.labelled.add(whom)
        if tag in ("input", "select", "textarea"):
            self.fields.append((tag, found))

    def whole(self) -> Page:
        """Return the page, once all of it was read."""
        for tag, found in self.fields:
            named = found.get("aria-label") or found.get("placeholder") or found.get("id") in self.labelled
            if not named and found.get("type") not in ("hidden", "checkbox", "radio"):
                self.page.problems.append(f"<{tag} id={found.get('id')}> has no label")
        levels = self.page.headings
        if levels.count(1) != 1:
            self.page.problems.append(f"{levels.count(1)} headings of the first level")
        jumps = [(a, b) for a, b in pairwise(levels) if b > a + 1]
        self.page.problems += [f"a heading of level {b} follows one of level {a}" for a, b in jumps]
        return self.page


def check(site: Path) -> list[str]:
    """Return everything that is wrong, a sentence each."""
    pages = {path: _read(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    found: list[str] = []
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        found += [f"{name}: {problem}" for problem in page.problems if name not in SELF_MADE]
        found += [
            f"{name}: loads {one} from elsewhere" for one in page.loads if urlsplit(one).scheme not in ("", "data")
        ]
        for link in dict.fromkeys([*page.links, *page.loads]):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{name}: {link} leads nowhere")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                found.append(f"{name}: {link} leads to no place on that page")
    return found


def _read(path: Path) -> Page:
    reader = Reader()
    reader.feed(path.read_text("utf-8"))
    return reader.whole()
