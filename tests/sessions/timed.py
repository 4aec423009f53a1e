"""Ledgers whose time the test moves: by their clock where they take one, else by making all that
they keep older.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from edictum.execution.portal import PORTAL
from edictum.sessions import MemoryLedger
from edictum.sessions import open as open_ledger
from edictum.sessions._postgres_schema import SessionSchema
from edictum.sessions._redis import RedisStore
from edictum.sessions._remote_ledger import RemoteLedger
from edictum.sessions._sqlite import SqliteStore
from edictum.testing import LedgerConformance
from edictum.testing.ledger import Book
from support.effort import effort

WAIT_S = 20
OLDER_LEASE_S = 60.0  # longer than a test takes: only the test lets leases and windows run out
MILLION = 1_000_000


def make_older(url: str, prefix: str, seconds: float) -> None:
    """Let time pass for the leases of sessions whose names begin so, in the store of a URL."""
    kinds = {"sqlite": older_in_sqlite, "redis": older_in_redis, "postgresql": older_in_postgres}
    with kinds[url.partition(":")[0]](url) as advance:
        advance(prefix, seconds)


class TimedBook:
    """A ledger, a way to let time pass for the sessions whose names begin so, and how many long
    walks are worth their time.
    """

    def __init__(self, ledger: Any, advance: Callable[[str, float], None], walks: int) -> None:
        self.book = Book(ledger)
        self.advance = advance
        self.walks = walks


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, prefix: str, seconds: float) -> None:
        self.now += seconds


@contextmanager
def open_timed(kind: str, server_url: Callable[[str], str], directory: Path) -> Iterator[TimedBook]:
    if kind == "memory":
        yield TimedBook(
            MemoryLedger(clock=(clock := Clock())), clock.advance, walks=effort(100, soak=1_000)
        )
        return
    if kind == "sqlite":
        clock = Clock()
        ledger: Any = RemoteLedger(SqliteStore(directory / "s.db", clock=clock), wait_s=WAIT_S)
        yield TimedBook(ledger, clock.advance, walks=effort(10, soak=100))
    else:
        url = server_url(f"{kind}_url")
        ledger = open_ledger(url, wait_s=WAIT_S)
        with (older_in_redis if kind == "valkey" else older_in_postgres)(url) as advance:
            yield TimedBook(ledger, advance, walks=effort(6, soak=50))
    PORTAL.run(ledger.close())


@contextmanager
def older_in_sqlite(url: str) -> Iterator[Callable[[str, float], None]]:
    """Only leases are made older."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as db:

        def advance(prefix: str, seconds: float) -> None:
            change = "UPDATE lease SET started = started - ?1, expires = expires - ?1"
            db.execute(f"{change} WHERE sid LIKE ?2", (seconds, f"%{prefix}%"))

        yield advance


@contextmanager
def older_in_redis(url: str) -> Iterator[Callable[[str, float], None]]:
    """See the head of ``common.lua`` for what is kept: when leases end, when calls began, the
    moments that windows look at.
    """
    import redis

    with redis.Redis.from_url(url, decode_responses=True) as client:

        def advance(prefix: str, seconds: float) -> None:
            by = round(seconds * MILLION)
            for name in client.scan_iter(match=f"edictum:{{*{prefix}*", count=1_000):
                kind = name.split("}:", 1)[1][0]
                if kind in "lm":
                    client.zadd(
                        name,
                        {
                            member: score - by
                            for member, score in client.zrange(name, 0, -1, withscores=True)
                        },
                    )
                elif kind == "d":
                    for call, detail in client.hgetall(name).items():
                        started, rest = detail.split("\x1f", 1)
                        client.hset(name, call, f"{int(started) - by}\x1f{rest}")

        yield advance


def empty_postgres(url: str, schema: str) -> None:
    """Forget all sessions of a schema, if it is there. One for each test would slow down the server
    processes behind a pooler, which remember the functions of every schema they have seen.
    """
    import asyncpg

    async def empty() -> None:
        db = await asyncpg.connect(url)
        try:
            if await db.fetchval("SELECT to_regclass($1)", f"{schema}.session"):
                deletes = (f"DELETE FROM {schema}.{table};" for table in SessionSchema.tables)
                await db.execute("".join(deletes))
        finally:
            await db.close()

    PORTAL.run(empty())


@contextmanager
def older_in_postgres(url: str, schema: str = "edictum") -> Iterator[Callable[[str, float], None]]:
    import asyncpg

    db = PORTAL.run(asyncpg.connect(url, server_settings={"search_path": schema}))

    def advance(prefix: str, seconds: float) -> None:
        by = round(seconds * MILLION)
        for change in (
            "lease SET started = started - $1, expires = expires - $1",
            "moment SET at = at - $1",
        ):
            PORTAL.run(db.execute(f"UPDATE {change} WHERE sid LIKE $2", by, f"%{prefix}%"))

    yield advance
    PORTAL.run(db.close())


class OnValkey(LedgerConformance):
    """The conformance suite on an empty Valkey, whose time the test moves."""

    lease_s = OLDER_LEASE_S

    @pytest.fixture(autouse=True)
    def _server(self, valkey_url: str) -> None:
        self.url = valkey_url

    def make_ledger(self) -> Any:
        import redis

        with redis.Redis.from_url(self.url) as client:
            client.flushdb()
        return RemoteLedger(RedisStore(self.url))

    def advance(self, seconds: float) -> None:
        with older_in_redis(self.url) as advance:
            advance("", seconds)
