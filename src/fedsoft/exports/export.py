"""Write centers and personal models as files that other programs read, with a model card.

Nothing is pickled. `safetensors` holds weights only; `torch` adds a file of plain Python that makes the network; `onnx`
holds the whole computation, from raw inputs to values or probabilities. (torch's own .pt2 archives can hold pickles,
so they are not offered.)
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

from fedsoft.clusters.ensemble import Ensemble
from fedsoft.core.federation import Federation
from fedsoft.errors import FedsoftError, InputError
from fedsoft.escape import file_name
from fedsoft.evaluation.scores import Scores
from fedsoft.exports.model_card import Card, card
from fedsoft.exports.raw_inputs import RawInputs, sample
from fedsoft.exports.torch_program import network_code, program
from fedsoft.machine.threads import one_thread
from fedsoft.networks.inputs import arguments
from fedsoft.runs.spec import RunSpec
from fedsoft.storage.atomic import write_folder
from fedsoft.training import Run

Format = Literal["safetensors", "onnx", "torch"]
FORMATS: tuple[Format, ...] = get_args(Format)
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Exported:
    """The files that were written."""

    folder: Path
    format: Format
    models: tuple[str, ...]
    files: tuple[str, ...]


class Predictor(nn.Module):
    """Plain networks with a share each, from raw inputs to values or probabilities."""

    mean: Tensor
    std: Tensor

    def __init__(self, nets: Sequence[nn.Module], shares: Tensor, federation: Federation, inputs: RawInputs) -> None:
        super().__init__()
        self.inputs = inputs
        self.nets = nn.ModuleList(nets)
        self.shares = [float(share) for share in shares]
        self.classes = federation.shape.task == "classification"
        self.column = not self.classes and federation.train.y.ndim == 1
        self.images = federation.train.x.dtype == torch.uint8
        self.kind = next(nets[0].parameters()).dtype
        self.scaled = (scale := federation.scale) is not None
        if scale is not None:
            self.register_buffer("mean", scale.mean)
            self.register_buffer("std", scale.std)

    def forward(self, *raw: Tensor) -> Tensor:
        """Predict for inputs `[points, ...]`, unscaled as in files."""
        if self.inputs.reader.plain:
            (x,) = raw
            x = x.to(self.kind) / 255 if self.images else x
            raw = (((x.double() - self.mean) / self.std).to(self.kind) if self.scaled else x.to(self.kind),)
        args, named = arguments(self.inputs.read(raw, self.kind))
        each = [share * self._head(net(*args, **named)) for share, net in zip(self.shares, self.nets, strict=True)]
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
        folder: where to write; files of the same names are replaced.
        client: number or name; default: all centers.
        format: `safetensors`, `onnx` (needs the extra `onnx`) or `torch`.
        spec, name: of a saved run, for the card.
    """
    _check_form(run, format)
    return _export(run, Path(folder), _ensembles(run, client), format, spec, name, _scores(run))


def export_clients(
    run: Run,
    folder: str | Path,
    *,
    format: Format = "safetensors",
    spec: RunSpec | None = None,
    name: str = "",
    on_step: Callable[[int, int], object] | None = None,
) -> list[Exported]:
    """Write the models of all clients, a folder each; see `export`. Calls `on_step(done, total)`."""
    _check_form(run, format)
    scores, found, taken = _scores(run), [], set[str]()
    for k in range(len(run.federation)):
        ((key, ensemble),) = _ensembles(run, k).items()
        key = f"{key}-{k}" if key in taken else key  # two names may become the same
        taken.add(key)
        found.append(_export(run, Path(folder) / key, {key: ensemble}, format, spec, name, scores))
        if on_step is not None:
            on_step(k + 1, len(run.federation))
    return found


def _scores(run: Run) -> Scores | None:
    """Return what a card says about a run; None for one that was loaded before it was finished."""
    return None if run.saved is None and run.lacking else run.scores()


def _check_form(run: Run, format: Format) -> None:
    if format not in FORMATS:
        raise InputError(f"format = '{format}' is not allowed: should be one of {', '.join(FORMATS)}")
    if run.model.module is None:
        raise InputError("this model cannot be exported: give the network as fedsoft.models.module(...)")


