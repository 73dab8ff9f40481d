"""The page in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import csv
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsoft.reports.page import csv as to_csv
from fedsoft.reports.page import html
from fedsoft.reports.run_loader import read
from fedsoft.reports.run_page import run_page
from tests.pages import EVIL, ONE, page
from tests.reports.test_page_runs import run

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
WIDTHS, THEMES = (390, 1440), ("light", "dark")

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[dev]'")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: 'make browser' installs it"),
]

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"), executable_path=CHROMIUM, args=FLAGS, headless=True,
            accept_downloads=True,
        )  # fmt: skip
        yield context
        context.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page with everything and bad names on it, and that of a real run."""
    folder = tmp_path_factory.mktemp("pages")
    [group] = read([str(run(folder / "runs"))], folder / "runs")
    for name, text in (("all", html(page(EVIL))), ("plain", html(page("word"))), ("run", html(run_page(group)))):
        (folder / f"{name}.html").write_text(text, "utf-8")
    return {path.stem: path for path in folder.glob("*.html")}


@pytest.fixture
def show(browser: Any, files: dict[str, Path]) -> Iterator[Open]:
    """Opens a page; whatever it complains about or asks of the network fails the test."""
    opened: list[Any] = []
    bad: list[str] = []

    def show(name: str = "plain", width: int = 1440, theme: str = "light", script: bool = True) -> Any:
        tab = browser.new_page()
        opened.append(tab)
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=theme, reduced_motion="reduce")
        tab.on("console", lambda message: bad.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: bad.append(f"error: {error}"))
        tab.on("dialog", lambda dialog: bad.append("dialog"))
        address = files[name].as_uri()
        tab.on("request", lambda request: None if request.url.startswith((address, "data:", "blob:"))
               else bad.append(f"request: {request.url}"))  # fmt: skip
        if not script:
            # What the page is without its script: its policy then allows none.
            text = re.sub(r"script-src '[^']+'", "script-src 'none'", files[name].read_text("utf-8"))
            text = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
            tab.set_content(text)
        else:
            tab.goto(address)
        return tab

    yield show
    for tab in opened:
        tab.close()
    assert bad == []


