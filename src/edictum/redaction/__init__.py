"""Find secrets and personal data in text.

``scan`` returns their positions and kinds. Names are ``secrets``, ``pii`` for all kinds of personal
data, ``pii.de`` for those of a country, or one kind such as ``pii.email``.
"""

from __future__ import annotations

from edictum.core.redaction import Detects
from edictum.core.secret_scan import Detection, secret_detector, use_finder
from edictum.errors import EdictumConfigError
from edictum.redaction._combined import AllOf
from edictum.redaction._engine import make_finder
from edictum.redaction._personal import (
    COUNTRIES,
    PERSONAL_KINDS,
    expand_kinds,
    personal_detector,
)

__all__ = ["PII_NAMES", "SECRETS", "Detection", "detector", "scan"]

use_finder(make_finder)

SECRETS = "secrets"
PII_NAMES = ("pii", *(f"pii.{country}" for country in COUNTRIES), *PERSONAL_KINDS)


def scan(text: str, *names: str) -> list[Detection]:
    """Return the findings in a text, from left to right and without overlaps.

    Without names it looks for secrets. Raises EdictumConfigError for an unknown name.
    """
    return list(detector(*names or (SECRETS,)).scan(text))


def detector(*names: str) -> Detects:
    """Return a detector of secrets or personal data, for ``RedactionPolicy(detectors=[...])``."""
    personal = tuple(name for name in names if name != SECRETS)
    try:
        kinds = expand_kinds(personal)
    except KeyError as exc:
        known = ", ".join((SECRETS, *PII_NAMES))
        raise EdictumConfigError(
            f"'{exc.args[0]}' is not a kind of secret or personal data.",
            hint=f"Known names: {known}.",
        ) from None
    parts: list[Detects] = [personal_detector(kinds)] if kinds else []
    if SECRETS in names:
        parts.insert(0, secret_detector())
    return parts[0] if len(parts) == 1 else AllOf(parts)
