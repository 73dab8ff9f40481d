"""Federations in LEAF's JSON: numbers, images and text, with and without test files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.runs import spec
from fedsoft.runs.execute import execute
from fedsoft.runs.run_options import RunOptions
from fedsoft.storage import json_stream

PIXELS = {
    "w1": {"x": [[1.0, 0.0, 0.5, 1.0]] * 5, "y": [0, 1, 2, 1, 0]},
    "w2": {"x": [[0.0, 1.0, 1.0, 0.2]] * 4, "y": [2, 2, 1, 0]},
}
LINES = {
    "HAMLET": {"x": ["to be", "or not"], "y": [" ", "t"]},
    "OPHELIA": {"x": ["my lord", "o"], "y": ["t", " "]},
}
TWEETS = {
    "a": {
        "x": [["1", "Mon", "NO", "a", "Good day to all", "{}"], ["2", "Mon", "NO", "a", "Bad day", "{}"]],
        "y": [1, 0],
    },
    "b": {"x": [["3", "Tue", "NO", "b", "good GOOD", "{}"]], "y": [1]},
}


def write(file: Path, users: dict[str, Any], **more: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(user["y"]) if isinstance(user, dict) and "y" in user else 0 for user in users.values()]
    content = {"users": list(users), "num_samples": counts, "user_data": users} | more
    file.write_text(json.dumps(content))
    return file


def test_users_are_clients_and_images_are_bytes(tmp_path: Path) -> None:
    write(tmp_path / "all_data_0.json", {"w1": PIXELS["w1"]})
    write(tmp_path / "all_data_1.json", {"w2": PIXELS["w2"]})
    fed = fs.datasets.leaf(tmp_path, shape=(1, 2, 2), held_out=0)
    assert fed.names == ("w1", "w2")
    assert fed.train.sizes.tolist() == [5, 4]
    assert fed.shape.input == (1, 2, 2)
    assert fed.train.x.dtype == torch.uint8
    assert fed.train.client(0)[0][0].tolist() == [[[255, 0], [128, 255]]]
    assert fed.train.client(1)[1].tolist() == [2, 2, 1, 0]
    plain = fs.datasets.leaf(tmp_path / "all_data_0.json", held_out=0)
    assert plain.shape.input == (4,)
    torch.testing.assert_close(plain.train.x[0], torch.tensor([1.0, 0.0, 0.5, 1.0]))


def test_test_files_are_the_held_out_points(tmp_path: Path) -> None:
    write(tmp_path / "train" / "a.json", PIXELS)
    write(tmp_path / "test" / "a.json", {"w2": {"x": [[0.0, 0.0, 0.0, 1.0]], "y": [1]}, "w9": PIXELS["w1"]})
    fed = fs.datasets.leaf(tmp_path)
    assert fed.train.sizes.tolist() == [5, 4]
    assert fed.held_out.sizes.tolist() == [0, 1]
    assert fed.held_out.x.tolist() == [[0, 0, 0, 1]]
    assert fed.notices == ("1 users with test points only are left out, the first is 'w9'",)


def test_characters_are_numbered(tmp_path: Path) -> None:
    fed = fs.datasets.leaf(write(tmp_path / "s.json", LINES), tokens="characters", length=5, held_out=0)
    letters = sorted(set("to beor notmy lordo"))
    number = {letter: i for i, letter in enumerate(letters, start=1)}
    assert fed.train.x.tolist() == [
        *([number[c] for c in text] for text in ("to be", "or no", "my lo")), [number["o"], 0, 0, 0, 0]
    ]  # fmt: skip
    assert not fed.train.x.is_floating_point()  # so that an embedding takes them
    assert fed.columns.classes == (" ", "t")
    assert fed.train.y.tolist() == [0, 1, 1, 0]


def test_words_of_one_field_are_numbered_by_frequency(tmp_path: Path) -> None:
    fed = fs.datasets.leaf(write(tmp_path / "t.json", TWEETS), tokens="words", field=4, vocabulary=2, held_out=0)
    # good (3 times) and day (twice) are kept: day is 1, good is 2
    assert fed.train.x.tolist() == [[2, 1, 0, 0], [0, 1, 0, 0], [2, 2, 0, 0]]
    assert fed.train.y.tolist() == [1, 0, 1]


def test_a_run_on_leaf(tmp_path: Path) -> None:
    write(tmp_path / "data" / "all.json", PIXELS)
    text = 'rounds = 2\nmodel = "linear"\nalgorithm = {name = "fedsoft", S = 2, K = 2}\n'
    (tmp_path / "own.toml").write_text(f'{text}[dataset]\nname = "leaf"\npath = "{tmp_path}/data"\n')
    execute(spec.read(str(tmp_path / "own.toml")), tmp_path / "run", RunOptions())
    assert len(fs.load(tmp_path / "run").history) == 2


@pytest.mark.parametrize(
    ("content", "settings", "problem"),
    [
        ('{"user_data": {"a": {"x": [[1]], "y": [0]', {}, "is not JSON that can be read: it is truncated"),
        ('{"user_data": {"a": 1}}', {}, "has user 'a' without lists x and y"),
        ('{"user_data": {"a": {"x": [[1]], "y": []}}}', {}, "with 1 x and 0 y"),
        ('{"user_data": {"a": {"x": [[1], [1, 2]], "y": [0, 1]}}}', {}, "that differ in shape or type"),
        ('{"user_data": {"a": {"x": [[NaN]], "y": [0]}}}', {}, "it has NaN, should be finite numbers"),
        ('{"user_data": {"a": {"x": [[1]], "y": [0]}, "a": {"x": [[1]], "y": [0]}}}', {}, "for the second time"),
        ('{"user_data": {"a": {"x": [[1]], "y": [0]}}, "num_samples": [3]}', {}, "num_samples that are not those"),
        ('{"user_data": {"a": {"x": [[1]], "y": [0]}}} x', {}, "goes on after the end"),
        ('{"users": ["a"]}', {}, "has no user_data"),
        ("[1, 2]", {}, "it has '\\[' where"),
        ("", {}, "is empty"),
        (json.dumps({"user_data": LINES}), {}, "tokens.*is text \\('to be'\\)"),
        (json.dumps({"user_data": TWEETS}), {"tokens": "words"}, "field.*is a list of 6 texts"),
        (json.dumps({"user_data": TWEETS}), {"field": 9, "tokens": "words"}, "has no field 9"),
        (json.dumps({"user_data": {"a": {"x": ["t"], "y": ["a", 1]}}}), {}, "with 1 x and 2 y"),
        (json.dumps({"user_data": {"a": {"x": ["t", "s"], "y": ["a", 1]}}}), {}, "both text and numbers as y"),
        (json.dumps({"user_data": PIXELS}), {"shape": (1, 28, 28)}, "has inputs of 4 numbers"),
        (json.dumps({"user_data": PIXELS}), {"limit": 500}, "more than 500 bytes of memory"),
        ('{"user_data": {"a": ' + "[" * 100_000, {}, "nested too deeply|truncated"),
    ],
)
def test_other_files_are_refused_in_one_sentence(
    tmp_path: Path, content: str, settings: dict[str, Any], problem: str
) -> None:  # fmt: skip
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(fs.InputError, match=problem) as caught:
        fs.datasets.leaf(tmp_path, **settings)
    assert len(str(caught.value).splitlines()) == 1


def test_test_files_of_other_people_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "train" / "a.json", {"w1": PIXELS["w1"]})
    write(tmp_path / "test" / "a.json", {"w2": PIXELS["w2"]})
    with pytest.raises(fs.InputError, match="other users in test than in train"):
        fs.datasets.leaf(tmp_path)
    with pytest.raises(fs.InputError, match="holds no"):
        fs.datasets.leaf(tmp_path / "nowhere")


def test_values_are_the_same_however_the_file_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that does not end in what was read so far is read on: also numbers, and names with escapes."""
    content = {"n": 12345, "user_data": {'ü"\\': {"x": [[1.5e-3, -20]], "y": [True]}, "b": {}}, "z": "ende"}
    (tmp_path / "a.json").write_text(json.dumps(content, indent=1))
    for chunk in (1, 2, 3, 7, 1000):
        monkeypatch.setattr(json_stream, "CHUNK", chunk)
        found = list(json_stream.members(tmp_path / "a.json", "user_data", 10**6))
        inside = {name: value for section, name, value in found if section is not None}
        assert inside == content["user_data"]
        assert [(name, value) for section, name, value in found if section is None] == [("n", 12345), ("z", "ende")]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.slow
def test_memory_holds_one_user_at_a_time(tmp_path: Path) -> None:
    """7.8 million numbers in 40 users, 62 MB of JSON, of which json.loads makes 250 MB: half of that has to do."""
    rng = np.random.default_rng(0)
    images = (rng.integers(0, 256, (40, 250, 784)) / 255).round(4)
    users = {f"u{k}": {"x": own.tolist(), "y": [1] * 250} for k, own in enumerate(images)}
    write(tmp_path / "a.json", users)
    code = """
import sys, fedsoft as fs
from pathlib import Path
def peak(): return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
small = Path(sys.argv[2]); fs.datasets.leaf(small, shape=(1, 2, 2))
before = peak(); fed = fs.datasets.leaf(sys.argv[1], shape=(1, 28, 28)); print(len(fed), peak() - before)
"""
    small = write(tmp_path / "small" / "b.json", PIXELS)
    line = [sys.executable, "-c", code, str(tmp_path / "a.json"), str(small)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    clients, grew = map(int, done.stdout.split())
    assert clients == 40
    assert grew < 120e6
