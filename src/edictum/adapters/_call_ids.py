"""The id of the call that a framework is about to make, where only a hook learns it."""

from __future__ import annotations

from contextvars import ContextVar

# The call that is about to be made in this context, as (tool, call id).
NEXT_CALL: ContextVar[tuple[str, str | None]] = ContextVar("edictum_next_call", default=("", None))


def note_call_id(tool: str, call_id: str | None) -> None:
    NEXT_CALL.set((tool, call_id))


def get_call_id(tool: str) -> str | None:
    """Return the id that a hook has noted for the tool, if one has."""
    name, call_id = NEXT_CALL.get()
    return call_id if name == tool else None


def forget_call_id() -> None:
    """Forget the id: what calls the tool next, without a hook, is another call."""
    NEXT_CALL.set(("", None))
