"""Secrets in text that are known by what stands around them: headers, URLs, commands, key blocks.

Each row has *hints*, literal texts of which one stands where the row begins, in whatever case; a
*head*, the pattern of the first characters in the syntax that RE2 and ``re`` share; and a pattern
whose group ``v`` is the secret (without one, all of it is). Every repetition is bounded, so that a
place in a text costs a bounded time; ``rest`` is what a secret that was found may go on with.
"""

from __future__ import annotations

from dataclasses import dataclass

REDACTED = "[REDACTED]"

_QUOTE = r"\\{0,4}[\"']"
_WITH = r"\b[^\n;|&]{0,200}?\s"  # the words between a program and its flag
_VALUE = r"(?:\"(?P<v>[^\"\n]{1,500})\"|'(?P<w>[^'\n]{1,500})'|(?P<x>[^\s\"'&;,|\\]{1,500}))"
_SCHEME = r"(?:(?:bearer|basic|token|digest|negotiate|ntlm|api-?key|ssws|aws4-hmac-sha256)\s{1,3})?"
_KEY_NAME = r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?"
_KEY_BODY = r"(?:[A-Za-z0-9+/=\s:,.]|\\[nrt\\]|-(?!---))*"


@dataclass(frozen=True, slots=True)
class TextPattern:
    """One row; ``check`` names the test that the secret must pass. Of ``flags`` one stands near
    behind the hint: where none does, the pattern is not tried.
    """

    kind: str
    hints: tuple[str, ...]
    head: str
    pattern: str
    check: str = ""
    rest: str = ""
    flags: tuple[str, ...] = ()


TEXT_PATTERNS = (
    TextPattern(
        "private_key",
        ("-----begin", "---- begin"),
        r"-----?[ ]?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY",
        rf"-----?[ ]?BEGIN {_KEY_NAME}[ ]?-----?",
        rest=rf"{_KEY_BODY}(?:-----?[ ]?END {_KEY_NAME}[ ]?-----?)?",
    ),
    TextPattern(
        "private_key.putty",
        ("private-lines",),
        r"(?i:private-lines):[ ]?\d",
        r"(?i)private-lines:\s?\d{1,4}\s{1,4}(?P<v>[A-Za-z0-9+/=\s]{40})",
        rest=r"[A-Za-z0-9+/=\s]*",
    ),
    TextPattern(
        "jwt",
        ("eyj",),
        r"eyJ[A-Za-z0-9_-]{10}",
        r"eyJ[A-Za-z0-9_-]{10,2000}\.[A-Za-z0-9_-]{4,400}",
        rest=r"[A-Za-z0-9_.-]*",
    ),
    TextPattern(
        "http.bearer",
        ("bearer", "basic"),
        r"(?i:bearer|basic)(?:\s|%20|\+){1,3}[A-Za-z0-9._~+/=-]{12}",
        r"(?i)(?:bearer|basic)(?:\s|%20|\+){1,3}(?P<v>[A-Za-z0-9._~+/=-]{12,400})",
        "not_wordy",
        r"[A-Za-z0-9._~+/=-]*",
    ),
    TextPattern(
        "url.password",
        ("://",),
        r"://[^\s/:@\"'<>\\]{0,64}:[^\s/@\"'<>\\]{1,200}@",
        r"://[^\s/:@\"'<>\\]{0,64}:(?P<v>[^\s/@\"'<>\\]{1,500})@",
        "chosen",
    ),
    TextPattern(
        "url.token",
        ("://",),
        r"://[A-Za-z0-9_.-]{20,200}@",
        r"://(?P<v>[A-Za-z0-9_.-]{20,500})@",
        "not_wordy",
    ),
    TextPattern(
        "command.password",
        ("mysql", "mariadb", "mongo", "sshpass", "docker login", "podman login", "az login"),
        r"(?:mysql|mariadb|mongo|sshpass|(?:docker|podman|az|oc)\s{1,3}login)",
        r"(?:mysql[a-z]{0,12}|mariadb(?:-[a-z]{1,12})?|mongo[a-z]{0,12}"
        rf"|sshpass|(?:docker|podman|az|oc)\s{{1,3}}login){_WITH}-p[= ]?(?!-){_VALUE}",
        "chosen",
        flags=("-p",),
    ),
    TextPattern(
        "command.password",
        ("sqlcmd",),
        "sqlcmd",
        rf"sqlcmd{_WITH}-P[= ]?(?!-){_VALUE}",
        "chosen",
        flags=("-P",),
    ),
    TextPattern(
        "command.password",
        ("redis-cli",),
        "redis-cli",
        rf"redis-cli{_WITH}-a[= ]?(?!-){_VALUE}",
        "chosen",
        flags=("-a",),
    ),
    TextPattern(
        "command.password",
        ("curl", "wget", "http "),
        r"(?:curl|wget|http)\s",
        rf"(?:curl|wget|http){_WITH}(?:-u|--user|--proxy-user|-a)[= ]?[\"']?[^\s:\"']{{1,100}}:"
        r"(?P<v>[^\s\"'\\]{1,500})",
        "chosen",
        flags=("-u", "-a"),
    ),
    TextPattern(
        "netrc.password",
        ("machine ", "machine\t"),
        r"machine\s+[^\s]{1,100}\s+login\s",
        r"machine\s+\S{1,200}\s+login\s+\S{1,200}\s+password\s+(?P<v>[^\s\"'\\]{1,500})",
        "not_placeholder",
    ),
    TextPattern(
        "http.header",
        ("authorization", "cookie"),
        rf"(?i:authorization|cookie)(?:{_QUOTE})?\s{{0,3}}:",
        rf"(?i)(?:authorization|cookie)(?:{_QUOTE})?\s{{0,3}}:\s{{0,3}}(?:{_QUOTE})?{_SCHEME}"
        r"(?P<v>(?!\s)(?:[^\"'\\\n]{1,16}|\\(?![\"'])){1,100})",
        "not_wordy",
        r"(?:[^\"'\\\n]+|\\(?![\"']))*",
    ),
    TextPattern(
        "http.header",
        ("authorization", "cookie"),
        r"(?i:authorization|cookie)\s{0,3}=",
        rf"(?i)(?:authorization|cookie)\s{{0,3}}=\s{{0,3}}(?:{_QUOTE})?{_SCHEME}"
        r"(?P<v>(?!\s)[^\s\"'&;,|\\]{1,400})",
        "not_wordy",
        r"[^\s\"'&;,|\\]*",
    ),
)
