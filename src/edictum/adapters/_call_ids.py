"""The id and context of the next call, which some frameworks tell only to a hook before it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

# The call that is about to be made in this context, as (tool, call id, the hook's context).
NEXT_CALL: ContextVar[tuple[str, str | None, Any]] = ContextVar(
    "edictum_next_call", default=("", None, None)
)


def note_call_id(tool: str, call_id: str | None, context: Any = None) -> None:
    NEXT_CALL.set((tool, call_id, context))


def get_call_id(tool: str) -> str | None:
    """Return the id that a hook has noted for the tool, if one has."""
    name, call_id, _ = NEXT_CALL.get()
    return call_id if name == tool else None


def get_call_context(tool: str) -> Any:
    """Return the context that a hook has noted for the tool, if one has."""
    name, _, context = NEXT_CALL.get()
    return context if name == tool else None


def forget_call_id() -> None:
    """Forget the id: if the tool is called again without a hook, that is another call."""
    NEXT_CALL.set(("", None, None))
