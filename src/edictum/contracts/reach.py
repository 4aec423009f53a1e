"""Which tools a contract can reach: names and globs compared, with a bound on how often.

Names are looked up. A glob has to be compared with every name, so a bundle with thousands of both
would take minutes to load. When ``MAX_COMPARISONS`` are used up the answer is None: it cannot be
told. Looking for the name that was meant by a misspelt one has a bound of its own, and when that is
used up nothing more is suggested.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

from edictum.contracts.problems import closest

MAX_COMPARISONS = 100_000
# characters of a name times those of all names: what a guess costs, about 0.1 s for each million
MAX_GUESSING = 4_000_000
NEAR = 0.8  # how alike two names are, of 1, when one is taken for a slip of the other


def is_glob(name: str) -> bool:
    return any(sign in name for sign in "*?[")


class Names:
    """Names among which there may be globs."""

    def __init__(self, names: Iterable[str]) -> None:
        self.all = frozenset(names)
        self.globs = tuple(name for name in self.all if is_glob(name))


class Reach:
    """Answers about one bundle."""

    def __init__(self) -> None:
        self.left = MAX_COMPARISONS

    def meet(self, tools: Sequence[str], names: Names) -> bool | None:
        """Whether a name and a tool can be the same; a glob on either side stands for all that it
        matches.
        """
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
    """Which of the listed names a name that is not listed was meant to be. Each name is looked for
    once.
    """

    def __init__(self, listed: Names) -> None:
        self._listed = listed
        self._names = sorted(listed.all - set(listed.globs))
        self._length = sum(map(len, listed.all))
        self._left = MAX_GUESSING
        self._made: dict[str, str] = {}

    def of(self, tool: str) -> str:
        """A sentence that suggests a name; "" for a name that is listed, for a glob, and when
        nothing is near.
        """
        if tool in self._listed.all or is_glob(tool):
            return ""
        if tool not in self._made:
            self._made[tool] = self._guess(tool)
        return self._made[tool]

    def _guess(self, tool: str) -> str:
        self._left -= len(tool) * self._length
        if self._left < 0 or any(fnmatch.fnmatchcase(tool, glob) for glob in self._listed.globs):
            return ""
        return closest(tool, self._names, NEAR)
