"""Find secrets in text: one search for all that can begin one, then a look at each place.

A *finder* goes through a text once and names the places where a secret may begin. With RE2 it is
one automaton over the heads of all rows (``use_finder`` puts it in); without, each literal is
looked for. At each place the rows that begin so are compared. What was found is skipped, so
findings never overlap, and each place costs a bounded time: scanning is linear in the text.

Text that carries other text is looked into once more, one level deep: base64 and percent-encoding.
"""

from __future__ import annotations

import binascii
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol

from edictum.core import secret_values as values
from edictum.core.secret_forms import Form, Span, compile_once, is_boundary, is_wordy, read_forms
from edictum.core.secret_patterns import TEXT_PATTERNS, TextPattern

MIN_SEARCHED = 10  # a shorter text holds a secret only behind one of these signs
_SIGNS = frozenset("=:>-")
MIN_CARRIER = 24
MAX_CARRIER = 1 << 20
MAX_RUN = 4_096


@dataclass(frozen=True, slots=True)
class Detection:
    """A secret or a piece of personal data in a text: ``text[start:end]``."""

    kind: str
    start: int
    end: int


Match = tuple[str, Span]
Looker = Callable[[str, int], Match | None]
NextPlace = Callable[[int], int]  # the next place from a place on; -1 when there is none


class Finder(Protocol):
    """Find the places in a text where one of some rows may begin; None when there are none."""

    def __call__(self, text: str, /) -> NextPlace | None: ...


@dataclass(frozen=True, slots=True)
class Heads:
    """What a finder looks for: patterns of first characters, and literals that begin them.

    ``exact`` literals are looked for as they are, ``loose`` ones in whatever case; ``bare`` are the
    patterns that begin with no literal.
    """

    patterns: tuple[str, ...]
    exact: tuple[str, ...] = ()
    loose: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()


MakeFinder = Callable[[Heads], Finder]


class WordFinder:
    """Find places by looking for each literal, with nothing but Python."""

    def __init__(self, heads: Heads) -> None:
        self._exact = _shortest(heads.exact)
        self._loose = _shortest(heads.loose)
        self._bare = re.compile("|".join(heads.bare)) if heads.bare else None

    def __call__(self, text: str, /) -> NextPlace | None:
        lowered = text.encode("ascii", "replace").decode("ascii").lower()
        places = sorted(
            {
                place
                for words, where in ((self._exact, text), (self._loose, lowered))
                for word in words
                if word in where
                for place in _places(word, where)
            }
        )
        if self._bare is None or _search(self._bare, text, 0) < 0:
            return partial(_next_of, places) if places else None
        return partial(_next_of_both, places, self._bare, text)


def _next_of_both(places: list[int], bare: re.Pattern[str], text: str, at: int) -> int:
    one, other = _next_of(places, at), _search(bare, text, at)
    return max(one, other) if one < 0 or other < 0 else min(one, other)


