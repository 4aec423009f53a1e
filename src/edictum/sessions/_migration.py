"""Migration: the statements that bring a store to this library's version."""

from __future__ import annotations

from edictum.core._records import record


@record
class Migration:
    """The statements that bring a store to the version of this library: ``ddl``, and the ``grants``
    for a program that uses the store without owning it.

    ``found`` is the version of the store, None when it is empty. An empty ``ddl`` means that there
    is nothing to do. ``is_applied`` and ``is_granted`` say whether these were executed.
    """

    found: int | None
    version: int
    ddl: str
    grants: str
    is_applied: bool
    is_granted: bool = False

    def __str__(self) -> str:
        found = "is empty" if self.found is None else f"has version {self.found}"
        head = f"-- The store {found}; this library has version {self.version}."
        done = "-- Applied:" if self.is_applied else "-- To be applied:"
        whose = "a program that does not own the store"
        rights = f"-- Granted to {whose}:" if self.is_granted else f"-- To be granted to {whose}:"
        return "\n".join([head, *([done, self.ddl] if self.ddl else []), rights, self.grants])
