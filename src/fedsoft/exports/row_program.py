"""The part of an exported program that reads rows of tables as training did: columns, categories, empty cells."""

from __future__ import annotations

from fedsoft.core.federation import Federation

CODE = '''
def read_rows(file):
    """Return the rows of a CSV file that is written as those of training were."""
    import csv

    with open(file, newline="", encoding=ENCODING) as stream:
        return list(csv.DictReader(stream, delimiter=DELIMITER))


def inputs(rows):
    """Return x for rows that are dictionaries: text is one-hot, an empty number is what COLUMNS has for it."""
    return torch.tensor([[element for part in COLUMNS.items() for element in _elements(row, *part)] for row in rows])


def _elements(row, name, known):
    cell = next(str(cell).strip() for key, cell in row.items() if str(key).strip() == name)
    if isinstance(known, list):  # the categories of text
        return [float(cell == one) for one in known]
    if cell in EMPTY and known is not None:
        return [known]
    return [float({"true": "1", "false": "0"}.get(cell.lower(), cell.replace(DECIMAL, ".")))]
'''
EMPTY = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None")


def rows_code(federation: Federation) -> str:
    """Return Python that makes inputs of the rows of a table; nothing where inputs are something else."""
    columns, form = federation.columns, federation.columns.reading
    if columns.features is None or columns.tokens or columns.attributes or federation.shape.fields:
        return ""
    known = {
        name: list(columns.categories[name]) if name in columns.categories else columns.fills.get(name)
        for name in columns.features
    }
    constants = {
        "COLUMNS": known, "CLASSES": list(columns.classes or ()), "EMPTY": EMPTY, "DELIMITER": form.delimiter,
        "DECIMAL": form.decimal, "ENCODING": "utf-8-sig" if form.encoding == "utf-8" else form.encoding,
    }  # fmt: skip
    return "".join(f"{name} = {value!r}\n" for name, value in constants.items()) + CODE


def example(rows: str, name: str) -> str:
    """Return how the program is used."""
    if not rows:
        return f'    from model import predict\n    predict(x, "{name}")'
    return f'''    from model import CLASSES, inputs, predict, read_rows
    x = inputs(read_rows("new.csv"))
    predict(x, "{name}")  # a row for each point; of classes a column for each of CLASSES'''
