"""The builder of the site: pages as programs, links, formulas, errors, and what is wrong with a finished page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from website.check import check
from website.drawing import KINDS, drawing
from website.watching import watch, when

from fedsoft import plugins
from fedsoft.core.replies import Kind
from website import commands, errors_page, gather, nav, notebooks, settings_page

PAGE = """<!-- executed -->
# A page

<!-- run
hidden = 1
-->

```python
print(hidden)
```

```toml
# run.toml
rounds = 1
```

<!-- not run: it takes hours -->
```sh
sleep 9999
```

```text
no program
```

<!-- figure: *.png | what it shows -->
"""


def test_a_page_is_cut_into_its_blocks() -> None:
    parts = list(notebooks.pieces(PAGE))
    assert [piece.code.splitlines()[0] for piece in parts if piece.code] == [
        "hidden = 1", "print(hidden)", "%%writefile run.toml", "from IPython.display import Image",
    ]  # fmt: skip
    shown = "".join(piece.text for piece in parts)
    assert "sleep 9999" in shown
    assert "hidden = 1" not in shown
    assert "not run" not in shown


def test_links_hold_on_the_site() -> None:
    code: set[Path] = set()
    text = "[a](../README.md) [b](algorithms.md#fedsoft) "
    text += "[c](../src/fedsoft/seeds.py#generator) `[d](x.md)` [e](data.md#z)"
    found = gather.relinked(text, gather.DOCS / "tour.md", "tour.md", code)
    line = gather.line_of(gather.ROOT / "src/fedsoft/seeds.py", "generator")
    assert re.findall(r"\]\((.*?)\)", found) == [
        "index.md", "algorithms/fedsoft.md", f"source/src/fedsoft/seeds_py.md#__codelineno-0-{line}", "x.md",
        "data.md#z",
    ]  # fmt: skip
    assert code == {gather.ROOT / "src/fedsoft/seeds.py"}


def test_links_to_lines_lead_to_what_is_spoken_of() -> None:
    """In all documents: a name that is gone fails here, and its line is looked up when the site is built."""
    found = 0
    for page in [*gather.DOCS.rglob("*.md"), gather.ROOT / "CONTRIBUTING.md"]:
        for path, name in re.findall(r"\]\(([\w./]+\.py)#([\w.]+)\)", page.read_text("utf-8")):
            assert gather.line_of((page.parent / path).resolve(), name) > 0
            found += 1
    assert found > 10


def test_every_page_has_a_place(tmp_path: Path) -> None:
    for name in ("index.md", "data.md", "brand_new.md", "source/x.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("# x")
    made = nav.nav(tmp_path, {"Algorithms": ["algorithms/fedsoft.md"]})
    assert made == [
        {"Home": "index.md"},
        {"How to": ["data.md", "brand_new.md"]},
        {"Algorithms": ["algorithms/fedsoft.md"]},
    ]


def test_what_moves_where_is_what_the_algorithm_asks() -> None:
    watched = watch("fedsoft")
    assert [step.job for step in watched.steps] == ["estimate", "train"]
    estimate, train = watched.steps
    assert (estimate.down, estimate.up) == ({"centers": (2, 5)}, {"u": ((2,), "mixture")})
    assert train.up == {"w": ((5,), "model")}
    assert when(estimate.rounds) == "every second round"
    assert {"w", "u"} <= set(watched.kept)
    figure = drawing("FedSoft", watched)
    assert 'role="img" aria-label="What moves where under FedSoft. every second round: 8 of 8 clients' in figure


def test_every_sentence_of_an_error_has_a_room() -> None:
    rooms = {room for room, _, _ in errors_page.sentences()}
    assert rooms <= {*errors_page.ROOMS, "plugins", "settings", "errors", "seeds", "escape", "leaderboard"}
    page = errors_page.page()
    assert "| client '…' has no points | leave it out |" in page
    assert "| FedSoft.K = … is not allowed | … |" in page


def test_commands_and_settings_are_those_of_the_code() -> None:
    page = commands.page()
    assert "## fedsoft run\n" in page
    assert "| `--again` |" in page
    page = settings_page.page()
    for kind in plugins.KINDS:
        for name in plugins.names(kind):
            assert f"### {name} {{ #{kind}-{name} }}\n" in page
    assert re.search(r"\| `lam` \| `1\.0` \| \(tuned: [^)]+\) ", page)


BROKEN = """<html><body><h1 id="a">x</h1><h3 id="a">y</h3><img src="b.png"><input type="text">
<a href="#gone">z</a><a href="gone.html">z</a><script src="https://example.com/x.js"></script></body></html>"""


def test_what_is_wrong_with_a_page_is_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(BROKEN)
    found = "\n".join(check(tmp_path))
    for part in (
        "two elements have the id a", "level 3 follows one of level 1", "image b.png has no text",
        "does not tell its language", "<input id=None> has no label", "#gone leads to no place",
        "gone.html leads nowhere", "b.png leads nowhere",
        "loads https://example.com/x.js from elsewhere",
    ):  # fmt: skip
        assert part in found, part


def test_formulas_become_mathml() -> None:
    pytest.importorskip("latex2mathml", reason="needs the extra 'docs'")
    from website.maths import with_maths

    found = with_maths("A $w_k$ and `$code$`.\n\n```math\n\\sum_s u_{ks}\n```\n")
    assert found.count("<math") == 2
    assert 'display="block"' in found
    assert "`$code$`" in found
    assert "\\" not in with_maths("$w = \\arg\\min_w f$")
    with pytest.raises(ValueError, match="cannot be shown: nosuch"):
        with_maths("$\\nosuch x$")


def test_what_commands_print_is_shown_without_how_far_they_were() -> None:
    class Stream(dict[str, str]):
        output_type = "stream"

        def __getattr__(self, name: str) -> str:
            return self[name]

    told = "note: a column looks like an id\nfedsoft on synthetic, 10:90 partition, seed 0: 1 of 50 rounds, best 159\n"
    told += "comparing: 0 of 2 runs, 50 rounds\nrecommending: 6 trials, tuning ifca\n"
    outputs = [Stream(name="stderr", text=told), Stream(name="stdout", text="Cost: 50 rounds in 0.6 s\n")]
    assert notebooks.printed(outputs) == "note: a column looks like an id\nCost: 50 rounds in 0.6 s"


def test_bars_that_move_are_no_text_on_a_page() -> None:
    from nbformat import v4

    bar = {"text/html": "<progress>", "text/plain": "<IPython.core.display.HTML object>"}
    outputs = [v4.new_output("display_data", data=bar), v4.new_output("execute_result", data={"text/plain": "0.5"})]
    assert notebooks.printed(outputs) == "0.5"


def test_every_kind_of_a_reply_has_words() -> None:
    assert set(KINDS) == {kind.name.lower() for kind in Kind}
