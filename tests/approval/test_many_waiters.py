"""Many calls of one process wait for a person: no thread each, and each starts when it is answered."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from pathlib import Path

import pytest
import redis

from edictum import Edictum, ToolExecutionResult
from edictum.approval import ApprovalQueue
from support.effort import effort
from support.guards import approval_contract
from support.processes import run_python

WAITERS = effort(200, 1_000)
LONG = 600.0
ANSWER_ALL = """
    import asyncio, json, sys, time
    from edictum.approval import open_approvals

    async def main():
        queue, answered = open_approvals(sys.argv[1]), {}
        while page := await queue.pending(limit=100):
            for request in page:
                await queue.answer(request.approval_id, True, approver="ann")
                answered[request.tool_args["number"]] = time.monotonic()
                await asyncio.sleep(0.005)  # what is measured is a delay, not a queue
        await queue.close()
        print(json.dumps(answered))

    asyncio.run(main())
"""
_numbers = itertools.count()


@pytest.fixture(params=["sqlite", "valkey", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'approvals.db'}?wait={LONG}"
    url: str = request.getfixturevalue(f"{request.param}_url")
    if request.param == "postgres":
        return f"{url}?schema=waiters_{next(_numbers)}&wait={LONG}"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return f"{url}?wait={LONG}"


def read_resident_mb() -> float:
    """Return how much memory this process holds."""
    kilobytes = Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]
    return int(kilobytes) / 1024


async def count_pending(queue: ApprovalQueue) -> int:
    return len(await queue.pending(limit=WAITERS + 1))


@pytest.mark.slow
@pytest.mark.soak
async def test_calls_wait_without_a_thread_each(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are answered by another process, and all run."""
    started: dict[int, float] = {}

    async def act(number: int) -> None:
        started[number] = time.monotonic()

    contracts = [approval_contract(timeout=LONG)]
    async with Edictum(contracts=contracts, approval_backend=store) as guard:
        await guard.approvals.pending()
        threads, resident = threading.active_count(), read_resident_mb()
        calls = [
            asyncio.ensure_future(
                guard.dispatch("t", {"number": number}, act, session_id=f"s-{number}")
            )
            for number in range(WAITERS)
        ]
        async with asyncio.timeout(LONG):
            while await count_pending(guard.approvals) < WAITERS:  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.05)
        more_threads = threading.active_count() - threads
        more_mb = read_resident_mb() - resident
        answered = await asyncio.to_thread(run_python, ANSWER_ALL, store)
        outcomes = await asyncio.gather(*calls)
    assert all(isinstance(outcome, ToolExecutionResult) for outcome in outcomes)
    assert more_threads <= 3
    assert {int(number) for number in answered} == set(started) == set(range(WAITERS))
    delays = sorted(started[int(number)] - at for number, at in answered.items())
    with capsys.disabled():
        print(
            f"\n{WAITERS:,} calls wait in {store.partition(':')[0]}: {more_threads} more threads,"
            f" {more_mb:.1f} MB more; from the answer to the start of the tool: median"
            f" {delays[len(delays) // 2] * 1e3:.1f} ms, p99"
            f" {delays[len(delays) * 99 // 100] * 1e3:.1f} ms"
        )
