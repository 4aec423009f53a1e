"""Values that many tests need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def wrap_in_list(value: Any) -> Any:
    return [value]


def wrap_in_dict(value: Any) -> Any:
    return {"x": value}


def nest(levels: int, bottom: Any = None, wrap: Callable[[Any], Any] = wrap_in_list) -> Any:
    """Return a value inside so many containers, lists unless ``wrap`` makes others."""
    for _ in range(levels):
        bottom = wrap(bottom)
    return bottom
