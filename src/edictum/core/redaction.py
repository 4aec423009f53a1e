"""What must not be written down: values under sensitive keys, and secrets anywhere in a text.

Keys are judged by their words, not by substrings: ``api_key``, ``dbPassword`` and ``access-token``
are sensitive, ``monkey``, ``max_tokens`` and ``sort_key`` are not. Words that were run together
(``dbpassword``, ``authtoken``) are taken apart where that is sure: by an ending that no ordinary
word has, or one with a known word in front of it. Texts are searched whole for the shapes of
well-known credentials. The structure of a value is kept: a dict stays a dict, a list a list; only
the secret is replaced.

The patterns are our own, applied to text of any size, so each is written to run in linear time: no
nested repetition, and every repetition starts behind a fixed word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

from edictum.core.freeze import SCALARS
from edictum.core.jsonable import TOO_DEEP, jsonable, show
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
# Words that were run together. No ordinary word has the first endings; the others need a known word
# in front: ``compass``, ``monkey``.
SURE_ENDINGS = (
    "password",
    "passwords",
    "passwd",
    "passphrase",
    "secret",
    "secrets",
    "apikey",
    "apikeys",
    "credential",
    "credentials",
    "connectionstring",
    "databaseurl",
)
OTHER_ENDINGS = {
    "token": "token",
    "tokens": "tokens",
    "key": "key",
    "keys": "keys",
    "pass": "password",
    "pwd": "password",
}
FRONTS = frozenset(
    (
        "access",
        "account",
        "admin",
        "api",
        "app",
        "auth",
        "aws",
        "azure",
        "bearer",
        "bot",
        "client",
        "csrf",
        "db",
        "deploy",
        "device",
        "encryption",
        "ftp",
        "gcp",
        "github",
        "gitlab",
        "google",
        "hmac",
        "http",
        "jwt",
        "ldap",
        "login",
        "mail",
        "master",
        "my",
        "mysql",
        "oauth",
        "openai",
        "personal",
        "pg",
        "postgres",
        "private",
        "proxy",
        "redis",
        "refresh",
        "root",
        "secret",
        "security",
        "server",
        "service",
        "session",
        "signing",
        "slack",
        "smtp",
        "sql",
        "ssh",
        "ssl",
        "stripe",
        "telegram",
        "tls",
        "user",
        "vault",
        "webhook",
        "wifi",
        "xsrf",
    )
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

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
        r"(\b(?:mysql[a-z]{0,12}|mariadb(?:-[a-z]{1,12})?|mongo[a-z]{0,12}|sshpass|(?:docker|podman|az|oc)\s{1,3}login)"
        + _WITH
        + r"-p[= ]?)(?!-)"
        + _VALUE,
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
        r"(?i)(\b(?:export|setx?|env|declare|local)\s{1,3}[A-Za-z0-9_]{0,80}(?:key|token|secret|passw|credential)[A-Za-z0-9_]{0,80}"
        r"\s{0,3}=\s{0,3})" + _VALUE,
        rf"\1{REDACTED}",
    ),
    (
        ("authorization", "cookie"),  # but not what stands behind a value that is hidden already
        rf"(?i)({_HEADERS}(?:{_QUOTE})?\s{{0,3}}:\s{{0,3}}(?:{_QUOTE})?(?!{_SCHEME}\[REDACTED\]){_SCHEME}){_REST}",
        rf"\1{REDACTED}",
    ),
    (
        ("authorization", "cookie"),
        rf"(?i)({_HEADERS}\s{{0,3}}=\s{{0,3}}{_SCHEME})(?!\s){_VALUE}",
        rf"\1{REDACTED}",
    ),
    (
        _ASSIGNED,
        r"(?i)([\"']?\b[A-Za-z0-9_]{0,80}(?:password|passwd|passphrase|secret|(?:api|access|private|secret)[-_"
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
_HINTS = frozenset(hint for hints, _, _ in SECRET_PATTERNS for hint in hints)


class RedactionPolicy:
    """How values are made fit to be written down. ``sensitive_keys`` and ``custom_patterns`` add to
    the built-in ones.
    """

    def __init__(
        self,
        sensitive_keys: Iterable[str] | None = None,
        custom_patterns: Iterable[tuple[str, str]] | None = None,
        detect_secret_values: bool = True,
        safe_keys: Iterable[str] | None = None,
    ) -> None:
        self.sensitive_keys = _lowered("sensitive_keys", sensitive_keys)
        self.safe_keys = _lowered("safe_keys", safe_keys)
        self._custom = [_custom_pattern(pair) for pair in custom_patterns or ()]
        self._detect = detect_secret_values
        self._builtin = _builtin_patterns()

    def is_sensitive(self, key: object) -> bool:
        """Whether values under this key are hidden, whatever they are."""
        if not isinstance(key, str):
            return False
        lowered = key.lower()
        return lowered not in self.safe_keys and (
            lowered in self.sensitive_keys
            or _sensitive_by_words(key if len(key) <= 256 else _ends(key))
        )

    def redact_text(self, text: str) -> str:
        """The text with every secret in it replaced; all of it is searched."""
        for pattern, replacement in self._custom:
            text = _replace_all(pattern, replacement, text)
        lowered = text.lower() if self._detect else ""
        found = {hint for hint in _HINTS if hint in lowered}
        for hints, pattern, replacement in self._builtin if found else ():
            if not found.isdisjoint(hints):
                text = _replace_all(pattern, replacement, text)
        return text

    def redact_value(self, value: Any) -> Any:
        """A value of the same shape with secrets and sensitive fields replaced."""
        return self._walk(value, self.redact_text, 0)

    def redact_secrets(self, value: Any) -> Any:
        """As ``redact_value``, but sensitive keys are left alone: for results that a program goes
        on to use.
        """
        return _map_text(value, self.redact_text)

    def _walk(self, value: Any, text: Callable[[str], str], depth: int) -> Any:
        if isinstance(value, str):
            return text(value)
        if depth > 50:
            return "[nested too deeply]"
        if isinstance(value, Mapping):
            return {
                text(key) if isinstance(key, str) else key: (
                    REDACTED
                    if self.is_sensitive(key) and _hides(item)
                    else self._walk(item, text, depth + 1)
                )
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._walk(item, text, depth + 1) for item in value]
        return value

    def redact_args(self, args: Any) -> Any:
        """Arguments, principal claims or metadata as they are written to the audit: redacted,
        JSON-ready, bounded.
        """
        return bounded_payload(self._walk(jsonable(args), self.redact_text, 0))

    def redact_bash_command(self, command: str) -> str:
        return self.redact_text(command)

    def redact_result(self, result: Any, max_length: int = MAX_SUMMARY) -> str:
        """A result as a short text for the audit. Redacted before it is cut, so that a cut cannot
        bare half a secret.
        """
        return shorten(self.redact_text(self.sketch(result, max_length)), max_length)

    def sketch(self, result: Any, max_length: int = MAX_SUMMARY) -> str:
        """Enough of a result to make its summary from, as text that cannot change any more.

        It looks a little beyond the cut: enough to see any secret whole, without reading a 10 MB
        answer.
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
        """A bounded, JSON-like rendering: it stops looking once it has enough, so a huge value
        costs no more than a small one.

        Everything that is looked at spends from what is ``left``, also names, hidden values and
        empty lists.
        """
        kind = type(value)
        if kind is dict and depth < 20:
            return "{" + self._sketch_pairs(value.items(), ": ", left, depth) + "}"
        if kind in SCALARS:
            return _glimpse(value, left)
        left[0] -= 2
        names = _field_names(kind)  # type: ignore[arg-type]
        if depth >= 20 and (names or isinstance(value, (Mapping, *_COLLECTIONS))):
            return TOO_DEEP
        if names:
            pairs = self._sketch_pairs(
                ((name, getattr(value, name, None)) for name in names), "=", left, depth
            )
            return f"{kind.__name__}({pairs})"
        if isinstance(value, Mapping):
            return "{" + self._sketch_pairs(value.items(), ": ", left, depth) + "}"
        if isinstance(value, _COLLECTIONS):
            items = ", ".join(self._sketch_items(value, left, depth))
            return f"{{{items}}}" if isinstance(value, (set, frozenset)) else f"[{items}]"
        return _glimpse(value, left)

    def _sketch_pairs(
        self, pairs: Iterable[tuple[Any, Any]], sign: str, left: list[int], depth: int
    ) -> str:
        parts = []
        left[0] -= 2
        for key, item in pairs:
            if left[0] <= 0:
                parts.append("...")
                break
            left[0] -= len(REDACTED)
            name = key if sign == "=" else _glimpse(key, left)
            hidden = self.is_sensitive(key) and _hides(item)
            parts.append(
                f"{name}{sign}{REDACTED if hidden else self._sketch(item, left, depth + 1)}"
            )
        return ", ".join(parts)

    def _sketch_items(self, items: Iterable[Any], left: list[int], depth: int) -> Iterator[str]:
        for item in items:
            if left[0] <= 0:
                yield "..."
                return
            yield self._sketch(item, left, depth + 1)


