"""From a preset or a TOML file, and changes as `--set` takes them, to a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsoft import plugins
from fedsoft.data.partition_names import parse_partition
from fedsoft.errors import InputError, SettingError, unknown
from fedsoft.plugins import PARTS
from fedsoft.runs.presets import preset_text, presets
from fedsoft.runs.spec.run_spec import KEYS, PATHS, SOLVER, RunSpec
from fedsoft.storage.files import read_text
from fedsoft.storage.toml import toml

TABLES = ("privacy", "secure", "early_stopping")  # of settings that are no parts
CARRIED = ("S", "K")  # settings of the preset's algorithm that another algorithm takes over


def read(source: str, changes: Sequence[str] | None = None, *, fast: bool = False) -> RunSpec:
    """Read the run of a preset or a TOML file, or its fast variant, and make changes of the form `key=value`.

    Code that the file or the changes name may be imported: from beside the file, else from Python's path.
    """
    raw, label, folder = _tables(source)
    if "parent" in raw:
        raise InputError(
            f"parent = {raw['parent']!r} is not allowed in '{source}': a run goes on with other clients by "
            "'fedsoft resume RUN --join'"
        )
    variant = raw.pop("fast", None)
    if fast:
        if variant is None:
            some = ", ".join(name for name, preset in presets().items() if preset.fast is not None)
            raise InputError(f"--fast: '{source}' has no table [fast], so no fast variant (presets with one: {some})")
        raw, label = _fast(raw, variant), f"{label}-fast"
    raw.setdefault("solver", SOLVER)  # so that its settings can be changed
    before = _table(raw.get("algorithm")).get("name")
    # Another name drops the settings of the old one, so names come first, in whatever order they were given.
    for change in sorted(changes or [], key=lambda change: not _names_a_part(change)):
        _set(raw, change, folder)
    if (now := _table(raw.get("algorithm")).get("name")) != before:
        label = f"{label}-{now}"  # as `compare` calls it
    if isinstance(raw.get("dataset"), dict):  # paths in --set are relative to the current folder
        raw["dataset"] |= _full_paths(Path(), raw["dataset"])
    return RunSpec.from_dict(raw, label, allow=_consent(folder, code_in(raw)))


def _consent(folder: Path | None, names: Sequence[str]) -> Sequence[str]:
    """Return what the user allows by naming it, beside the file where there is one."""
    return names if folder is None else plugins.beside(folder, names)


def code_in(raw: Mapping[str, Any]) -> list[str]:
    """Return the names of code outside of fedsoft in a run, in the order of its parts; import none of it."""
    found: list[str] = []
    for key, kind in PARTS.items():
        table = _table(raw.get(key))
        if isinstance(name := table.get("name"), str):
            found += plugins.code_in(kind, name, {k: v for k, v in table.items() if k != "name"})
    return list(dict.fromkeys(found))


def carried(settings: Mapping[str, Any], name: str, allow: Collection[str] = ()) -> dict[str, Any]:
    """Return what another algorithm takes over from a preset's: how many centers and clients, where it has these."""
    known = plugins.parameters(plugins.find("algorithms", name, allow))
    return {key: settings[key] for key in CARRIED if key in known and key in settings}


def _table(part: Any) -> dict[str, Any]:
    """Return the table of a part, of which the name alone is a short form."""
    return dict(part) if isinstance(part, dict) else {} if part is None else {"name": part}


# --- presets and files ------------------------------------------------------------------------------------------------


