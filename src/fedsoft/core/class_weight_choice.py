"""What users may ask for as weights of classes; `core.class_weights` computes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

ClassWeights = Literal["balanced", "local"] | list[Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]]
"""What users give: `balanced` over all clients, `local` by each client's own labels, or a weight for each class."""
