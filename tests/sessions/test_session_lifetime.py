"""How long sessions are kept, and how they are listed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from store_helpers import unique

from edictum import Edictum, OperationLimits, ToolDenied
from edictum.core.limits import Account, Metric
from edictum.core.scopes import scope_key
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


# --- Child sessions, seen by another process --------------------------------------------------------


def test_a_child_that_is_used_is_found_elsewhere(shared_url: str, opened: Any) -> None:
    """Fail if only its first use says where a child is kept."""
    child, root = unique("child"), unique("root")
    between, rate = f"{child} above", (limit_rate(Metric.EXECUTIONS, 100, 60),)
    book = Book(opened(shared_url, ttl_s=TTL_S))
    for number in range(12):
        assert book.run(str(number), bounds=rate, sid=child, parents=(between, root))
        time.sleep(TTL_S / 3)
    elsewhere = Book(opened(shared_url, ttl_s=TTL_S))
    assert [elsewhere.totals(it)[1] for it in (child, between, root)] == [12, 12, 12]


@pytest.mark.parametrize("lease_s", [0.5, 100.0, None])
def test_a_child_with_a_call_in_flight_is_found_elsewhere(
    shared_url: str, opened: Any, lease_s: float | None
) -> None:
    child, root = unique("busy child"), unique("root")
    book = Book(opened(shared_url, ttl_s=TTL_S))
    assert book.reserve("a", sid=child, lease_s=lease_s, parents=(root,)).granted
    for _ in range(6):
        time.sleep(TTL_S / 2)
        if lease_s == 0.5:  # renewed
            assert book.renew("a", 100, sid=child)
    elsewhere = Book(opened(shared_url, ttl_s=TTL_S))
    assert [elsewhere.totals(it)[-1] for it in (child, root)] == [1, 1]
    assert elsewhere.reserve("b", sid=child, lease_s=1).counters.in_flight == 2


def test_a_child_is_found_elsewhere_while_a_window_looks_back(shared_url: str, opened: Any) -> None:
    child, rate = unique("rated child"), (limit_rate(Metric.EXECUTIONS, 1, 60),)
    book = Book(opened(shared_url, ttl_s=TTL_S))
    assert book.run("a", bounds=rate, sid=child, parents=(unique("root"),))
    time.sleep(TTL_S * 3)
    assert Book(opened(shared_url, ttl_s=TTL_S)).totals(child)[1] == 1


def test_what_says_where_a_child_is_kept_is_forgotten(valkey_url: str, opened: Any) -> None:
    import redis

    child = unique("short child")
    book = Book(opened(valkey_url, ttl_s=TTL_S))
    assert book.run("a", sid=child, parents=(unique("root"),), lease_s=0.5)
    client = redis.Redis.from_url(valkey_url.replace("valkey", "redis", 1))
    assert client.keys(f"*h:{child}")
    time.sleep(TTL_S * 2.5)
    assert not client.keys(f"*h:{child}")


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


# --- The default, and what outlives it ------------------------------------------------------------

DAY_S = 86_400
WEEK_S = 7 * DAY_S


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def open_both(directory: Path, clock: Clock, **options: Any) -> list[Any]:
    """The ledgers that take a clock."""
    sqlite = SqliteStore(directory / f"{time.time_ns()}.db", clock=clock, **options)
    return [MemoryLedger(clock=clock, **options), RemoteLedger(sqlite)]


def test_a_session_lives_for_a_day_by_default(tmp_path: Path) -> None:
    clock = Clock()
    for ledger in open_both(tmp_path, clock):
        book, bounds = Book(ledger), limits(max_tool_calls=1)
        assert book.run("a", bounds=bounds)
        clock.now += DAY_S - 1
        assert not book.run("b", bounds=bounds)
        clock.now += DAY_S + 1
        assert book.run("c", bounds=bounds)


def test_a_session_lives_for_good_without_a_lifetime(tmp_path: Path) -> None:
    clock = Clock()
    for ledger in open_both(tmp_path, clock, ttl_s=None):
        book, bounds = Book(ledger), limits(max_tool_calls=1)
        assert book.run("a", bounds=bounds)
        clock.now += 1_000 * DAY_S
        assert not book.run("b", bounds=bounds)


def test_a_window_of_a_week_keeps_its_account_for_a_week(tmp_path: Path) -> None:
    """Fail if "10 per person and week" starts again after a day without calls."""
    clock, key = Clock(), scope_key("principal", "alice")
    for ledger in open_both(tmp_path, clock):
        book = Book(ledger)
        weekly = (limit_rate(Metric.EXECUTIONS, 1, WEEK_S),)
        scopes = (Account(key, ("", "t"), weekly),)
        assert book.run("a", bounds=weekly, accounts=scopes)
        clock.now += 3 * DAY_S
        book.run("b", sid="another")  # a time to look for old ones
        assert len(book.reserve("c", weekly, accounts=scopes).breaches) == 2
        clock.now += WEEK_S + 1
        assert book.run("d", bounds=weekly, accounts=scopes)


def test_a_window_keeps_its_account_in_every_store(url: str, opened: Any) -> None:
    book, used = Book(opened(url, ttl_s=TTL_S)), unique("rated")
    rate = (limit_rate(Metric.EXECUTIONS, 1, 60),)
    assert book.run("a", bounds=rate, sid=used)
    time.sleep(TTL_S * 1.5)
    assert not book.run("b", bounds=rate, sid=used)


def test_the_default_of_a_server_is_a_day(valkey_url: str, postgres_url: str, opened: Any) -> None:
    import asyncpg
    import redis

    name = unique("default")
    for url in (valkey_url, postgres_url):
        assert Book(opened(url)).run("a", sid=name)
    with redis.Redis.from_url(valkey_url) as client:
        left_ms = client.pttl(f"edictum:{{{name}}}:h:{name}")
        assert DAY_S - 60 < left_ms / 1_000 <= DAY_S
    older = "UPDATE edictum.session SET touched = touched - $1 WHERE sid = $2"
    db = PORTAL.run(asyncpg.connect(postgres_url))
    for seconds, executions in ((DAY_S - 60, 2), (DAY_S + 60, 1)):
        PORTAL.run(db.execute(older, seconds * 1_000_000, name))
        book = Book(opened(postgres_url))
        assert book.run("b", sid=name)
        assert book.totals(name)[1] == executions
    PORTAL.run(db.close())


def test_a_url_switches_the_lifetime_off(valkey_url: str, opened: Any) -> None:
    import redis

    for number, (url, options) in enumerate(
        ((f"{valkey_url}?ttl=none", {}), (f"{valkey_url}?ttl=5", {"ttl_s": None}))
    ):
        name = unique(f"for good {number}")
        assert Book(opened(url, **options)).run("a", sid=name)
        with redis.Redis.from_url(valkey_url) as client:
            assert client.pttl(f"edictum:{{{name}}}:h:{name}") == -1


def test_a_bundle_switches_the_lifetime_off() -> None:
    head = "apiVersion: edictum/v1\nkind: ContractBundle\nmetadata: {name: b}\n"
    lifetimes = {"none": None, "2h": 7_200.0}
    for ttl, seconds in lifetimes.items():
        bundle = f"{head}defaults: {{mode: enforce}}\nsession: {{ttl: {ttl}}}\n"
        ledger: Any = Edictum.from_yaml_string(bundle).backend
        assert ledger._ttl_s == seconds


def test_memory_does_not_grow_with_sessions_that_are_over() -> None:
    clock = Clock()
    ledger = MemoryLedger(clock=clock, ttl_s=10)
    book = Book(ledger)
    for number in range(5_000):
        clock.now += 0.1
        book.run("a", sid=f"session {number}")
    assert len(ledger.sessions(limit=10_000)) < 300  # a hundred are young


def test_sessions_that_are_reset_and_used_again_do_not_add_up() -> None:
    ledger = MemoryLedger()
    book = Book(ledger)
    for _ in range(1_000):
        book.run("a")
        book.reset()
    assert len(ledger._to_sweep) < 10


def test_a_long_call_keeps_its_session_alive_on_the_fast_path() -> None:
    """Fail if a session is forgotten right after a call that took longer than its lifetime."""
    ledger = MemoryLedger(ttl_s=1.2)
    guard = Edictum(limits=OperationLimits(max_tool_calls=2), backend=ledger)
    for body in (lambda: 1, lambda: time.sleep(1.5)):
        guard.run_sync("work", {}, body, session_id="s")
    assert isinstance(guard.dispatch_sync("work", {}, lambda: 1, session_id="s"), ToolDenied)
