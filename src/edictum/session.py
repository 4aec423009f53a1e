"""The counters of a session."""

from edictum.sessions.session import Session

__all__ = ["Session"]
