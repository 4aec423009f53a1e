"""What only a hook learns of the call that a framework is about to make: its id and context."""

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
    """Forget the id: what calls the tool next, without a hook, is another call."""
    NEXT_CALL.set(("", None, None))
