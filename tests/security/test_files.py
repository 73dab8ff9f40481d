"""Files that somebody made to do harm: refused in one sentence, with little memory and time, and nothing is waited for.

Commands are run for real in processes of their own, and measured.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from fedsoft.data import parquet as parquetfile
from fedsoft.data.tables import Table
from fedsoft.datasets.folder import folder
from fedsoft.errors import InputError, StoreError
from fedsoft.machine.resources import check_memory, is_out_of_memory
from fedsoft.runs import spec as specs
from fedsoft.runs.execute import execute
from fedsoft.runs.folder import RunFolder
from fedsoft.runs.load import load
from fedsoft.runs.run_options import RunOptions
from fedsoft.runs.sealed import sealed
from fedsoft.storage import files
from fedsoft.storage import toml as checks
from fedsoft.studies.methods import read_methods
from tests import helpers

SMALL = [*helpers.SMALL, "rounds=1"]
MEGABYTES = 500
SECONDS = 10  # of a processor; to import torch takes some of them on a slow machine
DEEP = 40_000

MEASURE = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, timeout=100)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
out, err = (text.decode("utf-8", "surrogateescape") for text in (done.stdout, done.stderr))
print(json.dumps([done.returncode, out, err, used.ru_maxrss / 1024, used.ru_utime + used.ru_stime]))
"""


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it took: of the process that had most, and of all processors."""

    code: int
    out: str
    err: str
    megabytes: float
    seconds: float


def command(*words: str, cwd: Path) -> Done:
    """The real command. A small process starts it: what a process had before it became another one would count, too."""
    line = [sys.executable, "-c", "from fedsoft.cli import main; main()", *words]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    line = [sys.executable, "-c", MEASURE, *line]
    text = subprocess.run(line, cwd=cwd, env=environment, capture_output=True, check=True, timeout=120).stdout
    return Done(*json.loads(text))


def refused(done: Done, *words: str) -> None:
    """In one sentence, with little memory and time."""
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    for word in words:
        assert word in done.err
    assert done.megabytes < MEGABYTES
    assert done.seconds < SECONDS


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    return execute(specs.read("synthetic-10-90", SMALL), tmp_path_factory.mktemp("runs") / "run", RunOptions())[0].path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of it that may be spoiled."""
    return Path(shutil.copytree(made, tmp_path / "runs" / "run"))


# --- TOML -------------------------------------------------------------------------------------------------------------


TOML: dict[str, tuple[str, str]] = {
    "a key": (f"{'.'.join('a' * DEEP)} = 1\n", "key of more than 16 parts"),
    "a table": (f"[{'.'.join('a' * DEEP)}]\n", "key of more than 16 parts"),
    "a list of tables": (f"[[{' . '.join('a' * DEEP)}]]\n", "key of more than 16 parts"),
    "quoted keys": ('"a.b".' * DEEP + "c = 1\n", "key of more than 16 parts"),
    "inline tables": (f"x = {'{a = ' * 20_000}1{'}' * 20_000}\n", "more than 16 brackets"),
    "arrays": (f"x = {'[' * DEEP}{']' * DEEP}\n", "more than 16 brackets"),
    "size": (f"# {'x' * 10**6}\n", "more than 1000000 bytes"),
}


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("what", ["a key", "size"])
def test_deep_and_long_toml_costs_nothing(run: Path, what: str) -> None:
    text, told = TOML[what]
    (run / "spec.toml").write_text(text)
    refused(command("show", str(run), cwd=run.parent), "spec.toml", told)


@pytest.mark.parametrize("what", TOML)
def test_deep_and_long_toml_is_told(run: Path, what: str) -> None:
    text, told = TOML[what]
    (run / "spec.toml").write_text(text)
    with pytest.raises(StoreError, match=told):
        RunFolder.open(run).spec()
    with pytest.raises(InputError, match=told):
        specs.read(str(run / "spec.toml"))


