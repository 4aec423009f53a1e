"""Keys of signatures: links to the page of a request, and webhooks."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from pathlib import Path

from edictum.errors import EdictumConfigError

MIN_KEY_BYTES = 24
PREFIX = "whsec_"  # of base64, as in Standard Webhooks
MAKE_ONE = 'Make one: python -c "import secrets; print(secrets.token_urlsafe(32))".'


def read_key(
    what: str, key: bytes | str | None = None, key_file: str | Path | None = None
) -> bytes:
    """Return the bytes of a key that is given, or of a file that contains only the key.

    Raises EdictumConfigError when there is none, when there are two, and for a short one.
    """
    if (key is None) == (key_file is None):
        raise EdictumConfigError(f"{what}: give either key or key_file.", hint=MAKE_ONE)
    given = _read_file(what, key_file) if key_file is not None else key
    if not isinstance(given, str | bytes):
        raise EdictumConfigError(f"{what}: the key is {type(given).__name__}.", hint=MAKE_ONE)
    data = given if isinstance(given, bytes) else _decode(what, given)
    if len(data) < MIN_KEY_BYTES:
        problem = f"{what}: the key has {len(data)} bytes, and needs {MIN_KEY_BYTES} or more."
        raise EdictumConfigError(problem, hint=MAKE_ONE)
    return data


def _read_file(what: str, path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not text"
        problem = f"{what}: the key file {str(path)!r} cannot be read: {reason}."
        raise EdictumConfigError(problem, hint=MAKE_ONE) from exc


def _decode(what: str, text: str) -> bytes:
    if not text.startswith(PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        hint = "Or write a key without this prefix."
        raise EdictumConfigError(
            f"{what}: what follows {PREFIX} is not base64.", hint=hint
        ) from None


def sign(key: bytes, content: bytes) -> bytes:
    """Return the HMAC-SHA256 of some content."""
    return hmac.new(key, content, hashlib.sha256).digest()
