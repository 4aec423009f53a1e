"""What must not be written down: values under sensitive keys, and secrets anywhere in a text.

The structure of a value is kept: a dict stays a dict, a list a list; only the secret is replaced.
Which keys are sensitive is said by ``sensitive_keys``, what a secret looks like by
``secret_patterns``.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, Protocol

from edictum.core.freeze import FlatDict, copy_with
from edictum.core.library_values import (
    NOT_OPENED,
    Table,
    is_changed,
    open_beginning,
    open_value,
    replace_cells,
)
from edictum.core.replacements import Replace, redact, replace_detections
from edictum.core.secret_patterns import REDACTED
from edictum.core.secret_scan import Detection, secret_detector
from edictum.core.secret_values import REPLACEMENT, is_of_vendor, names_vendor
from edictum.core.sensitive_keys import MAX_KEY, VALUE_KEYS, is_sensitive_by_words, name_of
from edictum.core.values import (
    TOO_DEEP,
    JsonVisitor,
    TextChanger,
    Visitor,
    change_text,
    dumps,
    held_fields,
    key_text,
    show,
    to_json,
    to_searched_json,
    write_sorted,
)
from edictum.errors import EdictumConfigError

MAX_STRING = 1_000
MAX_PAYLOAD = 32_768
MARGIN = 8_192  # characters behind a cut that are searched: a secret is seen whole
MAX_SUMMARY = 500
MAX_SAFE = 2**53  # whole numbers up to it are the same in every reader of JSON
JSON_WORDS = {None: "null", True: "true", False: "false"}
MIN_HASH_KEY = 16
MAX_NAMES = 1_000  # of arguments that are remembered as plain
_FLAT = frozenset({str, int, float, bool, type(None)})


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
        detectors: Iterable[Detects] | None = None,
        hash_key: str | bytes | None = None,
    ) -> None:
        self.sensitive_keys = _lower_keys("sensitive_keys", sensitive_keys)
        self.safe_keys = _lower_keys("safe_keys", safe_keys)
        self._custom = [_custom_pattern(pair) for pair in custom_patterns or ()]
        self._detect = detect_secret_values
        self.detectors = _read_detectors(detectors)
        self._searched = self.detectors  # these, and those of the bundle in force
        self.hash_key = _read_hash_key(hash_key)
        self._plain_names: dict[str, str] = {}

    def with_bundle(self, detectors: Iterable[Detects]) -> RedactionPolicy:
        """Return the same policy with the detectors of the bundle in force, instead of others."""
        made = copy.copy(self)
        made._searched = (*self.detectors, *detectors)
        made._plain_names = {}
        return made

    def is_sensitive(self, key: object) -> bool:
        """Whether values under this key are hidden, whatever they are."""
        if not isinstance(key, str):
            return False
        lowered = key.lower()
        return lowered not in self.safe_keys and (
            lowered in self.sensitive_keys or is_sensitive_by_words(key)
        )

    def redact_text(self, text: str) -> str:
        """Return the text with every secret in it replaced; all of it is searched."""
        for pattern, replacement in self._custom:
            text = replace_all(pattern, replacement, text)
        for detector in self._searched:
            text = replace_detections(text, detector.scan(text), redact)
        return hide_secrets(text) if self._detect else text

    redact_bash_command = redact_text

    def redact_and_remember(self, text: str) -> str:
        """As ``redact_text``, for names and reasons, which come again and again."""
        if not self._is_plain() or len(text) > MAX_KEY:
            return self.redact_text(text)
        return _hide_and_remember(text)

    def redact_value(self, value: Any) -> Any:
        """Return a value of the same shape with secrets and sensitive fields replaced."""
        return _KeyedRedactor(self.redact_text, self._may_find, self._hide).visit(value)

    def _may_find(self, text: str) -> bool:
        return not self.is_clean(text)

    def _hide(self, key: Any, item: Any) -> str | None:
        return REDACTED if self.hides(key, item) else None

    def hides(self, name: Any, item: Any) -> bool:
        """Whether an item is hidden because of its name, whatever it is or as one of a vendor's."""
        if self.is_sensitive(name):
            return _is_hidden(item)
        return self._detect and _is_of_vendor(name, item)

    def redact_secrets(self, value: Any) -> Any:
        """Return a value of the same types with secrets in text replaced, for results that a
        program goes on to use. Sensitive keys are left alone.
        """
        if type(value) is str:
            return self.redact_and_remember(value)
        return None if value is None else redact_texts(value, self.redact_text, self._may_find)

    def redact_args(self, args: Any) -> Any:
        """Return arguments, claims or metadata as they are written to the audit: redacted,
        JSON-ready, bounded.
        """
        return _AuditRedactor(self, search=not self._is_clean(args)).visit(args)

    def write_args(self, args: Any) -> str:
        """Return what ``redact_args`` returns as JSON with sorted keys and without blanks; of the
        usual arguments at half the cost.
        """
        clean = self._is_clean(args)
        if clean and type(args) is FlatDict:
            parts = [self._write_part(name, args[name]) for name in sorted(args)]
            if "" not in parts:
                return f"{{{','.join(parts)}}}"
        return write_sorted(_AuditRedactor(self, search=not clean).visit(args))

    def _write_part(self, name: str, value: Any) -> str:
        """Return an argument whose text is clean as JSON; "" if that is not all there is to it."""
        quoted = self._plain_names.get(name) or self._learn_name(name)
        if type(value) is str:
            return quoted and quoted + encode_basestring_ascii(value)
        return quoted and quoted + write_sorted(to_json(value))

    def _learn_name(self, name: str) -> str:
        """Return a name as JSON, with a colon; "" if it is long, secret, or may be a secret's."""
        if len(name) > MAX_KEY or self.is_sensitive(name) or self.redact_and_remember(name) != name:
            return ""
        if name in VALUE_KEYS or names_vendor(name):
            return ""
        quoted = f"{encode_basestring_ascii(name)}:"
        if len(self._plain_names) < MAX_NAMES:  # a model can invent any number
            self._plain_names[name] = quoted
        return quoted

    def _is_clean(self, args: Any) -> bool:
        """Return whether no text of flat arguments can hold a secret: one search for all of them,
        where most calls end.
        """
        if not isinstance(args, dict):
            return False
        texts: list[str] = []
        for value in args.values():
            if type(value) is str:
                texts.append(value)
            elif type(value) not in _FLAT:
                return False
        return self.is_clean("\n".join(texts))

    def is_clean(self, text: str) -> bool:
        """Return whether nothing in a text can be a secret, nor in its parts; False if unsure."""
        if self._custom or self._searched:
            return False
        return not (self._detect and secret_detector().may_find(text))

    def _is_plain(self) -> bool:
        """Return whether the built-in secrets are all that is looked for."""
        return self._detect and not (self._custom or self._searched)

    def cap_payload(self, event: dict[str, Any]) -> dict[str, Any]:
        """Take result and arguments out of an event that is too large, and return the event.

        Sinks written for the older library call it; events are bounded without it.
        """
        if len(dumps(event)) > MAX_PAYLOAD:
            event.pop("result_summary", None)
            event |= {"_truncated": True, "tool_args": {"_redacted": "payload exceeded 32KB"}}
        return event

    def redact_result(self, result: Any, max_length: int = MAX_SUMMARY) -> str:
        """Return a result as a short text for the audit. It is redacted before it is cut, so that
        a cut cannot bare half a secret.
        """
        summary = self.summarize(result, max_length)
        if type(summary) is JsonText:
            return self.write_summary(summary, max_length)
        return shorten(self.redact_text(summary), max_length)

    def summarize(self, result: Any, max_length: int = MAX_SUMMARY) -> str:
        """Return enough of a result to make its redacted summary from: a text as it is, everything
        else as JsonText.

        It looks a little beyond the cut: enough to see any secret whole, without reading a 10 MB
        answer.
        """
        if type(result) is str:
            return result[: max_length + MARGIN]
        return JsonText(_Summary(self, max_length + 1_024).visit(result))

    def write_summary(self, summary: str, max_length: int = MAX_SUMMARY) -> str:
        """Return what ``summarize`` returned as JSON, redacted and bounded.

        Of what is too long it is the beginning, as a JSON text.
        """
        text = self.redact_text(summary)
        if type(summary) is JsonText and (shown := self._redact_json(summary, text)) is not None:
            if len(shown) <= max_length:
                return shown
            text = shown
        room = max_length - 2
        while len(quoted := encode_basestring(shorten(text, room))) > max_length:
            room = room * max_length // len(quoted) - 1
        return quoted

    def _redact_json(self, summary: str, redacted: str) -> str | None:
        """Return a summary redacted value by value; None when that finds less than the search of
        its whole text, which may take away the quotes around a secret.
        """
        if redacted == summary:
            return summary
        shown = json.dumps(self.redact_args(json.loads(summary)), ensure_ascii=False)
        is_whole = _without_quotes(self.redact_text(shown)) == _without_quotes(shown)
        return shown if is_whole else None