def test_dots_and_brackets_in_text_and_numbers_are_no_depth() -> None:
    dots, brackets = "." * 99, "[{" * 99
    text = f"""
    # {dots}{brackets} "
    a = "{dots}{brackets} \\" # {dots}"  # '{dots}
    b = '{dots}{brackets}\\'
    c = \"\"\"{dots}
    {brackets} " "" \\\"\"\" {dots}\"\"\"\"\"
    d = '''{dots}'' {brackets}
    '''''
    e = [{", ".join(["1.5"] * 99)}, 1.5]
    f.g."h.{dots}" = {{i.j = [[1.5, 2.5], [3.5]]}}
    """
    found = checks.toml(text)
    assert found["a"].startswith(dots)
    assert len(found["e"]) == 100
    assert found["f"]["g"] == {f"h.{dots}": {"i": {"j": [[1.5, 2.5], [3.5]]}}}
    assert checks.toml(".".join("a" * 16) + " = 1")
    assert checks.toml(f"x = {'[' * 16}{']' * 16}")


@pytest.mark.parametrize(
    "part", ['"""\\', "'''\"", '"\\', "'", '"', '\\"""', "a" * 999 + "\n", "[[a]]\n", "[],", "\"''' ", "#\"\"\"'''\n"]
)
def test_no_text_takes_long_to_look_at(part: str) -> None:
    """What is not closed is gone through once: were it once for each quote, this would take hours."""
    for before in ("", "x = ", '"""', "'''"):
        try:
            checks.toml(before + part * (900_000 // len(part)))
        except ValueError:
            continue


# --- pipes and devices ------------------------------------------------------------------------------------------------

NAMES = ["spec.toml", "run.json", "rounds.jsonl", "scores.json", "state.safetensors", "state-before.safetensors",
         "state-7.safetensors", "diverged.json", "lock", "figure.png"]  # fmt: skip


def pipe(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize(
    ("word", "name"),
    [("show", "rounds.jsonl"), ("show", "spec.toml"), ("resume", "lock"), ("report", "state.safetensors"),
     ("export", "scores.json"), ("show", "run.json")],
)  # fmt: skip
def test_commands_do_not_wait_for_a_pipe(run: Path, word: str, name: str) -> None:
    pipe(run / name)
    refused(command(word, str(run), cwd=run.parent), name, "pipe or a device")


@pytest.mark.slow
@pytest.mark.engine
def test_a_device_is_not_read_to_its_end(run: Path) -> None:
    (run / "run.json").unlink()
    (run / "run.json").symlink_to("/dev/zero")
    refused(command("show", str(run), cwd=run.parent), "run.json", "a device, should be a file")


@pytest.mark.slow
@pytest.mark.engine
def test_runs_are_listed_beside_one_with_a_pipe(run: Path) -> None:
    shutil.copytree(run, run.parent / "good")
    pipe(run / "scores.json")
    done = command("ls", "--out", str(run.parent), "--json", cwd=run.parent)
    assert done.code == 0, done.err
    state = {row["run"]: row["state"] for row in json.loads(done.out)}
    assert state["good"] == "finished"
    assert "pipe or a device" in state["run"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_is_no_file_of_a_run(run: Path, name: str) -> None:
    pipe(run / name)
    for use in (RunFolder.open, load):
        with pytest.raises(StoreError, match=r"pipe or a device"):
            use(run)
    spoiled = RunFolder(run)  # put there after it was looked at
    reads: dict[str, Callable[[], object]] = {
        "spec.toml": spoiled.spec, "run.json": lambda: spoiled.info, "rounds.jsonl": spoiled.records,
        "scores.json": spoiled.scores, "state.safetensors": spoiled.checkpoint,
        "diverged.json": lambda: spoiled.diverged, "lock": lambda: spoiled.lock().__enter__(),
    }  # fmt: skip
    if name in reads:
        with pytest.raises(StoreError):
            reads[name]()


@pytest.mark.timeout(60)
def test_a_pipe_is_no_file_of_settings(tmp_path: Path) -> None:
    path = str(pipe(tmp_path / "run.toml"))
    with pytest.raises(InputError, match=r"cannot read .*pipe or a device, should be a file"):
        specs.read(path)
    with pytest.raises(InputError, match="pipe or a device, should be a file"):
        read_methods(path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ending", ["csv", "npz", "parquet"])
@pytest.mark.parametrize("device", [False, True])
def test_a_pipe_or_device_is_no_client(tmp_path: Path, ending: str, device: bool) -> None:
    (tmp_path / "good.csv").write_text("a,y\n1,2.5\n2,3.5\n")
    file = tmp_path / f"bad.{ending}"
    if device:
        file.symlink_to("/dev/zero")
    else:
        pipe(file)
    with pytest.raises(InputError, match=rf"'bad\.{ending}' cannot be read \(it is a folder, a pipe or a device"):
        folder(tmp_path)


# --- JSON -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("name", ["run.json", "rounds.jsonl", "scores.json", "diverged.json"])
def test_long_json_costs_nothing(run: Path, name: str) -> None:
    if name == "diverged.json":
        (run / "scores.json").unlink()  # a finished run did not diverge
    with (run / name).open("wb") as file:
        file.truncate(10**9)  # takes no room on disk
        file.seek(0, os.SEEK_END)
        file.write(b"\n")
    refused(command("show", str(run), cwd=run.parent), name)


@pytest.mark.parametrize("text", ["[" * 900 + "]" * 900, '{"a":' * 40 + "1" + "}" * 40, "[" * 10**6])
def test_deep_json_is_told(run: Path, text: str) -> None:
    (run / "run.json").write_text(f'{{"format": {text}}}')
    with pytest.raises(StoreError, match="damaged"):
        RunFolder.open(run)
    with pytest.raises(ValueError, match="nested too deeply"):
        files.parse_json(text)


@pytest.mark.slow
def test_what_json_takes_is_known_before(tmp_path: Path, run: Path) -> None:
    (tmp_path / "a.json").write_text(f"[{'[],' * 4_000_000}1]")
    with pytest.raises(ValueError, match="more than 200000000 bytes of memory"):
        files.read_json(tmp_path / "a.json")
    line = (run / "rounds.jsonl").read_text()
    record = {key: value for key, value in json.loads(line).items() if key != "check"}
    long = json.dumps(sealed(record | {"more": [[]] * 100_000})) + "\n"
    (run / "rounds.jsonl").write_text(long * 20)
    with pytest.raises(StoreError, match="too large: it would take more than 200000000 bytes of memory"):
        RunFolder.open(run).log.until(20)


# --- counts -----------------------------------------------------------------------------------------------------------

COUNTS = {
    "clients": ["clients=4000000000"],
    "a float": ["clients=4e9"],
    "more digits than a float has": [f"clients=1{'0' * 400}"],
    "points": ["points=[1000000000, 1000000000]"],
    "test points": ["test_points=4000000000"],
    "dimension": ["dimension=4000000000"],
    "sources": ["partition=random", "dataset.S=1000000000"],
    "held out": ["held_out=1e300"],
    "centers": ["algorithm.S=1000000000"],
    "epochs": ["epochs=1000000000000"],
    "batch": ["batch=1000000000000"],
    "hidden": ["model=mlp", "hidden=[1000000000]"],
    "digits": ["dataset=digits", "model=mlp", "clients=4000000000"],
}


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("what", ["clients", "points", "centers", "epochs", "hidden", "digits"])
def test_absurd_counts_cost_nothing(tmp_path: Path, what: str) -> None:
    options = [word for change in COUNTS[what] for word in ("--set", change)]
    refused(command("run", "synthetic-10-90", *options, cwd=tmp_path), "it needs about", "B of memory")


@pytest.mark.parametrize("what", COUNTS)
def test_absurd_counts_are_told(tmp_path: Path, what: str) -> None:
    with pytest.raises(
        InputError, match=r"is not allowed.*: it needs about .+ [GTP]B of memory, and \S+ GB are available"
    ):
        execute(specs.read("synthetic-10-90", COUNTS[what]), tmp_path / "run", RunOptions())
    assert not (tmp_path / "run").exists()


def test_what_fits_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsoft.machine.resources.available", lambda: 10**9)
    check_memory("a", 2**28)
    check_memory("a", 10**9)
    with pytest.raises(
        InputError, match=r"^a = 3 is not allowed: it needs about 2\.0 GB of memory, and 1\.0 GB are ava"
    ):
        check_memory("a = 3", 2 * 10**9)


@pytest.mark.parametrize(
    "ask",
    [lambda: np.empty(10**15), lambda: np.empty(10**30), lambda: torch.empty(10**15), lambda: torch.empty(2**62),
     lambda: np.empty((2**62, 2)), lambda: [0] * 2**62, lambda: bytearray(2**62)],
)  # fmt: skip
def test_lack_of_memory_is_recognised(ask: Callable[[], object]) -> None:
    with pytest.raises((MemoryError, RuntimeError, ValueError, OverflowError, TypeError)) as caught:
        ask()
    assert is_out_of_memory(caught.value), repr(caught.value)


OWN = "import torch\n\n\ndef net():\n    return torch.nn.Linear(10**9, 10**9)\n"


@pytest.mark.slow
@pytest.mark.engine
def test_lack_of_memory_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    settings = ("--set", "model.name=module", "--set", "model.factory=mine:net", "--allow", f"{tmp_path}/mine:net")
    done = command("run", "synthetic-10-90", *settings, cwd=tmp_path)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert "memory" in done.err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("seeds", ["0..4000000000", f"0..{'9' * 5000}"])
def test_absurd_numbers_of_seeds(tmp_path: Path, seeds: str) -> None:
    refused(command("run", "synthetic-10-90", "--seeds", seeds, cwd=tmp_path), "--seeds", "is not allowed")


# --- parquet ----------------------------------------------------------------------------------------------------------


def zeros(path: Path, **how: Any) -> None:
    """A hundred million points, all the same."""
    part = pa.table({"a": np.zeros(10**6, np.int64), "y": np.zeros(10**6)})
    with parquet.ParquetWriter(path, part.schema, **how) as file:
        for _ in range(100):
            file.write_table(part)


def categories(path: Path) -> None:
    """One long text that stands for all labels."""
    labels = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), pa.array(["x" * 100_000]))
    parquet.write_table(pa.table({"a": np.zeros(20_000), "y": labels}), path, compression="zstd")


def beginnings(path: Path) -> None:
    """Texts each of which is one sign longer than the one before it: no number of rows tells what they come to."""
    texts = pa.array(["x" * i for i in range(20_000)])
    how: dict[str, Any] = {"use_dictionary": False, "column_encoding": {"a": "PLAIN", "y": "DELTA_BYTE_ARRAY"}}
    parquet.write_table(pa.table({"a": np.zeros(20_000), "y": texts}), path, **how)


def one_page(path: Path) -> None:
    """A page of 240 MB for a single point."""
    parquet.write_table(
        pa.table({"a": [1.0], "y": ["x" * 240_000_000]}), path, compression="zstd", use_dictionary=False
    )


BOMBS: dict[str, Callable[[Path], None]] = {
    "dictionary": zeros,
    "zstd": lambda path: zeros(path, compression="zstd", use_dictionary=False),
    "brotli": lambda path: zeros(path, compression="brotli", use_dictionary=False),
    "categories": categories,
    "beginnings": beginnings,
    "one page": one_page,
}


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("what", BOMBS)
def test_bombs_in_parquet(tmp_path: Path, what: str) -> None:
    (tmp_path / "data").mkdir()
    BOMBS[what](tmp_path / "data" / "a.parquet")
    assert (tmp_path / "data" / "a.parquet").stat().st_size < 2 * 10**6
    settings = 'rounds = 1\nalgorithm = "fedavg"\nmodel = "linear"\n[dataset]\nname = "folder"\npath = "data"\n'
    (tmp_path / "run.toml").write_text(settings)
    done = command("run", "run.toml", cwd=tmp_path)
    refused(done, "'a.parquet'", "at most" if "claims" in done.err else "unpacks to more than")


@pytest.mark.engine
def test_the_next_file_is_read_after_a_bad_one(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    table = pa.table({"a": np.arange(100_000.0), "b": pa.array(["x", "y"] * 50_000).dictionary_encode()})
    parquet.write_table(table, good)
    bad.write_bytes(good.read_bytes()[:-100] + b"PAR1" * 25)
    for _ in range(2):
        found = parquetfile.read_parquet(good)
        assert found.column("a").to_pylist() == table.column("a").to_pylist()
        assert found.column("b").to_pylist() == table.column("b").to_pylist()
        with pytest.raises(InputError, match=r"'bad\.parquet' is damaged"):
            Table.read(bad)


@pytest.mark.engine
def test_a_crash_while_unpacking_is_an_error_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"a": [1.0]}), file)
    parquetfile.read_parquet(file)
    (unpacker,) = parquetfile._kept
    unpacker.process.kill()
    with pytest.raises(ValueError, match="unpacks to more than"):
        unpacker.read(file, None, 10**6)
    assert parquetfile.read_parquet(file).num_rows == 1


# --- what a terminal is given -----------------------------------------------------------------------------------------

EVIL = "\x1b[31mred\x07\x9b31m"


def harmless(done: Done) -> None:
    odd = {sign for sign in done.out + done.err if not sign.isprintable() and sign != "\n"}
    assert not odd, done.err


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("name", [EVIL, f"$\\frac{{{EVIL}"])
def test_names_of_sources_do_not_reach_the_terminal_through_a_figure(tmp_path: Path, name: str) -> None:
    two_rounds = specs.read("synthetic-10-90", [*SMALL, "rounds=2"])  # one round draws no figure
    run = execute(two_rounds, tmp_path / "runs" / "run", RunOptions())[0].path
    scores = RunFolder(run).scores()
    assert scores is not None
    RunFolder(run).finish(replace(scores, sources=[name, "b"], metric=EVIL))
    (run / "figure.png").unlink(missing_ok=True)
    done = command("resume", str(run), cwd=run.parent)
    assert done.code == 0, done.err
    assert (run / "figure.png").exists()
    harmless(done)
    for words in (["show", str(run)], ["show", str(run), "--json"], ["report", str(run)]):
        harmless(command(*words, cwd=run.parent))


PRINTS = """
import logging, sys, threading, warnings
from fedsoft.escape import guard_terminal
guard_terminal()
guard_terminal()
evil = sys.argv[1]
warnings.warn(evil)
logging.getLogger("library").warning("%s", evil)
def fail():
    raise ValueError(evil)
thread = threading.Thread(target=fail)
thread.start()
thread.join()
fail()
"""


@pytest.mark.engine
def test_warnings_logs_and_tracebacks_are_text() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    line = [sys.executable, "-W", "always", "-c", PRINTS, EVIL]
    done = subprocess.run(line, capture_output=True, env=environment, timeout=60)
    text = done.stderr.decode()
    assert done.returncode == 1
    assert text.count("\\x1b[31mred\\x07\\x9b31m") == 4
    assert "ValueError" in text
    assert all(sign.isprintable() or sign == "\n" for sign in text)


@pytest.mark.slow
@pytest.mark.engine
def test_names_of_files_are_text(run: Path, tmp_path: Path) -> None:
    evil = run.rename(run.parent / EVIL)
    shutil.copytree(evil, run.parent / f"{EVIL}-2")
    (evil / "spec.toml").write_text("a = [")
    data = tmp_path / f"data{EVIL}"
    data.mkdir()
    (data / f"{EVIL}.parquet").write_bytes(b"PAR1" + EVIL.encode() + b"PAR1")
    (tmp_path / f"{EVIL}.toml").write_text(f'a = "{EVIL.encode("unicode_escape").decode()}"')
    out = str(run.parent)
    for words in (
        ["ls", "--out", out], ["ls", "--out", out, "--json"], ["show", str(evil)], ["show", EVIL, "--out", out],
        ["show", f"{evil}-2", "--json"], ["run", f"{EVIL}.toml"], ["run", f"{EVIL}2.toml"], ["run", EVIL],
        ["run", "synthetic-10-90", "--set", f"{EVIL}=1"],
        ["predict", f"{evil}-2", "--data", str(data), "--center", "0"],
        ["adopt", f"{evil}-2", "--data", str(data)], [EVIL], [f"--{EVIL}"],
    ):  # fmt: skip
        done = command(*words, cwd=tmp_path)
        assert "Traceback" not in done.err
        harmless(done)


@pytest.mark.parametrize("evil", ["=cmd|'/c calc'!A1", "@SUM(A1)", "-2+3", "+1+1", " =1+1", "\t=1+1", "\r=1", EVIL])
def test_no_text_becomes_a_formula_of_a_spreadsheet(evil: str) -> None:
    """Names of classes come from a file of somebody's, and predictions of them are opened with a spreadsheet."""
    from fedsoft.cli.new_clients import _csv
    from fedsoft.reports.page.text import csv_text

    for text in (_csv({"class": [evil], f"p_{evil}": [-0.5], evil: ["-1"]}), csv_text([["class", evil], [evil, -0.5]])):
        cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
        assert "-0.5" in cells  # numbers stay
        assert all(cell.lstrip()[0] not in "=+-@" or float(cell) < 0 for cell in cells), cells
        assert all(sign.isprintable() or sign == "\n" for sign in text)
