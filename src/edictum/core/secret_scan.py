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
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Protocol
from urllib.parse import unquote

from edictum.core import secret_values as values
from edictum.core.secret_forms import (
    Form,
    Span,
    compile_once,
    is_boundary,
    is_inside_word,
    is_wordy,
    read_forms,
)
from edictum.core.secret_patterns import TEXT_PATTERNS, TextPattern

MIN_SEARCHED = 10  # a shorter text holds a secret only behind one of these signs
_SIGNS = frozenset("=:>-")
MIN_CARRIER = 24
MAX_CARRIER = 1 << 20
MAX_RUN = 4_096
# In one unbroken run nothing was found at so many places: of its rest only the end is searched. No
# secret is the value of the value of so many others.
MAX_REFUSED = 64
MAX_REST = 200
MAX_FLAG_DISTANCE = 256
MAX_JUDGED_CONTEXT = 400  # characters behind a hint that are judged


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

    def with_carriers(self) -> Heads:
        """Return these, and the head of a carrier."""
        head = (_CARRIER_HEAD,)
        return replace(self, patterns=self.patterns + head, bare=self.bare + head)


MakeFinder = Callable[[Heads], Finder]
FinderInside = Callable[[bool], Finder]  # of what may begin inside a word, in an opened carrier


def _list_heads(rows: Sequence[Row]) -> Heads:
    """Return what a finder looks for to find the places of rows."""
    words = [
        [w for row in rows if row.loose is loose for w in row.words] for loose in (False, True)
    ]
    bare = tuple(row.head for row in rows if not row.words)
    return Heads(tuple(row.head for row in rows), tuple(words[0]), tuple(words[1]), bare)


def _make_inside(make: MakeFinder, heads: Heads, opened: bool) -> Finder:
    """Return the finder of what may begin inside a word: of carriers, too, unless in an opened
    one.
    """
    return make(heads if opened else heads.with_carriers())


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
        bare = self._bare
        if bare is None or _search(bare, text, 0) < 0:
            return partial(_next_of, places) if places else None
        next_bare = _search_once(lambda: partial(_search, bare, text), len(text))
        return partial(_next_of_both, [*places, len(text)], next_bare)


def _next_of_both(places: list[int], next_bare: NextPlace, at: int) -> int:
    place = min(_next_of(places, at), next_bare(at))
    return place if place < places[-1] else -1


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
        all_rows = tuple(rows)
        self._bare = [row.look for row in all_rows if not row.words]
        for row in all_rows:
            table = self._loose if row.loose else self._exact
            for word in row.words:
                table[word] = (*table.get(word, ()), row.look)
        self._exact_sizes = _sizes(self._exact)
        self._loose_sizes = _sizes(self._loose)
        self._carriers = carriers
        heads = _list_heads(all_rows)
        self._find = _Engine.make(heads.with_carriers() if carriers else heads)
        heads = _list_heads([row for row in all_rows if row.inside])
        self._find_inside = lru_cache(maxsize=2)(partial(_make_inside, _Engine.make, heads))

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
        places = _Places(text, next_place, self._find_inside, 0 if carriers else len(text))
        at = places.next_from(0)
        while at < len(text):
            match = self._look(text, at)
            if match is None and at >= places.opened:
                match, places.opened = self._look_into(text, at)
            if match is None or match[1][1] <= at:
                at = places.next_after(at) if self._carriers else places.next_from(at + 1)
                continue
            kind, (start, end) = match
            found.append(Detection(kind, max(start, found[-1].end if found else 0), end))
            at = places.next_from(end)
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
        sizes = self._loose_sizes.get(first.lower(), ())
        near = text[at : at + sizes[0]].lower() if sizes else ""
        for size in sizes:
            for look in self._loose.get(near[:size], ()):
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
            decoded = _decode_percent(text[start:end])
            if decoded is not None:
                inside, place_of = decoded
                found += (
                    Detection(
                        inner.kind, start + place_of(inner.start), start + place_of(inner.end)
                    )
                    for inner in self._scan_plain(inside)
                )
            at = text.find("%", end)
        return found


class _Places:
    """The places of one text where something may begin, from left to right.

    Of a word in which nothing began only those rows are searched that may begin inside a word. Up
    to ``opened`` carriers were looked into, so there none is searched: in a long run of base64 one
    may begin at every character. Of an unbroken run in which nothing began at many places only the
    end is searched.
    """

    def __init__(
        self, text: str, next_any: NextPlace, find_inside: FinderInside, opened: int
    ) -> None:
        self.opened = opened
        self._text, self._word_end, self._run_end, self._refused = text, 0, 0, 0
        find, end = find_inside, len(text)
        self._next_any = _search_once(lambda: next_any, end)
        self._next_inside = _search_once(lambda: find(False)(text), end)
        self._next_opened = _search_once(lambda: find(True)(text), end)

    def next_after(self, refused: int) -> int:
        """Return the next place behind one where nothing began."""
        at = refused + 1
        if at > self._run_end:
            self._run_end, self._refused = _end_of(_RUN, self._text, at), 0
        self._refused += 1
        if self._refused == MAX_REFUSED:
            at = max(at, self._run_end - MAX_REST)
        return self.next_from(at)

    def next_from(self, at: int) -> int:
        """Return the next place from a place on; the end of the text when there is none."""
        while True:
            while at < self._word_end:
                search, end = self._search_inside(at)
                if (place := search(at)) < end:
                    return place
                at = end
            at = self._next_any(at)
            if not is_inside_word(self._text, at):
                return at
            self._word_end = _end_of(_WORD, self._text, at)

    def _search_inside(self, at: int) -> tuple[NextPlace, int]:
        """Return what to search with inside a word, and up to where."""
        if at < self.opened:
            return self._next_opened, min(self._word_end, self.opened)
        return self._next_inside, self._word_end