class JsonText(str):
    """A summary that is JSON."""

    __slots__ = ()


def _without_quotes(text: str) -> str:
    """Return a text in which it does not matter whether a replacement has eaten quotes."""
    return text.replace(f'"{REDACTED}"', REDACTED)


class Detects(Protocol):
    """Finds secrets or personal data in a text, from left to right and without overlaps."""

    def scan(self, text: str, /) -> Sequence[Detection]: ...


def may_find(detector: Detects, text: str) -> bool:
    """Return whether a detector may find something in a text or in its parts; True if unsure."""
    ask = getattr(detector, "may_find", None)
    return True if ask is None else bool(ask(text))


def hide_secrets(text: str) -> str:
    """Return the text with every secret in it replaced; all of it is searched."""
    found = secret_detector().scan(text)
    return replace_detections(text, found, redact) if found else text


_hide_and_remember = lru_cache(maxsize=4_096)(hide_secrets)


def shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def shorten_without_secrets(text: str, limit: int) -> str:
    """Shorten a text that is redacted later: half a secret at the cut would not be seen then."""
    return text if len(text) <= limit else shorten(hide_secrets(text[: limit + MARGIN]), limit)


def redact_and_shorten(text: str, redact_text: Callable[[str], str]) -> str:
    """Return a text redacted and cut to MAX_STRING. Of a long one so much is searched that what is
    shown cannot be a part of a secret at the end of that.
    """
    size = MAX_STRING + MARGIN
    shown = redact_text(text[:size])
    while size < len(text) and len(shown) < MAX_STRING + MARGIN:  # much of it was hidden
        size *= 2
        shown = redact_text(text[:size])
    return shorten(shown, MAX_STRING)


