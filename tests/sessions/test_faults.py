"""Killed workers, killed servers, cut connections: no limit is exceeded, no call that ran goes
uncounted, no slot stays lost.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from timed import OLDER_LEASE_S, make_older

from edictum import Edictum, OperationLimits, ToolDenied
from support.effort import effort
from support.proxy import Proxy
from support.servers import NoServer, Postgres, Valkey
from support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.soak]

HOLDER = Path(__file__).with_name("holder.py")
LEASE_S = 1.0
KILLS = effort(2, soak=6)
PROXY_FAULTS = effort(120, soak=550)  # per server
READ = {"work": {"side_effect": "read"}}


@pytest.fixture
def faults(record_property: Any) -> Iterator[Counter[str]]:
    """The faults that a test made; their sum is printed when all tests are through."""
    made: Counter[str] = Counter()
    yield made
    for name, times in made.items():
        record_property("session_fault", (name, times))


@pytest.fixture
def backend(shared_url: str) -> str:
    return shared_url


def holder(backend: str, session: str, side_effect: str, slots: int) -> subprocess.Popen[bytes]:
    config = {
        "backend": backend,
        "session": session,
        "slots": slots,
        "limit": 10,
        "side_effect": side_effect,
    }
    process = subprocess.Popen(
        [sys.executable, str(HOLDER), json.dumps(config)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert int(process.stdout.readline()) == slots
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def ran(guard: Edictum, session: str, times: int) -> int:
    done: list[int] = []
    for _ in range(times):
        guard.dispatch_sync("work", {}, lambda: done.append(1), session_id=session)
    return len(done)


@pytest.mark.parametrize("side_effect", ["read", "irreversible"])
def test_slots_of_a_killed_worker(
    backend: str, side_effect: str, faults: Counter[str], tmp_path: Path
) -> None:
    """Before the lease ends its slots are taken; after it they are free again, or, for an
    irreversible tool, used up.
    """
    url, session = f"{backend}?lease={OLDER_LEASE_S}&wait=30", f"killed {tmp_path.name}"
    process = holder(url, session, side_effect, slots=7)
    guard = Edictum(
        limits=OperationLimits(max_tool_calls=10),
        tools={"work": {"side_effect": side_effect}},
        backend=url,
    )
    kill(process)
    faults["worker killed"] += 1
    tickets = [guard.begin_sync("work", {}, session_id=session) for _ in range(5)]
    assert [ticket.allowed for ticket in tickets] == [True] * 3 + [False] * 2
    for ticket in tickets[:3]:
        ticket.finish_sync("done")
    make_older(backend, session, OLDER_LEASE_S)
    expected = 7 if side_effect == "read" else 0
    assert ran(guard, session, 9) == expected
    totals = guard.session(session).snapshot().totals
    assert (totals.executions, totals.in_flight) == (10, 0)
    asyncio.run(guard.close())


def test_a_worker_that_lives_keeps_its_slots(
    backend: str, faults: Counter[str], tmp_path: Path
) -> None:
    """Leases are renewed for as long as the process lives, tickets included."""
    url, session = f"{backend}?lease={LEASE_S}&wait=30", f"lives {tmp_path.name}"
    process = holder(url, session, "read", slots=10)
    guard = Edictum(limits=OperationLimits(max_tool_calls=10), tools=READ, backend=url)
    time.sleep(LEASE_S * 2)
    assert ran(guard, session, 2) == 0
    kill(process)
    faults["worker killed"] += 1
    wait_until(lambda: guard.session(session).snapshot().totals.in_flight == 0)
    assert ran(guard, session, 11) == 10
    asyncio.run(guard.close())


# --- The server dies between reserve and commit ---------------------------------------------------


@pytest.fixture(params=[Valkey, Postgres], ids=["valkey", "postgres"])
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    try:
        made = request.param()
    except (NoServer, OSError) as exc:
        pytest.skip(str(exc))
    yield made
    made.stop()


async def settled(guard: Edictum, session: str) -> Any:
    """The session once nothing is in flight any more; denied reads and leases that are still out
    are waited for.
    """
    seen: Any = None
    for _ in range(1_200):  # longer than a lease
        try:
            seen = (await guard.backend.snapshot(session)).totals  # type: ignore[misc]
            if seen.in_flight == 0:
                return seen
        except Exception as exc:
            seen = exc
        await asyncio.sleep(0.05)
    raise AssertionError(f"slots stayed lost; last seen: {seen!r}")


def is_limit(outcome: Any) -> bool:
    """Return whether a limit has denied the call, and not a store that does not answer."""
    return isinstance(outcome, ToolDenied) and not outcome.policy_error


async def test_the_server_is_killed_while_tools_run(server: Any, faults: Counter[str]) -> None:
    limit = 50
    guard = Edictum(
        limits=OperationLimits(max_tool_calls=limit),
        tools=READ,
        backend=f"{server.url}?lease=20&wait=1",
    )
    bodies = 0

    async def body(deadly: bool) -> str:
        nonlocal bodies
        bodies += 1
        if deadly:
            await asyncio.to_thread(server.kill)
            faults["server killed"] += 1
            await asyncio.sleep(0.05)
            await asyncio.to_thread(server.start)
        return "done"

    for _ in range(KILLS):
        await asyncio.gather(
            *(guard.dispatch("work", {"deadly": n == 0}, body, session_id="s") for n in range(6))
        )
        await settled(guard, "s")
    while not is_limit(await guard.dispatch("work", {"deadly": False}, body, session_id="s")):
        pass  # a server that has just started may be late with an answer, and the call is denied
    totals = await settled(guard, "s")
    assert (bodies, totals.executions, totals.successes) == (limit, limit, limit)
    await guard.close()


# --- Connections that are cut, delayed and truncated ----------------------------------------------


async def test_broken_connections(valkey_url: str, postgres_url: str, faults: Counter[str]) -> None:
    """Callers are denied or served, and what ran is what was counted."""
    await asyncio.gather(
        break_connections("valkey", valkey_url, faults),
        break_connections("postgres", postgres_url, faults),
    )
    assert sum(faults.values()) >= 2 * PROXY_FAULTS, faults


async def break_connections(kind: str, url: str, faults: Counter[str]) -> None:
    proxy = Proxy(urlsplit(url).port or 0)
    broken = url.replace(f":{urlsplit(url).port}", f":{proxy.port}")
    limit, bodies = 40, Counter[str]()
    limits = OperationLimits(max_tool_calls=limit, max_attempts=None)
    guards = [
        Edictum(limits=limits, tools=READ, backend=f"{broken}?lease=20&wait=1") for _ in range(4)
    ]

    async def body(session: str) -> str:
        bodies[session] += 1
        await asyncio.sleep(0.001)
        return "done"

    asked: Counter[str] = Counter()
    told: Counter[str] = Counter()

    async def agent(number: int) -> None:
        rounds = 0
        while sum(proxy.faults.values()) < PROXY_FAULTS:
            session = f"broken {kind} {(rounds // 8) % 50}"
            rounds += 1
            asked[session] += 1
            outcome = await guards[number % 4].dispatch(
                "work", {"session": session}, body, session_id=session
            )
            told[getattr(outcome, "reason", "served")] += 1
            await asyncio.sleep(0.002)

    proxy.mode = "faulty"
    async with asyncio.timeout(300):
        await asyncio.gather(*(agent(number) for number in range(8)))
    faults.update({f"{kind} connection: {fault}": times for fault, times in proxy.faults.items()})
    proxy.mode = "clean"
    for session, times in asked.items():
        totals = await settled(guards[0], session)
        assert (totals.executions, totals.executions <= limit) == (bodies[session], True), session
        assert totals.attempts <= times
    assert set(told) <= {"served", "limit", "policy_error"}
    assert told["served"] > 0
    for guard in guards:
        await guard.close()
    proxy.close()
