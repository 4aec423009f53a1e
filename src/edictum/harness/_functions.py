"""What can be read off a function that becomes a tool: its name, its parameters and their hints,
and whether calling it runs it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from types import AsyncGeneratorType, GeneratorType, NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from edictum.errors import EdictumConfigError
from edictum.harness.turn_budget import DeadlineToken

LAZY: frozenset[type] = frozenset(
    {GeneratorType, AsyncGeneratorType, map, filter}
)  # nothing of these has run yet


def unbound(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a partial is made from."""
    while isinstance(function, partial):
        function = function.func
    return function


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that has the hints: the one that a partial is made from, or by which an object
    is called.
    """
    function = unbound(function)
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return getattr(type(function), "__call__", function)  # noqa: B004 - to have it, not to ask whether it is there


def name_of(function: Callable[..., Any]) -> str:
    function = unbound(function)
    return str(getattr(function, "__name__", type(function).__name__))


def description_of(function: Callable[..., Any]) -> str:
    """The docstring; of an object the one of its ``__call__``, or else the one of its class."""
    function, called = unbound(function), innermost(function)
    own = called.__doc__ if called is not function else None
    return (inspect.cleandoc(own) if own else inspect.getdoc(function)) or ""


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether calling it only makes a generator, and runs nothing of it."""
    inner = innermost(function)
    return inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(innermost(function), include_extras=True)
    except Exception as exc:
        raise EdictumConfigError(
            f"tool {function!r}: its type hints cannot be read: {exc}.",
            hint="Import what the hints name, or pass parameters={...}.",
        ) from exc


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters that a model may name. What a partial has bound is bound: a model can neither
    see nor change it.
    """
    bound = function.keywords if isinstance(function, partial) else {}
    return {
        name: each
        for name, each in inspect.signature(function).parameters.items()
        if name not in bound
    }


def token_parameter(function: Callable[..., Any]) -> str | None:
    """The parameter that gets the call's deadline, also of a function whose other hints cannot be
    read.
    """
    try:
        hints = hints_of(function)
    except EdictumConfigError:
        hints = getattr(innermost(function), "__annotations__", {})
    return next(
        (name for name, hint in hints.items() if name != "return" and _is_token(hint)), None
    )


def _is_token(hint: Any) -> bool:
    """DeadlineToken, or DeadlineToken | None."""
    if isinstance(hint, str):
        return set(re.findall(r"\w+", hint)) - {"Optional", "None", "typing"} == {"DeadlineToken"}
    if get_origin(hint) is Annotated:
        return _is_token(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return set(get_args(hint)) == {DeadlineToken, NoneType}
    return hint is DeadlineToken
