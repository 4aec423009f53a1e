"""Health: what ``guard.check()`` returns, as frozen values that are ready for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PartHealth:
    """One part of a guard: whether it can do its work now, and a sentence that says so or why not.

    The sentence is for operators: it may name hosts, files and users.
    """

    name: str
    ok: bool
    message: str
    elapsed_ms: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """What a check of a guard found. ``ok`` is whether every part is."""

    ok: bool
    policy_version: str | None
    parts: tuple[PartHealth, ...]

    def __getitem__(self, name: str) -> PartHealth:
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        return asdict(self)
