"""The arrays that users give for clients, checked and brought into the types that models need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fedsoft.core.client_data import ClientData, DataShape, Task
from fedsoft.core.client_inputs import Given, agreed_fields, collated, given_inputs, packed, tensor_of
from fedsoft.core.columns import Columns
from fedsoft.core.inputs import InputField
from fedsoft.core.mapped import pick
from fedsoft.errors import InputError, unknown

Pairs = list[tuple[Tensor, Tensor]]
FEW_STRAY = 0.05  # of all labels: so few that are not whole are more likely mistakes than a regression


def check_clients(
    names: tuple[str, ...],
    clients: Sequence[Any],
    task: Task | Literal["auto"],
    classes: int | Sequence[str] | None,
    length: int | None = None,
) -> tuple[DataShape, Pairs, Columns]:
    """Return the shape that all clients share, their points as tensors, and the classes where labels have to be coded.

    Raise InputError where clients differ, or have what cannot be used. `length`: the longest that a sequence may be.
    """
    if length is not None and length < 1:
        raise InputError(f"length = {length} is not allowed: should be at least 1")
    if isinstance(clients, DataLoader):
        raise InputError("clients is a DataLoader, should be a list with a data set (loader.dataset) for each client")
    if len(names) != len(clients) or len(set(names)) != len(names):
        raise InputError(f"names: {len(set(names))} different names for {len(clients)} clients, need one for each")
    if not clients:
        raise InputError("clients: the list is empty, a federation needs at least one client")
    given = [as_pair(name, client) for name, client in zip(names, clients, strict=True)]
    known = None if classes is None or isinstance(classes, int) else tuple(map(str, classes))
    targets, known = numbered(names, [y for _, y in given], known)
    inputs = [
        given_inputs(f"client '{name}'", x, sequences=length is not None)
        for name, (x, _) in zip(names, given, strict=True)
    ]
    fields = agreed_fields(names, inputs, length)
    pairs = [_tensors(name, x, y, fields) for name, x, y in zip(names, inputs, targets, strict=True)]
    if known is not None and task in ("regression", "multilabel"):
        raise InputError(f"task = '{task}' is not allowed: y is text, should be numbers")
    task, pairs = _task(names, task, pairs)
    whole = task == "classification" and classes is None and known is None
    pairs, known = _from_zero(pairs) if whole else (pairs, known)
    shape = _shape(task, names, pairs, len(known) if known else classes)  # pyright: ignore[reportArgumentType]
    return replace(shape, fields=fields), pairs, Columns(classes=known, whole=whole and known is not None)


def _from_zero(pairs: Pairs) -> tuple[Pairs, tuple[str, ...] | None]:
    """Return labels that are whole numbers, but not from 0, as numbers of classes, and these classes in order."""
    if any(y.ndim != 1 for _, y in pairs) or min(int(y.min()) for _, y in pairs) == 0:
        return pairs, None
    known = torch.cat([y for _, y in pairs]).unique()
    return [(x, torch.searchsorted(known, y)) for x, y in pairs], tuple(map(str, known.tolist()))


def coded(name: str, y: Any, columns: Columns) -> Any:
    """Return the labels of a new client as numbers of classes, where those of the clients are coded."""
    if not columns.whole:
        (found,), _ = numbered([name], [y], columns.classes)
        return found
    labels, given = columns.labels, _array(y)
    assert labels is not None
    if given.dtype.kind not in "iuf":
        raise InputError(f"client '{name}' has text as labels, should be whole numbers such as {labels[0]}")
    if given.size and (wrong := given[~np.isin(given, labels)].ravel()).size:
        raise InputError(
            f"client '{name}' has a label of no class: {unknown('class', f'{wrong[0]:g}', columns.classes or ())}"
        )
    return np.searchsorted(labels, given)


def as_pair(name: str, given: Any) -> tuple[Any, Any]:
    """Return x and y of a client that is given as a pair of arrays, or as a torch data set, map-style or iterable."""
    if isinstance(given, DataLoader):
        raise InputError(f"client '{name}' is a DataLoader, should be the data set in it: loader.dataset")
    if isinstance(given, TensorDataset):
        *inputs, y = given.tensors
        given = (tuple(inputs), y) if len(inputs) > 1 else given.tensors
    elif not isinstance(given, tuple | list):
        if not isinstance(given, Dataset) and not (hasattr(given, "__getitem__") and hasattr(given, "__len__")):
            raise InputError(
                f"client '{name}' is a {type(given).__name__}, should be (x, y) or a data set of such pairs"
            )
        items = list(given) if isinstance(given, IterableDataset) else [given[i] for i in range(len(given))]  # pyright: ignore[reportArgumentType]
        if not items:
            raise InputError(f"client '{name}' has no points, leave it out")
        if any(not isinstance(item, tuple | list) or len(item) != 2 for item in items):
            raise InputError(f"client '{name}': its data set gives {type(items[0]).__name__}, should give pairs (x, y)")
        given = (
            collated(f"client '{name}'", [x for x, _ in items]),
            [_array(y)[()] if not isinstance(y, str) else y for _, y in items],
        )
    if len(given) != 2:
        raise InputError(f"client '{name}' has {len(given)} parts, should be (x, y)")
    return given[0], given[1]


def _array(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def numbered(
    names: Sequence[str], targets: Sequence[Any], classes: tuple[str, ...] | None = None
) -> tuple[list[Any], tuple[str, ...] | None]:
    """Return labels that are text as numbers, and the classes in order: `classes`, or all that there are, sorted."""
    text = [is_text(y) for y in targets]
    if not any(text):
        return list(targets), classes
    if not all(text):
        words, number = names[text.index(True)], names[text.index(False)]
        raise InputError(f"client '{number}' has numbers as labels, but '{words}' has text: should be the same")
    rows = [np.asarray(y) for y in targets]
    classes = classes or tuple(sorted({str(label) for y in rows for label in y.ravel().tolist()}))
    places = {label: i for i, label in enumerate(classes)}
    found = []
    for name, y in zip(names, rows, strict=True):
        for label in y.ravel().tolist():
            if str(label) not in places:
                raise InputError(f"client '{name}' has a label of no class: {unknown('class', label, classes)}")
        found.append(np.array([places[str(label)] for label in y.ravel().tolist()], dtype=np.int64).reshape(y.shape))
    return found, classes


def is_text(y: Any) -> bool:
    """Whether labels are text."""
    if isinstance(y, Tensor):
        return False
    try:
        values = np.asarray(y)
    except ValueError:  # ragged, which is reported later
        return False
    return values.dtype.kind == "U" or (
        values.dtype.kind == "O" and values.size > 0 and all(isinstance(label, str) for label in values.ravel())
    )


def divide(pairs: Pairs, masks: Sequence[np.ndarray]) -> tuple[ClientData, ClientData]:
    """Divide each client's points into those to train on and those held out, each in the order of the data."""
    train, held = [], []
    for (x, y), mask in zip(pairs, masks, strict=True):
        left, right = (torch.from_numpy(np.flatnonzero(which)) for which in (~mask, mask))
        train.append((pick(x, left), y[left]))
        held.append((pick(x, right), y[right]))
    return ClientData.concat(train), ClientData.concat(held)


