"""Read the table of secrets: forms such as ``ghp_<b62 36>`` become matchers.

``secret_table`` says how a form is written. A form is searched for by its *anchor*, the first
literal text in it; what stands before the anchor and behind it is compared once the anchor has been
found.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from edictum.core.secret_table import TABLE

ALPHABETS = {
    "num": "0-9",
    "hex": "0-9a-f",
    "HEX": "0-9a-fA-F",
    "low": "a-z0-9",
    "up": "A-Z0-9",
    "b62": "A-Za-z0-9",
    "b62word": "A-Za-z0-9_",
    "url": "A-Za-z0-9_-",
    "slack": "A-Za-z0-9-",
    "dot": "A-Za-z0-9_.=-",
    "path": "A-Za-z0-9_/@.-",
    "azid": "A-Za-z0-9_.~-",
    "b64": "A-Za-z0-9+/=",
    "pct": "A-Za-z0-9+/=%_-",
    "any": "!#-&(-[^-~",
}
UUID = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
MAX_PART = 4_096  # of a part without an upper bound, so that each anchor costs a bounded time
FORM_HEAD = 12  # characters behind an anchor that must be right before a form is looked at
WHOLE_HEAD = 40  # the same for anchors that say little
_PART = re.compile(r"<(uuid|([A-Za-z0-9]+) (\d+)(?:-(\d+)|(\+))?(!)?)>")

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class FormPart:
    """Literal text, or a number of characters of an alphabet."""

    literal: str = ""
    alphabet: str = ""
    least: int = 0
    most: int = 0
    length: int = 0  # as the vendor documents it
    exact: bool = False

    @property
    def pattern(self) -> str:
        if self.alphabet == "uuid":
            return UUID
        if not self.alphabet:
            return re.escape(self.literal)
        return f"[{ALPHABETS[self.alphabet]}]{{{self.least},{self.most}}}"

    def head(self, most: int) -> str:
        """Return the pattern of its first characters, for the search."""
        if self.alphabet == "uuid" or not self.alphabet:
            return self.pattern
        return f"[{ALPHABETS[self.alphabet]}]{{{min(self.least, most)}}}"


def read_form(form: str) -> tuple[FormPart, ...]:
    """Return the parts of a form."""
    parts: list[FormPart] = []
    at = 0
    for found in _PART.finditer(form):
        if found.start() > at:
            parts.append(FormPart(form[at : found.start()]))
        parts.append(_read_part(found))
        at = found.end()
    if at < len(form):
        parts.append(FormPart(form[at:]))
    return tuple(parts)


def _read_part(found: re.Match[str]) -> FormPart:
    if found.group(1) == "uuid":
        return FormPart(alphabet="uuid", length=36, least=36, most=36)
    alphabet, length = found.group(2), int(found.group(3))
    if found.group(4):
        most = int(found.group(4))
        return FormPart("", alphabet, length, most, (length + most) // 2, bool(found.group(6)))
    if found.group(6):
        return FormPart("", alphabet, length, length, length, exact=True)
    least = length if found.group(5) or length <= 8 else length * 4 // 5
    longer = found.group(5) or length > 8
    return FormPart("", alphabet, least, MAX_PART if longer else length, length)


@dataclass(frozen=True, slots=True)
class Form:
    """One form of one kind, ready to be compared with a text at its anchor."""

    kind: str
    text: str
    anchor: str
    before: str  # the pattern of what stands before the anchor
    behind: str  # the pattern from the anchor on
    head: str  # the pattern of the first characters from the anchor on, for the search
    checks: frozenset[str]

    @property
    def is_found_inside(self) -> bool:
        """Whether its anchor may stand inside a word."""
        return bool(self.before or self.checks & _FREE)

    def match(self, text: str, at: int) -> Span | None:
        """Return the span of the form whose anchor stands at a place; None if it does not."""
        if not (self.is_found_inside or self._may_begin(text, at)):
            return None
        found = compile_once(self.behind).match(text, at)
        if found is None:
            return None
        start, end = at, found.end()
        if self.anchor[-1] in "=/":  # a place, not a part of the secret
            start = at + len(self.anchor)
        if self.before:
            front = compile_once(self.before).search(text, max(0, at - MAX_FRONT), at)
            if front is None:
                return None
            start = front.start()
        return (start, end) if self._is_sound(text, min(at, start), end) else None

    def _is_sound(self, text: str, start: int, end: int) -> bool:
        if "mixed" in self.checks and is_wordy(text[start : min(end, start + MAX_JUDGED)]):
            return False
        if "anywhere" in self.checks or self._may_begin(text, start):
            return True
        return "crc32" in self.checks and has_crc32(text[start:end])

    def _may_begin(self, text: str, at: int) -> bool:
        """Return whether a place is the beginning of a word, or of a sign such as in ``&sig=``."""
        return not text[at].isalnum() or is_boundary(text, at)


MAX_FRONT = 128
MAX_JUDGED = 200
_FREE = frozenset({"anywhere", "crc32"})  # checks that may do without a word boundary in front
compile_once = lru_cache(maxsize=2_048)(re.compile)


@dataclass(frozen=True, slots=True)
class NamedForm:
    """A kind that counts only behind one of some words, with its forms as patterns."""

    kind: str
    words: tuple[str, ...]
    forms: tuple[str, ...]
    pattern: str


def _make_form(kind: str, form: str, checks: frozenset[str]) -> Form:
    parts = read_form(form)
    index = _find_anchor(parts)
    before = "".join(part.pattern for part in parts[:index])
    behind = "".join(part.pattern for part in parts[index:]) + _end(parts[-1])
    head = _write_head(parts[index:])
    front = f"{before}\\Z" if before else ""
    return Form(kind, form, parts[index].literal, front, behind, head, checks)


def _find_anchor(parts: tuple[FormPart, ...]) -> int:
    """Return the number of the literal to search for: the first that says something. A letter says
    least: in a long run of letters and digits there would be too many places.
    """
    literals = [number for number, part in enumerate(parts) if part.literal]
    telling = (number for number in literals if len(parts[number].literal) >= 3)
    signs = (number for number in literals if not parts[number].literal.isalnum())
    return next(telling, next(signs, literals[0]))


def _write_head(parts: tuple[FormPart, ...]) -> str:
    """Return the pattern of the first characters from the anchor on.

    It is short, because what is behind it is compared anyway, unless the anchor says little: then
    it is the form up to its first repetition of unknown length.
    """
    if len(parts[0].literal) > 4 or (len(parts) > 1 and not parts[1].exact and len(parts) == 2):
        return "".join(part.head(FORM_HEAD) for part in parts[:2])
    written = ""
    for part in parts:
        written += part.head(WHOLE_HEAD)
        if part.most > part.least:
            break
    return written


def _end(last: FormPart) -> str:
    return r"(?![A-Za-z0-9_])" if last.exact else ""


def _rows() -> Iterator[tuple[str, str, list[str], frozenset[str]]]:
    """Yield the rows of the table: kind, words, forms, checks."""
    text = re.sub(r"\n +", " ", TABLE)
    for line in filter(None, (line.split("#")[0].strip() for line in text.splitlines())):
        front, _, rest = line.partition(" = ")
        kind, _, words = front.partition(" ~ ")
        forms, _, checks = rest.partition(" ; ")
        yield kind.strip(), words, forms.strip().split(" | "), frozenset(checks.split())


@lru_cache(maxsize=1)
def read_forms() -> tuple[Form, ...]:
    """Return the forms that stand for themselves."""
    return tuple(
        _make_form(kind, form, checks)
        for kind, words, forms, checks in _rows()
        if not words
        for form in forms
    )


@lru_cache(maxsize=1)
def read_named_forms() -> tuple[NamedForm, ...]:
    """Return the kinds that count only behind the name of their vendor."""
    return tuple(
        NamedForm(
            kind,
            tuple(dict.fromkeys(_spell(words.split()))),
            tuple(forms),
            "|".join("".join(part.pattern for part in read_form(form)) for form in forms),
        )
        for kind, words, forms, _ in _rows()
        if words
    )


def _spell(words: list[str]) -> Iterator[str]:
    """Yield words as they are written: ``dd_api_key``, ``dd-api-key``, ``dd api key``."""
    return (word.replace("_", sign) for word in words for sign in ("_", "-", " ", ""))


# --- Checks ---------------------------------------------------------------------------------------

_ESCAPE = re.compile(
    r"(?:\\[abfnrtv]|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|%[0-9a-fA-F]{2}|\x1b\[[0-9;]*m)\Z"
)
_ESCAPE_SIGNS = frozenset("\\%\x1b")  # that one begins with
MAX_ESCAPE = 8
_WORD = (
    r"[A-Z]?[a-z]{1,20}|[A-Z]{1,20}|[0-9]{1,4}|[a-z]{2,12}[0-9]{1,2}"
    r"|[a-z]{0,20}(?:[A-Z][a-z]{2,20}){1,8}"  # camelCase
)
_NO_WORD = re.compile(rf"(?<![A-Za-z0-9])(?!(?:{_WORD})(?![A-Za-z0-9]))[A-Za-z0-9]")


def is_boundary(text: str, at: int) -> bool:
    """Return whether a word can begin at a place: not behind a letter, unless of an escape."""
    if at == 0 or not (text[at - 1].isascii() and text[at - 1].isalnum()):
        return True
    return _ESCAPE.search(text, max(0, at - MAX_ESCAPE), at) is not None


def is_inside_word(text: str, at: int) -> bool:
    """Return whether a letter or digit stands behind another, with no escape in front: then no word
    can begin there, nor behind it up to where the letters and digits end.
    """
    both = text[max(0, at - 1) : at + 1]
    if len(both) < 2 or not (both.isascii() and both.isalnum()):
        return False
    return _ESCAPE_SIGNS.isdisjoint(text[max(0, at - MAX_ESCAPE) : at])


def is_wordy(text: str) -> bool:
    """Return whether a text is made of words and small numbers, as names in code and prose are."""
    return _NO_WORD.search(text) is None


_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def has_crc32(token: str) -> bool:
    """Return whether the last six characters are the base-62 CRC-32 of those behind the prefix."""
    body = token.partition("_")[2]
    return len(body) > 6 and crc32_base62(body[:-6]) == body[-6:]


def crc32_base62(body: str) -> str:
    """Return the checksum that GitHub and npm put behind their tokens."""
    number, digits = zlib.crc32(body.encode("utf-8", "replace")), ""
    for _ in range(6):
        number, rest = divmod(number, 62)
        digits = _BASE62[rest] + digits
    return digits
