"""Secrets in text: the shapes of well-known credentials, and values behind telling names.

``hide_secrets`` is the one function that detects. Its patterns are applied to text of any size, so
each is written to run in linear time: no nested repetition, and every repetition starts behind a
fixed word.
"""

from __future__ import annotations

import re
from functools import lru_cache

from edictum.core.sensitive_keys import FRONTS

REDACTED = "[REDACTED]"

# A quote that is not closed reaches to the end of its line, or of what is looked at: a secret must
# not show because its end is far away. Quotes inside a quoted JSON text come with backslashes; the
# bracket behind what is hidden already is not a part of it.
_VALUE = (
    r"(?:\[REDACTED\](?=[)\]}])|\\{1,4}[\"'][^\"'\n]*[\"']?"
    r"|\"[^\"\\\n]*(?:\\.[^\"\\\n]*)*\"?|'[^'\\\n]*(?:\\.[^'\\\n]*)*'?|[^\s\"'&;,|]+)"
)
_WITH = r"\b[^\n;|&]{0,200}?\s"  # the words between a program and its flag
_EDGE = r"(?<![A-Za-z0-9])"  # an underscore may stand in front: `token_ghp_...`
_QUOTE = r"\\{0,4}[\"']"
_IS = rf"(?:{_QUOTE})?\s{{0,3}}[=:]\s{{0,3}}"  # between a name, which may be quoted, and its value
_FRONT = (  # looks whether it is worth to try them all
    rf"(?=[a-z]{{2,12}}[_-]?(?:key|pass))(?:{'|'.join(sorted(FRONTS))})[_-]?"
)
_HEADERS = rf"{_EDGE}(?:authorization|cookie)"
_REST = (  # the value of a header: the rest of its line, or of its quotes
    r"(?!\s)(?:[^\"'\\\n]|\\(?![\"']))+"
)
_SCHEME = r"(?:(?:bearer|basic|token|digest|negotiate|ntlm|api-?key|aws4-hmac-sha256)\s{1,3})?"
_ASSIGNED = ("key", "token", "secret", "passw", "passphrase", "credential")
# Each behind the words of which a text must contain one, in whatever case, to be searched for it at
# all: most texts contain none.
SECRET_PATTERNS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("-----begin",),
        (
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]{0,40}PRIVATE"
            r" KEY-----|\Z)"
        ),
        REDACTED,
    ),
    (
        ("sk-", "sk_", "pk-", "pk_", "rk-", "rk_"),
        _EDGE + r"(?:sk|pk|rk)[-_](?:live_|test_|proj-|ant-|or-)?[A-Za-z0-9_-]{20,}",
        REDACTED,
    ),
    (("akia", "asia"), _EDGE + r"(?:AKIA|ASIA)[A-Z0-9]{16}\b", REDACTED),
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), _EDGE + r"gh[pousr]_[A-Za-z0-9]{30,}", REDACTED),
    (("github_pat_",), _EDGE + r"github_pat_[A-Za-z0-9_]{20,}", REDACTED),
    (("glpat-",), _EDGE + r"glpat-[A-Za-z0-9_-]{16,}", REDACTED),
    (("npm_",), _EDGE + r"npm_[A-Za-z0-9]{30,}", REDACTED),
    (("xox",), _EDGE + r"xox[abeoprs]-[A-Za-z0-9-]{10,}", REDACTED),
    (("aiza",), _EDGE + r"AIza[A-Za-z0-9_-]{30,}", REDACTED),
    (("ya29.",), _EDGE + r"ya29\.[A-Za-z0-9_-]{16,}", REDACTED),
    (
        ("hooks.slack",),
        r"(?i)(\bhooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/)[A-Za-z0-9/_-]+",
        rf"\1{REDACTED}",
    ),
    (("eyj",), _EDGE + r"eyJ[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?", REDACTED),
    (("bearer", "basic"), r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{12,}", rf"\1{REDACTED}"),
    (("://",), r"(://[^\s/:@]{0,200}:)[^\s/@]{1,500}@", rf"\1{REDACTED}@"),
    (
        ("-pass", "-token", "-secret", "-api"),
        r"(?i)(--?(?:password|passwd|token|secret|api-?key)[= ]\s*)" + _VALUE,
        rf"\1{REDACTED}",
    ),
    (
        ("mysql", "mariadb", "mongo", "sshpass", "login"),
        r"(\b(?:mysql[a-z]{0,12}|mariadb(?:-[a-z]{1,12})?|mongo[a-z]{0,12}"
        r"|sshpass|(?:docker|podman|az|oc)\s{1,3}login)" + _WITH + r"-p[= ]?)(?!-)" + _VALUE,
        rf"\1{REDACTED}",
    ),
    (("sqlcmd",), r"(\bsqlcmd" + _WITH + r"-P[= ]?)(?!-)" + _VALUE, rf"\1{REDACTED}"),
    (("redis-cli",), r"(\bredis-cli" + _WITH + r"-a[= ]?)(?!-)" + _VALUE, rf"\1{REDACTED}"),
    (
        ("curl",),
        r"(\bcurl"
        + _WITH
        + r"(?:-u|--user|--proxy-user)[= ]?[\"']?[^\s:\"']{1,100}:)[^\s\"']{1,500}",
        rf"\1{REDACTED}",
    ),
    (
        _ASSIGNED,
        r"(?i)(\b(?:export|setx?|env|declare|local)\s{1,3}[A-Za-z0-9_]{0,80}"
        r"(?:key|token|secret|passw|credential)[A-Za-z0-9_]{0,80}"
        r"\s{0,3}=\s{0,3})" + _VALUE,
        rf"\1{REDACTED}",
    ),
    (
        ("authorization", "cookie"),  # but not what stands behind a value that is hidden already
        (
            rf"(?i)({_HEADERS}(?:{_QUOTE})?\s{{0,3}}:\s{{0,3}}(?:{_QUOTE})?"
            rf"(?!{_SCHEME}\[REDACTED\]){_SCHEME}){_REST}"
        ),
        rf"\1{REDACTED}",
    ),
    (
        ("authorization", "cookie"),
        rf"(?i)({_HEADERS}\s{{0,3}}=\s{{0,3}}{_SCHEME})(?!\s){_VALUE}",
        rf"\1{REDACTED}",
    ),
    (
        _ASSIGNED,
        r"(?i)([\"']?\b[A-Za-z0-9_]{0,80}(?:password|passwd|passphrase|secret"
        r"|(?:api|access|private|secret)[-_"
        r" ]?key|credential|token)" + _IS + r")(?!\s)" + _VALUE,
        rf"\1{REDACTED}",
    ),
    (("key", "pass"), rf"(?i)({_EDGE}{_FRONT}(?:key|pass){_IS})(?!\s){_VALUE}", rf"\1{REDACTED}"),
    (
        ("pwd",),
        rf"(?i)({_EDGE}(?:admin|db|root|user)?pwd{_IS})(?![\s/]){_VALUE}",
        rf"\1{REDACTED}",
    ),  # PWD=/home is the shell's
    (
        ("auth=", 'auth"', "auth'", "auth\\"),  # not "auth: failed"
        rf"(?i)({_EDGE}auth(?:=|{_QUOTE}\s{{0,3}}:)\s{{0,3}})(?!\s){_VALUE}",
        rf"\1{REDACTED}",
    ),
)


