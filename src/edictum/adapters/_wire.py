"""How frameworks pass calls on: arguments as JSON text, MCP results without their failure flag."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

# Where the flags of the MCP results in a call are noted, for frameworks that drop them.
MCP_ERRORS: ContextVar[list[str] | None] = ContextVar("edictum_mcp_errors", default=None)


def parse_json_args(text: str | None) -> dict[str, Any] | None:
    """Return the arguments in a JSON text; None if it is not an object, which cannot be checked."""
    try:
        args = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return args if isinstance(args, dict) else None


def note_mcp_errors(call_tool: Callable[..., Any]) -> Callable[..., Any]:
    """Return an MCP client's ``call_tool`` that notes failed results in MCP_ERRORS."""
    if hasattr(call_tool, "notes_errors"):
        return call_tool

    @functools.wraps(call_tool)
    async def call(*args: Any, **options: Any) -> Any:
        result = await call_tool(*args, **options)
        errors = MCP_ERRORS.get()
        if errors is not None and _is_mcp_error(result):
            errors.append("isError is set")
        return result

    vars(call)["notes_errors"] = True
    return call


def _is_mcp_error(result: Any) -> bool:
    """Return the flag: isError in mcp 1, is_error in mcp 2, where the older name warns."""
    flag = getattr(result, "is_error", None)
    return (getattr(result, "isError", False) if flag is None else flag) is True
