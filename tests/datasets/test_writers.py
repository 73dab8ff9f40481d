"""Handwriting by its writers: one archive, or LEAF's JSON as its script makes it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import fedsoft as fs
from fedsoft.data import fetch, registry
from fedsoft.runs import spec

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (12, 28, 28), dtype=np.uint8)
LABELS = RNG.integers(0, 62, 12)
OWNERS = np.array(["f0001", "f0002", "f0003"])[np.arange(12) % 3]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(registry.VARIABLE, raising=False)
    monkeypatch.setattr(registry, "cache", lambda: tmp_path / "cache")
    return tmp_path


def write_archive(place: Path) -> None:
    np.savez(place / "writers.npz", images=IMAGES, labels=LABELS, clients=OWNERS)


def write_leaf(place: Path) -> None:
    """The same in LEAF's form: one list of numbers from 0 to 1 for an image, paper being 1, in training and test."""
    for part, rows in (("train", np.arange(9)), ("test", np.arange(9, 12))):
        users = {}
        for name in np.unique(OWNERS[rows]).tolist():
            own = rows[OWNERS[rows] == name]
            x = (1 - IMAGES[own].reshape(len(own), -1) / 255).tolist()
            users[name] = {"x": x, "y": LABELS[own].tolist()}
        folder = place / "femnist" / part
        folder.mkdir(parents=True)
        content = {"users": list(users), "num_samples": [len(u["y"]) for u in users.values()], "user_data": users}
        (folder / f"all_data_0_niid_0_keep_0_{part}_9.json").write_text(json.dumps(content))


def test_a_writer_is_a_client(place: Path) -> None:
    write_archive(place)
    fed = fs.datasets.writers(held_out=0.25, data_dir=place)
    assert fed.names == ("f0001", "f0002", "f0003")
    assert fed.shape.input == (1, 28, 28)
    assert fed.shape.outputs == 62
    assert fed.train.sizes.tolist() == [3, 3, 3]
    assert fs.datasets.writers(size=14, data_dir=place).shape.input == (1, 14, 14)


def test_both_forms_are_the_same_federation(place: Path) -> None:
    write_archive(place)
    archive = fs.datasets.writers(data_dir=place)
    (place / "writers.npz").unlink()
    write_leaf(place)
    leaf = fs.datasets.writers(data_dir=place)
    assert leaf.fingerprint == archive.fingerprint
    assert torch.equal(leaf.held_out.x, archive.held_out.x)
    report = fetch.check("writers", place)
    assert (report.train, report.test, report.complete) == (12, 0, False)


def test_what_is_missing_is_told_with_the_way_to_get_it(place: Path) -> None:
    for ask in (fs.datasets.writers, lambda: fetch.fetch("writers")):
        with pytest.raises(fs.InputError, match=r"cannot be downloaded.*preprocess\.sh") as caught:
            ask()
        assert len(str(caught.value).splitlines()) == 1


def test_the_preset_is_a_run() -> None:
    found = spec.read("writers")
    assert found.dataset.name == "writers"


@pytest.mark.skipif(
    registry.locate(registry.collection("writers")) is None, reason="needs FEMNIST's writers (FEDSOFT_DATA)"
)
def test_the_real_writers() -> None:
    assert os.environ.get(registry.VARIABLE)
    fed = fs.datasets.writers(size=14)
    assert len(fed) >= 50
    assert fed.shape.outputs == 62
    assert int(fed.train.sizes.min()) >= 1
    # Ink is bright: most of an image is paper, which is dark.
    assert float((fed.train.x[:500] < 32).double().mean()) > 0.5
    solver = fs.Adam(lr=2e-3, batch=20, epochs=1)
    run = fs.fit(fs.algorithms.FedAvg(), fed, fs.models.mlp(hidden=(64,)), rounds=4, solver=solver)
    scored = run.scores().personal_held_out
    assert scored is not None
    assert scored.mean > 0.07  # a constant guess has 0.057
