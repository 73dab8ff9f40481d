"""Write centers and personal models as files that other programs read, with a model card.

Nothing is pickled. `safetensors` holds weights only; `torch` adds a file of plain Python that makes the network; `onnx`
holds the whole computation, from raw inputs to values or probabilities. (torch's own .pt2 archives can hold pickles,
so they are not offered.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, SupportsIndex, get_args

import torch
from safetensors.torch import save as safe_bytes
from torch import Tensor, nn

from fedsoft.clusters.ensemble import Ensemble
from fedsoft.core.federation import Federation
from fedsoft.errors import FedsoftError, InputError
from fedsoft.escape import file_name
from fedsoft.evaluation.values import Scores
from fedsoft.exports.model_card import Card, card
from fedsoft.exports.onnx_program import OnnxWriter
from fedsoft.exports.raw_inputs import RawInputs, sample, scaled, scales
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

    shares: Tensor

    def __init__(self, nets: Sequence[nn.Module], shares: Tensor, federation: Federation, inputs: RawInputs) -> None:
        super().__init__()
        self.inputs = inputs
        self.nets = nn.ModuleList(nets)
        self.task = federation.shape.task
        self.column = self.task == "regression" and federation.train.y.ndim == 1
        self.images = federation.train.x.dtype == torch.uint8
        self.kind = next(nets[0].parameters()).dtype
        self.register_buffer("shares", shares.detach().to("cpu", self.kind))
        self.scaled = [*scales(federation)]
        for name, (mean, std) in scales(federation).items():
            self.register_buffer(f"mean_{name}", mean.contiguous())
            self.register_buffer(f"std_{name}", std.contiguous())

    def forward(self, *raw: Tensor) -> Tensor:
        """Predict for inputs `[points, ...]`, unscaled as in files."""
        scale = {name: (self.get_buffer(f"mean_{name}"), self.get_buffer(f"std_{name}")) for name in self.scaled}
        if self.inputs.reader.plain:
            (x,) = raw
            raw = (scaled(x.to(self.kind) / 255 if self.images else x, scale.get("x"), self.kind),)
        args, named = arguments(self.inputs.read(raw, self.kind, scale))
        each = [self.shares[j] * self._head(net(*args, **named)) for j, net in enumerate(self.nets)]
        return torch.stack(each).sum(0) if len(each) > 1 else each[0]

    def _head(self, out: Tensor) -> Tensor:
        if self.task != "regression":
            return out.softmax(-1) if self.task == "classification" else out.sigmoid()
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
    return _Writer.of(run, format, spec, name).write(Path(folder), _ensembles(run, client))


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
    writer, found, taken = _Writer.of(run, format, spec, name), [], set[str]()
    for k in range(len(run.federation)):
        ((key, ensemble),) = _ensembles(run, k).items()
        key = f"{key}-{k}" if key in taken else key  # two names may become the same
        taken.add(key)
        found.append(writer.write(Path(folder) / key, {key: ensemble}))
        if on_step is not None:
            on_step(k + 1, len(run.federation))
    return found


def _scores(run: Run) -> Scores | None:
    """Return what a card says about a run; None for one that was loaded before it was finished."""
    return None if run.saved is None and run.lacking else run.scores()


def check_format(format: str) -> Format:
    """Return the format; raise for one that is not offered."""
    for known in FORMATS:
        if format == known:
            return known
    raise InputError(f"format = '{format}' is not allowed: should be one of {', '.join(FORMATS)}")


def model_files(
    run: Run, ensembles: dict[str, Ensemble], format: Format, spec: RunSpec | None = None, name: str = ""
) -> dict[str, bytes]:
    """Return files of a run's models by name, without a card; see `export`."""
    writer = _Writer.of(run, format, spec, name)
    return writer.files(ensembles, writer.networks(ensembles))