def _is_hidden(item: Any) -> bool:
    """Whether a sensitive key hides a value: text and containers. A flag or a fraction
    (``has_token: true``) is not a secret.
    """
    if isinstance(item, (str, bool, float)):
        return isinstance(item, str) and item != ""
    return item is not None


def _is_of_vendor(name: Any, item: Any) -> bool:
    return type(name) is str is type(item) and len(name) <= MAX_KEY and is_of_vendor(name, item)


class _AuditRedactor(JsonVisitor):
    """JSON with secrets replaced and long texts shortened. What exceeds MAX_PAYLOAD characters in
    all is left out by name, never cut in the middle.
    """

    __slots__ = ("_left", "_policy", "_search")

    def __init__(self, policy: RedactionPolicy, *, search: bool = True) -> None:
        super().__init__()
        self._policy = policy
        self._search = search
        self._left = MAX_PAYLOAD

    def text(self, text: str) -> str:
        redact_text = self._policy.redact_text
        shown = redact_and_shorten(text, redact_text) if self._search else shorten(text, MAX_STRING)
        self._left -= len(shown) + 2
        return shown

    def scalar(self, value: Any) -> Any:
        shown = super().scalar(value)
        if type(shown) is not str:
            self._left -= 10
        return shown

    def mapping(self, value: Any) -> dict[str, Any]:
        policy = self._policy
        made: dict[str, Any] = {}
        for key, item in value.items():
            if self._left <= 0:
                return made | {"_omitted": f"{len(value) - len(made)} more keys"}
            name = key_text(key)
            shown = policy.redact_and_remember(name)
            self._left -= len(shown) + 4
            made[shown] = self._show(name_of(name, value), item)
        return made

    def _show(self, name: Any, item: Any) -> Any:
        """Return what stands for an item under a name; a sensitive one bares at most a number."""
        if not self._policy.is_sensitive(name):
            return self.scalar(REDACTED) if self._policy.hides(name, item) else self.visit(item)
        plain = to_json(item)
        return self.scalar(REDACTED if _is_hidden(plain) else plain)

    def sequence(self, value: Any) -> list[Any]:
        made: list[Any] = []
        for item in value:
            if self._left <= 0:
                return [*made, f"[omitted: {len(value) - len(made)} more items]"]
            made.append(self.visit(item))
        return made


