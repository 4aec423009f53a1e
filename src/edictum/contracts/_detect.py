"""Detection: what conditions and redactions by contract look for, secrets and kinds of personal
data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from edictum.contracts._regex import Pattern
from edictum.core.redaction import RedactionPolicy, Redactor
from edictum.core.secret_scan import Detection
from edictum.redaction import SECRETS, detector


@lru_cache(maxsize=256)
def redactor_for(names: tuple[str, ...]) -> Redactor:
    """Return a Redactor for these kinds; with secrets, values under sensitive keys count too."""
    is_sensitive = RedactionPolicy().is_sensitive if SECRETS in names else None
    return Redactor((detector(*names),), is_sensitive=is_sensitive)


def join_kinds(names: Sequence[str]) -> str:
    """Return the kinds as a phrase for a sentence."""
    shown = [name.removeprefix("pii.").replace("_", " ") for name in names]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


@dataclass(frozen=True, slots=True, eq=False)
class OwnSecret:
    """A kind of secret that a bundle describes."""

    kind: str
    pattern: Pattern

    def scan(self, text: str, /) -> list[Detection]:
        return [Detection(self.kind, start, end) for start, end in self.pattern.spans(text)]
