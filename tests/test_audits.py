"""Audits of other people's code: the page says what was found, and what runs that code does what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from audits import page
from audits.__main__ import RESULTS, how_to_get, main, names
from audits.common import compared
from audits.foreign import Absent, Anything, code, commit_of

DOCS = Path(__file__).parent.parent / "docs"


def test_the_page_says_what_was_found() -> None:
    found = json.loads(RESULTS.read_text("utf-8"))
    assert (DOCS / "audits.md").read_text("utf-8") == page.render(found, {name: how_to_get(name) for name in names()})


def test_every_finding_is_of_an_audit_that_is_here() -> None:
    found = json.loads(RESULTS.read_text("utf-8"))
    assert set(found) <= set(names())
    for name, one in found.items():
        assert one["commit"][:8] in how_to_get(name)
        assert one["repository"] in how_to_get(name)
        for finding in one["findings"]:
            gap = finding["difference"]
            if gap is not None:
                assert (gap <= 1e-5) == (finding["verdict"] == "equal")


def test_compared_is_relative_to_the_largest_number_of_ours() -> None:
    mine = torch.tensor([100.0, 1.0])
    assert compared("x", mine, mine + 5e-4).verdict == "equal"
    found = compared("x", mine, mine + 0.5)
    assert (found.verdict, found.difference) == ("different", pytest.approx(0.005))


def test_code_of_a_checkout_is_imported_by_its_own_names_and_forgotten(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(
        "import absent_plots\nfrom absent_plots.figures import Figure\nfrom utils import two\n"
    )
    (tmp_path / "utils.py").write_text("two = 2\n")
    before = [*sys.path]
    with code(tmp_path, without=("absent_plots",)) as load:
        models = load("models")
        assert models.two == 2
        assert isinstance(models.Figure("anything").draw(), Anything)
    assert sys.path == before
    assert not {"models", "utils", "absent_plots", "absent_plots.figures"} & set(sys.modules)


def test_a_package_that_is_needed_is_not_made_up(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text("import absent_plots\n")
    with code(tmp_path) as load, pytest.raises(ModuleNotFoundError, match="absent_plots"):
        load("models")


def test_what_is_no_checkout_is_named(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="nowhere"), code(tmp_path / "nowhere"):
        pass
    with pytest.raises(Absent, match="is not a git checkout"):
        commit_of(tmp_path)


def test_without_a_checkout_it_says_how_to_get_the_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["audits", "fedem"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "git clone https://github.com/omarfoq/FedEM" in capsys.readouterr().err
