"""Forms in which frameworks pass calls and results on: arguments as JSON text, and the failure flag of MCP results."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

# Where the flags of the MCP results in a call are noted, for frameworks that drop them.
MCP_ERRORS: ContextVar[list[str] | None] = ContextVar("edictum_mcp_errors", default=None)


def json_args(text: str | None) -> dict[str, Any] | None:
    """The arguments in a JSON text; none are an empty dict. None: it holds no object, and must not be checked as if it were empty."""
    try:
        args = json.loads(text or "{}")
    except ValueError:
        return None
    return args if isinstance(args, dict) else None


def mcp_flag(result: Any) -> str | None:
    """Why an MCP result is a failure: mcp 1 calls the flag isError, mcp 2 is_error."""
    return "isError is set" if getattr(result, "isError", False) is True or getattr(result, "is_error", False) is True else None


def noting_errors(call_tool: Callable[..., Any]) -> Callable[..., Any]:
    """An MCP client's ``call_tool`` that notes the flag in MCP_ERRORS; given one of these, the same."""
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