_COLLECTIONS = (list, tuple, set, frozenset)


def _glimpse(value: Any, left: list[int]) -> str:
    if type(value) is str:
        text = repr(value if len(value) <= MAX_STRING else value[:MAX_STRING])
    else:
        text = show(value[:MAX_STRING] if isinstance(value, (str, bytes)) else value)[
            : MAX_STRING + 100
        ]
    left[0] -= len(text) + 2
    return text


@lru_cache(maxsize=1_024)
def _field_names(kind: type[Any]) -> tuple[str, ...]:
    """The fields by which values of a type are shown: a named tuple's, and a dataclass's unless its
    own ``repr`` says less.
    """
    if issubclass(kind, tuple):
        return tuple(getattr(kind, "_fields", ()))
    made_by_dataclass = is_dataclass(kind) and hasattr(kind.__repr__, "__wrapped__")
    return tuple(field.name for field in fields(kind) if field.repr) if made_by_dataclass else ()


def _lowered(option: str, keys: Iterable[str] | None) -> frozenset[str]:
    names = [keys] if isinstance(keys, str) else list(keys or ())
    if isinstance(keys, str) or not all(isinstance(name, str) for name in names):
        raise EdictumConfigError(
            f"RedactionPolicy: {option} is {keys!r:.80}, not a list of names.",
            hint=f'Write {option}=["..."].',
        )
    return frozenset(name.lower() for name in names)


