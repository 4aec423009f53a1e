"""Migration: what brings a store to the version of this library."""

from __future__ import annotations

from edictum.core._records import record


@record
class Migration:
    """What brings a store to the version of this library: ``ddl``, and the ``grants`` that a
    program needs which uses the store and does not own it.

    ``found`` is the version that the store has, None when it is empty. An empty ``ddl``: nothing is
    to do. ``is_applied`` tells whether it was done.
    """

    found: int | None
    version: int
    ddl: str
    grants: str
    is_applied: bool

    def __str__(self) -> str:
        found = "is empty" if self.found is None else f"has version {self.found}"
        head = f"-- The store {found}; this library has version {self.version}."
        done = "-- Applied:" if self.is_applied else "-- To be applied:"
        return "\n".join([head, *([done, self.ddl] if self.ddl else []), self.grants])
