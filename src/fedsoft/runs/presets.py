"""The presets that come with the package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

from fedsoft.errors import unknown
from fedsoft.storage.toml import toml


@dataclass(frozen=True)
class Preset:
    """What a preset is about, and what its fast variant is (None where there is none)."""

    about: str
    fast: str | None


def presets() -> dict[str, Preset]:
    """Return all presets by name."""
    tables = {name: toml(text) for name, text in sorted(_texts().items())}
    return {
        name: Preset(raw.get("about", ""), raw["fast"].get("about", "") if "fast" in raw else None)
        for name, raw in tables.items()
    }


def preset_text(name: str) -> str:
    """Return the TOML of a preset."""
    if name not in (texts := _texts()):
        raise unknown("preset", name, texts)
    return texts[name]


def _texts() -> dict[str, str]:
    folder = resources.files("fedsoft") / "presets"
    files = [file for file in folder.iterdir() if file.name.endswith(".toml")]
    return {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in files}
