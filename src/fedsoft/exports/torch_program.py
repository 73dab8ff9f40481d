"""A Python file that makes exported networks and predicts with them."""

from __future__ import annotations

import torch
from torch import nn

from fedsoft.core.federation import Federation
from fedsoft.core.inputs import Kind
from fedsoft.exports.raw_inputs import RawInputs, scales
from fedsoft.exports.row_program import example, rows_code
from fedsoft.runs.spec import RunSpec

# Layers whose printed form is the call that makes them.
PLAIN = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.MaxPool2d, nn.AvgPool2d,
    nn.Flatten, nn.GroupNorm, nn.Identity, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.Dropout, nn.Dropout1d,
    nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
)  # fmt: skip


READ: dict[Kind, str] = {
    "bool": ".bool()", "uint8": ".float() / 255", "int32": ".long()", "float32": ".float()", "float64": ".float()",
}  # fmt: skip


def network_code(net: nn.Module, spec: RunSpec | None) -> str | None:
    """Return Python that makes the network without its weights; None where its code is not known."""
    source = layers_of(net)
    if source is not None:
        return f'def network():\n    """The network without its weights."""\n    return {source}\n'
    by_name = spec is not None and spec.model.name in ("module", "lora")  # an adapter is merged into the same network
    factory = spec.model.settings.get("factory") if spec is not None and by_name else None
    if not isinstance(factory, str) or ":" not in factory:
        return None
    package, _, attribute = factory.partition(":")
    return f'''def network():
    """Import the network of the run by the name in its spec."""
    import copy
    import importlib

    found = importlib.import_module({package!r}).{attribute}
    return copy.deepcopy(found) if isinstance(found, torch.nn.Module) else found()
'''


def program(code: str | None, shares: dict[str, dict[str, float]], federation: Federation, inputs: RawInputs) -> str:
    """Return a Python file that makes the networks and predicts, with torch and safetensors alone."""
    first = next(iter(shares))
    make = "make" if code is None else "make=network"
    code = (
        "# The code of your network is not known here: pass `make`, a function that makes it.\n"
        if code is None
        else code
    )
    given = _arguments(inputs, federation)
    rows = rows_code(federation)
    constants = "".join(
        f"{what}_{name} = torch.tensor({value.tolist()!r}, dtype=torch.float64)\n"
        for name, pair in scales(federation).items() for what, value in zip(("MEAN", "STD"), pair, strict=True)
    )  # fmt: skip
    values = ".flatten()" if federation.train.y.ndim == 1 else ""
    heads = {"classification": ".softmax(-1)", "multilabel": ".sigmoid()", "regression": values}
    head = heads[federation.shape.task]
    return f'''"""Models that fedsoft exported: plain torch networks, their weights in the files beside this one.

{example(rows, first)}
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

SHARES = {shares!r}
{constants}
{rows}
{code}

def load(file, {make}):
    """Return a network with the weights of a file."""
    net = make()
    net.load_state_dict(load_file(Path(__file__).parent / file))
    return net.eval()


@torch.no_grad()
def predict(x, name, {make}):
    """Return values or probabilities for inputs {_given(inputs)}."""
    return sum(share * load(file, make)({given}){head} for file, share in SHARES[name].items())
'''


def _given(inputs: RawInputs) -> str:
    """Return what x is."""
    if not inputs.reader.fields:
        return "x[points, ...]"
    return f"x, a dictionary of tensors: {', '.join(inputs.names)}"


def _arguments(inputs: RawInputs, federation: Federation) -> str:
    """Return the Python that a network is called with."""
    scale = scales(federation)
    if not inputs.reader.fields:
        numbers = "x.float() / 255" if federation.train.x.dtype == torch.uint8 else "x.float()"
        return "x.long()" if inputs.reader.tokens else _scaled("x", "x") if scale else numbers
    parts, beside = [], {}
    for one, name, lengths in inputs.kinds:
        value = _scaled(f'x["{name}"]', one.name) if one.name in scale else f'x["{name}"]{READ[one.kind]}'
        if one.name in scale and lengths is not None:  # padding stays 0
            sides = ", None" * (len(one.shape) - 1)
            value += f' * (torch.arange({one.shape[0]}) < x["{lengths}"][:, None])[...{sides}]'
        parts.append(value if one.name.isdigit() else f"{one.name}={value}")
        place, much = f'torch.arange(x["{name}"].shape[1])', f'x["{lengths}"]'
        beside[one.name] = {
            "mask": f"{place} < {much}[:, None]", "padding_mask": f"{place} >= {much}[:, None]", "lengths": much,
        }  # fmt: skip
    return ", ".join([*parts, *(f"{key}={beside[name][what]}" for key, name, what in inputs.reader.beside)])


def _scaled(value: str, name: str) -> str:
    return f"(({value}.double() - MEAN_{name}) / STD_{name}).float()"


def layers_of(net: nn.Module) -> str | None:
    """Return the call that makes a sequence of usual layers; None for other networks.

    >>> layers_of(nn.Sequential(nn.Flatten(), nn.Linear(2, 3, bias=False)))
    'nn.Sequential(nn.Flatten(start_dim=1, end_dim=-1), nn.Linear(in_features=2, out_features=3, bias=False))'
    """
    if type(net) in PLAIN:
        return f"nn.{net!r}"
    if type(net) is not nn.Sequential or list(net._modules) != [str(i) for i in range(len(net))]:
        return None
    parts = [layers_of(part) for part in net]
    return None if None in parts else f"nn.Sequential({', '.join(part for part in parts if part)})"
