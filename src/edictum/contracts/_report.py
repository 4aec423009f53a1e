"""Reports of loading a bundle. This module needs no YAML library."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CompositionOverride:
    """A contract of an earlier layer that a later layer has replaced."""

    contract_id: str
    overridden_by: str
    original_source: str


@dataclass(frozen=True, slots=True)
class ShadowContract:
    """A candidate beside the enforced contracts; ``enforced_source`` is "" if none has its id."""

    contract_id: str
    enforced_source: str
    observed_source: str


@dataclass(frozen=True, slots=True)
class CompositionReport:
    """How the layers were combined; ``warnings`` are texts with file, line and column."""

    overridden_contracts: list[CompositionOverride] = field(default_factory=list)
    shadow_contracts: list[ShadowContract] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TemplateInfo:
    """A bundle that can be loaded by its name."""

    name: str
    path: Path
    builtin: bool
