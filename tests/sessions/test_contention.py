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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edictum.core.limits import Account, Counters, Reservation, Settlement
from edictum.execution.portal import PORTAL
from edictum.sessions import open as open_ledger
from edictum.testing.ledger import as_tuple

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("worker.py")
PROCESSES, COROUTINES, EACH, THREADS, EACH_THREAD = 2, 50, 20, 20, 25
ATTEMPTS = PROCESSES * (COROUTINES * EACH + THREADS * EACH_THREAD)
LIMIT = 500
TOOLS = ("", "t")


@pytest.fixture
def backend(shared_url: str) -> str:
    return f"{shared_url}?wait=20"


@dataclass
class Hammered:
    """What bodies logged, what callers were told, what the store counted, and how many asked."""

    logged: Counter[str]
    told: Counter[str]
    totals: Counters
    attempts: int


def hammer(backend: str, tmp_path: Path, *, mixed: bool = False, **config: Any) -> Hammered:
    """Run the workers at once; then, if some of their calls gave slots back, fill those up.

    A call that fails or is cancelled holds its slot while others are refused. The workers may have
    no attempts left when it gives the slot back, so only then is the limit surely reached.
    """
    session, log = f"contention {tmp_path.name}", tmp_path / "log"
    config |= {"backend": backend, "log": str(log), "session": session, "mixed": mixed}
    counts = {"coroutines": COROUTINES, "each": EACH, "threads": THREADS}
    told = work(PROCESSES, {**config, **counts, "each_thread": EACH_THREAD})
    filled = Counter[str]()
    if mixed:
        filled = work(1, {**config, "coroutines": 0, "threads": 0, "fill": True})
    logged = Counter(line.split()[0] for line in log.read_text().splitlines())
    ledger: Any = open_ledger(backend)
    totals = PORTAL.run(ledger.snapshot(session)).totals
    PORTAL.run(ledger.close())
    return Hammered(logged, told + filled, totals, ATTEMPTS + filled.total())


def work(processes: int, config: dict[str, Any]) -> Counter[str]:
    """Run so many workers; return what their callers were told."""
    command = [sys.executable, str(WORKER), json.dumps(config)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(processes)]
    told: Counter[str] = Counter()
    for worker in workers:
        out, _ = worker.communicate(timeout=120)
        assert worker.returncode == 0
        told += Counter(json.loads(out))
    return told


def test_exactly_the_limit_runs(backend: str, tmp_path: Path) -> None:
    done = hammer(backend, tmp_path, limits={"max_tool_calls": LIMIT})
    assert done.logged == {"start": LIMIT, "success": LIMIT}
    assert done.told == {"ToolExecutionResult": LIMIT, "limit": ATTEMPTS - LIMIT}
    assert as_tuple(done.totals) == (ATTEMPTS, LIMIT, LIMIT, 0, 0, 0)


def test_exactly_the_limit_runs_with_failures_cancellations_and_denials(
    backend: str, tmp_path: Path
) -> None:
    done = hammer(backend, tmp_path, limits={"max_tool_calls": LIMIT}, mixed=True)
    logged, told, totals = done.logged, done.told, done.totals
    assert logged["start"] == LIMIT
    assert (totals.attempts, totals.executions, totals.in_flight) == (done.attempts, LIMIT, 0)
    assert (totals.successes, totals.failures) == (logged["success"], LIMIT - logged["success"])
    assert told["contract"] == ATTEMPTS // 20
    assert told["policy_error"] == 0
    assert logged["failure"] == told["ToolFailure"] > 0


def test_exactly_so_many_succeed(backend: str, tmp_path: Path) -> None:
    done = hammer(backend, tmp_path, limits={"max_successes": 300}, mixed=True)
    logged, told, totals = done.logged, done.told, done.totals
    assert (logged["success"], totals.successes, told["ToolExecutionResult"]) == (300, 300, 300)
    assert (totals.attempts, totals.executions) == (done.attempts, logged["start"])
    assert (totals.in_flight, told["policy_error"]) == (0, 0)


def test_exactly_so_many_run_in_a_window(backend: str, tmp_path: Path) -> None:
    done = hammer(backend, tmp_path, window=LIMIT, mixed=True)
    totals = done.totals
    assert (done.logged["start"], totals.executions, totals.in_flight) == (LIMIT, LIMIT, 0)
    assert (totals.attempts, done.told["policy_error"]) == (done.attempts, 0)


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
            above = tuple(Account(parent, TOOLS, ()) for parent in parents)
            call, ledger = f"{who}-{number}", ledgers[who % 3]
            await ledger.reserve(Reservation(sid, call, TOOLS, (), lease_s=60, accounts=above))
            await ledger.renew(sid, call, 60)
            await ledger.settle(Settlement(sid, call, TOOLS, (), "success", accounts=above))
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
