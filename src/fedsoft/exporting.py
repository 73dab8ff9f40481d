"""Centers and personal models as files that other programs read, with a model card.

Nothing is pickled. `safetensors` holds weights only; `torch` adds a file of plain Python that makes the network; `onnx`
holds the whole computation, from raw inputs to values or probabilities. (torch's own .pt2 archives hold pickles, and
their reader unpickles what they say is one, so they are not offered.)
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, SupportsIndex, get_args

import torch
from safetensors.torch import save as safe_bytes
from torch import Tensor, nn

from fedsoft.centers.blend import Blend
from fedsoft.errors import FedsoftError, InputError
from fedsoft.escape import file_name
from fedsoft.federation import Federation
from fedsoft.modelcard import Card, card
from fedsoft.runs.disk import write_folder
from fedsoft.runs.spec import RunSpec
from fedsoft.scores import Scores
from fedsoft.threads import one_thread
from fedsoft.training import Run

Format = Literal["safetensors", "onnx", "torch"]
FORMATS: tuple[Format, ...] = get_args(Format)
SAMPLE = 7  # points that an export is tried on
TOLERANCE = 1e-4
# Layers whose printed form is the call that makes them.
PLAIN = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.MaxPool2d, nn.AvgPool2d,
    nn.Flatten, nn.GroupNorm, nn.Identity,
)  # fmt: skip


@dataclass(frozen=True)
class Exported:
    """What was written."""

    folder: Path
    format: Format
    models: tuple[str, ...]
    files: tuple[str, ...]


class Predictor(nn.Module):
    """From raw inputs to values or probabilities: plain networks with a share each."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, nets: Sequence[nn.Module], shares: Tensor, federation: Federation) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)
        self.shares = [float(share) for share in shares]
        self.classes = federation.shape.task == "classification"
        self.column = not self.classes and federation.train.y.ndim == 1
        self.images = federation.train.x.dtype == torch.uint8
        self.kind = next(nets[0].parameters()).dtype
        self.scaled = (scale := federation.scale) is not None
        if scale is not None:
            self.register_buffer("mean", scale.mean)
            self.register_buffer("deviation", scale.deviation)

    def forward(self, x: Tensor) -> Tensor:
        """The prediction for `x[points, ...]`, as inputs are in files."""
        x = x.to(self.kind) / 255 if self.images else x
        if self.scaled:
            x = ((x.double() - self.mean) / self.deviation).to(self.kind)
        each = [share * self._head(net(x)) for share, net in zip(self.shares, self.nets, strict=True)]
        return torch.stack(each).sum(0) if len(each) > 1 else each[0]

    def _head(self, out: Tensor) -> Tensor:
        if self.classes:
            return out.softmax(-1)
        return out.squeeze(1) if self.column and out.ndim == 2 else out


def export(
    run: Run,
    folder: str | Path,
    *,
    client: SupportsIndex | str | None = None,
    format: Format = "safetensors",
    spec: RunSpec | None = None,
    name: str = "",
) -> Exported:
    """Write the centers of a run, or the model of one client, into a folder, with a model card.

    Centers of fewer clients than `Privacy.floor` asks for are left out.

    Arguments:
        run: from `fit` or `load`.
        folder: where to; files of the same names are replaced.
        client: number or name; all centers unless told.
        format: `safetensors`, `onnx` (needs the extra `onnx`) or `torch`.
        spec, name: of a saved run, for the card.
    """
    _check_form(run, format)
    return _export(run, Path(folder), _blends(run, client), format, spec, name, run.scores())


def export_clients(
    run: Run,
    folder: str | Path,
    *,
    format: Format = "safetensors",
    spec: RunSpec | None = None,
    name: str = "",
    on_step: Callable[[int, int], object] | None = None,
) -> list[Exported]:
    """Write the models of all clients, a folder each, see `export`; `on_step` is told how many of how many are done."""
    _check_form(run, format)
    scores, found, taken = run.scores(), [], set[str]()
    for k in range(len(run.federation)):
        ((key, blend),) = _blends(run, k).items()
        key = f"{key}-{k}" if key in taken else key  # two names may become the same
        taken.add(key)
        found.append(_export(run, Path(folder) / key, {key: blend}, format, spec, name, scores))
        if on_step is not None:
            on_step(k + 1, len(run.federation))
    return found


