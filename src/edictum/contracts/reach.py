"""Which tools a contract can reach: names and globs compared, with a bound on how often.

Names are looked up. A glob has to be compared with every name, so a bundle with thousands of both would take minutes to load. When
``MAX_COMPARISONS`` are used up the answer is None: it cannot be told.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

MAX_COMPARISONS = 100_000


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
        """Whether a name and a tool can be the same; a glob on either side stands for all that it matches."""
        if not names.all.isdisjoint(tools):
            return True
        globs = [tool for tool in tools if is_glob(tool)]
        self.left -= len(globs) * len(names.all) + len(tools) * len(names.globs)
        if self.left < 0:
            return None
        return any(fnmatch.fnmatchcase(name, glob) for glob in globs for name in names.all) or any(
            fnmatch.fnmatchcase(tool, glob) for tool in tools for glob in names.globs
        )
