"""Forms in which frameworks pass calls and results on: arguments as JSON text, the failure flag of
MCP results, generators.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any

from edictum.core._records import record

# Where the flags of the MCP results in a call are noted, for frameworks that drop them.
MCP_ERRORS: ContextVar[list[str] | None] = ContextVar("edictum_mcp_errors", default=None)


def json_args(text: str | None) -> dict[str, Any] | None:
    """The arguments in a JSON text; none are an empty dict. None: it holds no object, and must not
    be checked as if it were empty.
    """
    try:
        args = json.loads(text or "{}")
    except ValueError:
        return None
    return args if isinstance(args, dict) else None


def same(checked: Any, given: Any) -> bool:
    """Whether a call's arguments are still those that came. ``==`` would not do: to Python 1 is
    True, to a tool it may not be.
    """
    if isinstance(checked, dict) and isinstance(given, dict):
        return checked.keys() == given.keys() and all(
            same(checked[key], given[key]) for key in checked
        )
    if isinstance(checked, (list, tuple)) and isinstance(given, (list, tuple)):
        return len(checked) == len(given) and all(map(same, checked, given))
    return type(checked) is type(given) and bool(checked == given)


def mcp_flag(result: Any) -> str | None:
    """Why an MCP result is a failure: mcp 1 calls the flag isError, mcp 2 is_error."""
    flag = getattr(
        result, "is_error", None
    )  # first: where both are known, the older name complains
    return (
        "isError is set"
        if (getattr(result, "isError", False) if flag is None else flag) is True
        else None
    )


def noting_errors(call_tool: Callable[..., Any]) -> Callable[..., Any]:
    """An MCP client's ``call_tool`` that notes the flag in MCP_ERRORS; given one of these, the
    same.
    """
    if hasattr(call_tool, "notes_errors"):
        return call_tool

    @functools.wraps(call_tool)
    async def call(*args: Any, **options: Any) -> Any:
        result = await call_tool(*args, **options)
        errors, why = MCP_ERRORS.get(), mcp_flag(result)
        if errors is not None and why is not None:
            errors.append(why)
        return result

    vars(call)["notes_errors"] = True
    return call


@record
class Pieces:
    """What a generator yielded. It ran to its end inside of the guard, so that all of it can be
    judged before any of it is read.
    """

    items: list[Any]
    asynchronous: bool = False

    def text(self, of: Callable[[Any], str]) -> str:
        return "".join(map(of, self.items))

    def again(self, items: list[Any] | None = None) -> Any:
        """A generator of the same kind, over the same items or over others."""
        chosen = self.items if items is None else items
        return _ayield(chosen) if self.asynchronous else (item for item in chosen)


async def _ayield(items: list[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


def settled(value: Any) -> Any:
    """What a function that may be asynchronous came to, for a framework that calls it in a thread
    without a loop.
    """
    return asyncio.run(value) if asyncio.iscoroutine(value) else value


def enclosed(function: Any, name: str) -> Any:
    """What a function refers to in the function around it, by name; None if it refers to no such
    thing.
    """
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return function.__closure__[names.index(name)].cell_contents if name in names else None