def _search(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.search(text, at)
    return -1 if found is None else found.start()


def _places(word: str, text: str) -> Iterable[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + 1)


def _next_of(places: list[int], at: int) -> int:
    index = bisect_left(places, at)
    return places[index] if index < len(places) else -1


def _shortest(words: Iterable[str]) -> tuple[str, ...]:
    """Return the words that no other word begins: a text with any of them has one of these."""
    known = set(words)
    return tuple(
        sorted(w for w in known if not any(w[:size] in known for size in range(1, len(w))))
    )


# --- The engine -----------------------------------------------------------------------------------


class _Engine:
    make: MakeFinder = WordFinder


def use_finder(make: MakeFinder) -> None:
    """Set how finders are made, for all detectors made from now on."""
    _Engine.make = make
    secret_detector.cache_clear()


# --- Detectors ------------------------------------------------------------------------------------


class Detector:
    """Finds everything that some rows describe."""

    def __init__(self, rows: Iterable[Row], *, carriers: bool = False) -> None:
        self._exact: dict[str, tuple[Looker, ...]] = {}
        self._loose: dict[str, tuple[Looker, ...]] = {}
        self._bare: list[Looker] = []
        patterns: list[str] = []
        bare: list[str] = []
        for row in rows:
            patterns.append(row.head)
            if not row.words:
                bare.append(row.head)
                self._bare.append(row.look)
            table = self._loose if row.loose else self._exact
            for word in row.words:
                table[word] = (*table.get(word, ()), row.look)
        if carriers:
            patterns.append(_CARRIER_HEAD)
            bare.append(_CARRIER_HEAD)
        self._exact_sizes = _sizes(self._exact)
        self._loose_sizes = _sizes(self._loose)
        heads = Heads(tuple(patterns), tuple(self._exact), tuple(self._loose), tuple(bare))
        self._find = _Engine.make(heads)
        self._carriers = carriers

    def may_find(self, text: str) -> bool:
        """Return whether anything can be found in a text, at a fraction of the cost of a scan."""
        return self._find(text) is not None or (self._carriers and "%" in text)

    def scan(self, text: str) -> list[Detection]:
        """Return what is found in a text, from left to right, without overlaps."""
        if self._carriers and len(text) < MIN_SEARCHED and _SIGNS.isdisjoint(text):
            return []
        found = self._scan_plain(text, self._carriers)
        if self._carriers and "%" in text:
            found = merge(found, self._scan_percent(text))
        return found

    def _scan_plain(self, text: str, carriers: bool = False) -> list[Detection]:
        next_place = self._find(text)
        if next_place is None:
            return []
        found: list[Detection] = []
        at, opened = next_place(0), 0  # opened: up to here carriers were looked into
        while at >= 0:
            match = self._look(text, at)
            if match is None and carriers and at >= opened:
                match, opened = self._look_into(text, at)
            if match is None or match[1][1] <= at:
                at = next_place(at + 1)
                continue
            kind, (start, end) = match
            found.append(Detection(kind, max(start, found[-1].end if found else 0), end))
            at = next_place(end)
        return found

    def _look_into(self, text: str, at: int) -> tuple[Match | None, int]:
        """Return what is inside of base64 at a place, and where that ends."""
        run = _CARRIER.match(text, at)
        if run is None:
            return None, at
        inner = self._scan_plain(_decode_base64(run.group()[:MAX_CARRIER]))
        return (inner[0].kind, run.span()) if inner else None, run.end()

    def _look(self, text: str, at: int) -> Match | None:
        first = text[at]
        for size in self._exact_sizes.get(first, ()):
            for look in self._exact.get(text[at : at + size], ()):
                if (match := look(text, at)) is not None:
                    return match
        for size in self._loose_sizes.get(first.lower(), ()):
            for look in self._loose.get(text[at : at + size].lower(), ()):
                if (match := look(text, at)) is not None:
                    return self._name(text, match)
        return next(filter(None, (look(text, at) for look in self._bare)), None)

    def _name(self, text: str, match: Match) -> Match:
        """Return a match under the name of its vendor, where its value has a vendor's form."""
        kind, (start, end) = match
        if kind != ASSIGNED or end <= start:
            return match
        for size in self._exact_sizes.get(text[start], ()):
            for look in self._exact.get(text[start : start + size], ()):
                if (inner := look(text, start)) is not None and inner[1][0] == start:
                    return inner[0], (start, max(end, inner[1][1]))
        return match

    def _scan_percent(self, text: str) -> list[Detection]:
        found: list[Detection] = []
        at = text.find("%")
        while at >= 0:
            start, end = _run_around(text, at)
            start = max(start, found[-1].end if found else 0)
            decoded, offsets = _decode_percent(text, start, end)
            if decoded is not None:
                for inner in self._scan_plain(decoded):
                    found.append(Detection(inner.kind, offsets[inner.start], offsets[inner.end]))
            at = text.find("%", end)
        return found


def _sizes(words: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the lengths of words by their first character, the longest first."""
    made: dict[str, set[int]] = {}
    for word in words:
        made.setdefault(word[0], set()).add(len(word))
    return {first: tuple(sorted(sizes, reverse=True)) for first, sizes in made.items()}


def merge(found: list[Detection], others: Sequence[Detection]) -> list[Detection]:
    """Return both lists in order, without those of the second that touch one of the first."""
    if not others:
        return found
    starts = [each.start for each in found]
    free = []
    for other in others:
        index = bisect_left(starts, other.end)
        if index == 0 or found[index - 1].end <= other.start:
            free.append(other)
    return sorted((*found, *free), key=lambda each: each.start)


# --- Carriers -------------------------------------------------------------------------------------

# Base64 of ASCII text: the highest bit of each byte is 0, so half of the characters cannot stand in
# the first, second and third place of four. Hashes and images hardly ever begin so.
_CARRIER_FOUR = r"[A-Za-f][0-3A-HQ-Xg-nw-z][014589ABEFIJMNQRUVYZcdghklopstwx][A-Za-z0-9+/_-]"
_CARRIER_HEAD = f"(?:{_CARRIER_FOUR}){{{MIN_CARRIER // 4}}}"
_CARRIER = re.compile(rf"[A-Za-z0-9+/_-]{{{MIN_CARRIER},}}={{0,2}}")
_BREAKS = " \t\r\n\"'<>"
_PRINTABLE = re.compile(rb"[\t\r\n -~]*")
_PERCENT = re.compile(r"%([0-9A-Fa-f]{2})")


def _run_around(text: str, at: int) -> Span:
    """Return the run of characters without spaces and quotes around a place, bounded."""
    low = max(0, at - MAX_RUN)
    start = 1 + max(text.rfind(sign, low, at) for sign in _BREAKS)
    high = min(len(text), at + MAX_RUN)
    ends = (text.find(sign, at, high) for sign in _BREAKS)
    return max(start, low), min((end for end in ends if end >= 0), default=high)


def _decode_percent(text: str, start: int, end: int) -> tuple[str | None, list[int]]:
    """Return percent-encoded text decoded, and the place of each character in the original."""
    run = text[start:end]
    if _PERCENT.search(run) is None:
        return None, []
    pieces: list[str] = []
    offsets: list[int] = []
    at = 0
    for found in _PERCENT.finditer(run):
        pieces += (run[at : found.start()], chr(int(found.group(1), 16)))
        offsets += range(start + at, start + found.start() + 1)
        at = found.end()
    pieces.append(run[at:])
    offsets += range(start + at, end + 1)
    return "".join(pieces), offsets


def _decode_base64(run: str) -> str:
    """Return the ASCII text that a run of base64 begins with."""
    standard = run.replace("-", "+").replace("_", "/").rstrip("=")
    whole = standard[: len(standard) // 4 * 4] if len(standard) % 4 == 1 else standard
    decoded = binascii.a2b_base64(whole + "=" * (-len(whole) % 4))
    text = _PRINTABLE.match(decoded)
    assert text is not None
    return text.group().decode("ascii")


# --- Rows -----------------------------------------------------------------------------------------

ASSIGNED = "assigned"


@dataclass(frozen=True, slots=True)
class Row:
    """What a detector looks for: how it begins, and what tells at such a place whether it is it.

    ``words`` are the literals that it begins with, if it begins with one.
    """

    words: tuple[str, ...]
    head: str
    look: Looker
    loose: bool = False


def form_row(form: Form) -> Row:
    """Return the row of a vendor's form."""

    def look(text: str, at: int) -> Match | None:
        span = form.match(text, at)
        return None if span is None else (form.kind, span)

    return Row((form.anchor,), form.head, look)


def _pattern_row(row: TextPattern) -> Row:
    check = _CHECKS[row.check]

    def look(text: str, at: int) -> Match | None:
        if text[at].isalnum() and not is_boundary(text, at):
            return None
        found = compile_once(row.pattern).match(text, at)
        if found is None:
            return None
        named = (found.span(name) for name in ("v", "w", "x") if found.groupdict().get(name))
        start, end = next(named, found.span())
        if not check(text[start:end]):
            return None
        rest = compile_once(row.rest).match(text, end)
        return row.kind, (start, rest.end() if rest else end)

    return Row(row.hints, row.head, look, loose=True)


def _is_not_wordy(value: str) -> bool:
    return values.is_filled_in(value) and not is_wordy(value)


_CHECKS: dict[str, Callable[[str], bool]] = {
    "": lambda _value: True,
    "not_placeholder": values.is_filled_in,
    "chosen": values.is_chosen,
    "not_wordy": _is_not_wordy,
}


def secret_rows() -> list[Row]:
    """Return the rows of the built-in table."""
    return [
        *map(form_row, read_forms()),
        *map(_pattern_row, TEXT_PATTERNS),
        Row(values.vendor_words(), values.vendor_head(), values.find_by_vendor, loose=True),
        Row(values.HINTS, values.ASSIGNMENT_HEAD, values.find_by_name, loose=True),
        Row(values.FLAG_HINTS, values.FLAG_HEAD, values.find_by_name, loose=True),
    ]


@lru_cache(maxsize=1)
def secret_detector() -> Detector:
    """Return the detector of the built-in secrets, made on first use."""
    return Detector(secret_rows(), carriers=True)