def _shortest(hints: set[str]) -> tuple[str, ...]:
    """Return the hints that contain no other hint: a text with any hint contains one of these."""
    return tuple(sorted(hint for hint in hints if not any(o != hint and o in hint for o in hints)))


_HINTS = _shortest({hint for hints, _, _ in SECRET_PATTERNS for hint in hints})


def hide_secrets(text: str) -> str:
    """Return the text with every secret in it replaced; all of it is searched."""
    lowered = text.lower()
    if len(text) < 3 or not any(map(lowered.__contains__, _HINTS)):  # no hint is shorter than 3
        return text
    for hints, pattern, replacement in _compiled():
        if any(map(lowered.__contains__, hints)):
            text = replace_all(pattern, replacement, text)
    return text


@lru_cache(maxsize=1)
def _compiled() -> list[tuple[tuple[str, ...], re.Pattern[str], str]]:
    return [
        (hints, re.compile(pattern), replacement) for hints, pattern, replacement in SECRET_PATTERNS
    ]


# Python's regexes hold the interpreter lock, so a text of some megabytes would stop every other
# thread for seconds. Long texts are searched window by window; windows overlap by more than any
# secret is long, and grow when a match reaches their end.
_WINDOW = 1 << 16
_OVERLAP = 1 << 13


def replace_all(pattern: re.Pattern[str], replacement: str, text: str) -> str:
    """Return ``pattern.sub(replacement, text)``."""
    if len(text) <= _WINDOW:
        return pattern.sub(replacement, text)
    parts: list[str] = []
    kept, position, size = 0, 0, _WINDOW
    while position < len(text):
        end = min(position + size, len(text))
        last = end == len(text)
        match = pattern.search(text, position, end)
        if match is None or (match.start() > end - _OVERLAP and not last):
            position = end if last else match.start() if match else end - _OVERLAP
        elif match.end() == end and not last:
            size *= 2
            continue
        else:
            parts += (text[kept : match.start()], match.expand(replacement))
            kept = match.end()
            position = kept if kept > match.start() else kept + 1
        size = _WINDOW
    return "".join((*parts, text[kept:]))
