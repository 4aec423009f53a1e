"""Records: the library's own small values."""

from __future__ import annotations

from edictum.core._records import replace
from edictum.core.limits import Counters


def test_a_record_shows_its_fields() -> None:
    """For people who print one while they look for a fault."""
    assert repr(Counters(attempts=2)).startswith("Counters(attempts=2, executions=0, ")


def test_a_copy_differs_only_where_it_was_changed() -> None:
    """The original stays as it was."""
    first = Counters(attempts=2)
    second = replace(first, executions=1)
    assert (first.executions, second.attempts, second.executions) == (0, 2, 1)
