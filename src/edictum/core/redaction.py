"""What must not be written down: values under sensitive keys, and secrets anywhere in a text.

Keys are judged by their words, not by substrings: ``api_key``, ``dbPassword`` and ``access-token`` are sensitive, ``monkey``,
``max_tokens`` and ``sort_key`` are not. Words that were run together (``dbpassword``, ``authtoken``) are taken apart where that is
sure: by an ending that no ordinary word has, or one with a known word in front of it. Texts are searched whole for the shapes of
well-known credentials. The structure of a value is kept: a dict stays a dict, a list a list; only the secret is replaced.

The patterns are our own, applied to text of any size, so each is written to run in linear time: no nested repetition, and
every repetition starts behind a fixed word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from edictum.core.jsonable import jsonable, show
from edictum.errors import EdictumConfigError

REDACTED = "[REDACTED]"
MAX_STRING = 1_000
MAX_PAYLOAD = 32_768
MAX_SUMMARY = 500

SENSITIVE_WORDS = frozenset(
    [
        "password",
        "passwords",
        "passwd",
        "pwd",
        "secret",
        "secrets",
        "credential",
        "credentials",
        "passphrase",
        "authorization",
        "auth",
        "token",
        "apikey",
        "privatekey",
        "accesstoken",
        "refreshtoken",
        "clientsecret",
        "cookie",
    ]
)
SENSITIVE_PHRASES = frozenset({("connection", "string"), ("database", "url")})
KEY_WORDS = frozenset({"key", "keys", "tokens"})
SAFE_COMPANIONS = frozenset(
    [
        "max",
        "min",
        "num",
        "n",
        "count",
        "total",
        "limit",
        "budget",
        "usage",
        "prompt",
        "completion",
        "input",
        "output",
        "cached",
        "per",
        "next",
        "page",
        "continuation",
        "type",
        "sort",
        "primary",
        "foreign",
        "partition",
        "cache",
        "public",
        "index",
        "row",
        "group",
        "map",
        "object",
        "id",
        "name",
        "names",
        "error",
        "order",
        "range",
        "hash",
        "lookup",
        "reasoning",
        "used",
        "remaining",
        "left",
        "s3",
        "json",
        "dict",
        "idempotency",
        "routing",
        "message",
        "kind",
        "length",
        "size",
        "estimated",
    ]
)
# Words that were run together. No ordinary word has the first endings; the others need a known word in front: ``compass``, ``monkey``.
SURE_ENDINGS = ("password", "passwords", "passwd", "passphrase", "secret", "secrets", "apikey", "apikeys", "credential", "credentials",
                "connectionstring", "databaseurl")  # fmt: skip
OTHER_ENDINGS = {"token": "token", "tokens": "tokens", "key": "key", "keys": "keys", "pass": "password", "pwd": "password"}
FRONTS = frozenset(
    (
        "access", "account", "admin", "api", "app", "auth", "aws", "azure", "bearer", "bot", "client", "csrf", "db", "deploy", "device",
        "encryption", "ftp", "gcp", "github", "gitlab", "google", "hmac", "http", "jwt", "ldap", "login", "mail", "master", "my", "mysql",
        "oauth", "openai", "personal", "pg", "postgres", "private", "proxy", "redis", "refresh", "root", "secret", "security",
        "server", "service", "session", "signing", "slack", "smtp", "sql", "ssh", "ssl", "stripe", "telegram", "tls", "user", "vault",
        "webhook", "wifi", "xsrf",
    )
)  # fmt: skip
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

# A quote that is not closed reaches to the end of its line, or of what is looked at: a secret must not show because its end is far away.
_VALUE = r"(?:\"[^\"\\\n]*(?:\\.[^\"\\\n]*)*\"?|'[^'\\\n]*(?:\\.[^'\\\n]*)*'?|[^\s\"'&;,|]+)"
_WITH = r"\b[^\n;|&]{0,200}?\s"  # the words between a program and its flag
_EDGE = r"(?<![A-Za-z0-9])"  # an underscore may stand in front: `token_ghp_...`
SECRET_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", REDACTED),
    (_EDGE + r"(?:sk|pk|rk)[-_](?:live_|test_|proj-|ant-|or-)?[A-Za-z0-9_-]{20,}", REDACTED),
    (_EDGE + r"(?:AKIA|ASIA)[A-Z0-9]{16}\b", REDACTED),
    (_EDGE + r"gh[pousr]_[A-Za-z0-9]{30,}", REDACTED),
    (_EDGE + r"github_pat_[A-Za-z0-9_]{20,}", REDACTED),
    (_EDGE + r"glpat-[A-Za-z0-9_-]{16,}", REDACTED),
    (_EDGE + r"npm_[A-Za-z0-9]{30,}", REDACTED),
    (_EDGE + r"xox[abeoprs]-[A-Za-z0-9-]{10,}", REDACTED),
    (_EDGE + r"AIza[A-Za-z0-9_-]{30,}", REDACTED),
    (_EDGE + r"eyJ[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?", REDACTED),
    (r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{12,}", rf"\1{REDACTED}"),
    (r"(://[^\s/:@]{0,200}:)[^\s/@]{1,500}@", rf"\1{REDACTED}@"),
    (r"(?i)(--?(?:password|passwd|token|secret|api-?key)[= ]\s*)" + _VALUE, rf"\1{REDACTED}"),
    (r"(\b(?:mysql[a-z]{0,12}|mariadb(?:-[a-z]{1,12})?|mongo[a-z]{0,12}|sshpass|(?:docker|podman|az|oc)\s{1,3}login)" + _WITH
     + r"-p[= ]?)(?!-)" + _VALUE, rf"\1{REDACTED}"),
    (r"(\bsqlcmd" + _WITH + r"-P[= ]?)(?!-)" + _VALUE, rf"\1{REDACTED}"),
    (r"(\bredis-cli" + _WITH + r"-a[= ]?)(?!-)" + _VALUE, rf"\1{REDACTED}"),
    (r"(\bcurl" + _WITH + r"(?:-u|--user|--proxy-user)[= ]?[\"']?[^\s:\"']{1,100}:)[^\s\"']{1,500}", rf"\1{REDACTED}"),
    (r"(?i)(\b(?:export|setx?|env|declare|local)\s{1,3}[A-Za-z0-9_]{0,80}(?:key|token|secret|passw|credential)[A-Za-z0-9_]{0,80}"
     r"\s{0,3}=\s{0,3})" + _VALUE, rf"\1{REDACTED}"),
    (r"(?i)([\"']?\b[A-Za-z0-9_]{0,80}(?:password|passwd|passphrase|secret|api_?key|access_?key|private_?key|credential|token)"
     r"[\"']?\s{0,3}[=:]\s{0,3})(?!\s)" + _VALUE, rf"\1{REDACTED}"),
)  # fmt: skip
# A cheap gate in front of them: most text contains none of these words, in whatever case.
_HINTS = (
    *("-----begin", "sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "akia", "asia", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat"),
    *("glpat", "npm_", "xox", "aiza", "eyj", "://", "bearer", "basic", "pass", "secret", "token", "key", "credential"),
    *("mysql", "mariadb", "mongo", "sqlcmd", "login", "redis-cli", "curl"),
)


class RedactionPolicy:
    """How values are made fit to be written down. ``sensitive_keys`` and ``custom_patterns`` add to the built-in ones."""

    def __init__(
        self,
        sensitive_keys: Iterable[str] | None = None,
        custom_patterns: Iterable[tuple[str, str]] | None = None,
        detect_secret_values: bool = True,
        safe_keys: Iterable[str] | None = None,
    ) -> None:
        self.sensitive_keys = frozenset(key.lower() for key in sensitive_keys or ())
        self.safe_keys = frozenset(key.lower() for key in safe_keys or ())
        self._custom = [self._compile(pattern, replacement) for pattern, replacement in custom_patterns or ()]
        self._detect = detect_secret_values
        self._builtin = _builtin_patterns()

    @staticmethod
    def _compile(pattern: str, replacement: str) -> tuple[re.Pattern[str], str]:
        try:
            return re.compile(pattern), replacement
        except re.error as exc:
            raise EdictumConfigError(f"RedactionPolicy: the pattern {pattern!r} is not a regex: {exc}.", hint="Fix or remove it.") from exc

    def is_sensitive(self, key: object) -> bool:
        """Whether values under this key are hidden, whatever they are."""
        if not isinstance(key, str):
            return False
        lowered = key.lower()
        return lowered not in self.safe_keys and (lowered in self.sensitive_keys or _sensitive_by_words(key))

    def redact_text(self, text: str) -> str:
        """The text with every secret in it replaced; all of it is searched."""
        for pattern, replacement in self._custom:
            text = _replace_all(pattern, replacement, text)
        if self._detect and _hinted(text):
            for pattern, replacement in self._builtin:
                text = _replace_all(pattern, replacement, text)
        return text

    def redact_value(self, value: Any) -> Any:
        """A value of the same shape with secrets and sensitive fields replaced."""
        return self._walk(value, self.redact_text, 0)

    def redact_secrets(self, value: Any) -> Any:
        """As ``redact_value``, but sensitive keys are left alone: for results that a program goes on to use."""
        return _map_text(value, self.redact_text)

    def _walk(self, value: Any, text: Callable[[str], str], depth: int) -> Any:
        if isinstance(value, str):
            return text(value)
        if depth > 50:
            return "[nested too deeply]"
        if isinstance(value, Mapping):
            return {text(key) if isinstance(key, str) else key:
                    REDACTED if self.is_sensitive(key) and _hides(item) else self._walk(item, text, depth + 1)
                    for key, item in value.items()}  # fmt: skip
        if isinstance(value, (list, tuple)):
            return [self._walk(item, text, depth + 1) for item in value]
        return value

    def redact_args(self, args: Any) -> Any:
        """Arguments, principal claims or metadata as they are written to the audit: redacted, JSON-ready, bounded."""
        return bounded_payload(self._walk(jsonable(args), self.redact_text, 0))

    def redact_bash_command(self, command: str) -> str:
        return self.redact_text(command)

    def redact_result(self, result: Any, max_length: int = MAX_SUMMARY) -> str:
        """A result as a short text for the audit. Redacted before it is cut, so that a cut cannot bare half a secret."""
        return shorten(self.redact_text(self.sketch(result, max_length)), max_length)

    def sketch(self, result: Any, max_length: int = MAX_SUMMARY) -> str:
        """Enough of a result to make its summary from, as text that cannot change any more.

        It looks a little beyond the cut: enough to see any secret whole, without reading a 10 MB answer.
        """
        if type(result) is str:
            return result[: max_length + 8_192]
        if result is None or type(result) in (bool, int, float):
            return show(result)
        try:
            return self._sketch(result, [max_length + 1_024], 0)
        except Exception:  # a mapping or sequence whose own methods raise
            return show(result)[: max_length + 8_192]

    def _sketch(self, value: Any, left: list[int], depth: int) -> str:
        """A bounded, JSON-like rendering: it stops looking once it has enough, so a huge value costs no more than a small one."""
        if isinstance(value, Mapping) and depth < 20:
            parts = []
            for key, item in value.items():
                if left[0] <= 0:
                    parts.append("...")
                    break
                hidden = self.is_sensitive(key) and _hides(item)
                parts.append(f"{show(key)}: {REDACTED if hidden else self._sketch(item, left, depth + 1)}")
            return "{" + ", ".join(parts) + "}"
        if isinstance(value, (list, tuple)) and depth < 20:
            items = []
            for item in value:
                if left[0] <= 0:
                    items.append("...")
                    break
                items.append(self._sketch(item, left, depth + 1))
            return "[" + ", ".join(items) + "]"
        text = show(value[:MAX_STRING] if isinstance(value, (str, bytes)) else value)[: MAX_STRING + 100]
        left[0] -= len(text)
        return text


def _hides(item: Any) -> bool:
    """Sensitive keys hide text and containers; a number or a flag under such a key (``has_token: true``) is no secret."""
    return item is not None and not isinstance(item, (bool, float)) and item != ""


# Python's regexes hold the interpreter lock, so a text of some megabytes would stop every other thread for seconds. Long texts are
# searched window by window; windows overlap by more than any secret is long, and grow when a match reaches their end.
_WINDOW = 1 << 16
_OVERLAP = 1 << 13


def _hinted(text: str) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in _HINTS)


def _replace_all(pattern: re.Pattern[str], replacement: str, text: str) -> str:
    """``pattern.sub(replacement, text)``."""
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


@lru_cache(maxsize=1)
def _builtin_patterns() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(pattern), replacement) for pattern, replacement in SECRET_PATTERNS]


def _apart(word: str) -> tuple[str, ...]:
    """A word, or the two that were run together in it."""
    if word in SENSITIVE_WORDS:
        return (word,)
    for ending in SURE_ENDINGS:
        if word.endswith(ending):
            return word.removesuffix(ending), "password"
    for ending, meaning in OTHER_ENDINGS.items():
        if word.endswith(ending) and _ends_in_a_front(word.removesuffix(ending)):
            return word.removesuffix(ending), meaning
    return (word,)


def _ends_in_a_front(word: str) -> bool:
    """``github`` and ``githubaccess``; a short word counts only alone."""
    return word in FRONTS or any(word.endswith(front) for front in FRONTS if len(front) > 5)


@lru_cache(maxsize=4_096)
def _sensitive_by_words(key: str) -> bool:
    words = [part for word in _WORDS.findall(key) for part in _apart(word.lower())]
    if any(tuple(words[i : i + 2]) in SENSITIVE_PHRASES for i in range(len(words) - 1)):
        return True
    companions = [word for word in words if word not in SENSITIVE_WORDS and word not in KEY_WORDS and not word.isdigit()]
    safe = bool(companions) and any(word in SAFE_COMPANIONS for word in companions)
    if any(word in SENSITIVE_WORDS for word in words):
        return not (safe and set(words) & SENSITIVE_WORDS <= {"token", "auth", "cookie"})
    return bool(set(words) & KEY_WORDS) and bool(companions) and not safe


def _map_text(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    """``change`` applied to every text inside a value. The value's own types are kept; untouched values are returned as they are."""
    if isinstance(value, str):
        return change(value)
    if depth > 50:
        return value
    if type(value) is dict:
        return {key: _map_text(item, change, depth + 1) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_map_text(item, change, depth + 1) for item in value)
    return value


map_text = _map_text


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def bounded_payload(value: Any, limit: int = MAX_PAYLOAD) -> Any:
    """The value with long texts shortened, and what exceeds ``limit`` characters in all left out by name, never cut in the middle."""
    return _bound(value, [limit])


def _bound(value: Any, left: list[int]) -> Any:
    if isinstance(value, str):
        text = shorten(value, MAX_STRING)
        return _spend(text, len(text), left)
    if isinstance(value, dict):
        kept: dict[Any, Any] = {}
        for key, item in value.items():
            if left[0] <= 0:
                return kept | {"_omitted": f"{len(value) - len(kept)} more keys"}
            left[0] -= len(str(key)) + 4
            kept[key] = _bound(item, left)
        return kept
    if isinstance(value, list):
        items: list[Any] = []
        for item in value:
            if left[0] <= 0:
                return [*items, f"[omitted: {len(value) - len(items)} more items]"]
            items.append(_bound(item, left))
        return items
    return _spend(value, 8, left)


def _spend(value: Any, cost: int, left: list[int]) -> Any:
    left[0] -= cost + 2
    return value
