"""The engine of the search: RE2 where it is installed."""

from __future__ import annotations

from functools import lru_cache

from edictum._logs import REDACTION_ENGINE, log
from edictum._optional import name_extra
from edictum.core.secret_scan import Finder, Heads, WordFinder


def make_finder(heads: Heads) -> Finder:
    """Return a finder that uses RE2, or one of plain Python, which is slower."""
    from edictum.contracts import _regex  # imports RE2: on first use only

    if not _regex.has_engine():
        _say_that_it_is_missing()
        return WordFinder(heads)
    return _regex.make_place_finder(heads.patterns)


@lru_cache(maxsize=1)
def _say_that_it_is_missing() -> None:
    log(
        REDACTION_ENGINE,
        "google-re2 is not installed: secrets are searched for with Python's own means, which takes"
        " longer in long texts. %s",
        name_extra("yaml"),
    )