def _export(
    run: Run, folder: Path, ensembles: dict[str, Ensemble], format: Format, spec: RunSpec | None, name: str,
    scores: Scores | None,
) -> Exported:  # fmt: skip
    nets = {key: [_network(ensemble, w) for w in ensemble.w] for key, ensemble in ensembles.items()}
    files: dict[str, bytes] = {}
    code: str | None = ""
    scale = run.federation.scale
    with torch.no_grad(), one_thread():
        inputs = RawInputs.of(run.model, next(iter(nets.values()))[0])
        points = sample(run.federation, run.state.centers.dtype)
        for key, ensemble in ensembles.items():
            predictor = Predictor(nets[key], ensemble.shares, run.federation, inputs)
            _check(key, predictor(*inputs.split(points)), ensemble.predict(run.federation.as_seen(points)))
            if format == "onnx":
                files[f"{key}.onnx"] = _onnx(key, predictor, inputs.split(points))
            else:
                files |= {f: _weights(net, name) for f, net in zip(_names(key, ensemble), nets[key], strict=True)}
        if format == "torch":
            shares = {key: dict(zip(_names(key, e), e.shares.tolist(), strict=True)) for key, e in ensembles.items()}
            code = network_code(next(iter(nets.values()))[0], spec)
            files["model.py"] = program(code, shares, run.federation, inputs).encode()
        if scale is not None and format == "safetensors":
            files["scale.safetensors"] = safe_bytes({"mean": scale.mean, "std": scale.std})
        about = Card(run, spec, name, format, tuple(files), ensembles, inputs, needs_code=code is None)
        files["model-card.md"] = card(about, scores).encode()
    write_folder(folder, files)
    return Exported(folder, format, tuple(ensembles), tuple(files))


def _ensembles(run: Run, client: SupportsIndex | str | None) -> dict[str, Ensemble]:
    if client is None and run.model.local_statistics:
        raise InputError(
            "centers cannot be exported with statistics = 'local', since only clients have the statistics that a "
            "network needs: export the model of a client instead (--what client K), or train with "
            "statistics = 'averaged'"
        )
    if client is not None:
        found = run.ensemble(client=client)
        used = found.shares.abs() > 0
        label = client if isinstance(client, str) else run.federation.names[client]
        return {f"client-{file_name(label)}": Ensemble(found.model, found.w[used], found.shares[used])}
    count = len(run.state.centers)
    if not count:
        raise InputError("this run has no centers: export the model of a client instead (--what client K)")
    kept = [s for s in range(count) if s not in run.withheld]
    return {f"center-{s}": run.ensemble(center=s) for s in kept or [0]}  # raises when none is published


def _network(ensemble: Ensemble, w: Tensor) -> nn.Module:
    assert ensemble.model.module is not None
    return ensemble.model.module(ensemble.model.layout.unflatten(w.cpu().clone())).eval()


def _names(key: str, ensemble: Ensemble) -> list[str]:
    """Return a file name for each network."""
    count = len(ensemble.w)
    return [f"{key}.safetensors"] if count == 1 else [f"{key}-{j}.safetensors" for j in range(count)]


def _check(key: str, found: Tensor, expected: Tensor) -> None:
    """Raise where an export predicts something else, so that it is never written."""
    scale = max(1.0, float(expected.abs().max()))
    if found.shape != expected.shape or float((found - expected.to(found)).abs().max()) > TOLERANCE * scale:
        raise FedsoftError(f"{key} cannot be exported: the exported form predicts something else than the run")


def _weights(net: nn.Module, name: str) -> bytes:
    state = {key: value.detach().cpu().contiguous().clone() for key, value in net.state_dict().items()}
    return safe_bytes(state, {"format": "pt", "from": name or "fedsoft"})


def _onnx(key: str, predictor: Predictor, sample: tuple[Tensor, ...]) -> bytes:
    """Return the whole computation for any number of points, checked in onnxruntime."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise InputError(f"format = 'onnx' needs the package '{package}': pip install 'fedsoft[onnx]'")
    import onnxruntime

    points = torch.export.Dim("points")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch about its own changes
        logger = logging.getLogger("torch.onnx")
        before = logger.level
        logger.setLevel(logging.ERROR)  # it names every library that is not installed
        try:
            program = torch.onnx.export(
                predictor.eval(), sample, dynamo=True, input_names=list(predictor.inputs.names),
                output_names=["prediction"], dynamic_shapes=(tuple({0: points} for _ in sample),), verbose=False,
            )  # fmt: skip
        except Exception as error:  # a user's network may raise anything
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"{key} cannot be written as onnx ({type(error).__name__}: {reason[:200]})") from None
        finally:
            logger.setLevel(before)
        assert program is not None
        content: bytes = program.model_proto.SerializeToString()
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads, options.inter_op_num_threads = 3, 1, 1
        session: Any = onnxruntime.InferenceSession(content, options)
    for rows in (sample, tuple(part[:1] for part in sample)):
        given = {name: part.numpy() for name, part in zip(predictor.inputs.names, rows, strict=True)}
        _check(key, torch.from_numpy(session.run(None, given)[0]), predictor(*rows))
    return content