def _check_form(run: Run, format: Format) -> None:
    if format not in FORMATS:
        raise InputError(f"format = '{format}' is not allowed: should be one of {', '.join(FORMATS)}")
    if run.model.module is None:
        raise InputError("this model cannot be exported: give the network as fedsoft.models.module(...)")


def _export(
    run: Run, folder: Path, blends: dict[str, Blend], format: Format, spec: RunSpec | None, name: str, scores: Scores
) -> Exported:
    """Write some models into one folder."""
    nets = {key: [_network(blend, w) for w in blend.w] for key, blend in blends.items()}
    files: dict[str, bytes] = {}
    code: str | None = ""
    scale = run.federation.scale
    with torch.no_grad(), one_thread():
        x = run.federation.train.x[:SAMPLE]
        x = x if scale is None else scale.back(x)
        sample = x if x.dtype == torch.uint8 else x.to(run.state["centers"].dtype)
        for key, blend in blends.items():
            predictor = Predictor(nets[key], blend.shares, run.federation)
            _check(key, predictor(sample), blend.predict(run.federation.as_seen(sample)))
            if format == "onnx":
                files[f"{key}.onnx"] = _onnx(key, predictor, sample)
            else:
                files |= {f: _weights(net, name) for f, net in zip(_names(key, blend), nets[key], strict=True)}
        if format == "torch":
            shares = {key: dict(zip(_names(key, b), b.shares.tolist(), strict=True)) for key, b in blends.items()}
            code = _code(next(iter(nets.values()))[0], spec)
            files["model.py"] = _program(code, shares, run.federation).encode()
        if scale is not None and format == "safetensors":
            files["scale.safetensors"] = safe_bytes({"mean": scale.mean, "deviation": scale.deviation})
        about = Card(run, spec, name, format, tuple(blends), tuple(files), blends, asks=code is None)
        files["model-card.md"] = card(about, scores).encode()
    write_folder(folder, files)
    return Exported(folder, format, tuple(blends), tuple(files))


def _blends(run: Run, client: SupportsIndex | str | None) -> dict[str, Blend]:
    if client is not None:
        blend = run.blend(client=client)
        used = blend.shares.abs() > 0
        label = client if isinstance(client, str) else run.federation.names[client]
        safe = file_name(label)
        return {f"client-{safe}": Blend(blend.model, blend.w[used], blend.shares[used])}
    count = len(run.state["centers"])
    if not count:
        raise InputError("this run has no centers: export the model of a client instead (--what client K)")
    kept = [s for s in range(count) if s not in run.withheld]
    return {f"center-{s}": run.blend(center=s) for s in kept or [0]}  # complains when none is published


def _network(blend: Blend, w: Tensor) -> nn.Module:
    assert blend.model.module is not None
    return blend.model.module(blend.model.layout.unflatten(w.cpu().clone())).eval()


def _names(key: str, blend: Blend) -> list[str]:
    """One file for each network of a blend."""
    return [f"{key}.safetensors"] if len(blend.w) == 1 else [f"{key}-{j}.safetensors" for j in range(len(blend.w))]


def _check(key: str, found: Tensor, expected: Tensor) -> None:
    """An export that predicts something else is never written."""
    scale = max(1.0, float(expected.abs().max()))
    if found.shape != expected.shape or float((found - expected.to(found)).abs().max()) > TOLERANCE * scale:
        raise FedsoftError(f"{key} cannot be exported: the exported form predicts something else than the run")


def _weights(net: nn.Module, name: str) -> bytes:
    state = {key: value.detach().cpu().contiguous().clone() for key, value in net.state_dict().items()}
    return safe_bytes(state, {"format": "pt", "from": name or "fedsoft"})


# --- onnx -------------------------------------------------------------------------------------------------------------


