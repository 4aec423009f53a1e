"""A circuit breaker with a window against its plain definition: of the failures since the last
success, those inside the window.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edictum.core.limits import Limit, Metric, windows_of
from edictum.sessions import MemoryLedger
from edictum.sessions._remote_ledger import RemoteLedger
from edictum.sessions._sqlite import SqliteStore
from edictum.testing.ledger import Book, limit_rate
from support.effort import effort

MAXIMA = st.integers(1, 4)
WINDOWS = st.sampled_from([5.0, 10.0, 1_000.0])
# How long nothing happens, whether the call knows the breaker's neighbours too, and how it ends.
CALLS = st.tuples(
    st.sampled_from([0.0, 1.0, 4.0, 9.0]),
    st.booleans(),
    st.sampled_from(["success", "failure", "failure", "release"]),
)


def in_the_row(past: list[tuple[float, str]], now: float, window_s: float) -> int:
    """The definition."""
    row: list[float] = []
    for at, result in past:
        row = [] if result == "success" else [*row, at]
    return sum(at > now - window_s for at in row)


def memory(clock: Callable[[], float], _: Path) -> Any:
    return MemoryLedger(clock=clock)


def sqlite(clock: Callable[[], float], directory: Path) -> Any:
    return RemoteLedger(SqliteStore(directory / "s.db", clock=clock))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("make", "examples"), [(memory, effort(100, soak=2_000)), (sqlite, effort(10, soak=200))]
)
def test_a_breaker_counts_what_its_definition_counts(
    make: Callable[..., Any], examples: int
) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(MAXIMA, WINDOWS, st.lists(CALLS, max_size=20))
    def holds(maximum: int, window_s: float, calls: list[tuple[float, bool, Any]]) -> None:
        with TemporaryDirectory() as directory:
            now = [1_000.0]
            book = Book(make(lambda: now[0], Path(directory)))
            breaker = limit_rate(Metric.CONSECUTIVE_FAILURES, maximum, window_s)
            neighbour = Limit(name="n", metric=Metric.FAILURES, maximum=100, window_s=7.0)
            past: list[tuple[float, str]] = []
            for number, (pause, together, result) in enumerate(calls):
                now[0] += pause
                grant = book.reserve(str(number), (breaker, neighbour) if together else (breaker,))
                row = in_the_row(past, now[0], window_s)
                assert grant.granted is (row < maximum)
                assert [breach.used for breach in grant.breaches] == (
                    [] if row < maximum else [row]
                )
                if grant.granted:
                    book.settle(str(number), result, (breaker,))
                    past += [(now[0], result)] if result != "release" else []
            if hasattr(book.ledger, "close"):
                book._now(book.ledger.close())

    holds()


def test_a_breaker_looks_at_the_moments_of_failures() -> None:
    """It keeps none of its own: what a neighbour with a larger maximum keeps is enough for both."""
    breaker, failures = (
        limit_rate(Metric.CONSECUTIVE_FAILURES, 3, 60.0),
        limit_rate(Metric.FAILURES, 9, 30.0),
    )
    kept = [
        [(it.tool, it.counter, it.keep, it.span_s) for it in windows_of(limits)]
        for limits in ((breaker,), (breaker, failures))
    ]
    assert kept == [[("", "failures", 4, 60.0)], [("", "failures", 10, 60.0)]]
