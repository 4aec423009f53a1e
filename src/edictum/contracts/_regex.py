r"""Regular expressions that run in linear time: google-re2, with the syntax of Python's ``re``.

A pattern is translated before RE2 sees it:

* ``\d \w \s`` and their opposites stand for Unicode classes, inside and outside brackets;
* ``$`` also matches before a last newline; ``\Z`` is the end of the text; ``{,3}`` is ``{0,3}``;
* ``\uXXXX``, ``\UXXXXXXXX``, ``\N{NAME}`` and ``(?#comment)`` work.

What RE2 cannot do (look-around, back-references, atomic groups, possessive repetition,
conditionals, verbose mode, repetition above 1,000) is refused by name. ``\b`` and ``\B`` look at
ASCII letters only; next to another letter they are refused, where they would be silently wrong.

This is the only module that knows RE2. Without it patterns are refused, never run by another
engine.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from edictum.contracts._problems import missing_packages

try:
    import re2
except ImportError:
    re2 = None

MAX_REPEAT = 1_000
MAX_NESTED = 201
MAX_PATTERN_STEPS = 1_500_000  # 0.6 s and 100 MB on the machine where this was measured
MAX_STEPS = 5_000_000  # of all patterns of a bundle, and some for each of its characters
STEPS_PER_CHARACTER = 4
OPTIONAL_STEPS = 150  # for an optional part
MAX_PROGRAM_MEMORY = 64 << 20
_SMALLER = r"Use smaller counts, '*' or '+', or [A-Za-z0-9_] instead of \w; or split the bundle."

# The members of each class, as they are written inside brackets.
_SPACE = (
    r"\t-\r\x{1c}-\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}"
    r"\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
)
_NOT_SPACE = (
    r"\x{0}-\x{8}\x{e}-\x{1b}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}"
    r"\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff}"
)
_MEMBERS = {"d": r"\p{Nd}", "D": r"\P{Nd}", "w": r"\p{L}\p{N}_", "s": _SPACE, "S": _NOT_SPACE}
# About how many steps the engine takes for one.
_WEIGHTS = {"w": 1_350, "W": 1_350, "d": 90, "D": 90, "s": 30, "S": 30}
_GROUPS = {
    "(?=": "look-ahead",
    "(?!": "negative look-ahead",
    "(?<=": "look-behind",
    "(?<!": "negative look-behind",
    "(?P=": "a back-reference",
    "(?>": "an atomic group",
    "(?(": "a conditional",
}
_FLAGS = re.compile(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")
_REPEAT = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_PLAIN = re.compile(r"[^\\.^$*+?{}\[\]|()]+")
_HEX = {"x": 2, "u": 4, "U": 8}
_HEX_DIGITS = {digits: re.compile(rf"\\.[0-9a-fA-F]{{{digits}}}") for digits in _HEX.values()}
_BRACED_HEX = re.compile(r"\\x\{[0-9a-fA-F]{1,6}\}")
_OCTAL = re.compile(r"\\0[0-7]{0,2}")
_CLASS_NAME = re.compile(r"\\[pP](?:\{\^?\w+\}|\w)")
_CHARACTER_NAME = re.compile(r"\\N\{([^}]*)\}")
_POSIX = re.compile(r"\[:\^?\w+:\]")


class PatternError(ValueError):
    """A pattern that cannot be used; ``hint`` says what to write instead."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class _Translation:
    """Writes a pattern in RE2's syntax; raises PatternError for what RE2 does not have."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.out: list[str] = []
        self.last = ""  # the kind of the token before: "repeat", "boundary", or ""
        # Its size once compiled, in steps of the engine. The engine writes repetitions out, so
        # `(...){1000}` costs a thousand times what stands in it before the engine can refuse.
        self.size = 0
        self.groups: list[int] = [0]  # the sizes of the open groups, the outermost first
        self.atom = 0  # the size of what a repetition would repeat
        self.weight = 1  # the size of the token at hand

    def run(self) -> str:
        while self.at < len(self.pattern):
            self.weight = 1
            kind = self._step()
            if kind != "comment":
                self.last = kind
            if kind in ("", "letter", "end", "boundary"):
                self.atom = 0
                self._grow(self.weight)
        return "".join(self.out)

    def _step(self) -> str:
        char = self.pattern[self.at]
        if read := {"\\": self._escape, "[": self._brackets, "(": self._group}.get(char):
            return read()
        if char in "*+?" or (char == "{" and _REPEAT.match(self.pattern, self.at)):
            return self._repeat()
        if char == "$":
            self._take(char, r"(?:$|\n\z)")
            return "end"
        if self.last == "boundary":
            self._check_boundary(char)
        self._take(char)
        if char == ")":
            self._close()
            return "close"
        return "" if char.isascii() else "letter"

    def _open(self) -> None:
        self.groups.append(0)
        if len(self.groups) > MAX_NESTED:
            message = f"groups are nested more than {MAX_NESTED - 1} deep"
            raise PatternError(message, "Flatten the pattern.")

    def _close(self) -> None:
        self.atom = self.groups.pop() if len(self.groups) > 1 else 0
        self.groups[-1] += self.atom

    def _grow(self, by: int) -> None:
        self.size += by
        self.groups[-1] += by
        self.atom += by
        self._check_size(self.size)

    def _check_size(self, size: int) -> None:
        if size > MAX_PATTERN_STEPS:
            raise PatternError("the pattern is too large", _SMALLER)

    def _take(self, text: str, output: str | None = None) -> None:
        self.at += len(text)
        self.out.append(text if output is None else output)

    def _escape(self) -> str:
        char = self.pattern[self.at + 1 : self.at + 2]
        if not char:
            raise PatternError("the pattern ends in a lone backslash", r"Write \\ for a backslash.")
        if char in _MEMBERS or char == "W":
            self._take("\\" + char, r"[^\p{L}\p{N}_]" if char == "W" else f"[{_MEMBERS[char]}]")
            self.weight = _WEIGHTS[char]
            return ""
        if char in "bB":
            if self.last == "letter":
                self._check_boundary(self.pattern[self.at - 1])
            self._take("\\" + char)
            return "boundary"
        if char in "123456789":
            hint = "Back-references cannot be matched in linear time."
            raise PatternError(f"the back-reference \\{char} is not supported", hint)
        if char in "CQE":
            hint = "Write the characters themselves, escaped where needed."
            raise PatternError(f"\\{char} is not supported", hint)
        text, output = self._character(char)
        self._take(text, output)
        return ""

    def _character(self, char: str) -> tuple[str, str]:
        """Return the text of an escape for one character, class or end, and RE2's form of it."""
        pattern, at = self.pattern, self.at
        if char in _HEX:
            return _hex_escape(pattern, at, _HEX[char])
        if char == "N":
            return _translate_named_escape(pattern, at)
        if char == "Z":
            return "\\Z", r"\z"
        if char == "0":
            octal = _OCTAL.match(pattern, at)
            assert octal is not None
            return octal.group(), f"\\x{{{int(octal.group()[1:], 8):x}}}"
        if char == "p" or char == "P":
            found = _CLASS_NAME.match(pattern, at)
            if found is None:
                raise PatternError(f"\\{char} needs a class name", r"Write for example \p{Greek}.")
            self.weight += _WEIGHTS["w"]
            return found.group(), found.group()
        return "\\" + char, char if not char.isascii() or char == "_" else "\\" + char

    def _brackets(self) -> str:
        """Translate a character class, member by member."""
        self.at += 1
        negated = self.pattern.startswith("^", self.at)
        self.at += negated
        members: list[str] = []
        while True:
            char = self.pattern[self.at : self.at + 1]
            if not char:
                raise PatternError("a character class is not closed", "Add the missing ']'.")
            if char == "]" and members:
                self.at += 1
                break
            members.append(self._member(char))
            self._check_size(self.size + self.weight)
        self.out.append(f"[{'^' if negated else ''}{''.join(members)}]")
        return ""

    def _member(self, char: str) -> str:
        self.weight += 1
        if char == "\\":
            return self._read_escaped_member()
        if posix := _POSIX.match(self.pattern, self.at):
            self.at = posix.end()
            return posix.group()
        self.at += 1
        return "\\" + char if char in "[]&~" else char

    def _read_escaped_member(self) -> str:
        following = self.pattern[self.at + 1 : self.at + 2]
        if following in _MEMBERS or following == "W":
            self.at += 2
            self.weight += _WEIGHTS[following]
            return _not_word() if following == "W" else _MEMBERS[following]
        if following == "b":
            self.at += 2
            return r"\x{8}"
        if following == "" or following in "BAZz123456789CQE":
            message = f"\\{following} is not allowed inside a character class"
            raise PatternError(message, "Remove it.")
        text, output = self._character(following)
        self.at += len(text)
        return output

    def _group(self) -> str:
        rest = self.pattern[self.at : self.at + 4]
        for opening, name in _GROUPS.items():
            if rest.startswith(opening):
                hint = "It cannot be matched in linear time; use all/any/not instead."
                raise PatternError(f"{name} '{opening}...)' is not supported", hint)
        if rest.startswith("(?#"):
            end = self.pattern.find(")", self.at)
            if end < 0:
                raise PatternError("a comment is not closed", "Add the missing ')'.")
            self.at = end + 1
            return "comment"
        flags = _FLAGS.match(self.pattern, self.at)
        if flags is None:
            self._take("(")
            self._open()
            return "open"
        return self._flags(flags)

    def _flags(self, flags: re.Match[str]) -> str:
        for flag in flags.group(1) + (flags.group(2) or ""):
            if flag not in "imsu":
                message = f"the flag '{flag}' in '{flags.group()}' is not supported"
                raise PatternError(message, "Supported flags are i, m and s.")
        on, off = flags.group(1).replace("u", ""), (flags.group(2) or "").replace("u", "")
        if not on and not off:
            self._take(flags.group(), "(?:" if flags.group(3) == ":" else "")
        else:
            self._take(flags.group(), f"(?{on}{'-' + off if off else ''}{flags.group(3)}")
        if flags.group(3) == ":":
            self._open()
        return "open"

    def _repeat(self) -> str:
        found = _REPEAT.match(self.pattern, self.at)
        text = found.group() if found else self.pattern[self.at]
        if self.last == "repeat" and text == "+":
            message = "possessive repetition '+' after a repetition is not supported"
            raise PatternError(message, "Remove the second '+'.")
        if found and not found.group(1) and found.group(2) is None:  # {} is two braces
            self._take("{", r"\{")
            return ""
        if found:
            self._repeat_by_count(found)
        else:
            self._grow(OPTIONAL_STEPS)
            self._take(text)
        # `a*?` is lazy, not a repetition of a repetition
        return "lazy" if self.last == "repeat" and text == "?" else "repeat"

    def _repeat_by_count(self, found: re.Match[str]) -> None:
        low, high = found.group(1), found.group(2)
        least, most = _count(low), _count(low if high is None else high)
        if max(least, most) > MAX_REPEAT:
            hint = f"Use at most {MAX_REPEAT:,}, or '*' or '+'."
            raise PatternError(f"the repetition {found.group():.40} is above {MAX_REPEAT:,}", hint)
        optional = OPTIONAL_STEPS * max(0, most - least, high == "")
        self._grow(self.atom * max(0, least - 1, most - 1) + optional)
        counts = low or "0" if high is None else f"{low or '0'},{high}"
        self._take(found.group(), f"{{{counts}}}")

    def _check_boundary(self, char: str) -> None:
        if not char.isascii():
            message = f"\\b next to {char!r} is not supported: it knows ASCII letters only"
            raise PatternError(message, r"Write (?:^|[^\w]) before and (?:[^\w]|$) after the word.")


