"""What the documents say is true: their examples run, and what they quote is there."""

from __future__ import annotations

import doctest
import importlib
import json
import pkgutil
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
import typer

import fedsoft as fs
from fedsoft import plugins
from fedsoft.cli import app
from fedsoft.runs import spec
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = typer.main.get_command(app)


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", [m.name for m in pkgutil.walk_packages(fs.__path__, "fedsoft.")])
def test_examples_in_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_examples_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python blocks in order, as one session."""
    monkeypatch.chdir(tmp_path)
    found = blocks(ROOT / "README.md", "python")
    assert found
    names: dict[str, Any] = {}
    for block in found:
        exec(compile(block, "README.md", "exec"), names)
    assert isinstance(names["run"], fs.Run)


def test_the_examples_of_the_questions_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python blocks in order, as one session; the TOML is a run."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(ROOT / "docs" / "questions.md", "python"):
        exec(compile(block, "questions.md", "exec"), names)
    assert names["found"].verdict
    for block in blocks(ROOT / "docs" / "questions.md", "toml"):
        (tmp_path / "own.toml").write_text(block)
        assert spec.read(str(tmp_path / "own.toml")).rounds > 0


@pytest.mark.parametrize("name", ["runs.md", "callbacks.md"])
def test_the_examples_of_a_page_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python blocks in order, as one session; every TOML block is a run."""
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    found = blocks(ROOT / "docs" / name, "python")
    assert len(found) >= 2
    for block in found:
        exec(compile(block, name, "exec"), names)
    for block in blocks(ROOT / "docs" / name, "toml"):
        (tmp_path / "own.toml").write_text(block)
        assert spec.read(str(tmp_path / "own.toml")).early_stopping is not None


def test_the_toml_of_the_command_line_is_a_run(tmp_path: Path) -> None:
    found = blocks(ROOT / "docs" / "cli.md", "toml")
    assert found
    for block in found:
        (tmp_path / "own.toml").write_text(block)
        assert spec.read(str(tmp_path / "own.toml")).rounds > 0


