"""Import the packages that come with an extra."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from edictum.errors import EdictumConfigError


def name_extra(extra: str) -> str:
    """Return how an extra is installed. The name ``edictum`` in the public registry is another
    library, so it is not ``pip install 'edictum[...]'``.
    """
    return f"Install the extra {extra!r}: pip install '.[{extra}]' in the checkout of edictum."


def import_optional(module: str, extra: str, problem: str = "") -> Any:
    """Return the module; raise an EdictumConfigError that says which extra brings it."""
    try:
        return import_module(module)
    except ImportError as exc:
        problem = problem or f"{module} is not installed."
        raise EdictumConfigError(problem, hint=name_extra(extra)) from exc