def _count(digits: str) -> int:
    """Return a number of repetitions. One of more than four digits is refused: it is too large, and
    slow to convert.
    """
    stripped = digits.lstrip("0")
    return MAX_REPEAT + 1 if len(stripped) > 4 else int(stripped or "0")


def _hex_escape(pattern: str, at: int, digits: int) -> tuple[str, str]:
    form = _BRACED_HEX if pattern.startswith("\\x{", at) else _HEX_DIGITS[digits]
    found = form.match(pattern, at)
    if found is None:
        sign = pattern[at : at + 2]
        hint = f"Write for example {sign}{'0' * (digits - 2)}e9."
        raise PatternError(f"{sign} needs {digits} hexadecimal digits", hint)
    code = int(found.group()[2:].strip("{}"), 16)
    if code > 0x10FFFF:
        raise PatternError(f"{found.group()} is not a character", "The highest is 10ffff.")
    return found.group(), f"\\x{{{code:x}}}"


def _translate_named_escape(pattern: str, at: int) -> tuple[str, str]:
    found = _CHARACTER_NAME.match(pattern, at)
    try:
        if found is None:
            raise KeyError
        return found.group(), f"\\x{{{ord(unicodedata.lookup(found.group(1))):x}}}"
    except KeyError:
        hint = r"Write for example \N{EM DASH}."
        raise PatternError(r"\N needs the name of a character", hint) from None