@pytest.mark.parametrize("name", ["all", "run"])
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_draws_and_says_nothing(show: Open, name: str, theme: str, width: int) -> None:
    tab = show(name, width, theme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    for panel in tab.query_selector_all(".plot svg"):
        box = panel.bounding_box()
        assert box["width"] > 250
        assert box["height"] > 150
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    outside = tab.evaluate(
        """() => [...document.querySelectorAll(".plot svg text")].filter((text) => {
            const [a, b] = [text.getBoundingClientRect(), text.ownerSVGElement.getBoundingClientRect()];
            return a.width && (a.left < b.left - 2 || a.right > b.right + 2 || a.bottom > b.bottom + 2);
        }).map((text) => text.textContent)"""
    )
    # A name as long as that in the evil page is cut by the edge of its panel, as it should be.
    assert [text for text in outside if EVIL[:9] not in text] == []
    assert tab.evaluate("document.title").startswith("Title" if name == "all" else "FedSoft")
    background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(255, 255, 255)" if theme == "light" else "rgb(20, 22, 26)")


@pytest.mark.smoke
def test_names_from_data_are_inert(show: Open) -> None:
    tab = show("all")
    assert tab.evaluate("document.images.length") == 0
    for plot in tab.query_selector_all(".plot"):  # readouts are made of names too
        plot.focus()
        for _ in range(4):
            tab.keyboard.press("ArrowRight")
    assert tab.title() == f"Title {EVIL}"
    assert tab.evaluate("document.scripts.length") == 5  # values of three figures, the style of figures, the script


def test_a_script_that_slipped_in_would_not_run(show: Open, files: dict[str, Path]) -> None:
    """The policy allows our script alone. Shown on a page of its own, for the browser complains about it."""
    bad = files["plain"].with_name("bad.html")
    bad.write_text(
        files["plain"].read_text("utf-8").replace("</main>", "<script>document.title='owned'</script></main>")
    )
    tab = show("plain").context.new_page()
    try:
        tab.goto(bad.as_uri())
        assert tab.title() == "Title word"
    finally:
        tab.close()


def test_every_link_leads_somewhere(show: Open) -> None:
    tab = show("run", 390)
    links = tab.eval_on_selector_all("a[href]", "links => links.map((link) => link.getAttribute('href'))")
    assert len(links) > 20
    for target in dict.fromkeys(links):
        assert target.startswith("#")
        assert tab.evaluate("id => document.getElementById(id) !== null", target[1:]), target
    for link in tab.query_selector_all("nav a"):
        link.click()
        target = link.get_attribute("href")
        top = tab.evaluate("id => document.getElementById(id).getBoundingClientRect().top", target[1:])
        bottom = tab.evaluate("innerHeight + scrollY >= document.documentElement.scrollHeight - 2")
        assert -1 <= top <= 60 or bottom, target


def column(tab: Any, number: int) -> list[str]:
    return tab.eval_on_selector_all(
        f"#numbers tbody tr > :nth-child({number})", "cells => cells.map((c) => c.textContent)"
    )


def test_tables_sort_by_value_and_keep_what_is_missing_last(show: Open) -> None:
    tab = show()
    heads = tab.query_selector_all("#numbers thead th")
    heads[1].query_selector("button").click()
    assert heads[1].get_attribute("aria-sort") == "ascending"
    assert column(tab, 2) == ["9.00 (best)", "10.00 ± 1.00", "11.00"]  # as numbers: as text 10 would come first
    heads[1].query_selector("button").click()
    assert heads[1].get_attribute("aria-sort") == "descending"
    assert column(tab, 2) == ["11.00", "10.00 ± 1.00", "9.00 (best)"]
    for expected in (["3.0", "20.0 (best)", "–none"], ["20.0 (best)", "3.0", "–none"]):
        heads[2].focus()
        heads[2].query_selector("button").press("Enter")
        assert column(tab, 3) == expected
    assert [head.get_attribute("aria-sort") for head in heads] == ["none", "none", "descending"]
    heads[0].query_selector("button").click()
    assert column(tab, 1) == ["a", "b", "word"]
    assert tab.text_content("#numbers tfoot th") == "oracle"


def test_the_first_column_stays_in_sight(show: Open) -> None:
    tab = show("run", 390)
    box = tab.query_selector("#cost-table .scroll")
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")
    before = box.query_selector("tbody th").bounding_box()["x"]
    box.evaluate("box => { box.scrollLeft = 200; }")
    assert box.evaluate("box => box.scrollLeft") == 200
    assert box.query_selector("tbody th").bounding_box()["x"] == before


def test_the_keyboard_reaches_where_a_number_comes_from(show: Open) -> None:
    tab = show()
    for _ in range(60):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.matches('#numbers a.n')"):
            break
    focused = "document.activeElement"
    assert tab.evaluate(f"{focused}.textContent") == "10.00 ± 1.00"
    trace = tab.query_selector(f"#{tab.evaluate(f'{focused}.getAttribute(`aria-describedby`)')}")
    assert trace.is_visible()
    for part in ("2 runs", ONE.name, "seed 0", "spec aaa", "fedsoft 0.1.0", "spec bbb"):
        assert part in trace.inner_text()
    box = trace.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 1440
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate(f"{focused}.textContent") == "3.0"
    assert not trace.is_visible()
    tab.keyboard.press("ArrowDown")  # over the missing one
    assert tab.evaluate(f"{focused}.textContent") == "20.0"
    tab.keyboard.press("Escape")
    assert tab.query_selector(".trace:not([hidden])") is None
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.querySelector(':target').cells[0].textContent") == "two s1 <b>"


def test_a_table_is_one_stop_of_the_tab_key(show: Open) -> None:
    tab = show()
    assert tab.eval_on_selector_all("#numbers a.n", "links => links.filter((link) => link.tabIndex === 0).length") == 1
    tab.query_selector("#numbers thead button").click()
    assert tab.eval_on_selector_all("#numbers a.n", "links => links.filter((link) => link.tabIndex === 0).length") == 1


def test_the_pointer_shows_where_a_number_comes_from(show: Open) -> None:
    tab = show()
    tab.hover("#numbers a.n >> nth=1")
    assert tab.inner_text(".trace:not([hidden])").startswith(ONE.name)
    tab.hover("h1")
    assert tab.query_selector(".trace:not([hidden])") is None


def test_the_theme_can_be_switched(show: Open) -> None:
    for theme in THEMES:
        tab = show("run", 390, theme)
        colour = "getComputedStyle(document.body).backgroundColor"
        before = tab.evaluate(colour)
        assert tab.inner_text("#theme") == ("Dark" if theme == "light" else "Light")
        tab.click("#theme")
        assert tab.evaluate(colour) != before
        assert tab.inner_text("#theme") == ("Light" if theme == "light" else "Dark")
        tab.click("#theme")
        assert tab.evaluate(colour) == before


def test_the_legend_switches_series(show: Open) -> None:
    tab = show()
    button = tab.query_selector("#lines .legend button")
    parts = tab.query_selector_all("#lines svg g[data-series=falling]")
    assert len(parts) == 2  # one in each panel
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert not any(part.is_visible() for part in parts)
    tab.focus("#lines .plot")
    tab.keyboard.press("ArrowRight")
    assert "falling" not in tab.inner_text("#lines .readout:not([hidden])")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert all(part.is_visible() for part in parts)


def test_values_can_be_read_by_keys_and_pointer(show: Open) -> None:
    tab = show()
    plot = tab.query_selector("#lines .plot")
    plot.focus()
    readout = plot.query_selector(".readout")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    assert readout.inner_text().split("\n") == ["round 2", "falling", "30 (20 to 40)"]  # the other has no value there
    tab.keyboard.press("End")
    assert "35" in readout.inner_text()
    tab.keyboard.press("ArrowRight")
    assert "round 4" in readout.inner_text()
    tab.keyboard.press("Escape")
    assert not readout.is_visible()
    box = plot.query_selector("svg").bounding_box()
    tab.mouse.move(box["x"] + box["width"] * 0.1, box["y"] + box["height"] / 2)
    assert "round 1" in readout.inner_text()
    tab.hover("#points .plot svg")  # in its middle, where the second point is nearest
    assert tab.inner_text("#points .readout").split("\n") == ["word: true 0.5", "clients", "0.4"]
    tab.query_selector("#bars .plot").focus()
    tab.keyboard.press("End")
    assert tab.inner_text("#bars .readout").split("\n") == ["word", "held out", "5 (4 to 6)"]


def save(tab: Any, figure: str, kind: str) -> Path:
    with tab.expect_download() as waiting:
        tab.click(f"#{figure} [data-save={kind}]")
    assert waiting.value.suggested_filename == f"{figure}.{kind}"
    return Path(waiting.value.path())


@pytest.mark.parametrize("name", ["plain", "all"])
def test_every_figure_and_table_can_be_saved(show: Open, name: str) -> None:
    tab, expected = show(name), to_csv(page("word" if name == "plain" else EVIL))
    for figure in ("lines", "points", "bars"):
        root = ET.fromstring(save(tab, figure, "svg").read_text("utf-8"))
        panels = root.findall("{http://www.w3.org/2000/svg}svg")
        assert len(panels) == (2 if figure == "lines" else 1)
        style = root.findtext("{http://www.w3.org/2000/svg}style") or ""
        assert "--c0:rgb(11, 98, 171)" in style
        picture = save(tab, figure, "png").read_bytes()
        assert picture.startswith(b"\x89PNG")
        wide, high = int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])
        assert (wide, high) == (2 * round(float(root.attrib["width"])), 2 * round(float(root.attrib["height"])))
        rows, wanted = (list(csv.reader(text.splitlines())) for text in
                        (save(tab, figure, "csv").read_text("utf-8"), expected[f"{figure}.csv"]))  # fmt: skip
        assert [[_number(cell) for cell in row] for row in rows] == [[_number(cell) for cell in row] for row in wanted]
    rows = list(csv.reader(save(tab, "numbers", "csv").read_text("utf-8").splitlines()))
    assert rows == [row[:-1] for row in csv.reader(expected["numbers.csv"].splitlines())]  # but for the runs


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def test_a_saved_picture_is_drawn(show: Open, tmp_path: Path) -> None:
    """Some of its pixels have the colour of a series: the style went along."""
    tab = show()
    picture = save(tab, "bars", "png")
    from matplotlib.image import imread

    with picture.open("rb") as file:
        pixels = (imread(file, format="png")[..., :3] * 255).round().astype(int)
    assert (abs(pixels - [11, 98, 171]).sum(-1) <= 6).mean() > 0.02
    assert (pixels == 255).all(-1).mean() > 0.5


