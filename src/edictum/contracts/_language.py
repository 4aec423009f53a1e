"""How a guard reads bundles. This module needs no YAML library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edictum.core.contract import Mode

if TYPE_CHECKING:
    from edictum.contracts._operators import Operator
    from edictum.contracts._selectors import CustomSelectors

MAX_BUNDLE_BYTES = 1_048_576


@dataclass(frozen=True, slots=True)
class Language:
    """How one guard reads its bundles; ``mode`` replaces a bundle's default mode."""

    operators: Mapping[str, Operator] = field(default_factory=dict)
    selectors: CustomSelectors = field(default_factory=dict)
    mode: Mode | None = None
    max_bytes: int = MAX_BUNDLE_BYTES
