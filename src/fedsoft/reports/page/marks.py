"""The parts that a drawing is made of: elements, numbers in words, lines, markers, and labels that keep a distance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

from fedsoft.reports.page.blocks import missing

COLOURS = 8  # in the style; more than that are dashed


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """An element; what is not markup is escaped. `class_` stands for `class`, `_` in a name for `-`.

    >>> print(tag("text", "a < b", x=1.5, class_="tick"))
    <text x="1.5" class="tick">a &lt; b</text>
    """
    texts = [
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _short(value))
        for key, value in attributes.items()
        if value is not None
    ]
    inside = Markup("").join(children)
    start = Markup("<") + name + Markup("").join(texts)
    return start + (Markup(">") + inside + Markup(f"</{name}>") if children else Markup("/>"))


def _short(value: Any) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def said(value: float | None) -> str:
    """A value for people to read: four digits."""
    if missing(value):
        return "none"
    assert value is not None
    if value != 0 and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3e}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def apart(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The same places, moved as little as needed so that they are `gap` apart and between the limits.

    Places that do not all fit come out closer than that, evenly spread.

    >>> apart([10.0, 12.0, 50.0], 10.0, 0.0, 100.0)
    [6.0, 16.0, 50.0]
    """
    if not places:
        return []
    gap = min(gap, (high - low) / max(1, len(places) - 1))
    order = sorted(range(len(places)), key=lambda i: places[i])
    groups: list[tuple[float, int]] = []  # middle, members
    for i in order:
        middle, members = places[i], 1
        while True:
            half = gap * (members - 1) / 2
            middle = min(max(middle, low + half), high - half)
            if not groups or groups[-1][0] + gap * (groups[-1][1] + members) / 2 <= middle + 1e-9:
                break
            before, others = groups.pop()
            middle, members = (before * others + middle * members) / (others + members), others + members
        groups.append((middle, members))
    spread = [middle + gap * (j - (members - 1) / 2) for middle, members in groups for j in range(members)]
    found = [0.0] * len(places)
    for i, place in zip(order, spread, strict=True):
        found[i] = place
    return found


def path_of(points: Sequence[tuple[float, float]]) -> str:
    """A line through the points, broken where there is none; a point on its own is a line of no length."""
    parts: list[list[str]] = [[]]
    for x, y in points:
        if missing(x) or missing(y):
            parts.append([])
        else:
            parts[-1].append(f"{x:.1f} {y:.1f}")
    return "".join("M" + "L".join(part) + ("h0" if len(part) == 1 else "") for part in parts if part)


def classes(name: str, colour: int | None) -> str:
    return name if colour is None else f"{name} c{colour % COLOURS}"


def marker(colour: int) -> Callable[[float, float], str]:
    """The shape of points in a colour: colours alone do not tell series apart."""
    return MARKERS[colour % len(MARKERS)]


MARKERS: tuple[Callable[[float, float], str], ...] = (
    lambda x, y: f"M{x - 3:.1f} {y:.1f}a3 3 0 1 0 6 0a3 3 0 1 0-6 0",  # circle
    lambda x, y: f"M{x - 2.7:.1f} {y - 2.7:.1f}h5.4v5.4h-5.4Z",  # square
    lambda x, y: f"M{x:.1f} {y - 3.8:.1f}l3.6 6.2h-7.2Z",  # triangle
    lambda x, y: f"M{x:.1f} {y - 3.9:.1f}l3.9 3.9l-3.9 3.9l-3.9-3.9Z",  # diamond
)