class _SecretRedactor(TextChanger):
    """Text changed inside of objects, too: data is copied with changed parts, and what cannot be
    copied so becomes its redacted JSON. Objects without secrets stay as they are.
    """

    __slots__ = ()

    def scalar(self, value: Any) -> Any:
        return self._change_bytes(value) if type(value) is bytes else super().scalar(value)

    def _change_bytes(self, value: bytes) -> Any:
        """Return bytes with the text in them changed, and all other bytes kept."""
        try:
            return self.change(value.decode()).encode()
        except UnicodeDecodeError:
            return self.change(value.decode("latin-1")).encode("latin-1", "replace")

    def change_part(self, key: Any, item: Any) -> Any:
        """Return what stands for an item under a key or a name."""
        return self.visit(item)

    def other(self, value: Any) -> Any:
        opened = open_value(value)
        if opened is not NOT_OPENED:
            return self._change_library_value(value, opened)
        plain = to_searched_json(value)
        redacted = self.visit(plain)
        if redacted == plain and not isinstance(value, str):
            return value
        copied = copy_with(value, self.change_part)
        if copied is not None and self._is_redacted(copied, redacted):
            return copied
        held = held_fields(value)
        return self.visit(to_json(value) if held is None else held)

    def _is_redacted(self, copied: Any, redacted: Any) -> bool:
        held = to_searched_json(copied)
        return bool(held == redacted or self.visit(held) == held)

    def _change_library_value(self, value: Any, opened: Any) -> Any:
        changed = self._change_table(opened) if type(opened) is Table else self.visit(opened)
        if changed is opened or (type(changed) is not Table and changed == opened):
            return value
        made = replace_cells(value, opened, changed)
        if made is not NOT_OPENED:
            return made
        return to_json(changed.by_name() if type(changed) is Table else changed)

    def change_column(self, name: str, cells: list[Any]) -> list[Any]:
        made: list[Any] = self.sequence(cells)
        return made

    def _change_table(self, table: Table) -> Table:
        """Return the table with changed cells and names; itself, if there is nothing to change."""
        names = [*map(self.visit, table.names)]
        columns = [*map(self.change_column, table.names, table.columns)]
        if names == table.names and not any(map(is_changed, table.columns, columns)):
            return table
        return Table(names, columns, table.labels)

    def unreadable(self, value: Any, error: Exception) -> Any:
        return change_text(to_json(value), self.change)


def redact_texts(
    value: Any, change: Callable[[str], str], may_change: Callable[[str], bool] | None = None
) -> Any:
    """Return a value of the same types with ``change`` applied to every text in it, even inside of
    objects, arrays and frames.
    """
    return _SecretRedactor(change, may_change).visit(value)