def _tables(source: str) -> tuple[dict[str, Any], str, Path | None]:
    """Return the tables of a preset or a file, a label, and where a file's modules are. Paths are relative to it."""
    path = Path(source)
    if source not in presets() and (kind := _data_set(path)):
        settings = f"{{name = '{kind}', path = '{source}', target = ...}}"
        raise InputError(f"'{source}' holds data: give a TOML file with dataset = {settings}")
    if path.suffix != ".toml" and not path.is_file():
        return toml(preset_text(source)), source, None
    try:
        raw = toml(read_text(path))
    except OSError as error:
        raise InputError(f"cannot read '{source}': {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"cannot read '{source}': it is not a text file") from None
    except ValueError as error:
        raise InputError(f"'{source}' is not valid TOML: {error}") from None
    for table in (raw, raw.get("fast")):
        if isinstance(table, dict) and isinstance(table.get("dataset"), dict):
            table["dataset"] |= _full_paths(path.parent, table["dataset"])
    is_run = (path.parent / "run.json").exists()  # a run's folder is data: what lies in it is not imported
    return raw, path.stem, None if is_run else path.parent


def _data_set(path: Path) -> str:
    """Return what reads a folder or a file of points; nothing for what else a path may mean."""
    if path.is_dir():
        return "" if (path / "run.json").exists() else "folder"
    return "table" if path.suffix.lower() in (".csv", ".parquet") else ""


def _full_paths(folder: Path, dataset: Mapping[str, Any]) -> dict[str, Any]:
    """Return the full paths of the files that a data set reads, so that a run can be resumed from any folder."""
    named = {key: dataset[key] for key in PATHS if isinstance(dataset.get(key), str)}
    found: dict[str, Any] = {key: str(folder.absolute() / Path(value).expanduser()) for key, value in named.items()}
    split = dataset.get("split")
    if isinstance(split, dict) and "column" not in split and isinstance(split.get("test"), str):
        found["split"] = split | {"test": str(folder.absolute() / Path(split["test"]).expanduser())}
    return found


def _fast(raw: dict[str, Any], variant: Any) -> dict[str, Any]:
    """Apply the table [fast]: it replaces what it names, parts setting by setting."""
    if not isinstance(variant, dict):
        raise SettingError("", "fast", variant, "should be a table of changes")
    about = f"fast variant: {variant['about']}" if variant.get("about") else "fast variant"
    changed = raw | variant | {"variant": "fast", "about": f"{raw['about']} ({about})" if raw.get("about") else about}
    for key in PARTS:
        if isinstance(new := variant.get(key), dict) and key in raw:
            old = _table(raw[key])
            # As with --set: another name drops the settings of the old one.
            changed[key] = new if new.get("name", old.get("name")) != old.get("name") else old | new
    return changed


# --- changes ----------------------------------------------------------------------------------------------------------


def _set(raw: dict[str, Any], change: str, folder: Path | None) -> None:
    """Make one `key=value` change. `lam=0.1` is short for `algorithm.lam=0.1` where only one part has such a key."""
    key, equals, text = (part.strip() for part in change.partition("="))
    if not equals or not key:
        raise InputError(f"--set '{change}' is not allowed: should be key=value, for instance algorithm.lam=0.1")
    try:
        value = toml(f"x = {text}")["x"]
    except ValueError:
        value = text  # a bare word is a string
    if key in KEYS:
        raw[key] = value
        return
    part, dot, field = key.partition(".")
    if not dot:
        part, field = _part_with(raw, key, folder), key
    if part in TABLES:
        table = raw.get(part)
        raw[part] = (table if isinstance(table, dict) else {}) | {field: value}
    elif part not in PARTS:
        homes = [home for home in PARTS if home in raw and field in (*_settings_of(home, raw[home], folder), "name")]
        raise unknown("key", key, [f"{home}.{field}" for home in homes] or [*PARTS, *TABLES])
    else:
        raw[part] = _changed(part, _table(raw.get(part)), field, value, folder)


def _part_with(raw: Mapping[str, Any], field: str, folder: Path | None) -> str:
    """Return the part of a run that has this setting."""
    known = {part: _settings_of(part, raw[part], folder) for part in PARTS if part in raw}
    parts = [part for part, fields in known.items() if field in fields]
    if len(parts) > 1:
        raise InputError(f"--set '{field}' could be {' or '.join(f'{part}.{field}' for part in parts)}: say which")
    if not parts:
        raise unknown("key", field, {*KEYS, *(name for fields in known.values() for name in fields)})
    return parts[0]


def _changed(part: str, table: dict[str, Any], field: str, value: Any, folder: Path | None) -> dict[str, Any]:
    """Return the table of a part with another value; another name drops the settings."""
    if part == "partition" and isinstance(name := table.get("name"), str):
        table["name"], short = parse_partition(name, allow=_consent(folder, [name]))
        table |= short
    if field != "name" or value == table.get("name"):
        return table | {field: value}
    return {"name": value} | (carried(table, str(value), _consent(folder, [str(value)])) if part == "algorithm" else {})


def _names_a_part(change: str) -> bool:
    return change.partition("=")[0].strip().removesuffix(".name") in PARTS


def _settings_of(part: str, raw: Any, folder: Path | None) -> Collection[str]:
    """Return the settings of a part that the user names: that is consent to import it."""
    name = str(_table(raw).get("name", ""))
    if part == "partition":
        name, _ = parse_partition(name, allow=_consent(folder, [name]))
    return plugins.own_settings(PARTS[part], name, allow=_consent(folder, [name]))