@lru_cache(maxsize=1)
def _not_word() -> str:
    r"""Return the members of ``\W`` as ranges: RE2 has no complement of classes in brackets."""
    word = re.compile(r"\w")
    ranges: list[list[int]] = []
    for code in range(0x110000):
        if not word.match(chr(code)):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in ranges)


# --- Likely mistakes ------------------------------------------------------------------------------

_DOUBLED = re.compile(r"(?<!\\)(?:\\\\)+([bBdDsSwW.()\[\]{}*+?^$|/-])")
_DOUBLED_REFERENCE = re.compile(r"(?<!\\)(?:\\\\)+([1-9])")
_CERTAIN = re.compile(r"(?<!\\)(?:\\\\)+(?:[dDsSwW](?=[+*?{])|b(?![A-Za-z0-9_.\\]))")


def find_doubled_backslash(pattern: str) -> tuple[str, bool] | None:
    """Return a doubled backslash where an escape was probably meant, and whether it is certain."""
    certain = _CERTAIN.search(pattern)
    found = certain or _DOUBLED.search(pattern)
    if found is None and "(" in pattern:
        found = _DOUBLED_REFERENCE.search(pattern)
    return (found.group(), certain is not None) if found else None


# --- Patterns -------------------------------------------------------------------------------------


def has_engine() -> bool:
    """Return whether RE2 is installed."""
    return re2 is not None


