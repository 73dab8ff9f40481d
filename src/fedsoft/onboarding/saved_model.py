"""A new client's model as a safetensors file: written by `adopt`, read by `predict`."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedsoft.clusters.ensemble import Ensemble
from fedsoft.core.model import Layout, Model
from fedsoft.core.scaling import Scale
from fedsoft.errors import InputError
from fedsoft.storage.files import read_bytes, reason

SHARES, MEAN, STD = "shares", "scale.mean", "scale.std"
LARGEST = 2**33  # bytes of a file


def model_bytes(ensemble: Ensemble, scale: Scale | None, how: str) -> bytes:
    """Return the content of a file: named tensors; several models under `c0.`, `c1.`, ... with their shares.

    Where inputs are scaled, the scale is included.
    """
    layout, w = ensemble.model.layout, ensemble.w.cpu()
    if len(w) == 1:
        named = dict(layout.unflatten(w[0]))
    else:
        named = {f"c{j}.{key}": t for j, row in enumerate(w) for key, t in layout.unflatten(row).items()}
        named[SHARES] = ensemble.shares.cpu()
    if scale is not None:
        named |= {MEAN: scale.mean, STD: scale.std}
    return save({key: value.contiguous().clone() for key, value in named.items()}, {"format": "pt", "how": how})


def read_model(path: Path, model: Model, scale: Scale | None, like: Tensor) -> Ensemble:
    """Return what a file of `model_bytes` holds, checked against the run that it came from.

    Arguments:
        model, scale: of the run.
        like: its centers, for device and precision.
    """
    try:
        named = load(read_bytes(path, LARGEST))
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"'{path}' cannot be read: {reason(error)}") from None
    mean, std, shares = (named.pop(key, None) for key in (MEAN, STD, SHARES))
    other = InputError(f"'{path}' holds no model of this run: should be a .safetensors file of 'fedsoft adopt' with it")
    if (_lists(None, None) if scale is None else _lists(scale.mean, scale.std)) != _lists(mean, std):
        raise other
    w = [_vector(named, model.layout, prefix) for prefix in _prefixes(shares)]
    whole = [one for one in w if one is not None]
    if not whole or len(whole) < len(w) or len(named) != len(w) * len(model.layout.shapes):
        raise other
    found, shares = torch.stack(whole).to(like), (torch.ones(1) if shares is None else shares).to(like).flatten()
    if not (bool(found.isfinite().all()) and bool(shares.isfinite().all())):
        raise InputError(f"'{path}' holds numbers that are not finite: adopt the client again")
    return Ensemble(model, found, shares)


def _lists(*tensors: Tensor | None) -> list[object]:
    return [None if one is None else one.tolist() for one in tensors]


def _prefixes(shares: Tensor | None) -> list[str]:
    return [""] if shares is None else [f"c{j}." for j in range(shares.numel())]


def _vector(named: dict[str, Tensor], layout: Layout, prefix: str) -> Tensor | None:
    """Return one model as a vector; None where a tensor is missing or has another shape."""
    parts = {name: named[f"{prefix}{name}"] for name in layout.shapes if f"{prefix}{name}" in named}
    fits = {name: tuple(part.shape) for name, part in parts.items()} == {**layout.shapes}
    return layout.flatten(parts) if fits else None
