"""Identities: what a framework knows of who is calling."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from edictum.core._records import record


@record
class Identity:
    """A conversation and a user, as far as a framework itself knows them."""

    session_id: str | None = None
    user_id: str | None = None


NO_IDENTITY = Identity()


def make_identity(session_id: Any, user_id: Any = None) -> Identity:
    """Return an identity of ids in a framework's form: numbers and UUIDs are written as text."""
    return Identity(_as_text(session_id), _as_text(user_id))


def _as_text(found: Any) -> str | None:
    if found is None or found == "":
        return None
    if isinstance(found, (int, UUID)) and not isinstance(found, bool):
        return str(found)
    if not isinstance(found, str):
        raise TypeError(f"an id is {type(found).__name__}, not text")
    return found
