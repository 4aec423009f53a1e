"""What a session store costs: reserve + settle, one at a time and many at once, next to two bare
round trips of the same server.

    python benchmarks/bench_sessions.py

Servers are started from the test wheels, on the loopback, in temporary directories. Figures of one
machine mean little; the ratios in one run mean more. "bare" is two of the cheapest requests that
the server makes durable: what no ledger can go below while it asks once before a call and once
after it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from edictum.core.limits import OperationLimits, Reservation, Settlement
from edictum.sessions import MemoryLedger
from edictum.sessions._batching import MAX_BATCH
from edictum.sessions._remote_ledger import RemoteLedger

AT_ONCE = 100
SESSIONS = 20
SECONDS = 1.5
SLICES = 5
SCOPES = ("", "work")
LIMITS = OperationLimits(
    max_attempts=10**9, max_tool_calls=10**9, max_calls_per_tool={"work": 10**9}
).compile()


Make = Callable[[int], Any]
Request = Callable[[], Any]


@dataclass
class Figures:
    """Latencies of whole calls in microseconds, calls per second, and CPU time per call."""

    latencies: list[float]
    per_s: float
    cpu_us: float = 0.0

    @property
    def p50(self) -> float:
        return statistics.median(self.latencies)

    @property
    def p99(self) -> float:
        return sorted(self.latencies)[int(len(self.latencies) * 0.99)]


async def _answer(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else value


async def _calls(ledger: Any, who: int, until: float, latencies: list[float]) -> None:
    number = 0
    while time.perf_counter() < until:
        number += 1
        sid, call = f"bench {os.getpid()} {(who + number) % SESSIONS}", f"{who}-{number}"
        started = time.perf_counter()
        await _answer(ledger.reserve(Reservation(sid, call, SCOPES, LIMITS, lease_s=60.0)))
        await _answer(ledger.settle(Settlement(sid, call, SCOPES, LIMITS, "success")))
        latencies.append((time.perf_counter() - started) * 1e6)


async def _measure(ledger: Any, at_once: int, seconds: float) -> Figures:
    latencies: list[float] = []
    await _calls(ledger, 0, time.perf_counter() + 0.2, [])
    started, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(
        *(_calls(ledger, who, started + seconds, latencies) for who in range(at_once))
    )
    calls, took_s = len(latencies), time.perf_counter() - started
    return Figures(latencies, calls / took_s, (time.process_time() - cpu) / calls * 1e6)


def measure(make: Make, at_once: int, max_batch: int, seconds: float = SECONDS) -> Figures:
    async def run() -> Figures:
        ledger = make(max_batch)
        try:
            return await _measure(ledger, at_once, seconds)
        finally:
            if hasattr(ledger, "close"):
                await ledger.close()

    return asyncio.run(run())


def bare(request: Request, seconds: float) -> Figures:
    """Two requests, one after the other, again and again."""
    latencies: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        started = time.perf_counter()
        request()
        request()
        latencies.append((time.perf_counter() - started) * 1e6)
    return Figures(latencies, len(latencies) / seconds)


def in_turns(make: Make, request: Request) -> tuple[list[Figures], list[Figures]]:
    """Bare pairs of requests and single calls, slice by slice: the disk of a shared machine is fast
    now and slow in a moment.
    """
    pairs = [
        (bare(request, SECONDS / SLICES), measure(make, 1, MAX_BATCH, SECONDS / SLICES))
        for _ in range(SLICES)
    ]
    return [raw for raw, _ in pairs], [alone for _, alone in pairs]


@contextmanager
def _sqlite() -> Iterator[tuple[Make, Request]]:
    from edictum.sessions._sqlite import SqliteStore

    with tempfile.TemporaryDirectory() as folder:
        db = sqlite3.connect(f"{folder}/bare.db", isolation_level=None)
        db.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (n); INSERT INTO"
            " t VALUES (0)"
        )
        try:
            yield (
                lambda size: RemoteLedger(SqliteStore(f"{folder}/s.db"), wait_s=20, max_batch=size),
                lambda: db.execute("UPDATE t SET n = n + 1"),
            )
        finally:
            db.close()


@contextmanager
def _valkey() -> Iterator[tuple[Make, Request]]:
    import redis

    from edictum.sessions._redis import RedisStore
    from support.servers import Valkey

    server = Valkey()
    try:
        with redis.Redis.from_url(server.url) as client:
            yield (
                lambda size: RemoteLedger(RedisStore(server.url), wait_s=20, max_batch=size),
                lambda: client.incr("bare"),
            )
    finally:
        server.stop()


@contextmanager
def _postgres() -> Iterator[tuple[Make, Request]]:
    import asyncpg

    from edictum.sessions._postgres import PostgresStore
    from support.servers import Postgres

    server = Postgres()
    loop = asyncio.new_event_loop()
    try:
        db = loop.run_until_complete(asyncpg.connect(server.url))
        loop.run_until_complete(
            db.execute("CREATE TABLE bare (n bigint); INSERT INTO bare VALUES (0)")
        )
        update = lambda: loop.run_until_complete(db.execute("UPDATE bare SET n = n + 1"))  # noqa: E731 - as its siblings above
        yield (
            lambda size: RemoteLedger(PostgresStore(server.url), wait_s=20, max_batch=size),
            update,
        )
        loop.run_until_complete(db.close())
    finally:
        loop.close()
        server.stop()


LOADED = "calls/s  CPU us  p50 / p99 ms"
STORES = {"SQLite (WAL, FULL)": _sqlite, "Valkey (AOF always)": _valkey, "PostgreSQL": _postgres}


def main() -> None:
    print(
        f"Session stores: one call = reserve + settle. {AT_ONCE} at once over {SESSIONS} sessions,"
        f" one process, {SECONDS} s each.\n"
    )
    loaded = f"{'at once, unbatched':>31}{'at once, batched':>31}{'gain':>6}{'x bare':>8}"
    print(f"{'store':<21}{'bare 2 trips':>15}{'one at a time':>24}{'ratio':>7}{loaded}")
    print(f"{'':<21}{'p50 us':>15}{'p50 / p99 us':>24}{'':>7}{LOADED:>31}{LOADED:>31}")
    memory = measure(lambda _: MemoryLedger(), 1, MAX_BATCH)
    print(f"{'memory':<21}{'-':>15}{f'{memory.p50:.1f} / {memory.p99:.1f}':>24}")
    for name, open_store in STORES.items():
        with open_store() as (make, request):
            raw, alone = in_turns(make, request)
            single, many = measure(make, AT_ONCE, 1), measure(make, AT_ONCE, MAX_BATCH)
        print(_row(name, raw, alone, single, many))
    print(
        "\nBare pairs and single calls take turns; ratio: the median of one call against two bare"
        " round trips right before it."
    )
    print("gain: batched against unbatched. x bare: batched calls/s against bare pairs/s.")


def _row(
    name: str, raw: list[Figures], alone: list[Figures], single: Figures, many: Figures
) -> str:
    ratio = statistics.median(
        ours.p50 / theirs.p50 for ours, theirs in zip(alone, raw, strict=True)
    )
    pairs_per_s = statistics.median(it.per_s for it in raw)
    alone_text = f"{_middle(alone, 'p50'):.0f} / {_middle(alone, 'p99'):.0f}"
    return (
        f"{name:<21}{_middle(raw, 'p50'):>15.0f}{alone_text:>24}{ratio:>6.1f}x"
        f"{_loaded(single):>31}{_loaded(many):>31}{many.per_s / single.per_s:>5.1f}x{many.per_s / pairs_per_s:>7.1f}x"
    )


def _middle(slices: list[Figures], name: str) -> float:
    return statistics.median(getattr(it, name) for it in slices)


def _loaded(figures: Figures) -> str:
    return f"{figures.per_s:.0f}  {figures.cpu_us:.0f}  {figures.p50 / 1e3:.1f} / {figures.p99 / 1e3:.1f}"


if __name__ == "__main__":
    main()
