"""Two processes, each with 50 coroutines and 20 threads, on one session: what ran is exactly what
the limits allow.

Bodies keep a log of their own, so the counters are compared with what happened and not with
themselves.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from edictum.core.limits import Reservation, SessionSnapshot, Settlement
from edictum.execution.portal import PORTAL
from edictum.sessions import open as open_ledger

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("worker.py")
PROCESSES, COROUTINES, EACH, THREADS, EACH_THREAD = 2, 50, 20, 20, 25
ATTEMPTS = PROCESSES * (COROUTINES * EACH + THREADS * EACH_THREAD)
LIMIT = 500


@pytest.fixture(params=["sqlite", "valkey", "postgres"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/sessions.db?wait=20"
    url = request.getfixturevalue(f"{request.param}_url")
    return f"{url}?wait=20"


def hammer(
    backend: str, tmp_path: Path, **config: Any
) -> tuple[Counter[str], Counter[str], SessionSnapshot]:
    """Run the workers; what bodies logged, what callers were told, and what the store counted."""
    session, log = f"contention {tmp_path.name}", tmp_path / "log"
    config |= {"backend": backend, "log": str(log), "session": session}
    config |= {
        "coroutines": COROUTINES,
        "each": EACH,
        "threads": THREADS,
        "each_thread": EACH_THREAD,
    }
    workers = [
        subprocess.Popen([sys.executable, str(WORKER), json.dumps(config)], stdout=subprocess.PIPE)
        for _ in range(PROCESSES)
    ]
    told: Counter[str] = Counter()
    for worker in workers:
        out, _ = worker.communicate(timeout=120)
        assert worker.returncode == 0
        told += Counter(json.loads(out))
    logged = Counter(line.split()[0] for line in log.read_text().splitlines())
    ledger = open_ledger(backend)
    snapshot = PORTAL.run(ledger.snapshot(session))  # type: ignore[arg-type]
    PORTAL.run(ledger.close())  # type: ignore[attr-defined]
    return logged, told, snapshot


def test_exactly_the_limit_runs(backend: str, tmp_path: Path) -> None:
    logged, told, snapshot = hammer(backend, tmp_path, limits={"max_tool_calls": LIMIT})
    assert logged == {"start": LIMIT, "success": LIMIT}
    assert told == {"ToolExecutionResult": LIMIT, "limit": ATTEMPTS - LIMIT}
    totals = snapshot.totals
    assert (totals.attempts, totals.executions, totals.successes, totals.in_flight) == (
        ATTEMPTS,
        LIMIT,
        LIMIT,
        0,
    )


def test_exactly_the_limit_runs_with_failures_cancellations_and_denials(
    backend: str, tmp_path: Path
) -> None:
    logged, told, snapshot = hammer(backend, tmp_path, limits={"max_tool_calls": LIMIT}, mixed=True)
    totals = snapshot.totals
    assert logged["start"] == LIMIT
    assert (totals.attempts, totals.executions, totals.in_flight) == (ATTEMPTS, LIMIT, 0)
    assert (totals.successes, totals.failures) == (logged["success"], LIMIT - logged["success"])
    assert told["contract"] == ATTEMPTS // 20
    assert told["policy_error"] == 0
    assert logged["failure"] == told["ToolFailure"] > 0


def test_exactly_so_many_succeed(backend: str, tmp_path: Path) -> None:
    logged, told, snapshot = hammer(backend, tmp_path, limits={"max_successes": 300}, mixed=True)
    totals = snapshot.totals
    assert (logged["success"], totals.successes, told["ToolExecutionResult"]) == (300, 300, 300)
    assert (totals.attempts, totals.executions, totals.in_flight) == (ATTEMPTS, logged["start"], 0)
    assert told["policy_error"] == 0


def test_exactly_so_many_run_in_a_window(backend: str, tmp_path: Path) -> None:
    logged, told, snapshot = hammer(backend, tmp_path, window=LIMIT, mixed=True)
    totals = snapshot.totals
    assert (logged["start"], totals.executions, totals.in_flight) == (LIMIT, LIMIT, 0)
    assert (totals.attempts, told["policy_error"]) == (ATTEMPTS, 0)


async def test_batches_that_touch_the_same_sessions_do_not_deadlock(postgres_url: str) -> None:
    """Two processes' batches take the same sessions, children and parents, in opposite orders."""
    import asyncpg

    ledgers: list[Any] = [open_ledger(f"{postgres_url}?wait=20") for _ in range(3)]

    async def agent(who: int) -> int:
        done = 0
        for number in range(6):
            step, back = (who * 7 + number * 3) % 5, (who * 3 + number) % 5
            sid, parents = (
                f"deadlock {step}",
                tuple(f"deadlock {it}" for it in {back, (back + 1) % 5} - {step}),
            )
            call, ledger = f"{who}-{number}", ledgers[who % 3]
            await ledger.reserve(Reservation(sid, call, ("", "t"), (), lease_s=60, parents=parents))
            await ledger.renew(sid, call, 60)
            await ledger.settle(Settlement(sid, call, ("", "t"), (), "success", parents=parents))
            done += 1
        return done

    assert sum(await asyncio.gather(*(agent(who) for who in range(60)))) == 360
    for ledger in ledgers:
        await ledger.close()
    db = await asyncpg.connect(postgres_url)
    assert (
        await db.fetchval(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        == 0
    )
    await db.close()
