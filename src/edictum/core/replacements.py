"""Replacements for a secret: ``[REDACTED]``, ``****1234``, or a keyed hash."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable

from edictum.core.secret_patterns import REDACTED
from edictum.core.secret_scan import Detection

Replace = Callable[[str, str], str]  # kind, secret -> what is shown instead

MASK = "****"
SHOWN = 4  # characters that a mask shows, of a secret that is at least three times as long
_AS_LETTERS = str.maketrans("0123456789abcdef", "ghjkmnpqrsabcdef")  # no number can be seen in it
_UNQUOTED_JSON = re.compile(r"(\\{0,4}\")\s{0,3}:\s{0,3}\Z")


def redact(kind: str, secret: str) -> str:
    return REDACTED


def mask(kind: str, secret: str) -> str:
    """Return a mask with the last characters, if they are a small part."""
    last = secret[-SHOWN:]
    return MASK + last if len(secret) >= 3 * SHOWN and last.isalnum() else MASK


def keyed_hash(key: bytes) -> Replace:
    """Return a replacement by a hash that is equal for equal secrets, and reveals nothing else."""

    def replace(kind: str, secret: str) -> str:
        digest = hmac.new(key, secret.encode("utf-8", "surrogatepass"), hashlib.sha256)
        return f"[{kind}:{digest.hexdigest()[:16].translate(_AS_LETTERS)}]"

    return replace


def replace_detections(text: str, found: Iterable[Detection], replace: Replace) -> str:
    """Return the text with everything that was found replaced.

    JSON stays JSON: where a bare number was found behind a quoted key, quotes are added.
    """
    parts: list[str] = []
    at = 0
    for each in found:
        shown = replace(each.kind, text[each.start : each.end])
        bare = _UNQUOTED_JSON.search(text, max(at, each.start - 12), each.start)
        quote = bare.group(1) if bare else ""
        parts += (text[at : each.start], quote, shown, quote)
        at = each.end
    return "".join((*parts, text[at:])) if parts else text
