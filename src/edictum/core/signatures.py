"""Check whether a function accepts the arguments that it will be called with: when it is given, not
at the first call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from edictum.errors import EdictumConfigError


def check_takes(what: str, function: Callable[..., Any], *arguments: str) -> None:
    """Refuse a function that cannot take these arguments, by position."""
    if type(function) is FunctionType and _surely_takes(function, len(arguments)):
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(*arguments)
    except TypeError as exc:
        wanted = f"({', '.join(arguments)})"
        problem, hint = (
            f"{what} is called with {wanted}, which it cannot take: {exc}.",
            f"Write it as def ...{wanted}.",
        )
        raise EdictumConfigError(problem, hint=hint) from exc


def _surely_takes(function: FunctionType, count: int) -> bool:
    """Return whether the code object alone shows that a call fits. Reading the signature takes
    twenty times as long.
    """
    code = function.__code__
    required = code.co_argcount - len(function.__defaults__ or ())
    return required <= count <= code.co_argcount and not code.co_kwonlyargcount
