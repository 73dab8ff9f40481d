"""A run as text: what to run, on what, with which settings."""

from fedsoft.runs.spec.reading import carried, code_in, read
from fedsoft.runs.spec.run_spec import KEYS, PATHS, Part, RunSpec, Source

__all__ = ["KEYS", "PATHS", "Part", "RunSpec", "Source", "carried", "code_in", "read"]
