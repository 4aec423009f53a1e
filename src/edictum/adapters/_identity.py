"""Identities: what a framework knows about the caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from edictum.core._records import record
from edictum.core.call import Principal


@record
class Identity:
    """A conversation and a user in the framework's own form; None if it knows none. ``principal``
    is set where more than an id is known, as from a verified token.
    """

    session_id: Any = None
    user_id: Any = None
    principal: Principal | None = None


NO_IDENTITY = Identity()


# The call whose tool runs in this context: [its guard, its caller], emptied when it has ended.
OUTER_CALL: ContextVar[list[Any]] = ContextVar("edictum_outer_call")


@contextmanager
def enclose_calls(guard: Any, caller: Identity) -> Iterator[None]:
    """Attribute calls that are made inside, by agents that a tool runs, to this caller.

    A framework takes the run of a sub-agent for a conversation of its own, often a new one each
    time. What a tool leaves running when it ends does not belong to the call any more.
    """
    outer = [guard, caller]
    token = OUTER_CALL.set(outer)
    try:
        yield
    finally:
        outer.clear()
        OUTER_CALL.reset(token)


def find_outer_caller(guard: Any) -> Identity | None:
    """Return the caller of the enclosing call, if that has the same guard."""
    outer = tuple(OUTER_CALL.get(()))  # a copy: another thread may end the call
    return outer[1] if outer and outer[0] is guard else None


def to_id(found: Any) -> str | None:
    """Return an id as text: numbers and UUIDs are converted, an empty text is not an id."""
    if found is None or found == "":
        return None
    if isinstance(found, (int, UUID)) and not isinstance(found, bool):
        return str(found)
    if not isinstance(found, str):
        raise TypeError(f"an id is {type(found).__name__}, not text")
    return found