def _custom_pattern(pair: tuple[str, str]) -> tuple[re.Pattern[str], str]:
    """A pattern of the user, tried out together with its replacement: a bad one must not come to
    light after a tool has run.
    """
    try:
        pattern, replacement = pair
        if not isinstance(replacement, str):
            raise TypeError(f"the replacement is {type(replacement).__name__}, not text")
        compiled = re.compile(pattern)
        compiled.sub(replacement, "")  # reads the replacement, whether or not the pattern matches
    except re.error as exc:
        raise EdictumConfigError(
            f"RedactionPolicy: {pair!r:.200} is not a regex with a replacement: {exc}.",
            hint="Fix or remove it.",
        ) from exc
    except (TypeError, ValueError, IndexError) as exc:
        hint = "Write custom_patterns=[(regex, replacement)], both as text."
        raise EdictumConfigError(
            f"RedactionPolicy: {pair!r:.200} in custom_patterns: {exc}.", hint=hint
        ) from exc
    return compiled, replacement


def _hides(item: Any) -> bool:
    """Sensitive keys hide text and containers; a number or a flag under such a key (``has_token:
    true``) is no secret.
    """
    return item is not None and not isinstance(item, (bool, float)) and item != ""


# Python's regexes hold the interpreter lock, so a text of some megabytes would stop every other
# thread for seconds. Long texts are searched window by window; windows overlap by more than any
# secret is long, and grow when a match reaches their end.
_WINDOW = 1 << 16
_OVERLAP = 1 << 13


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
def _builtin_patterns() -> list[tuple[tuple[str, ...], re.Pattern[str], str]]:
    return [
        (hints, re.compile(pattern), replacement) for hints, pattern, replacement in SECRET_PATTERNS
    ]


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


def _ends(key: str) -> str:
    """As much of a long key as is judged by its words, and remembered: nobody names a field in
    more.
    """
    return f"{key[:128]} {key[-128:]}"


@lru_cache(maxsize=4_096)
def _sensitive_by_words(key: str) -> bool:
    words = [part for word in _WORDS.findall(key) for part in _apart(word.lower())]
    if any(tuple(words[i : i + 2]) in SENSITIVE_PHRASES for i in range(len(words) - 1)):
        return True
    companions = [
        word
        for word in words
        if word not in SENSITIVE_WORDS and word not in KEY_WORDS and not word.isdigit()
    ]
    safe = bool(companions) and any(word in SAFE_COMPANIONS for word in companions)
    if any(word in SENSITIVE_WORDS for word in words):
        return not (safe and set(words) & SENSITIVE_WORDS <= {"token", "auth", "cookie"})
    return bool(set(words) & KEY_WORDS) and bool(companions) and not safe


def _map_text(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    """``change`` applied to every text inside a value. The value's own types are kept; untouched
    values are returned as they are.
    """
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
    """The value with long texts shortened, and what exceeds ``limit`` characters in all left out by
    name, never cut in the middle.
    """
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
