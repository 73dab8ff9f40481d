"""The building blocks of a report and what becomes of them: HTML, Markdown, CSV, SVG."""

from __future__ import annotations

import csv as csv_files
import io
import itertools
import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from importlib import resources

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedsoft.escape import csv_cell
from fedsoft.reports.cells import column, measured
from fedsoft.reports.numbers import count
from fedsoft.reports.page import (
    Axis,
    Cell,
    Column,
    Figure,
    Page,
    Panel,
    RunRef,
    Section,
    Series,
    Table,
    Text,
    csv,
    html,
    markdown,
    pictures,
)
from fedsoft.reports.page.marks import apart
from fedsoft.reports.page.scales import SMALLEST, Scale, even_ticks, fitted, log_ticks, tick_labels
from fedsoft.reports.page.svg import drawings
from tests.pages import EVIL, ONE, TWO, page, table

VOID = {"meta", "img", "br", "link", "input"}
words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=30)


class Read(HTMLParser):
    """Reads a page: elements with their attributes, and text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


# --- HTML -------------------------------------------------------------------------------------------------------------


def test_every_element_is_closed_and_every_id_is_there_once() -> None:
    read = Read(html(page()))
    assert read.open == []
    ids = [a["id"] for _, a in read.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in read.elements:
        for key in ("aria-describedby", "aria-labelledby"):
            for target in (attributes.get(key) or "").split():
                assert target in ids, target
        if (attributes.get("href") or "").startswith("#"):
            assert (attributes["href"] or "")[1:] in ids


def test_nothing_is_asked_of_the_network() -> None:
    text = html(page("plain"))
    read = Read(text)
    assert not read.all("link")
    assert not read.all("img")
    assert not [a for _, a in read.elements if "src" in a]
    assert all((a["href"] or "").startswith("#") for a in read.all("a"))
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in text
    assert "@import" not in text
    policy = next(a["content"] or "" for a in read.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_text_from_data_is_text() -> None:
    plain, evil = Read(html(page("x" * len(EVIL)))), Read(html(page(EVIL)))
    assert [name for name, _ in evil.elements] == [name for name, _ in plain.elements]
    assert not [a for _, a in evil.elements if "onerror" in a]
    assert evil.text.count(EVIL) >= 8


@given(words)
def test_any_name_leaves_the_page_as_it_is(word: str) -> None:
    read = Read(html(Page("t", word, (Section("s", word, (Text(word), table(word))),))))
    assert read.open == []
    assert len(read.all("script")) == 2
    assert len(read.all("td")) == 8 + 2 * 4  # of the table, and of the list of runs
    assert word.replace("\0", "") in read.text or not word.strip()


def test_no_control_character_stands_in_a_page() -> None:
    for text in (html(page("a\x1b[31m\x07b\x9bc")), *pictures(page("a\x1b[31m\x07b")).values()):
        assert not any(ord(c) < 32 and c not in "\n\t" for c in text)
        assert "\x9b" not in text


def test_numbers_lead_to_their_runs() -> None:
    read = Read(html(page()))
    numbers = [a for a in read.all("a") if (a.get("class") or "").startswith("n")]
    assert len(numbers) == 6 + 1 + 1  # those of the table, a verdict, a figure
    rows = {a["id"] for a in read.all("tr") if "id" in a}
    assert rows == {ONE.anchor, TWO.anchor}
    assert all((a["href"] or "")[1:] in rows for a in numbers)
    for part in (ONE.hash, TWO.hash, "seed 1", "fedsoft 0.1.0", ONE.name, TWO.name):
        assert part in read.text
    assert len({a["aria-describedby"] for a in numbers}) == 3  # one, two, both: shared


def test_anchors_of_different_runs_differ() -> None:
    names = ["a b", "a_20_b", "a-b", "a/b", "ä", "<", "_3c_"]
    anchors = [RunRef(name, "", 0, "").anchor for name in names]
    assert all(re.fullmatch(r"[\w.-]+", anchor, re.ASCII) for anchor in anchors)
    assert len(set(anchors)) == len(names)


def test_the_best_is_said_and_not_only_underlined() -> None:
    text = html(page())
    assert text.count('<span class="unseen"> (best)</span>') == 2


def test_headings_do_not_skip_a_level() -> None:
    levels = [int(name[1]) for name, _ in Read(html(page())).elements if re.fullmatch(r"h\d", name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_the_same_page_has_the_same_bytes() -> None:
    assert html(page()) == html(page())


def test_a_page_refuses_what_cannot_be_linked_to() -> None:
    for bad in ("Upper", "a b", "", "run-x", "runs", "content", "trace-1", "9"):
        with pytest.raises(ValueError, match="id"):
            Page("t", "", (Section(bad, "s", ()),))
    with pytest.raises(ValueError, match="'numbers' is taken"):
        Page("t", "", (Section("numbers", "s", (table("x"),)),))


def test_blocks_refuse_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="2 columns, but a row of 1"):
        Table("t", "", (Column("a"), Column("b")), ((Cell("1"),),))
    with pytest.raises(ValueError, match="different lengths"):
        Series("s", [1, 2], [1, 2, 3])


# --- colours ----------------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_against_its_background(theme: int) -> None:
    style = (resources.files("fedsoft.reports.page") / "style.css").read_text("utf-8")
    colours = {name: pair[theme] for name, *pair in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", style)}
    assert {"back", "raised", "ink", "muted", "link", *(f"c{i}" for i in range(8))} <= colours.keys()
    for name, colour in colours.items():
        for back in ("back", "raised"):
            if name not in ("back", "raised", "rule", "grid"):
                assert contrast(colour, colours[back]) >= 4.5, (name, back)


# What people with each kind of dichromacy see, in linear RGB (Machado, Oliveira, Fernandes 2009).
SEEN = {
    "all cones": np.eye(3),
    "protanopia": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "deuteranopia": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "tritanopia": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}


def lab(colour: str, seen: np.ndarray) -> np.ndarray:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(to_xyz @ np.clip(seen @ linear, 0, 1) / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_series_can_be_told_apart_by_all_eyes(theme: int, seen: str) -> None:
    """Ten units of CIE Lab are seen at a glance; one is the least that is seen at all."""
    style = (resources.files("fedsoft.reports.page") / "style.css").read_text("utf-8")
    found = re.findall(r"--c\d: light-dark\((#\w{6}), (#\w{6})\)", style)
    places = [lab(pair[theme], SEEN[seen]) for pair in found]
    assert len(places) == 8
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(places, 2)) > 10


# --- Markdown and CSV -------------------------------------------------------------------------------------------------


def test_markdown_holds_everything() -> None:
    text = markdown(page("word"), "files")
    for part in ("# Title word", "## First word", "Two word.", "**9.00**", "**(holds)**", "**(does not hold)**",
                 "![Both fall.](files/lines.svg)", "[lines.csv](files/lines.csv)",
                 "```\na = 'word'", "## Runs"):  # fmt: skip
        assert part in text, part


@given(words)
def test_a_name_cannot_break_a_table_in_markdown(word: str) -> None:
    text = markdown(Page("t", "", (Section("s", "s", (table(word),)),)))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 4 + 2 + 2
    for row in rows[:6]:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 4
    assert "<" not in text


def test_code_keeps_its_fence() -> None:
    assert "````\n" in markdown(page("```"))


@given(words)
def test_csv_holds_numbers_in_full_and_names_as_they_are(word: str) -> None:
    files = csv(page(word))
    assert set(files) == {"numbers.csv", "lines.csv", "points.csv", "bars.csv", "runs-table.csv"}
    rows = list(csv_files.reader(io.StringIO(files["numbers.csv"], newline="")))
    assert rows[0] == ["method", "error", "error, std", csv_cell(f"cost {word}"), "runs"]
    assert rows[1] == [csv_cell(word), "10.0", "1.0", "3.0", f"{ONE.name} {TWO.name}"]
    assert rows[2] == ["b", "9.0", "", "", ONE.name]
    lines = list(csv_files.reader(io.StringIO(files["lines.csv"], newline="")))
    assert lines[0] == ["panel", "series", "round", "MSE", "low", "high"]
    assert lines[1] == ["Errors", "falling", "1.0", "100.0", "90.0", "110.0"]
    assert lines[6] == ["Errors", csv_cell(word), "2.0", "", "", ""]
    assert lines[9] == ["Errors", "oracle", "", "1.0", "", ""]
    bars = list(csv_files.reader(io.StringIO(files["bars.csv"], newline="")))
    assert bars[2] == ["held out", csv_cell(word), "5.0", "4.0", "6.0"]


# --- cells ------------------------------------------------------------------------------------------------------------


def test_a_column_has_the_same_digits_and_one_best() -> None:
    cells = column([[1.0, 3.0], [10.0], [None], [0.5]], [(ONE, TWO), (ONE,), (), (TWO,)], "mse", False, peers=3)
    assert [cell.text for cell in cells] == ["2.00 ± 1.41", "10.00", "-", "0.50"]
    assert [cell.best for cell in cells] == [True, False, False, False]  # the last only stands by
    assert cells[0].value == 2.0
    assert cells[0].std == pytest.approx(math.sqrt(2))
    assert column([[0.5], [0.875]], [(), ()], "accuracy", True)[1] == Cell("87.5", 0.875, best=True)


def test_a_lone_value_is_not_the_best() -> None:
    assert not column([[1.0], [None]], [(), ()], "mse", False)[0].best


def test_counts_are_short() -> None:
    assert [count(v) for v in (0, 30, 7610, 41200, 7.04e6, 1.5e9)] == ["0", "30", "7,610", "41.2 k", "7.04 M", "1.50 G"]
    assert measured([[1e6, 3e6]], [(ONE,)], count)[0].text == "2.00 M"


# --- figures ----------------------------------------------------------------------------------------------------------


def test_points_are_drawn_where_they_belong() -> None:
    """A line from (0, 0) to (10, 10) in a panel with these limits runs from corner to corner."""
    line = Series("a", [0, 5, 10], [0, 5, 10])
    panel = Panel("", Axis("x", low=0, high=10), Axis("y", low=0, high=10), (line,))
    drawing = drawings(Figure("f", "c", "a", (panel,)))[0]
    path = re.search(r'<path d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)" class="line"/>', drawing.svg)
    assert path is not None
    x0, y0, x1, y1, x2, y2 = map(float, path.groups())
    assert (x1, y1) == pytest.approx(((x0 + x2) / 2, (y0 + y2) / 2), abs=0.1)
    assert x0 < x2
    assert y0 > y2  # upwards
    assert drawing.mode == "x"
    assert [stop.x for stop in drawing.stops] == pytest.approx([x0, x1, x2], abs=0.1)
    assert drawing.stops[1].heading == "x 5"
    assert drawing.stops[1].readings == [("a", "5", pytest.approx(x1, abs=0.1), pytest.approx(y1, abs=0.1))]


def test_gaps_stay_gaps() -> None:
    line = Series("a", [0, 1, 2, 3, 4], [1, 2, math.nan, 3, 0])
    panel = Panel("", Axis("x"), Axis("y", log=True), (line,))
    svg = drawings(Figure("f", "c", "a", (panel,)))[0].svg
    path = re.search(r'<path d="([^"]+)" class="line"', svg)
    assert path is not None
    assert re.findall(r"[ML]", path[1]) == ["M", "L", "M"]
    assert path[1].endswith("h0")  # a point on its own is seen; there is none where a logarithm has none


def test_a_panel_is_described_in_words() -> None:
    svg = drawings(page("word").sections[1].blocks[0])[0].svg  # pyright: ignore[reportArgumentType]
    assert 'role="img"' in svg
    assert "<desc" in svg
    assert "falling from 100 to 3; word from 100 to 35; oracle at 1." in svg


@pytest.mark.parametrize("values", [[], [math.nan], [5.0], [0.0, 0.0], [1e-9, 1e9], [-3.0, 2.0]])
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("kind", ["line", "scatter", "bar"])
def test_odd_values_are_drawn_without_complaint(values: list[float], log: bool, kind: str) -> None:
    names = tuple(f"n{i}" for i in range(len(values))) if kind == "bar" else ()
    rows = list(range(len(values)))
    x, y = (values, rows) if kind == "bar" else (rows, values)
    series = Series("s", x, y, kind)  # pyright: ignore[reportArgumentType]
    panel = Panel("t", Axis("x"), Axis("y", log=log and kind != "bar", names=names), (series,))
    drawing = drawings(Figure("f", "c", "a", (panel,)))[0]
    assert "nan" not in drawing.svg
    assert "inf" not in drawing.svg
    ET.fromstring(drawing.svg)


def test_pictures_stand_alone() -> None:
    found = pictures(page(EVIL))
    assert set(found) == {"lines.svg", "points.svg", "bars.svg"}
    for text in found.values():
        root = ET.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
        style = next(root.iter("{http://www.w3.org/2000/svg}style")).text or ""
        used = set(re.findall(r"var\((--\w+)", style))
        assert used - {"--c"} <= set(re.findall(r"(--\w+):", style))
        assert "light-dark" not in style


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(1, 10))
def test_even_ticks_lie_inside_and_are_even(low: float, span: float, about: int) -> None:
    ticks = even_ticks(low, low + span, about)
    slack = 1e-6 * (abs(low) + span)
    assert all(low - slack <= t <= low + span + slack for t in ticks)
    assert len(ticks) <= about + 2
    steps = {round(b - a, 9) for a, b in itertools.pairwise(ticks)}
    assert max(steps, default=0) - min(steps, default=0) <= slack
    assert len(tick_labels(ticks)) == len(ticks)


@given(st.floats(-6, 6), st.floats(0.1, 8))
def test_log_ticks_lie_inside_and_rise(exponent: float, span: float) -> None:
    low, high = 10**exponent, 10 ** (exponent + span)
    ticks = log_ticks(low, high)
    assert ticks == sorted(set(ticks))
    assert all(low * 0.99 <= t <= high * 1.01 for t in ticks)
    assert len(ticks) <= 9


@example([5e-324], True)
@example([5e-324], False)
@example([1e-300, 5e-324], True)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20), st.booleans())
def test_a_fitted_scale_shows_all_it_can(values: list[float], log: bool) -> None:
    scale = fitted(values, 10, 110, log=log)
    for value in values:
        place = scale(value)
        assert (log and value < SMALLEST and math.isnan(place)) or 10 <= place <= 110
    assert scale.ticks(5) == sorted(scale.ticks(5))


def test_a_logarithmic_scale_is_one() -> None:
    scale = Scale(1, 100, 0, 10, log=True)
    assert [scale(v) for v in (1, 10, 100)] == pytest.approx([0, 5, 10])
    assert math.isnan(scale(0))


@given(st.lists(st.floats(0, 100), max_size=12))
def test_labels_are_pushed_apart_and_keep_their_order(places: list[float]) -> None:
    found = apart(places, 8, 0, 100)
    assert len(found) == len(places)
    assert all(-1e-6 <= place <= 100 + 1e-6 for place in found)
    order = sorted(range(len(places)), key=lambda i: places[i])
    ranked = [found[i] for i in order]
    assert all(b - a >= 8 - 1e-6 for a, b in itertools.pairwise(ranked))  # 12 labels do fit
    if all(b - a >= 8 for a, b in zip(sorted(places), sorted(places)[1:], strict=False)):
        assert found == pytest.approx(places)