def _search_once(find: Callable[[], NextPlace | None], end: int) -> NextPlace:
    """Return a function to the next place from a place on; the end when there is none. Each place
    asked about must be behind the one before, so that nothing is searched for twice.
    """
    next_place: NextPlace | None = None
    place = -1

    def search(at: int) -> int:
        nonlocal next_place, place
        if place < at:
            next_place = next_place or find() or _find_none
            place = next_place(at)
            place = end if place < 0 else place
        return place

    return search


def _find_none(_at: int) -> int:
    return -1


_WORD = re.compile(r"[A-Za-z0-9]*")
_RUN = re.compile(r"[^\s\"'`&,;|<\\\x00-\x1f\x7f-\U0010ffff]*")


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    assert found is not None
    return found.end()


def _sizes(words: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the lengths of words by their first character, the longest first."""
    made: dict[str, set[int]] = {}
    for word in words:
        made.setdefault(word[0], set()).add(len(word))
    return {first: tuple(sorted(sizes, reverse=True)) for first, sizes in made.items()}


def merge(found: list[Detection], others: Sequence[Detection]) -> list[Detection]:
    """Return both lists in order. What overlaps becomes one finding, of the first list's kind."""
    if not others:
        return found
    made: list[Detection] = []
    kinds = {(each.start, each.end) for each in found}
    for each in sorted((*found, *others), key=lambda each: each.start):
        last = made[-1] if made else None
        if last is None or last.end <= each.start:
            made.append(each)
            continue
        kind = each.kind if (each.start, each.end) in kinds else last.kind
        made[-1] = Detection(kind, last.start, max(last.end, each.end))
    return made


# --- Carriers -------------------------------------------------------------------------------------

# Base64 of ASCII text: the highest bit of each byte is 0, so half of the characters cannot stand in
# the first, second and third place of four. Hashes and images hardly ever begin so.
_CARRIER_FOUR = r"[A-Za-f][0-3A-HQ-Xg-nw-z][014589ABEFIJMNQRUVYZcdghklopstwx][A-Za-z0-9+/_-]"
_CARRIER_HEAD = f"(?:{_CARRIER_FOUR}){{4}}"
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


def _decode_percent(run: str) -> tuple[str, Callable[[int], int]] | None:
    """Return percent-encoded text decoded, and a function from places in it to those in the
    original.
    """
    escapes = [found.start() - 2 * n for n, found in enumerate(_PERCENT.finditer(run))]
    if not escapes:
        return None
    return unquote(run, "latin-1"), lambda at: at + 2 * bisect_left(escapes, at)


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

    ``words`` are the literals that it begins with, if it begins with one. ``inside`` says whether
    it may begin at a letter or digit behind another.
    """

    words: tuple[str, ...]
    head: str
    look: Looker
    loose: bool = False
    inside: bool = True


def form_row(form: Form) -> Row:
    """Return the row of a vendor's form."""

    def look(text: str, at: int) -> Match | None:
        span = form.match(text, at)
        return None if span is None else (form.kind, span)

    return Row((form.anchor,), form.head, look, inside=form.is_found_inside)


def _pattern_row(row: TextPattern) -> Row:
    check = _CHECKS[row.check]

    def look(text: str, at: int) -> Match | None:
        if text[at].isalnum() and not is_boundary(text, at):
            return None
        near = at + MAX_FLAG_DISTANCE
        if row.flags and all(text.find(flag, at, near) < 0 for flag in row.flags):
            return None
        found = compile_once(row.pattern).match(text, at)
        if found is None:
            return None
        named = (found.span(name) for name in ("v", "w", "x") if found.groupdict().get(name))
        start, end = next(named, found.span())
        if not check(text[start : min(end, start + MAX_JUDGED_CONTEXT)]):
            return None
        rest = compile_once(row.rest).match(text, end)
        return row.kind, (start, rest.end() if rest else end)

    return Row(row.hints, row.head, look, loose=True, inside=False)


def _is_not_wordy(value: str) -> bool:
    return not (is_wordy(value) or values.is_reference(value)) and values.is_filled_in(value)


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
        Row(values.FLAG_HINTS, values.FLAG_HEAD, values.find_by_name, loose=True, inside=False),
    ]


@lru_cache(maxsize=1)
def secret_detector() -> Detector:
    """Return the detector of the built-in secrets, made on first use."""
    return Detector(secret_rows(), carriers=True)
