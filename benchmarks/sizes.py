"""Print how many bytes sessions and calls take in each store, with the default settings.

``make sizes``. Each store gets SESSIONS sessions with one call each, and then ten more calls in
each of them: the first tells what a session takes, the second what a further call adds. A guard's
local events, which are bounded, are not part of it.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from edictum import Edictum, OperationLimits
from support.servers import NoServer, Postgres, Valkey

SESSIONS, CALLS = 1_000, 10
Measure = Callable[[], int]
LIMITS = OperationLimits(max_tool_calls=1_000, max_calls_per_tool={"search": 500})


@contextmanager
def measure_memory() -> Iterator[tuple[str, Measure]]:
    tracemalloc.start()

    def read() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    try:
        yield "memory:", read
    finally:
        tracemalloc.stop()


@contextmanager
def measure_sqlite() -> Iterator[tuple[str, Measure]]:
    """Measure the file with its log written back."""
    import sqlite3

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sessions.db"

        def read() -> int:
            db = sqlite3.connect(path)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.close()
            return path.stat().st_size

        yield f"sqlite:///{path}", read


@contextmanager
def measure_valkey() -> Iterator[tuple[str, Measure]]:
    """Measure what the server itself says that its data take."""
    import redis

    server = Valkey(durable=False)
    try:
        with redis.Redis.from_url(server.url) as client:
            yield server.url, lambda: int(client.info("memory")["used_memory_dataset"])
    finally:
        server.stop()


@contextmanager
def measure_postgres() -> Iterator[tuple[str, Measure]]:
    """Measure tables and indexes, with the room of old rows given back."""
    import asyncpg

    server = Postgres(durable=False)
    sum_up = (
        "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class"
        " WHERE relkind = 'r' AND relnamespace = 'edictum'::regnamespace"
    )

    async def ask() -> int:
        db = await asyncpg.connect(server.url)
        try:
            await db.execute("VACUUM FULL")
            return int(await db.fetchval(sum_up))
        finally:
            await db.close()

    try:
        yield server.url, lambda: asyncio.run(ask())
    finally:
        server.stop()


STORES: dict[str, Any] = {
    "memory": measure_memory,
    "SQLite": measure_sqlite,
    "Valkey": measure_valkey,
    "PostgreSQL": measure_postgres,
}


def measure(url: str, read: Measure) -> tuple[float, float]:
    """Return the bytes that a session with one call takes, and those that a further call adds."""
    guard = Edictum(limits=LIMITS, backend=url, local_events=0)

    def call(session: str) -> Any:
        return guard.run_sync("search", {}, lambda: "found", session_id=session)

    for number in range(20):
        call(f"before-{number}")
    empty = read()
    for number in range(SESSIONS):
        call(f"session-{number:06}")
    begun = read()
    for number in range(SESSIONS):
        for _ in range(CALLS):
            call(f"session-{number:06}")
    used = read()
    asyncio.run(guard.close())
    return (begun - empty) / SESSIONS, (used - begun) / SESSIONS / CALLS


def main() -> None:
    print("| store | bytes per session with one call | bytes per further call |")
    print("|---|---|---|")
    for name, prepare in STORES.items():
        try:
            with prepare() as (url, read):
                session, call = measure(url, read)
        except NoServer as missing:
            print(f"| {name} | not measured: {missing} | |")
        else:
            print(f"| {name} | {session:,.0f} | {call:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
