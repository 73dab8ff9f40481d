"""A model card: what an exported model was trained on, what it found, how good it is, and how to load it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from fedsoft.clusters.ensemble import Ensemble
from fedsoft.escape import plain
from fedsoft.evaluation.values import Scores
from fedsoft.exports.raw_inputs import RawInputs
from fedsoft.exports.row_program import rows_code
from fedsoft.machine.resources import environment
from fedsoft.runs.spec import PATHS, RunSpec
from fedsoft.safety.privacy import statements
from fedsoft.training import Run


@dataclass(frozen=True)
class Card:
    """What a card is about."""

    run: Run
    spec: RunSpec | None
    name: str
    format: str
    files: tuple[str, ...]
    ensembles: Mapping[str, Ensemble]
    inputs: RawInputs
    needs_code: bool = False  # whether the code of the network is not known, and has to be passed


def card(about: Card, scores: Scores | None) -> str:
    """Return the card as Markdown."""
    found = [_sources(about, scores), _scores(scores)]
    parts = [_head(about), _data(about), _training(about), *found, _loading(about), LIMITS]
    return "\n\n".join(part for part in parts if part) + "\n"


LIMITS = """## Limits

A center is for clients whose data is like one source of the run's clients. `fedsoft adopt` finds from a few labelled
points which center that is, and whether any of them fits. Files hold weights, layers and what is needed to read inputs
(of tables the names of columns and classes, the categories of text, means and scales), and no point of a client. That
does not prove that nothing about a client can be inferred from the weights."""


def _head(about: Card) -> str:
    of = f" of {plain(about.name)}" if about.name else ""
    listed = "\n".join(f"- `{file}`" for file in about.files)
    return f"# {', '.join(about.ensembles)}{of}\n\nMade by fedsoft as {about.format}. Files:\n\n{listed}"


def _data(about: Card) -> str:
    federation = about.run.federation
    train, held_out = federation.train, federation.held_out
    lines = [
        f"{len(federation)} clients, {int(train.sizes.sum())} training points, {int(held_out.sizes.sum())} held out",
        *(f"input: {line}" for line in _inputs(about)),
        f"output: {_output(about)}",
    ]
    if about.spec is not None:
        pairs = about.spec.dataset.settings.items()
        # Folders of this machine are private.
        settings = ", ".join(f"{key} = {Path(value).name if key in PATHS else value}" for key, value in pairs)
        lines.insert(0, f"data set: {plain(f'{about.spec.dataset.name} ({settings})')}")
        if about.spec.partition is not None:
            lines.insert(1, f"partition: {plain(about.spec.partition.to_dict())}")
    if federation.scale is not None:
        lines.append(f"inputs are scaled to mean 0 and standard deviation 1: {_scaling(about)}")
    if federation.columns.elements:
        lines.append(f"columns: {', '.join(map(plain, federation.columns.elements))}")
    return "## Data\n\n" + "\n".join(f"- {line}" for line in lines)


def _inputs(about: Card) -> list[str]:
    """Return each input with its shape and type."""
    kinds = {
        "uint8": "uint8 images, divided by 255 inside", "int64": "integers", "bool": "true or false",
        "float32": "floats",
    }  # fmt: skip
    found = about.inputs.about(about.run.federation)
    names = [f"`{name}` " if len(found) > 1 else "" for name, _, _ in found]
    return [
        f"{name}`[{', '.join(map(str, ['points', *shape]))}]`, {kinds[kind]}"
        for name, (_, shape, kind) in zip(names, found, strict=True)
    ]


def _scaling(about: Card) -> str:
    """Return where inputs are scaled, and by what."""
    federation = about.run.federation
    if federation.scale is None:
        return ""
    within = about.format != "safetensors"
    where = "inside the model" if within else "give the network (x - mean) / std, both in `scale.safetensors`"
    names, mean, std = federation.columns.elements, federation.scale.mean, federation.scale.std
    if federation.scale.fields:
        each = ", ".join(f"`{plain(name)}`" for name in federation.scale.parts)
        return f"{where}, {each} alone; padding stays 0"
    if names is None or mean.ndim != 1:
        return where
    pairs = zip(names, mean.tolist(), std.tolist(), strict=True)
    return f"{where} ({', '.join(f'{plain(name)}: {m:.6g}, {d:.6g}' for name, m, d in pairs)})"


def _output(about: Card) -> str:
    federation = about.run.federation
    if federation.shape.task == "regression":
        one = federation.train.y.ndim == 1
        return "values `[points]`" if one else f"values `[points, {', '.join(map(str, federation.train.y.shape[1:]))}]`"
    classes = federation.columns.classes
    named = f" ({', '.join(map(plain, classes))})" if classes else ""
    what = "labels" if federation.shape.task == "multilabel" else "classes"
    return f"probabilities of {federation.shape.outputs} {what}{named}, `[points, {federation.shape.outputs}]`"


def _training(about: Card) -> str:
    run, engine = about.run, about.run.engine
    here = environment()
    packages = ", ".join(f"{name} {version}" for name, version in here["packages"].items())
    privacy = statements(run.history[-1].privacy if run.history else None)
    seed = "" if privacy else f"seed {engine.training.seed}, "  # noise could be computed from the seed
    lines = [
        f"algorithm: {engine.algorithm}",
        f"local solver: {engine.training.solver}",
        f"{run.rounds} rounds, {seed}{run.model.size} parameters",
        f"exported {here['created']} with {packages}",
    ]
    if about.spec is not None:
        lines.append(f"hash of the run: {about.spec.hash}")
    lines += [f"privacy of {text}" for text in privacy]
    return "## Training\n\n" + "\n".join(f"- {line}" for line in lines)


def _sources(about: Card, scores: Scores | None) -> str:
    """Return how much each center is used, and its true source where that is known."""
    run, u = about.run, about.run.weights
    if u is None or not len(run.state.centers):
        return ""
    u = u.double() / u.double().sum(1, keepdim=True)
    sizes = run.federation.train.sizes.double()
    use, main = (u * sizes[:, None]).sum(0) / sizes.sum(), torch.bincount(u.argmax(1), minlength=u.shape[1])
    aligned = None if scores is None else scores.alignment
    head = "| center | share of all points | clients that are mostly of it |"
    rows = [f"| {s} | {use[s]:.3f} | {int(main[s])} |" for s in range(u.shape[1])]
    if scores is not None and aligned is not None:
        head += " true source |"
        rows = [f"{row} {plain(scores.sources[aligned[s]])} |" for s, row in enumerate(rows)]
    rule = "| --- " * (head.count("|") - 1) + "|"
    text = "\n".join(["## Sources found", "", head, rule, *rows])
    shares = {key: e.shares.tolist() for key, e in about.ensembles.items() if len(e.w) > 1}
    for key, parts in shares.items():
        text += f"\n\n{key} adds up {len(parts)} models by the shares {', '.join(f'{p:.4f}' for p in parts)}."
    return text


def _scores(scores: Scores | None) -> str:
    if scores is None:
        return "## Scores\n\nThe run was not finished: none were measured."
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
    for name, one in scores.metrics.items():
        if one.held_out is not None:
            rest = f"median {one.held_out.median:.4g}, worst decile {one.held_out.worst_decile:.4g}"
            lines += ["", f"{plain(name)} of {one.held_out.clients} clients: {one.held_out.mean:.4g} ({rest})."]
    return "## Scores\n\n" + "\n".join(lines) if lines else ""


def _example(about: Card, package: str, dtype: str, *, always: bool = False) -> str:
    """Return Python that makes inputs of three points, as a dictionary where there are several, or `always`."""
    found = {}
    for name, shape, kind in about.inputs.about(about.run.federation):
        make = "zeros" if shape else "ones"  # a sequence has a length
        found[name] = f"{package}.{make}({[3, *shape]}, {dtype}{kind})"
    if list(found) == ["x"] and not always:
        return found["x"]
    return "{" + ", ".join(f'"{name}": {code}' for name, code in found.items()) + "}"


def _loading(about: Card) -> str:
    first, file = next(iter(about.ensembles)), about.files[0]
    x, given = _example(about, "torch", "dtype=torch."), _example(about, "np", "np.", always=True)
    table = rows_code(about.run.federation)
    more = ", make" if about.needs_code else ""  # a function that makes the network
    code = {
        "safetensors": f"""from safetensors.torch import load_file

weights = load_file("{file}")  # named tensors, for load_state_dict of the same network""",
        "torch": f"""import torch
from model import {"inputs, predict, read_rows" if table else "predict"}

x = {'inputs(read_rows("new.csv"))' if table else x}
prediction = predict(x, "{first}"{more})""",
        "onnx": f"""import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{file}")
prediction = session.run(None, {given})[0]""",
    }[about.format]
    return f"## How to load\n\n```python\n{code}\n```"