class Redactor:
    """Takes what some detectors find out of values, and tells whether there is anything.

    Values under sensitive keys count if ``is_sensitive`` says which those are.
    """

    __slots__ = ("_detectors", "_is_sensitive", "_replace")

    def __init__(
        self,
        detectors: Iterable[Detects],
        replace: Replace = redact,
        is_sensitive: Callable[[object], bool] | None = None,
    ) -> None:
        self._detectors = tuple(detectors)
        self._replace = replace
        self._is_sensitive = is_sensitive

    def with_replacement(self, replace: Replace) -> Redactor:
        return Redactor(self._detectors, replace, self._is_sensitive)

    def with_secrets(self, own: Iterable[Detects]) -> Redactor:
        """Return one that finds more secrets, if it looks for secrets at all."""
        if self._is_sensitive is None:
            return self
        return Redactor((*self._detectors, *own), self._replace, self._is_sensitive)

    def finds(self, value: Any) -> bool:
        """Return whether there is something to take out of a value."""
        if type(value) is str:
            return any(detector.scan(value) for detector in self._detectors)
        plain = to_searched_json(value)
        return bool(self.redact(plain) != plain)

    def redact_text(self, text: str) -> str:
        for detector in self._detectors:
            text = replace_detections(text, detector.scan(text), self._replace)
        return text

    def redact(self, value: Any) -> Any:
        """Return a value of the same types with everything taken out that is found."""
        return _KeyedRedactor(self.redact_text, self._may_find, self._hide).visit(value)

    def _may_find(self, text: str) -> bool:
        """Return whether anything may be found in a text or in its parts; True if unsure."""
        return any(may_find(detector, text) for detector in self._detectors)

    def _hide(self, key: Any, item: Any) -> Any:
        """Return what is shown of the value under a sensitive key; None when it is not hidden."""
        if self._is_sensitive is None or not _is_hidden(item):
            return None
        if not (self._is_sensitive(key) or _is_of_vendor(key, item)):
            return None
        if isinstance(item, str):
            return item if REPLACEMENT.fullmatch(item) else self._replace("assigned", item)
        return REDACTED


class _KeyedRedactor(_SecretRedactor):
    """Text changed everywhere, and values under some keys replaced whole."""

    __slots__ = ("_hide",)

    def __init__(
        self,
        change: Callable[[str], str],
        may_change: Callable[[str], bool],
        hide: Callable[[Any, Any], Any],
    ) -> None:
        super().__init__(change, may_change)
        self._hide = hide

    def change_part(self, key: Any, item: Any) -> Any:
        return self._find_replacement(key, item) or self.visit(item)

    def _find_replacement(self, key: Any, item: Any) -> Any:
        """Return what stands for an item because of its key; None for a column in which nothing is
        left to be replaced, and for whatever its key does not hide.
        """
        shown = self._hide(key, item)
        if shown is None or type(item) is not list:
            return shown
        cells = ((each, self._hide(key, each)) for each in item)
        is_done = all(new is None or (type(each) is str and new == each) for each, new in cells)
        return None if is_done else shown

    def change_column(self, name: str, cells: list[Any]) -> list[Any]:
        is_hidden = self._hide(name, REDACTED) is not None
        return (
            [self.change_part(name, cell) for cell in cells] if is_hidden else self.sequence(cells)
        )

    def mapping(self, value: Any) -> Any:
        hidden = {
            key: shown
            for key, item in value.items()
            if (shown := self._find_replacement(name_of(key, value), item))
        }
        if not hidden or type(value) is not dict:
            return super().mapping(value)
        return super().mapping(value | hidden)


