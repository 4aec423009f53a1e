"""How long sessions are kept, and how they are listed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from store_helpers import unique

from edictum.core.limits import Metric
from edictum.execution.portal import PORTAL
from edictum.sessions import MemoryLedger
from edictum.sessions._remote_ledger import RemoteLedger
from edictum.sessions._sqlite import SqliteStore
from edictum.testing.ledger import Book, limit_rate, limits
from support.waiting import wait_until

TTL_S = 0.8  # long enough for two operations on a busy machine


def test_the_time_of_the_store_passes(url: str, opened: Any) -> None:
    """The conformance suite makes what servers keep older; here the clock itself ends a lease and a
    window.
    """
    book, bounds = Book(opened(url)), limits(max_tool_calls=1)
    held, rated = unique("held"), unique("rated")
    assert book.reserve("a", bounds, sid=held, lease_s=0.3).granted
    wait_until(lambda: book.reserve("b", bounds, sid=held).granted)
    rate = (limit_rate(Metric.EXECUTIONS, 1, 0.3),)
    assert book.run("a", "success", rate, sid=rated)
    wait_until(lambda: book.run("b", "success", rate, sid=rated))


def test_a_session_is_forgotten_after_its_time_to_live(url: str, opened: Any) -> None:
    book, bounds = Book(opened(url, ttl_s=TTL_S)), limits(max_tool_calls=1)
    used = unique("used")
    assert book.run("a", "success", bounds, sid=used)
    time.sleep(TTL_S * 1.3)
    assert book.run("b", "success", bounds, sid=used)


def test_being_used_keeps_a_session(url: str, opened: Any) -> None:
    """Refused attempts are use, too: an agent that keeps trying must not be let off after a
    while.
    """
    book, bounds = Book(opened(url, ttl_s=3.0)), limits(max_tool_calls=1)
    used = unique("kept")
    assert book.run("a", "success", bounds, sid=used)
    for _ in range(2):
        time.sleep(1.6)
        assert not book.run("b", "success", bounds, sid=used)


def test_a_call_in_flight_keeps_its_session(tmp_path: Path) -> None:
    now = [1_000.0]
    for ledger in (
        MemoryLedger(clock=lambda: now[0], ttl_s=10),
        RemoteLedger(SqliteStore(tmp_path / "s.db", ttl_s=10, clock=lambda: now[0])),
    ):
        book = Book(ledger)
        book.reserve("a", lease_s=100)
        now[0] += 50
        book.run("b", sid="another")
        assert book.totals() == (1, 0, 0, 0, 0, 1)
        now[0] += 200
        book.run("c", sid="another")
        book.run("d")
        assert book.totals() == (1, 1, 1, 0, 0, 0)
        if isinstance(ledger, RemoteLedger):
            PORTAL.run(ledger.close())


@pytest.mark.parametrize("lease_s", [100.0, None])
def test_a_call_in_flight_keeps_its_session_everywhere(
    url: str, opened: Any, lease_s: float | None
) -> None:
    book, bounds = Book(opened(url, ttl_s=TTL_S)), limits(max_tool_calls=1)
    used = unique("in flight")
    assert book.reserve("a", bounds, sid=used, lease_s=lease_s).granted
    time.sleep(TTL_S * 1.3)
    assert not book.reserve("b", bounds, sid=used, lease_s=lease_s).granted
    book.settle("a", "success", bounds, sid=used)
    assert not book.reserve("c", bounds, sid=used).granted
    time.sleep(TTL_S * 1.3)  # nothing is in flight any more
    assert book.reserve("d", bounds, sid=used).granted


def test_a_renewed_lease_keeps_its_session(url: str, opened: Any) -> None:
    book, bounds = Book(opened(url, ttl_s=TTL_S)), limits(max_tool_calls=1)
    used = unique("renewed")
    assert book.reserve("a", bounds, sid=used, lease_s=60, parents=(f"{used} above",)).granted
    assert book.renew("a", 100, sid=used)
    time.sleep(TTL_S * 1.3)
    assert not book.reserve("b", bounds, sid=f"{used} above").granted
    assert not book.reserve("b", bounds, sid=used, parents=(f"{used} above",)).granted


def test_a_look_does_not_keep_a_session(tmp_path: Path) -> None:
    now = [1_000.0]
    for ledger in (
        MemoryLedger(clock=lambda: now[0], ttl_s=10),
        RemoteLedger(SqliteStore(tmp_path / "s.db", ttl_s=10, clock=lambda: now[0])),
    ):
        book, bounds = Book(ledger), limits(max_tool_calls=1)
        assert book.run("a", "success", bounds)
        now[0] += 8
        assert not book.reserve("look", bounds, count_attempt=False, hold=False).granted
        now[0] += 8
        assert book.reserve(
            "look", bounds, count_attempt=False, hold=False
        ).granted  # as a call would be: it is forgotten by now
        assert book.run("b", "success", bounds)
        if isinstance(ledger, RemoteLedger):
            PORTAL.run(ledger.close())


def test_sessions_are_listed_with_their_counters(url: str, opened: Any) -> None:
    ledger = opened(url)
    book, names = Book(ledger), [unique(f"listed {number}") for number in range(3)]
    for name in names:
        book.run("a", sid=name)
        time.sleep(0.002)
    listed = PORTAL.run(ledger.sessions(limit=3)) if url != "memory:" else ledger.sessions(limit=3)
    assert [snapshot.session_id for snapshot in listed] == names[::-1]
    assert [snapshot.totals.executions for snapshot in listed] == [1, 1, 1]
