"""Identities: what a framework knows of who is calling."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from edictum.core._records import record


@record
class Identity:
    """A conversation and a user as a framework knows them, in its own form; None if it does not."""

    session_id: Any = None
    user_id: Any = None


NO_IDENTITY = Identity()


def to_id(found: Any) -> str | None:
    """Return an id as text: numbers and UUIDs are written out, an empty text is not an id."""
    if found is None or found == "":
        return None
    if isinstance(found, (int, UUID)) and not isinstance(found, bool):
        return str(found)
    if not isinstance(found, str):
        raise TypeError(f"an id is {type(found).__name__}, not text")
    return found