def check_new_client(name: str, x: Any, y: Any, shape: DataShape, like: ClientData) -> tuple[Tensor, Tensor]:
    """Return the points of a new client as tensors of the types that the clients' have; raise where they differ."""
    x, y = _tensors(name, given_inputs(f"client '{name}'", x), y, shape.fields)
    if shape.task == "classification" and y.is_floating_point() and bool((y != y.round()).any()):
        raise InputError(f"client '{name}': y holds numbers that are not whole, the run's labels are classes")
    y = y.long() if shape.task == "classification" else y.to(like.y.dtype)
    for part, value, known in (("x", x, like.x), ("y", y, like.y)):
        if value.shape[1:] != known.shape[1:]:
            raise InputError(
                f"client '{name}': {part} of a point is {list(value.shape[1:])}, "
                f"but that of the run's clients is {list(known.shape[1:])}"
            )
    if shape.task == "classification":
        _check_labels(name, y, shape.outputs)
    if (x.dtype == torch.uint8) != (like.x.dtype == torch.uint8):
        kind = "uint8 (images)" if like.x.dtype == torch.uint8 else "numbers of another type than uint8"
        raise InputError(f"client '{name}': x is {str(x.dtype).removeprefix('torch.')}, the run's data is {kind}")
    return _like(x, like.x), y


def check_new_inputs(x: Any, shape: DataShape, like: Tensor) -> Tensor:
    """Return inputs without targets in the form of the clients' own; raise where they differ from it."""
    given = given_inputs("predict", x)
    if shape.fields:
        first = next(iter(given.values())) if isinstance(given, dict) else given
        return packed("predict", shape.fields, given, len(first))
    if not isinstance(given, Tensor) or tuple(given.shape[1:]) != shape.input or not given.ndim:
        sides = f"shape {list(given.shape)}" if isinstance(given, Tensor) else f"{len(given)} inputs"
        raise InputError(f"x has {sides}, should be [points, {', '.join(map(str, shape.input))}]")
    return _like(given, like)


def _like(x: Tensor, like: Tensor) -> Tensor:
    """Return integers as floats, or floats that are all whole as integers, where the run's clients have these."""
    if torch.uint8 in (x.dtype, like.dtype):
        return x
    if not x.is_floating_point() and like.is_floating_point():
        return x.to(like.dtype)
    if x.is_floating_point() and not like.is_floating_point():
        return x if bool((x != x.round()).any()) else x.long()
    return x


def stray_label(targets: Sequence[np.ndarray]) -> tuple[int, int] | None:
    """Return client and row of the first label that is not whole where nearly all others are few, repeated classes.

    One mistyped label would otherwise turn a classification into a regression.
    """
    if any(y.ndim != 1 or y.dtype.kind not in "iuf" for y in targets):
        return None
    values = np.concatenate([np.asarray(y, np.float64) for y in targets])
    whole = values == np.round(values)
    stray, classes = int((~whole).sum()), np.unique(values[whole])
    if not 0 < stray <= FEW_STRAY * len(values) or classes[0] < 0 or len(classes) > len(values) // 10:
        return None
    ends = np.cumsum([len(y) for y in targets])
    place = int(np.flatnonzero(~whole)[0])
    client = int(np.searchsorted(ends, place, side="right"))
    return client, place - int(ends[client]) + len(targets[client])


