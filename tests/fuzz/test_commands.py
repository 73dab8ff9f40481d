"""The command line, whatever is typed: a documented exit code, one sentence, no traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedsoft.cli import app, main
from fedsoft.errors import FedsoftError, InputError
from fedsoft.runs import spec
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions
from tests.fuzz.mutation import cases, mutated, refused
from tests.fuzz.test_runs import SMALL


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder with a run and some points; what would compute for long is not begun."""
    root = tmp_path_factory.mktemp("place")
    chosen = spec.read("synthetic-10-90", SMALL)
    execute(chosen, root / "runs" / chosen.id, RunOptions(workers=1))
    (root / "new.csv").write_text("a,b,c,y\n1,2,3,4\n5,6,7,8\n")

    def not_here(*_: Any, **__: Any) -> None:
        raise InputError("this would be carried out now")

    patch = pytest.MonkeyPatch()
    patch.chdir(root)
    for name in (
        "fedsoft.studies.launch.launch",
        "fedsoft.studies.launch.resume",
        "fedsoft.studies.process_pool.ProcessPool.run",
        "fedsoft.data.fetch.fetch",
    ):
        patch.setattr(name, not_here)
    yield root
    patch.undo()


COMMANDS = [
    "run synthetic-10-90 --set lam=0.1 --seeds 0..2 --rounds 3 --workers 2 --memory 1G --keep 2",
    "run own.toml --fast --seed 1 --device cpu --engine local --again --json",
    "resume synthetic --keep 1 --data . --json",
    "show synthetic --json",
    "ls --out runs --json",
    "list algorithms --json",
    "list presets",
    "compare synthetic-10-90 -a fedsoft,ifca --budget work --seeds 0",
    "tune synthetic-10-90 -a ifca",
    "choose synthetic-10-90 --S 1..3",
    "report synthetic --out page.html",
    "adopt synthetic --data new.csv --how mixture --level 0.9",
    "predict synthetic --client 0 --data new.csv",
    "predict synthetic --center 1 --data new.csv --label y --json",
    "export synthetic --what client 1 --format safetensors --out exported",
    "export synthetic --what centers",
    "data ls",
    "data check letters",
    "flower status --dir here",
    "--version",
]


@cases(80)
@given(data=st.data())
def test_commands(place: Path, data: st.DataObject) -> None:
    words = data.draw(st.sampled_from(COMMANDS)).split()
    at = data.draw(st.integers(0, len(words) - 1))
    change = data.draw(st.sampled_from(("mutate", "drop", "repeat", "swap", "other")))
    if change == "mutate":
        words[at] = (
            data.draw(mutated([words[at].encode()])).decode("utf-8", "replace").replace("\0", "")
        )  # no system can pass it on
    elif change == "drop":
        del words[at]
    elif change == "repeat":
        words.insert(at, words[at])
    elif change == "swap":
        words[at], words[-1] = words[-1], words[at]
    else:
        words[at] = data.draw(st.sampled_from(data.draw(st.sampled_from(COMMANDS)).split()))
    ended = CliRunner().invoke(app, words)
    if isinstance(ended.exception, FedsoftError):
        error = ended.exception

        def again() -> None:
            raise error

        assert refused(again)
    elif not isinstance(ended.exception, OSError):  # which the entry point makes a sentence of, see below
        assert ended.exception is None or isinstance(ended.exception, SystemExit), (words, ended.exc_info)
        assert ended.exit_code in (0, 2), (words, ended.exit_code, ended.output)


@pytest.mark.parametrize("command", ["run", "show", "resume"])
def test_names_that_no_file_can_have(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setattr("sys.argv", ["fedsoft", command, "[" * 3000])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")