@dataclass(frozen=True)
class _Writer:
    """Writes models of one run in one format."""

    run: Run
    format: Format
    spec: RunSpec | None
    name: str
    onnx: OnnxWriter
    sample: Tensor

    @staticmethod
    def of(run: Run, format: Format, spec: RunSpec | None, name: str) -> _Writer:
        check_format(format)
        if run.model.module is None:
            raise InputError("this model cannot be exported: give the network as fedsoft.models.module(...)")
        return _Writer(run, format, spec, name, OnnxWriter(_check), sample(run.federation, run.state.centers.dtype))

    @cached_property
    def scores(self) -> Scores | None:
        """What a card says about the run."""
        return _scores(self.run)

    def networks(self, ensembles: dict[str, Ensemble]) -> dict[str, list[nn.Module]]:
        return {key: [_network(ensemble, w) for w in ensemble.w] for key, ensemble in ensembles.items()}

    def write(self, folder: Path, ensembles: dict[str, Ensemble]) -> Exported:
        """Write models and their card into a folder."""
        nets = self.networks(ensembles)
        files, inputs = self.files(ensembles, nets), self.inputs(nets)
        needs_code = self.format == "torch" and self._code(nets) is None
        about = Card(
            self.run, self.spec, self.name, self.format, tuple(files), ensembles, inputs, needs_code=needs_code
        )
        files["model-card.md"] = card(about, self.scores).encode()
        write_folder(folder, files)
        return Exported(folder, self.format, tuple(ensembles), tuple(files))

    def files(self, ensembles: dict[str, Ensemble], nets: dict[str, list[nn.Module]]) -> dict[str, bytes]:
        """Return the files of models by name, each checked against what the run predicts."""
        found: dict[str, bytes] = {}
        federation, inputs = self.run.federation, self.inputs(nets)
        points = inputs.split(self.sample)
        with torch.no_grad(), one_thread():
            for key, ensemble in ensembles.items():
                predictor = Predictor(nets[key], ensemble.shares, federation, inputs)
                _check(key, predictor(*points), ensemble.predict(federation.as_seen(self.sample)))
                if self.format == "onnx":
                    found[f"{key}.onnx"] = self.onnx.content(
                        key, predictor, dict(zip(inputs.names, points, strict=True))
                    )
                else:
                    names = _names(key, ensemble)
                    found |= {file: _weights(net, self.name) for file, net in zip(names, nets[key], strict=True)}
        if self.format == "torch":
            shares = {key: dict(zip(_names(key, e), e.shares.tolist(), strict=True)) for key, e in ensembles.items()}
            found["model.py"] = program(self._code(nets), shares, federation, inputs).encode()
        if federation.scale is not None and self.format == "safetensors":
            found["scale.safetensors"] = safe_bytes(_scale_tensors(federation))
        return found

    def inputs(self, nets: dict[str, list[nn.Module]]) -> RawInputs:
        """Return what the exported models are given."""
        return RawInputs.of(self.run.model, next(iter(nets.values()))[0])

    def _code(self, nets: dict[str, list[nn.Module]]) -> str | None:
        return network_code(next(iter(nets.values()))[0], self.spec)


def _ensembles(run: Run, client: SupportsIndex | str | None) -> dict[str, Ensemble]:
    if client is None and run.model.local_statistics:
        raise InputError(
            "centers cannot be exported with statistics = 'local', since only clients have the statistics that a "
            "network needs: export the model of a client instead (--what client K), or train with "
            "statistics = 'averaged'"
        )
    if client is not None:
        found = run.ensemble(client=client)
        if found.gate is not None:
            raise InputError(
                f"what clients of {type(run.engine.algorithm).__name__} predict with is no network alone: export the "
                "centers instead (--what centers)"
            )
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


def _scale_tensors(federation: Federation) -> dict[str, Tensor]:
    """Return `mean` and `std`; of several inputs `<name>.mean` and `<name>.std` of each that is scaled."""
    found = {}
    for name, (mean, std) in scales(federation).items():
        before = f"{name}." if federation.shape.fields else ""
        found |= {f"{before}mean": mean.contiguous(), f"{before}std": std.contiguous()}
    return found


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
