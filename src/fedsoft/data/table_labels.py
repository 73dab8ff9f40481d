"""Labels of tables as the numbers of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedsoft.core.client_arrays import stray_label
from fedsoft.core.federation import Federation
from fedsoft.data.streams import bad
from fedsoft.data.table_parts import Part
from fedsoft.data.table_settings import TableSettings
from fedsoft.data.tables import first_word, value
from fedsoft.errors import unknown


def number_classes(parts: list[Part], options: TableSettings) -> tuple[list[Part], tuple[str, ...] | None]:
    """Return the labels as numbers, and the classes that are text: 0, 1, ... in sorted order over all clients."""
    text = [part.targets.dtype.kind in "UO" for part in parts]
    if not any(text):
        _check_numbers(parts, options)
        return parts, None
    example = parts[text.index(True)]
    where = _example(example, options)
    if options.task in ("regression", "multilabel"):
        raise bad(example.file, f"has text as labels ({where}), should be numbers for task = '{options.task}'")
    if not all(text):
        # Not guessed: a typing error in one file would make classes of everyone's numbers.
        number = parts[text.index(False)]
        mixed = f"has numbers as labels, but '{example.file.name}' has text ({where})"
        raise bad(number.file, f"{mixed}: should be the same in all files")
    classes = tuple(sorted({name for part in parts for name in part.targets.ravel().tolist()}))
    return [replace(part, y=_numbered(part.targets, classes)) for part in parts], classes


def _numbered(y: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    known = {name: i for i, name in enumerate(classes)}
    return np.array([known[name] for name in y.ravel().tolist()], dtype=np.int64).reshape(y.shape)


def _check_numbers(parts: Sequence[Part], options: TableSettings) -> None:
    """Raise InputError for classes that are no whole numbers, and for a stray number among classes."""
    targets = [part.targets for part in parts]
    guessed = options.task == "auto"
    if options.task == "classification" or (guessed and not any(y.dtype.kind == "f" for y in targets)):
        for part in parts:
            _check_numbered(part, options)
    elif guessed and (stray := stray_label(targets)):
        k, row = stray
        where = f"label {targets[k][row]} in {parts[k].place(row)}, column '{options.targets[0]}'"
        raise bad(
            parts[k].file,
            f"has {where}, but nearly all labels are whole: correct it if they are classes, or give "
            "task = 'regression'",
        )


def _example(part: Part, options: TableSettings) -> str:
    """Return a label that is text, and where it is: the first that does not look like a number."""
    row = first_word(part.targets)
    return f"{value(part.targets.ravel().tolist()[row])} in {part.place(row)}, column '{options.targets[0]}'"


def _check_numbered(part: Part, options: TableSettings, classes: int | None = None) -> None:
    """Raise InputError unless classes are whole numbers; from 0 and below their number where that is known."""
    y = part.targets
    if y.ndim != 1:
        return
    wrong = (y != np.round(y)) | (False if classes is None else (y < 0) | (y >= classes))
    if len(rows := np.flatnonzero(wrong)):
        row = int(rows[0])
        allowed = "whole numbers or text" if classes is None else f"0 to {classes - 1}"
        where = f"{part.place(row)}, column '{options.targets[0]}'"
        raise bad(part.file, f"has {y[row]} in {where}, but classes should be {allowed}")


def known_labels(part: Part, options: TableSettings, federation: Federation) -> np.ndarray:
    """Return the labels of a new client as `Federation.new_client` takes them: text as numbers of classes."""
    y, columns = part.targets, federation.columns
    text, texts = y.dtype.kind in "UO", columns.classes is not None and not columns.whole
    if text and not texts:
        raise bad(part.file, f"has text as labels ({_example(part, options)}), but the run's data has numbers")
    if not text and texts:
        raise bad(part.file, "has numbers as labels, but the run's data has text: should be the same")
    labels = columns.labels
    if labels is None:
        if federation.shape.task == "classification":
            _check_numbered(part, options, federation.shape.outputs)
        return y
    known = {*labels.tolist()}
    for row, label in enumerate(y.ravel().tolist()):
        if label not in known:
            where = f"{part.place(row)}, column '{options.targets[0]}'"
            wrong = unknown("class", label, columns.classes or ())
            raise bad(part.file, f"has a label in {where} that the run does not know: {wrong}")
    return _numbered(y, columns.classes or ()) if texts else y
