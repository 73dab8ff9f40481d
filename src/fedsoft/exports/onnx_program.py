"""Networks as ONNX: the computation is traced once, and every model of the same networks is written with its weights.

A network is traced with its weights as inputs, so that nothing of one model is folded into the graph. In each file they
are constants, as everywhere.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedsoft.errors import InputError

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
Kind = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


@dataclass(frozen=True)
class OnnxWriter:
    """Writes networks as ONNX, and checks each in onnxruntime.

    Arguments:
        check: called with the name of a model, what onnxruntime predicts and what the network does; raises where they
            differ.
        traced: the computations so far, by names and shapes of their weights; None where one cannot be traced apart
            from its weights. Each holds the weights of the model that was written last.
    """

    check: Callable[[str, Tensor, Tensor], object]
    traced: dict[Kind, Any] = field(default_factory=dict)

    def content(self, name: str, network: nn.Module, sample: Mapping[str, Tensor]) -> bytes:
        """Return the whole computation for any number of points, as the content of a file.

        `sample` holds a few points, by the names of the inputs.
        """
        for package in PACKAGES:
            if importlib.util.find_spec(package) is None:
                raise InputError(f"format = 'onnx' needs the package '{package}': pip install 'fedsoft[onnx]'")
        weights = {key: value.detach().cpu() for key, value in network.state_dict().items()}
        kind = tuple((key, tuple(value.shape), value.dtype) for key, value in weights.items())
        if kind not in self.traced:
            self.traced[kind] = _traced_apart(network.eval(), weights, sample)
        graph = self.traced[kind]
        if graph is not None:
            _put(graph, weights)
        made = _traced(name, network.eval(), sample) if graph is None else graph
        content: bytes = made.SerializeToString()
        session, expected = _session(content), network(*sample.values())
        for count in (None, 1):
            found = session.run(None, {key: value[:count].numpy() for key, value in sample.items()})[0]
            self.check(name, torch.from_numpy(found), expected[:count])
        return content


class _Apart(nn.Module):
    """A network as a function of its inputs and its weights."""

    def __init__(self, network: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.names = names
        self.call = lambda weights, x: functional_call(network, weights, x)  # no child: it has no weights of its own

    def forward(self, inputs: list[Tensor], weights: list[Tensor]) -> Tensor:
        return self.call(dict(zip(self.names, weights, strict=True)), tuple(inputs))


def _traced_apart(network: nn.Module, weights: Mapping[str, Tensor], sample: Mapping[str, Tensor]) -> Any | None:
    """Return the computation with weights that can be exchanged; None where the network cannot be traced so."""
    further = {f"w.{name}": value for name, value in weights.items()}  # no name of an input has a dot
    names = [*sample, *further]
    shapes = ([*_any_number(sample)], [None] * len(further))
    given = ([*sample.values()], [*further.values()])
    try:
        made = _export(_Apart(network, [*weights]), given, names, shapes)
    except Exception:  # whatever a user's network raises: it is traced with its weights, which says what is wrong
        return None
    return _with_weights(made, weights, len(sample)) if [one.name for one in made.graph.input] == names else None


def _traced(name: str, network: nn.Module, sample: Mapping[str, Tensor]) -> Any:
    shapes = _any_number(sample)
    kinds = [one.kind for one in inspect.signature(network.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:  # torch takes these as one argument
        shapes = (shapes,)
    try:
        return _export(network, tuple(sample.values()), [*sample], shapes)
    except Exception as error:  # a user's network may raise anything
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"{name} cannot be written as onnx ({type(error).__name__}: {reason[:200]})") from None


def _any_number(sample: Mapping[str, Tensor]) -> tuple[Any, ...]:
    """Return the shapes of inputs for any number of points."""
    points = torch.export.Dim("points")
    return tuple({0: points} for _ in sample)


def _export(network: nn.Module, inputs: tuple[Any, ...], names: list[str], shapes: tuple[Any, ...]) -> Any:
    """Return the graph of a network."""
    with _quiet():
        program = torch.onnx.export(
            network, inputs, dynamo=True, input_names=names, output_names=["prediction"], dynamic_shapes=shapes,
            verbose=False,
        )  # fmt: skip
    assert program is not None
    return program.model_proto


def _with_weights(graph: Any, weights: Mapping[str, Tensor], inputs: int) -> Any:
    """Return the computation of the given number of inputs with weights as constants, in place of further inputs."""
    import onnx

    used = {name for node in graph.graph.node for name in node.input}
    del graph.graph.input[inputs:]
    for name, value in weights.items():
        if f"w.{name}" in used:
            graph.graph.initializer.append(onnx.numpy_helper.from_array(value.contiguous().numpy(), f"w.{name}"))
    return graph


def _put(graph: Any, weights: Mapping[str, Tensor]) -> None:
    """Exchange the weights of a computation for others of the same names, shapes and types."""
    for constant in graph.graph.initializer:
        value = weights.get(constant.name.removeprefix("w."))
        if value is not None and constant.name.startswith("w."):
            constant.raw_data = value.contiguous().numpy().tobytes()  # as `from_array` keeps numbers


def _session(content: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads, options.inter_op_num_threads = 3, 1, 1
    # It computes a few points once: to look for a faster order takes longer.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(content, options)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch about its own changes, and about every library that is not installed."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(before)