def _onnx(key: str, predictor: Predictor, sample: Tensor) -> bytes:
    """The whole computation, with any number of points; tried in onnxruntime."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise InputError(f"format = 'onnx' needs the package '{package}': pip install 'fedsoft[onnx]'")
    import onnxruntime

    points = torch.export.Dim("points")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about its own changes
        logger = logging.getLogger("torch.onnx")
        before = logger.level
        logger.setLevel(logging.ERROR)  # it names every library that it does without
        try:
            program = torch.onnx.export(
                predictor.eval(), (sample,), dynamo=True, input_names=["x"], output_names=["prediction"],
                dynamic_shapes=({0: points},), verbose=False,
            )  # fmt: skip
        except Exception as error:  # whatever a user's network may bring about in there
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"{key} cannot be written as onnx ({type(error).__name__}: {reason[:200]})") from None
        finally:
            logger.setLevel(before)
        assert program is not None
        content: bytes = program.model_proto.SerializeToString()
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads, options.inter_op_num_threads = 3, 1, 1
        session: Any = onnxruntime.InferenceSession(content, options)
    for rows in (sample, sample[:1]):
        _check(key, torch.from_numpy(session.run(None, {"x": rows.numpy()})[0]), predictor(rows))
    return content


# --- torch ------------------------------------------------------------------------------------------------------------


def _code(net: nn.Module, spec: RunSpec | None) -> str | None:
    """Python that makes the network without its weights; None where nobody knows how."""
    source = layers_of(net)
    if source is not None:
        return f'def network():\n    """The network without its weights."""\n    return {source}\n'
    factory = spec.model.settings.get("factory") if spec is not None and spec.model.name == "module" else None
    if not isinstance(factory, str) or ":" not in factory:
        return None
    package, _, attribute = factory.partition(":")
    return f'''def network():
    """The network of the run, by the name that the run knows it by."""
    import copy
    import importlib

    found = importlib.import_module({package!r}).{attribute}
    return copy.deepcopy(found) if isinstance(found, torch.nn.Module) else found()
'''


def _program(code: str | None, shares: dict[str, dict[str, float]], federation: Federation) -> str:
    """A Python file that makes the networks again, from nothing but torch and safetensors."""
    first = next(iter(shares))
    order = "make" if code is None else "make=network"
    code = (
        "# This file does not know the code of your network: give `make`, a function that makes it.\n"
        if code is None
        else code
    )
    scaled = "x.float() / 255" if federation.train.x.dtype == torch.uint8 else "x.float()"
    constants = ""
    if (scale := federation.scale) is not None:
        scaled = "((x.double() - MEAN) / DEVIATION).float()"
        values = (("MEAN", scale.mean), ("DEVIATION", scale.deviation))
        constants = "".join(
            f"{name} = torch.tensor({value.tolist()!r}, dtype=torch.float64)\n" for name, value in values
        )
    heads = {"classification": ".softmax(-1)", "regression": ".flatten()" if federation.train.y.ndim == 1 else ""}
    head = heads[federation.shape.task]
    return f'''"""Models that fedsoft exported: plain torch networks, their weights in the files beside this one.

    from model import predict
    predict(x, "{first}")
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

SHARES = {shares!r}
{constants}

{code}

def load(file, {order}):
    """A network with the weights of a file."""
    net = make()
    net.load_state_dict(load_file(Path(__file__).parent / file))
    return net.eval()


@torch.no_grad()
def predict(x, name, {order}):
    """Values or probabilities for inputs x[points, ...]."""
    return sum(share * load(file, make)({scaled}){head} for file, share in SHARES[name].items())
'''


def layers_of(net: nn.Module) -> str | None:
    """The call that makes a sequence of usual layers; None for other networks.

    >>> layers_of(nn.Sequential(nn.Flatten(), nn.Linear(2, 3, bias=False)))
    'nn.Sequential(nn.Flatten(start_dim=1, end_dim=-1), nn.Linear(in_features=2, out_features=3, bias=False))'
    """
    if type(net) in PLAIN:
        return f"nn.{net!r}"
    if type(net) is not nn.Sequential or list(net._modules) != [str(i) for i in range(len(net))]:
        return None
    parts = [layers_of(part) for part in net]
    return None if None in parts else f"nn.Sequential({', '.join(part for part in parts if part)})"
