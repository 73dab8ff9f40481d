"""The site in Chromium: figures that move, search from files, nothing from elsewhere, pages that can be heard."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from website import gather

pytest.importorskip("mkdocs", reason="needs the extra 'docs'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: make tools"),
]
PAGES = ("index", "learn/index", "questions", "explain/idea", "algorithms/fedsoft", "reference/settings", "design")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with no page executed, which takes half a minute."""
    out = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "website",
        "--only",
        "--out",
        str(out),
        "--pages",
        str(out.parent / f"{out.name}-pages"),
    ]
    done = subprocess.run(command, cwd=gather.ROOT, capture_output=True, text=True, check=False)
    left = [line for line in done.stdout.splitlines() if "leads nowhere" in line and ".ipynb" not in line]
    assert left == [], done.stdout + done.stderr
    assert (out / "index.html").is_file(), done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


def violations(page: Any) -> list[str]:
    """What axe finds that would keep somebody from reading: contrast, names, labels, order of headings."""
    rules = pytest.importorskip("axe_playwright_python", reason="needs the extra 'docs'")
    page.wait_for_timeout(300)  # the theme adds its buttons
    page.evaluate((Path(rules.__file__).parent / "axe.min.js").read_text("utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found if one["impact"] in ("serious", "critical")]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1360), ("dark", 390)])
def test_pages_need_no_network_and_fit(site: Path, browser: Any, scheme: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = context.new_page()
    wrong: list[str] = []
    page.on("request", lambda one: None if one.url.startswith(("file:", "data:", "blob:")) else wrong.append(one.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    for name in PAGES:
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
        assert violations(page) == [], name
        shown = page.evaluate("document.body.getAttribute('data-md-color-scheme')")
        assert shown == {"light": "default", "dark": "slate"}[scheme]
    assert wrong == []
    context.close()


def test_what_can_be_moved_moves_by_keyboard_and_mouse(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((site / "explain/idea.html").as_uri())
    handle, told = page.get_by_role("slider", name="Client A"), page.locator(".drawn output")
    assert handle.get_attribute("aria-valuenow") == "10"
    before = told.inner_text()
    handle.focus()
    page.keyboard.press("ArrowRight")
    assert handle.get_attribute("aria-valuetext") == "15 % of source 1"
    assert told.inner_text() != before
    box = handle.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] - 40, steps=3)
    page.mouse.up()
    assert int(handle.get_attribute("aria-valuenow")) > 30
    page.close()


@pytest.mark.parametrize(
    ("name", "control", "key"),
    [
        ("averages", "purity of clients", "ArrowLeft"), ("hierarchy", "width of the center's prior", "End"),
        ("hierarchy", "points of the client", "Home"), ("what_leaves", "secure = true", "Space"),
    ],
)  # fmt: skip
def test_every_figure_moves_by_keyboard_alone(site: Path, browser: Any, name: str, control: str, key: str) -> None:
    page = browser.new_page()
    page.goto((site / f"explain/{name}.html").as_uri())
    told = page.locator(".drawn output")
    before = told.inner_text()
    for _ in range(60):
        page.keyboard.press("Tab")
        if control in page.evaluate("document.activeElement.closest('label')?.textContent ?? ''"):
            break
    page.keyboard.press(key)
    assert told.inner_text() != before
    page.close()


# The contrast of letters of drawings with the page behind them, as WCAG counts it; those in boxes are left out.
CONTRAST = """() => [...document.querySelectorAll(".drawn svg text")].filter((one) => !one.closest("g")).map((one) => {
  const light = (color) => color.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const pair = [getComputedStyle(one).fill, getComputedStyle(document.body).backgroundColor].map(light);
  return [one.textContent, (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05)];
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_of_drawings_can_be_read(site: Path, browser: Any, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": 390, "height": 844})
    page = context.new_page()
    figures = ("algorithms/fedsoft", "explain/idea", "explain/averages", "explain/hierarchy", "explain/what_leaves")
    for name in figures:
        page.goto((site / f"{name}.html").as_uri())
        found = page.evaluate(CONTRAST)
        assert found
        assert [text for text, ratio in found if ratio < 4.5] == [], name
        small = "[...document.querySelectorAll('.drawn > svg text')].map((one) => one.getBoundingClientRect().height)"
        assert min(page.evaluate(small), default=99) >= 10, name
    context.close()


def test_a_finger_finds_what_can_be_dragged(site: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto((site / "explain/idea.html").as_uri())
    box = page.get_by_role("slider", name="Client A").bounding_box()
    assert min(box["width"], box["height"]) >= 24
    page.close()


def test_search_works_from_files(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("new clients verdict")
    page.wait_for_selector(".md-search-result__item", timeout=20_000)
    assert page.locator(".md-search-result__item").count() > 0
    page.close()


def test_the_first_stop_of_the_keyboard_skips_to_the_content(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((site / "questions.html").as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.classList.contains('md-skip')")
    page.close()
