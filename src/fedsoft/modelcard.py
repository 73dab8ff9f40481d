"""A model card: what an exported model was trained on, what it found, how good it is, and how to load it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from fedsoft.centers.blend import Blend
from fedsoft.escape import plain
from fedsoft.machine import environment
from fedsoft.runs.spec import PATHS, RunSpec
from fedsoft.scores import Scores
from fedsoft.training import Run
from fedsoft.trust.privacy import statements


@dataclass(frozen=True)
class Card:
    """What a card is about."""

    run: Run
    spec: RunSpec | None
    name: str
    format: str
    models: tuple[str, ...]
    files: tuple[str, ...]
    blends: Mapping[str, Blend]
    asks: bool = False  # whether the code of the network is not known, and has to be given


def card(about: Card, scores: Scores) -> str:
    """The card as Markdown."""
    found = [_sources(about, scores), _scores(scores)]
    parts = [_head(about), _data(about), _training(about), *found, _loading(about), LIMITS]
    return "\n\n".join(part for part in parts if part) + "\n"


LIMITS = """## Limits

A center is for people whose data is like one source of the run's clients. `fedsoft adopt` tells from a few labelled
points which center that is, and whether any of them fits. Files hold weights and layers only: no data of a client. That
is no proof that nothing of it could be told from the weights."""


def _head(about: Card) -> str:
    of = f" of {plain(about.name)}" if about.name else ""
    listed = "\n".join(f"- `{file}`" for file in about.files)
    return f"# {', '.join(about.models)}{of}\n\nMade by fedsoft as {about.format}. Files:\n\n{listed}"


def _data(about: Card) -> str:
    federation = about.run.federation
    shape, train, held_out = federation.shape, federation.train, federation.held_out
    kind = "uint8 images, divided by 255 inside" if train.x.dtype == torch.uint8 else "floats"
    lines = [
        f"{len(federation)} clients, {int(train.sizes.sum())} training points, {int(held_out.sizes.sum())} held out",
        f"input: `[points, {', '.join(map(str, shape.input))}]`, {kind}",
        f"output: {_output(about)}",
    ]
    if about.spec is not None:
        told = about.spec.dataset.settings.items()
        # Where files were on this machine is nobody's business.
        settings = ", ".join(f"{key} = {Path(value).name if key in PATHS else value}" for key, value in told)
        lines.insert(0, f"data set: {plain(f'{about.spec.dataset.name} ({settings})')}")
        if about.spec.partition is not None:
            lines.insert(1, f"partition: {plain(about.spec.partition.to_dict())}")
    if federation.scale is not None:
        lines.append(f"inputs are scaled to mean 0 and deviation 1: {_scaling(about)}")
    if federation.columns.features:
        lines.append(f"columns: {', '.join(map(plain, federation.columns.features))}")
    return "## Data\n\n" + "\n".join(f"- {line}" for line in lines)


def _scaling(about: Card) -> str:
    """Who scales inputs, and by what."""
    federation = about.run.federation
    if federation.scale is None:
        return ""
    within = about.format != "safetensors"
    who = "inside of the model" if within else "give the network (x - mean) / deviation, both in `scale.safetensors`"
    names, mean, deviation = federation.columns.features, federation.scale.mean, federation.scale.deviation
    if names is None or mean.ndim != 1:
        return who
    pairs = zip(names, mean.tolist(), deviation.tolist(), strict=True)
    return f"{who} ({', '.join(f'{plain(name)}: {m:.6g}, {d:.6g}' for name, m, d in pairs)})"


def _output(about: Card) -> str:
    federation = about.run.federation
    if federation.shape.task == "regression":
        one = federation.train.y.ndim == 1
        return "values `[points]`" if one else f"values `[points, {', '.join(map(str, federation.train.y.shape[1:]))}]`"
    classes = federation.columns.classes
    named = f" ({', '.join(map(plain, classes))})" if classes else ""
    return f"probabilities of {federation.shape.outputs} classes{named}, `[points, {federation.shape.outputs}]`"


def _training(about: Card) -> str:
    run, simulation = about.run, about.run.engine
    here = environment()
    packages = ", ".join(f"{name} {version}" for name, version in here["packages"].items())
    told = statements(run.history[-1].get("privacy", {}) if run.history else {})
    seed = "" if told else f"seed {simulation.seed}, "  # noise could be told from the seed
    lines = [
        f"algorithm: {simulation.algorithm}",
        f"local solver: {simulation.solver}",
        f"{run.rounds} rounds, {seed}{run.model.size} parameters",
        f"exported {here['created']} with {packages}",
    ]
    if about.spec is not None:
        lines.append(f"hash of the run: {about.spec.hash}")
    lines += [f"privacy of {text}" for text in told]
    return "## Training\n\n" + "\n".join(f"- {line}" for line in lines)


def _sources(about: Card, scores: Scores) -> str:
    """What the centers stand for: their use, and the true sources where they are known."""
    run, u = about.run, about.run.weights
    if u is None or not len(run.state["centers"]):
        return ""
    u = u.double() / u.double().sum(1, keepdim=True)
    sizes = run.federation.train.sizes.double()
    use, main = (u * sizes[:, None]).sum(0) / sizes.sum(), torch.bincount(u.argmax(1), minlength=u.shape[1])
    aligned = scores.alignment
    head = "| center | share of all points | clients that are mostly of it |"
    rows = [f"| {s} | {use[s]:.3f} | {int(main[s])} |" for s in range(u.shape[1])]
    if aligned is not None:
        head += " true source |"
        rows = [f"{row} {plain(scores.sources[aligned[s]])} |" for s, row in enumerate(rows)]
    rule = "| --- " * (head.count("|") - 1) + "|"
    text = "\n".join(["## Sources found", "", head, rule, *rows])
    shares = {key: blend.shares.tolist() for key, blend in about.blends.items() if len(blend.w) > 1}
    for key, parts in shares.items():
        text += f"\n\n{key} adds up {len(parts)} models by the shares {', '.join(f'{p:.4f}' for p in parts)}."
    return text


def _scores(scores: Scores) -> str:
    lines = []
    if scores.centers is not None:
        lines += ["| " + " | ".join([f"test {scores.metric}", *map(plain, scores.sources)]) + " |"]
        lines += ["| --- " * (len(scores.sources) + 1) + "|"]
        lines += [
            f"| center {s} | " + " | ".join(f"{v:.4g}" for v in row) + " |" for s, row in enumerate(scores.centers)
        ]
        if scores.oracle is not None:
            lines += ["| trained on that source alone | " + " | ".join(f"{v:.4g}" for v in scores.oracle) + " |"]
    elif scores.served:
        lines += [f"| {scores.metric} on clients' points | all clients | clients that are mostly of it |"]
        lines += ["| --- | --- | --- |"]
        lines += [
            f"| center {s} | {use.on_all:.4g} | {'-' if use.on_own is None else f'{use.on_own:.4g}'} |"
            for s, use in enumerate(scores.served)
        ]
    spread = scores.personal_held_out
    if spread is not None:
        rest = f"median {spread.median:.4g}, worst decile {spread.worst_decile:.4g}"
        where = f"Personal models on held-out points of {spread.clients} clients"
        lines += ["", f"{where}: {scores.metric} {spread.mean:.4g} ({rest})."]
    return "## Scores\n\n" + "\n".join(lines) if lines else ""


def _loading(about: Card) -> str:
    federation = about.run.federation
    first, file = about.models[0], about.files[0]
    kind = "uint8" if federation.train.x.dtype == torch.uint8 else "float32"
    shape = f"(3, {', '.join(map(str, federation.shape.input))})"
    more = ", make" if about.asks else ""  # a function that makes the network
    code = {
        "safetensors": f"""from safetensors.torch import load_file

weights = load_file("{file}")  # named tensors, for load_state_dict of the same network""",
        "torch": f"""import torch
from model import predict

x = torch.zeros({shape}, dtype=torch.{kind})
prediction = predict(x, "{first}"{more})""",
        "onnx": f"""import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{file}")
prediction = session.run(None, {{"x": np.zeros({shape}, np.{kind})}})[0]""",
    }[about.format]
    return f"## How to load\n\n```python\n{code}\n```"