def test_the_examples_of_training_run(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    for block in blocks(ROOT / "docs" / "training.md", "python"):
        exec(compile(block, "training.md", "exec"), names)
    assert names["accuracy"] > 0.6
    for block in blocks(ROOT / "docs" / "training.md", "toml"):
        (tmp_path / "own.toml").write_text(block)
        chosen = spec.read(str(tmp_path / "own.toml"))
        assert plugins.build("solvers", chosen.solver.name, chosen.solver.settings, chosen.allow)


def test_the_algorithm_of_the_guide_works() -> None:
    """One file of this text is all it takes; and with everybody in one cluster it is the mean weighted by n_k."""
    names: dict[str, Any] = {}
    exec(compile(blocks(ROOT / "CONTRIBUTING.md", "python")[0], "CONTRIBUTING.md", "exec"), names)
    fed = fs.Federation.from_clients(
        [(torch.eye(2), torch.tensor([1.0, 1.0])), (torch.eye(2).repeat(2, 1), torch.tensor([4.0, 4.0, 4.0, 4.0]))],
        held_out=0.0,
    )
    run = fs.fit(names["FedAvg"](), fed, fs.models.linear(), rounds=1, solver=fs.Exact())
    assert torch.allclose(run.state.centers, torch.tensor([[3.0, 3.0]]))  # (2 * 1 + 4 * 4) / 6


def test_the_quoted_algorithm_is_the_real_one() -> None:
    source = (ROOT / "src/fedsoft/algorithms/fedsoft.py").read_text("utf-8")
    for line in blocks(ROOT / "docs" / "design.md", "python")[0].splitlines():
        assert line.strip() in source


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"], ids=lambda path: path.name
)
def test_no_word_and_no_full_stop_stands_twice(document: Path) -> None:
    text = re.sub(r"^```.*?^```", "x", document.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "x", text)
    assert re.findall(r"\b([A-Za-z]{2,})[ \n]\1\b", text) == []
    assert re.findall(r".{30}[A-Za-z)]\.\.(?!\.)", text) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    text = re.sub(r"^```.*?^```", "", document.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\((?!http|#)([^)#]+)", text):
        if target.endswith(".ipynb"):  # made when the site is built
            target = target.replace(".ipynb", ".md")
        assert (document.parent / target).exists(), target


def test_the_page_of_algorithms_is_up_to_date() -> None:
    from fedsoft.reports.catalogue import page

    assert (ROOT / "docs" / "algorithms.md").read_text("utf-8") == page(), "run: make docs"


def test_the_page_of_the_command_line_names_every_command() -> None:
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    for name in COMMANDS.commands:  # pyright: ignore[reportAttributeAccessIssue]
        assert f"fedsoft {name}" in text, name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_that_are_shown_can_be_typed(document: Path) -> None:
    """Every command exists, with all the options that it is shown with."""
    for block in blocks(document, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["fedsoft"]:
                _parse(words[1:], line)


def _parse(words: list[str], line: str) -> None:
    """Parse a command as the command line does, without running it."""
    command: Any = COMMANDS
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, line
        command, words = command.commands[words[0]], words[1:]
    words = [word for word in words if word != "..."]
    for stop in ("|", ">", "&&", ";"):
        words = words[: words.index(stop)] if stop in words else words
    if not hasattr(command, "commands"):
        try:
            command.make_context(command.name, words)
        except click.exceptions.Exit:
            pass  # --help
        except click.UsageError as error:
            raise AssertionError(f"{line}: {error.format_message()}") from None


def test_documents_that_the_code_names_are_there() -> None:
    texts = [path.read_text("utf-8") for end in ("py", "toml", "md") for path in (ROOT / "src").rglob(f"*.{end}")]
    named = {name for text in texts for name in re.findall(r"docs/[a-z_]+\.md", text)}
    assert "docs/flower.md" in named
    assert {name for name in named if not (ROOT / name).is_file()} == set()


def test_the_examples_of_the_page_on_data_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks on files that are made here, then the TOML blocks as runs."""
    hf: Any = pytest.importorskip("datasets", reason="needs the extra 'datasets'")
    hf.disable_progress_bars()
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 4))
    lines = [f"{k},c{k % 3},{a},{a + b},2026-01-{1 + k // 3:02}" for k, (a, b, _, _) in enumerate(x)]
    (tmp_path / "all.csv").write_text("row,id,a,outcome,date\n" + "\n".join(lines))
    for name, array in {"x": x, "y": x.sum(1), "sizes": np.array([10, 20, 30])}.items():
        np.save(tmp_path / f"{name}.npy", array)
    texts = {"x": ["to be", "or no"] * 3, "y": [" ", "t"] * 3}
    pixels = {"x": rng.random((6, 784)).round(3).tolist(), "y": [0, 1, 2] * 2}
    for name, user in {"shakespeare": texts, "femnist": pixels}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "all.json").write_text(json.dumps({"user_data": {"u": user, "v": user}}))
    page = ROOT / "docs" / "data.md"
    names: dict[str, Any] = {"fs": fs, "np": np, "torch": torch, "x": x[:9], "y": x[:9, 0]}
    names["torch_dataset"] = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(x[:, 0]))
    found = blocks(page, "python")
    assert len(found) >= 5
    for block in found:
        exec(compile(block, "data.md", "exec"), names)
    names["ds"].save_to_disk("digits")
    runs = [block for block in blocks(page, "toml") if '"arrays"' in block or '"huggingface"' in block]
    assert len(runs) == 2
    for number, block in enumerate(runs):
        (tmp_path / "own.toml").write_text(block)
        execute(spec.read("own.toml"), tmp_path / f"run-{number}", RunOptions())
        assert len(fs.load(tmp_path / f"run-{number}").history) == 2


def test_the_examples_of_layers_run() -> None:
    """The Python blocks of three sections, in order, as one session."""
    text = (ROOT / "docs" / "models.md").read_text("utf-8").partition("\n## Dropout\n")[2]
    found = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(found) == 2
    names: dict[str, Any] = {}
    for code in found:
        exec(compile(code, "models.md", "exec"), names)
    assert sorted(names["run"].centers[0]) == ["0.lora_a", "0.lora_b", "4.bias", "4.weight"]


def test_the_examples_of_inputs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of a section, in order, as one session."""
    monkeypatch.chdir(tmp_path)
    for page, section in (("models.md", "## Inputs"), ("data.md", "## Tokens and several inputs")):
        text = (ROOT / "docs" / page).read_text("utf-8").partition(f"\n{section}\n")[2]
        names: dict[str, Any] = {}
        own = re.split(r"^## ", text, flags=re.MULTILINE)[0]
        found = re.findall(r"^```python\n(.*?)^```", own, re.DOTALL | re.MULTILINE)
        assert found
        for code in found:
            exec(compile(code, f"{page}, {section}", "exec"), names)
    assert [one.name for one in names["fed"].shape.fields] == ["tokens", "numbers"]


def test_the_toml_of_several_inputs_at_nodes_is_a_data_set() -> None:
    (text,) = (text for text in blocks(ROOT / "docs" / "data.md", "toml") if '"nodes"' in text)
    settings = tomllib.loads(text)["dataset"]
    fed = fs.datasets.nodes(**{key: value for key, value in settings.items() if key != "name"})
    assert [one.name for one in fed.shape.fields] == ["tokens", "numbers"]


def test_the_page_of_training_names_every_solver() -> None:
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    found = plugins.names("solvers")
    assert found
    assert [name for name in found if f'`name = "{name}"`' not in page] == []