@pytest.mark.parametrize("width", WIDTHS)
def test_without_its_script_everything_can_still_be_read(show: Open, width: int) -> None:
    tab = show("plain", width, script=False)
    assert tab.query_selector_all("button:visible") == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert all(panel.is_visible() for panel in tab.query_selector_all(".plot svg"))
    tab.click("#lines summary")
    assert tab.query_selector("#lines details table").is_visible()
    tab.click("#numbers a.n")
    assert tab.url.endswith(f"#{ONE.anchor}")


def test_everything_interactive_has_a_name(show: Open) -> None:
    tab = show("run")
    nameless = tab.evaluate(
        """() => [...document.querySelectorAll("a, button, summary, [role=group], [role=region], nav, table")].filter(
            (element) => !(element.getAttribute("aria-label") || element.textContent.trim() ||
                document.getElementById(element.getAttribute("aria-labelledby")))).length"""
    )
    assert nameless == 0
    assert tab.evaluate("document.documentElement.lang") == "en"
    assert tab.evaluate("document.querySelectorAll('main').length") == 1
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the content"
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "content"
    small = tab.evaluate(
        """() => [...document.querySelectorAll("main button")].filter((button) => button.offsetParent &&
            button.getBoundingClientRect().height < 16).map((button) => button.textContent)"""
    )
    assert small == []


def test_it_prints(show: Open) -> None:
    tab = show("run", 1440, "dark")
    tab.emulate_media(media="print", color_scheme="dark")
    assert not tab.is_visible("nav")
    assert not tab.is_visible("[data-save]")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.pdf(format="A4").startswith(b"%PDF")
