"""Read the name, the parameters and the type hints of a function that becomes a tool."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from edictum.errors import EdictumConfigError
from edictum.harness.turn_budget import DeadlineToken


def unwrap_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, partial):
        function = function.func
    return function


def _get_hinted_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that has the type hints: for a callable object its ``__call__``."""
    function = unwrap_partial(function)
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return getattr(type(function), "__call__", function)  # noqa: B004 - the method is wanted


def get_name(function: Callable[..., Any]) -> str:
    function = unwrap_partial(function)
    return str(getattr(function, "__name__", type(function).__name__))


def get_description(function: Callable[..., Any]) -> str:
    """Return the docstring; for a callable object that of ``__call__``, or else of its class."""
    function, called = unwrap_partial(function), _get_hinted_function(function)
    own = called.__doc__ if called is not function else None
    return (inspect.cleandoc(own) if own else inspect.getdoc(function)) or ""


def is_generator(function: Callable[..., Any]) -> bool:
    """Return whether a call only creates a generator, without running the body."""
    inner = _get_hinted_function(function)
    return inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)


def get_hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(_get_hinted_function(function), include_extras=True)
    except Exception as exc:
        raise EdictumConfigError(
            f"tool {function!r}: its type hints cannot be read: {exc}.",
            hint="Import what the hints name, or pass parameters={...}.",
        ) from exc


def get_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters that a model may set; those bound by a partial are left out."""
    bound = function.keywords if isinstance(function, partial) else {}
    parameters = inspect.signature(function).parameters
    return {name: each for name, each in parameters.items() if name not in bound}


def find_token_parameter(function: Callable[..., Any]) -> str | None:
    """Return the parameter that gets the call's deadline, even when other hints are unreadable."""
    try:
        hints = get_hints(function)
    except EdictumConfigError:
        hints = getattr(_get_hinted_function(function), "__annotations__", {})
    tokens = (name for name, hint in hints.items() if name != "return" and _is_token(hint))
    return next(tokens, None)


def _is_token(hint: Any) -> bool:
    """Return whether the hint is DeadlineToken or DeadlineToken | None."""
    if isinstance(hint, str):
        return set(re.findall(r"\w+", hint)) - {"Optional", "None", "typing"} == {"DeadlineToken"}
    if get_origin(hint) is Annotated:
        return _is_token(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return set(get_args(hint)) == {DeadlineToken, NoneType}
    return hint is DeadlineToken
