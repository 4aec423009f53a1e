"""Phone numbers, with Google's ``phonenumbers``, which knows all national numbering plans."""

from __future__ import annotations

from typing import Any

from edictum._optional import import_optional
from edictum.core.secret_scan import Match, Row

PHONE_HEAD = r"\+?\(?\d[\d ()./-]{5}\d"
MAX_LENGTH = 40  # characters of a written phone number that are looked at


def phone_row(kind: str, region: str | None) -> Row:
    """Return the row of phone numbers: with a country code, or as they are dialled in a region."""
    library: Any = import_optional("phonenumbers", "pii")

    def look(text: str, at: int) -> Match | None:
        before = text[max(0, at - 2) : at]
        if before[-1:].isalnum() or before[-1:] in ("+", ".", "-") or before[:1].isdigit():
            return None  # a part of a longer number or name
        window = text[at : at + MAX_LENGTH]
        found = next(iter(library.PhoneNumberMatcher(window, region)), None)
        if found is None or found.start > 1:
            return None
        return kind, (at + found.start, at + found.end)

    return Row((), PHONE_HEAD, look)
