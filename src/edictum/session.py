"""Import path of the older library for Session."""

from edictum.sessions.session import Session

__all__ = ["Session"]
