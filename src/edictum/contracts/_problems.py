"""Problems of a bundle: all are collected, each with its place, before any is raised."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NoReturn

from edictum._optional import name_extra
from edictum.core.redaction import shorten
from edictum.errors import EdictumConfigError

# What YAML counts as the end of a line; str.splitlines knows more of them.
_LINE_END = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
MAX_SHOWN_LINE = 160
MAX_SHOWN_PROBLEMS = 100
MAX_PROBLEM_TEXT = 1_000
MAX_GUESSED = 100
MAX_LISTED = 50

Level = Literal["shape", "meaning", "warning"]  # "shape": the JSON Schema sees it too


class Source:
    """The text that a bundle was read from, and the name by which people know it."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text

    @cached_property
    def lines(self) -> list[str]:
        return _LINE_END.split(self.text)

    def excerpt(self, line: int, column: int) -> str:
        """Return the line with a caret under the column; long lines are cut around it."""
        if not 1 <= line <= len(self.lines):
            return ""
        text = self.lines[line - 1]
        start = max(0, column - MAX_SHOWN_LINE // 2) if len(text) > MAX_SHOWN_LINE else 0
        cut = text[start : start + MAX_SHOWN_LINE].replace("\t", " ")
        printable = "".join(char if char.isprintable() else "?" for char in cut)
        return f"{line:>5} | {printable}\n{' ' * 5} | {' ' * (column - 1 - start)}^"


@dataclass(frozen=True, slots=True)
class BundleProblem:
    """One thing that is wrong; with the level "warning" the bundle still loads."""

    source: Source = field(repr=False)
    line: int
    column: int
    message: str
    hint: str = ""
    level: Level = "meaning"

    @property
    def file(self) -> str:
        return self.source.name

    @property
    def excerpt(self) -> str:
        """Made on use: of half a million problems, a hundred are shown."""
        return self.source.excerpt(self.line, self.column)

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def __str__(self) -> str:
        hint = f"  {self.hint}" if self.hint else ""
        parts = (f"{self.where}: {self.message}", self.excerpt, hint)
        return "\n".join(part for part in parts if part)


class BundleError(EdictumConfigError):
    """A bundle cannot be used. ``problems`` has all of its errors, in the order of the text."""

    def __init__(self, problems: Sequence[BundleProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__(_report(self.problems))
        self.hint = self.problems[0].hint if self.problems else ""


def _report(problems: Sequence[BundleProblem]) -> str:
    if len(problems) == 1:
        return str(problems[0])
    shown = [str(problem) for problem in problems[:MAX_SHOWN_PROBLEMS]]
    if len(problems) > MAX_SHOWN_PROBLEMS:
        shown.append(f"... and {len(problems) - MAX_SHOWN_PROBLEMS} more")
    return f"{len(problems)} problems:\n\n" + "\n\n".join(shown)


def missing_packages() -> EdictumConfigError:
    return EdictumConfigError(
        "YAML contracts need the packages PyYAML and google-re2.",
        hint=name_extra("yaml"),
    )


@dataclass(slots=True, eq=False)
class Place:
    """Anything with a line and a column, counted from 1."""

    line: int
    column: int
    written: Place | None = field(default=None, kw_only=True)  # where an alias' text stands


class Problems:
    """Collects the problems of one source."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._found: dict[tuple[Level, int, int, str], BundleProblem] = {}

    @property
    def found(self) -> list[BundleProblem]:
        return list(self._found.values())

    def add(self, place: Place, message: str, hint: str = "", level: Level = "meaning") -> None:
        """Add a problem, once: what an anchor names is read for each of its aliases."""
        if level == "warning":
            place = place.written or place
        problem = self._make(place, message, hint, level)
        self._found.setdefault((level, place.line, place.column, problem.message), problem)

    def _make(self, place: Place, message: str, hint: str, level: Level) -> BundleProblem:
        message, hint = shorten(message, MAX_PROBLEM_TEXT), shorten(hint, MAX_PROBLEM_TEXT)
        return BundleProblem(self.source, place.line, place.column, message, hint, level)

    def make_warning(self, place: Place, message: str, hint: str) -> BundleProblem:
        """Return a warning that is issued only when all layers are known."""
        return self._make(place, message, hint, "warning")

    def shape(self, place: Place, message: str, hint: str = "") -> None:
        self.add(place, message, hint, "shape")

    def warn(self, place: Place, message: str, hint: str = "") -> None:
        self.add(place, message, hint, "warning")

    def stop(self, place: Place, message: str, hint: str) -> NoReturn:
        """Add a problem after which nothing can be read, and raise all problems."""
        self.shape(place, message, hint)
        raise BundleError(self.errors)

    @property
    def errors(self) -> list[BundleProblem]:
        errors = (problem for problem in self._found.values() if problem.level != "warning")
        return sorted(errors, key=lambda problem: (problem.line, problem.column))

    @property
    def warnings(self) -> list[BundleProblem]:
        return [problem for problem in self._found.values() if problem.level == "warning"]

    def raise_if_any(self) -> None:
        if errors := self.errors:
            raise BundleError(errors)


def suggest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a sentence that suggests the nearest known word, or ""."""
    if len(word) > MAX_GUESSED:  # not a typo, and slow to compare
        return ""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"Did you mean '{near[0]}'? " if near else ""


def quote_pattern(pattern: str) -> str:
    """Return a pattern in quotes as it was written, on one line."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in pattern[:80])
    return f"'{shown}'"


def join_words(words: Iterable[str]) -> str:
    """Return the words separated by commas, bounded."""
    every = list(words)
    more = f" and {len(every) - MAX_LISTED} more" if len(every) > MAX_LISTED else ""
    return ", ".join(every[:MAX_LISTED]) + more
