"""Samples of secrets, made from the forms of the table; none was ever valid."""

from __future__ import annotations

import random
import string
import uuid
from collections.abc import Callable

from edictum.core.secret_forms import FormPart, crc32_base62, read_form

_BASE = string.ascii_letters + string.digits
LETTERS = {
    "num": string.digits,
    "hex": "0123456789abcdef",
    "HEX": "0123456789abcdefABCDEF",
    "low": string.ascii_lowercase + string.digits,
    "up": string.ascii_uppercase + string.digits,
    "b62": _BASE,
    "b62word": _BASE + "_",
    "url": _BASE + "_-",
    "slack": _BASE + "-",
    "dot": _BASE + "_-.",
    "path": _BASE + "/",
    "azid": _BASE + "_.~-",
    "b64": _BASE + "+/",
    "pct": _BASE,
    "any": _BASE,
}


def make_sample(form: str, lot: random.Random) -> str:
    """Return a secret of a form, with the lengths that its vendor documents."""
    return "".join(_make_part(part, lot) for part in read_form(form))


def _make_part(part: FormPart, lot: random.Random) -> str:
    if part.alphabet == "uuid":
        return str(uuid.UUID(int=lot.getrandbits(128), version=4))
    if not part.alphabet:
        return part.literal
    letters = LETTERS[part.alphabet]
    drawn = lot.choices(letters, k=part.length)
    # No vendor's token begins or ends in a separator.
    drawn[0], drawn[-1] = (lot.choice([c for c in letters if c.isalnum()]) for _ in "12")
    return "".join(drawn)


def make_checked(prefix: str, lot: random.Random) -> str:
    """Return a token of GitHub or npm with the checksum that they put behind it."""
    body = "".join(lot.choices(_BASE, k=30))
    return prefix + body + crc32_base62(body)


POSITIONS: dict[str, Callable[[str], str]] = {
    "whole": lambda secret: secret,
    "sentence": lambda secret: f"Please use {secret} for the call.",
    "json": lambda secret: '{"id": 7, "value": "' + secret + '", "ok": true}',
    "json in json": lambda secret: '"{\\"value\\": \\"' + secret + '\\"}"',
    "yaml": lambda secret: f"service:\n  value: {secret}\n  replicas: 3\n",
    "env file": lambda secret: f"DEBUG=1\nVALUE={secret}\nPORT=80\n",
    "shell": lambda secret: f"run --with '{secret}' && echo done",
    "url": lambda secret: f"https://example.com/v1/x?a=1&v={secret}&b=2",
    "header": lambda secret: f"X-Custom: {secret}\r\nHost: example.com",
    "behind an escape": lambda secret: f'"first line\\n{secret}\\nlast line"',
    "python": lambda secret: f'client = Client("{secret}", retries=3)',
    "list": lambda secret: f"[1, '{secret}', 2]",
    "markdown": lambda secret: f"Use `{secret}` here.",
    "xml": lambda secret: f"<v>{secret}</v>",
    "csv": lambda secret: f"7,{secret},x",
}