def _tensors(name: str, given: Given, y: Any, fields: tuple[InputField, ...] = ()) -> tuple[Tensor, Tensor]:
    """Return one client's points as tensors, checked; several inputs are packed."""
    y = tensor_of(f"client '{name}'", "y", y)
    if fields and y.ndim:
        x = packed(f"client '{name}'", fields, given, len(y))
    elif not isinstance(given, Tensor):
        raise InputError(f"client '{name}' has {len(given)} inputs, should have one array x[points, features...]")
    else:
        x = given
    if x.ndim < 2 or y.ndim < 1 or len(x) != len(y):
        raise InputError(
            f"client '{name}': x has shape {list(x.shape)} and y {list(y.shape)}, "
            "should be x[points, features...] and y[points]"
        )
    if len(y) == 0:
        raise InputError(f"client '{name}' has no points, leave it out")
    if y.ndim == 2 and y.shape[1] == 1:  # one target in a column
        y = y[:, 0]
    if fields or x.is_floating_point() or x.dtype == torch.uint8:
        return x, y
    return (x.float() if x.dtype == torch.bool else _integers(x)), y


def _integers(x: Tensor) -> Tensor:
    """Return integers in half of the memory where they fit."""
    bounds = torch.iinfo(torch.int32)
    fits = x.dtype != torch.int64 or bool(((x >= bounds.min) & (x <= bounds.max)).all())
    return x.to(torch.int32 if fits else torch.int64)


def _task(names: Sequence[str], task: Task | Literal["auto"], pairs: Pairs) -> tuple[Task, Pairs]:
    """Decide between regression and classification, and bring the targets into its type."""
    if task == "auto":
        floating = [y.is_floating_point() for _, y in pairs]
        if any(floating) and not all(floating) and (found := stray_label([y.numpy() for _, y in pairs])):
            k, row = found
            raise InputError(
                f"client '{names[k]}': label {float(pairs[k][1][row])} of point {row} is not whole, nearly all others "
                "are: correct it, or give task = 'regression'"
            )
        task = "regression" if any(floating) else "classification"
    if task == "regression":
        return task, [(x, y if y.is_floating_point() else y.float()) for x, y in pairs]
    if task == "multilabel":
        return task, [(x, _flags(name, y)) for name, (x, y) in zip(names, pairs, strict=True)]
    if any(y.is_floating_point() and bool((y != y.round()).any()) for _, y in pairs):
        raise InputError("task = 'classification' needs whole numbers as labels, some are not")
    return task, [(x, y.long()) for x, y in pairs]


def _flags(name: str, y: Tensor) -> Tensor:
    """Return labels that may apply together as numbers 0 and 1, `[points, labels]`."""
    if y.ndim != 2:
        raise InputError(f"client '{name}': y has shape {list(y.shape)}, task = 'multilabel' needs y[points, labels]")
    if bool(((y != 0) & (y != 1)).any()):
        raise InputError(f"client '{name}': y holds {float(y[(y != 0) & (y != 1)][0]):g}, labels should be 0 or 1")
    return y.float()


def _shape(task: Task, names: tuple[str, ...], pairs: Pairs, classes: int | None) -> DataShape:
    """Return the shape that all clients share; raise InputError for the first that differs."""
    first_x, first_y = pairs[0]
    for name, (x, y) in zip(names, pairs, strict=True):
        if x.shape[1:] != first_x.shape[1:] or y.shape[1:] != first_y.shape[1:]:
            raise InputError(
                f"client '{name}': a point is x{list(x.shape[1:])}, y{list(y.shape[1:])}, "
                f"but that of client '{names[0]}' is x{list(first_x.shape[1:])}, y{list(first_y.shape[1:])}"
            )
    if task != "classification":
        return DataShape(task, tuple(first_x.shape[1:]), int(np.prod(first_y.shape[1:], dtype=int)))
    if first_y.ndim != 1:
        raise InputError(
            f"y has shape [points, {', '.join(map(str, first_y.shape[1:]))}], classes should be one number per point: "
            "give task = 'multilabel' for labels 0 and 1 that may apply together, or task = 'regression'"
        )
    largest = max(0, *(int(y.max()) for _, y in pairs))
    classes = classes if classes is not None else largest + 1
    for name, (_, y) in zip(names, pairs, strict=True):
        _check_labels(name, y, classes)
    return DataShape(task, tuple(first_x.shape[1:]), classes)


def _check_labels(name: str, y: Tensor, classes: int) -> None:
    if int(y.min()) < 0 or int(y.max()) >= classes:
        bad = int(y.min()) if int(y.min()) < 0 else int(y.max())
        raise InputError(f"client '{name}': label {bad} is out of range, should be 0 to {classes - 1}")