def require_engine() -> None:
    """Raise EdictumConfigError when RE2 is not installed."""
    if re2 is None:
        raise missing_packages()


def _options() -> Any:
    require_engine()
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_PROGRAM_MEMORY
    return options


_INSIDE_CHARACTER = frozenset(bytes([byte]) for byte in range(0x80, 0xC0))


def _encode(text: str) -> bytes:
    """Encode text for RE2. A lone surrogate becomes '?', so that the rest is still searched."""
    return text.encode("utf-8", "replace")


class Pattern:
    """One compiled pattern."""

    __slots__ = ("_engine", "literal", "size", "source", "translated")

    def __init__(self, source: str) -> None:
        self.source = source
        self.literal = source if _PLAIN.fullmatch(source) else None
        translation = _Translation(source)
        self.translated = translation.run()
        self.size = translation.size
        try:
            self._engine = re2.compile(self.translated, _options())
        except re2.error as exc:
            hint = "See the list of supported syntax in docs/reference/language.md."
            raise PatternError(f"not a valid pattern: {self._problem(exc)}", hint) from exc

    def _problem(self, error: Exception) -> str:
        """Return the engine's error without the engine's own form of the pattern."""
        detail = error.args[0] if error.args else ""
        text = detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
        what, _, quoted = text.partition(": ")
        return text if quoted in self.source and quoted != self.source else what

    def search(self, text: str) -> bool:
        if self.literal is not None:
            return self.literal in text
        return self._engine.search(_encode(text)) is not None

    @property
    def steps(self) -> int:
        """The size of the compiled pattern in steps of the engine."""
        return max(self.size, int(self._engine.programsize))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return where it matches, from left to right."""
        found = self._engine.finditer(_encode(text).decode())
        return [match.span() for match in found if match.end() > match.start()]

    def replace(self, text: str, show: Callable[[str], str]) -> str:
        """Return the text with every match replaced by what is shown of it.

        The engine counts bytes. Given text it would count characters, which takes longer than the
        search when there are many matches.
        """
        encoded, parts, end = _encode(text), [], 0
        for match in self._engine.finditer(encoded):
            start, after = match.span()
            if start == after and encoded[start : start + 1] in _INSIDE_CHARACTER:
                continue
            shown = show(encoded[start:after].decode("utf-8", "replace"))
            parts += [encoded[end:start], shown.encode()]
            end = after
        return b"".join([*parts, encoded[end:]]).decode("utf-8", "replace")


class PatternBudget:
    r"""Bounds the patterns of one bundle together: ``\w{900}`` alone takes a million steps."""

    def __init__(self, characters: int = 0) -> None:
        self.most = self.left = MAX_STEPS + characters * STEPS_PER_CHARACTER
        self.seen: set[str] = set()

    def compile(self, source: str) -> Pattern | None:
        """Return the pattern; None once the budget is used up, which was reported."""
        if self.left < 0:
            return None
        pattern = compile_pattern(source)
        if source not in self.seen:
            self.seen.add(source)
            self.left -= pattern.steps
        if self.left < 0:
            message = "with it the patterns of this bundle are too large together"
            raise PatternError(f"{message} (more than {self.most:,} steps)", _SMALLER)
        return pattern


compile_pattern = lru_cache(maxsize=4_096)(Pattern)


class PatternSet:
    """Many patterns searched in one pass over the text."""

    __slots__ = ("_match", "_patterns")

    def __init__(self, patterns: Sequence[str]) -> None:
        engine = re2.Set.SearchSet(_options())
        # Pattern 0 matches at the end of every text. Without it among the hits the engine has given
        # up, which must not look like "no match". (One that matches everywhere is noted at every
        # byte, which takes longer than the search.)
        for pattern in (r"\z", *(compile_pattern(source).translated for source in patterns)):
            engine.Add(pattern)
        self._patterns = tuple(patterns)
        self._match: Callable[[bytes], list[int] | None] = lambda _text: []
        with suppress(re2.error):  # too large for one engine
            engine.Compile()
            self._match = engine.Match

    def hits(self, text: str) -> frozenset[int]:
        """Return the numbers of the patterns that match, counted from 1, and 0."""
        found = self._match(_encode(text))
        if found and 0 in found:
            return frozenset(found)
        # The engine would need more memory than it may use: one pattern after the other.
        numbered = enumerate(self._patterns, 1)
        matching = (number for number, source in numbered if compile_pattern(source).search(text))
        return frozenset({0, *matching})

    def any(self, text: str) -> bool:
        return len(self.hits(text)) > 1


pattern_set = lru_cache(maxsize=512)(PatternSet)


# --- Places in a text -----------------------------------------------------------------------------

SHORT = 4_096  # characters; in longer texts the first place is searched for at once


def make_place_finder(patterns: Sequence[str]) -> Callable[[str], Callable[[int], int] | None]:
    """Return a function that finds where one of many patterns begins, in one pass over a text: it
    returns a function to the next place from a place on, or -1; None: there are none.

    Patterns are RE2's, for ASCII text. Every other character stands as one '?', so that places are
    those of the text.
    """
    options = _options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    whole = "|".join(patterns).encode()
    search = re2.compile(whole, options).search
    engine = re2.Set.SearchSet(options)
    engine.Add(whole)
    engine.Add(rb"\z")  # as in PatternSet
    engine.Compile()
    match = engine.Match

    def find(text: str, /) -> Callable[[int], int] | None:
        data = text.encode("ascii", "replace")
        if len(data) <= SHORT and match(data) == [1]:
            return None
        return _search_from(search, data)

    return find


def _search_from(search: Callable[[bytes, int], Any], data: bytes) -> Callable[[int], int]:
    def next_place(at: int) -> int:
        found = search(data, at)
        return -1 if found is None else int(found.start())

    return next_place
