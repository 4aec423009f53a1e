"""Import the packages that come with an extra."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from edictum.errors import EdictumConfigError


def import_optional(module: str, extra: str, problem: str = "") -> Any:
    """Return the module; raise an EdictumConfigError that says which extra brings it."""
    try:
        return import_module(module)
    except ImportError as exc:
        hint = f"Install the extra: pip install 'edictum[{extra}]'."
        raise EdictumConfigError(problem or f"{module} is not installed.", hint=hint) from exc
