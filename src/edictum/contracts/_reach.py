"""Find which tools a contract can reach, by name or glob, with a bound on the comparisons.

A glob has to be compared with every name, so a bundle with thousands of both would take minutes to
load. When ``MAX_COMPARISONS`` are used up the answer is None: unknown. Suggesting a name for a
misspelt one has a bound of its own; when it is used up nothing more is suggested.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

from edictum.contracts._problems import suggest

MAX_COMPARISONS = 100_000
# A guess costs the characters of a name times those of all names: about 0.1 s for each million.
MAX_GUESSING = 4_000_000
SIMILARITY = 0.8  # of 1, from which one name is taken for a misspelling of the other


def is_glob(name: str) -> bool:
    return any(sign in name for sign in "*?[")


class Names:
    """A set of names and globs."""

    def __init__(self, names: Iterable[str]) -> None:
        self.all = frozenset(names)
        self.globs = tuple(name for name in self.all if is_glob(name))


class Reach:
    """Compares the names of one bundle."""

    def __init__(self) -> None:
        self.left = MAX_COMPARISONS

    def meet(self, tools: Sequence[str], names: Names) -> bool | None:
        """Return whether a tool can have one of the names, globs included; None if unknown."""
        if not names.all.isdisjoint(tools):
            return True
        globs = [tool for tool in tools if is_glob(tool)]
        self.left -= len(globs) * len(names.all) + len(tools) * len(names.globs)
        if self.left < 0:
            return None
        return any(fnmatch.fnmatchcase(name, glob) for glob in globs for name in names.all) or any(
            fnmatch.fnmatchcase(tool, glob) for tool in tools for glob in names.globs
        )


class Guesses:
    """Suggests a listed name for one that is not listed."""

    def __init__(self, listed: Names) -> None:
        self._listed = listed
        self._names = sorted(listed.all - set(listed.globs))
        self._length = sum(map(len, listed.all))
        self._left = MAX_GUESSING
        self._made: dict[str, str] = {}

    def of(self, tool: str) -> str:
        """Return a sentence that suggests a name; "" for a listed name, a glob, or no match."""
        if tool in self._listed.all or is_glob(tool):
            return ""
        if tool not in self._made:
            self._made[tool] = self._guess(tool)
        return self._made[tool]

    def _guess(self, tool: str) -> str:
        self._left -= len(tool) * self._length
        if self._left < 0 or any(fnmatch.fnmatchcase(tool, glob) for glob in self._listed.globs):
            return ""
        return suggest(tool, self._names, SIMILARITY)