class _Summary(Visitor):
    """A bounded rendering as JSON: it stops looking once it has enough, so a huge value costs no
    more than a small one.

    Everything that is looked at spends from what is left, even names, hidden values and empty
    lists.
    """

    __slots__ = ("_left", "_policy")

    def __init__(self, policy: RedactionPolicy, limit: int) -> None:
        super().__init__()
        self._policy = policy
        self._left = limit

    def scalar(self, value: Any) -> str:
        kind = type(value)
        if kind is str:
            text = encode_basestring(value[:MAX_STRING])
        elif value is None or kind is bool:
            text = JSON_WORDS[value]
        elif kind is int and -MAX_SAFE <= value <= MAX_SAFE:
            text = str(value)
        else:
            text = dumps(value[:MAX_STRING] if kind is bytes else value)
        self._left -= len(text) + 2
        return text

    def mapping(self, value: Any) -> str:
        return self._pairs(value.items())

    def sequence(self, value: Any) -> str:
        named = _shown_fields(value)
        return self._fields(value, named) if named else f"[{self._items(value)}]"

    def members(self, value: Any) -> str:
        return f"[{self._items(value)}]"

    def other(self, value: Any) -> str:
        named = _shown_fields(value)
        if named:
            return self._fields(value, named)
        opened = open_beginning(value, self._left)
        if opened is NOT_OPENED:
            return self.scalar(show(value))
        return str(self.visit(opened.by_name() if type(opened) is Table else opened))

    def _fields(self, value: Any, names: tuple[str, ...]) -> str:
        return self._pairs((name, getattr(value, name, None)) for name in names)

    def _pairs(self, pairs: Iterable[tuple[Any, Any]]) -> str:
        parts = []
        self._left -= 2
        for key, item in pairs:
            if self._left <= 0:
                parts.append('"...": "..."')
                break
            self._left -= len(REDACTED)
            name = self.scalar(key_text(key))
            hidden = self._policy.is_sensitive(key) and _is_hidden(item)
            parts.append(f"{name}: {self.visit(REDACTED if hidden else item)}")
        return f"{{{', '.join(parts)}}}"

    def _items(self, items: Iterable[Any]) -> str:
        parts = []
        self._left -= 2
        for item in items:
            if self._left <= 0:
                parts.append('"..."')
                break
            parts.append(self.visit(item))
        return ", ".join(parts)

    def too_deep(self, value: Any) -> str:
        return self.scalar(TOO_DEEP)

    def unreadable(self, value: Any, error: Exception) -> str:
        return self.scalar(show(value))


def _shown_fields(value: Any) -> tuple[str, ...]:
    """Return the fields by which a value is shown: a named tuple's, and a dataclass's unless its
    own ``repr`` says less.
    """
    kind: Any = type(value)
    return _shown_fields_of_type(kind)


@lru_cache(maxsize=1_024)
def _shown_fields_of_type(kind: type[Any]) -> tuple[str, ...]:
    if issubclass(kind, tuple):
        return tuple(getattr(kind, "_fields", ()))
    made_by_dataclass = is_dataclass(kind) and hasattr(kind.__repr__, "__wrapped__")
    return tuple(field.name for field in fields(kind) if field.repr) if made_by_dataclass else ()


def _lower_keys(option: str, keys: Iterable[str] | None) -> frozenset[str]:
    names = [keys] if isinstance(keys, str) else list(keys or ())
    if isinstance(keys, str) or not all(isinstance(name, str) for name in names):
        raise EdictumConfigError(
            f"RedactionPolicy: {option} is {keys!r:.80}, not a list of names.",
            hint=f'Write {option}=["..."].',
        )
    return frozenset(name.lower() for name in names)


def _read_detectors(detectors: Iterable[Detects] | None) -> tuple[Detects, ...]:
    given = tuple(detectors or ())
    for each in given:
        if not callable(getattr(each, "scan", None)):
            raise EdictumConfigError(
                f"RedactionPolicy: {each!r:.80} in detectors has no scan(text).",
                hint="Pass what edictum.redaction.personal_data(...) returns.",
            )
    return given


def _read_hash_key(key: str | bytes | None) -> bytes | None:
    if key is None or (isinstance(key, (str, bytes)) and len(key) >= MIN_HASH_KEY):
        return key.encode() if isinstance(key, str) else key
    raise EdictumConfigError(
        f"RedactionPolicy: hash_key is not a text of at least {MIN_HASH_KEY} characters.",
        hint="Draw one with secrets.token_hex(32), and keep it with your other secrets.",
    )


def _custom_pattern(pair: tuple[str, str]) -> tuple[re.Pattern[str], str]:
    """Compile a user-supplied pattern and try it with its replacement: a bad one must not come to
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
        raise EdictumConfigError(
            f"RedactionPolicy: {pair!r:.200} in custom_patterns: {exc}.",
            hint="Write custom_patterns=[(regex, replacement)], both as text.",
        ) from exc
    return compiled, replacement


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
