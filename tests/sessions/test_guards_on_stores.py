"""Guards on every store: session contracts, threads, loops, forks, budgets, parents, closing."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from store_helpers import READ, SCOPES, call, unique

from edictum import (
    Edictum,
    EdictumConfigError,
    EdictumDenied,
    OperationLimits,
    SessionView,
    Verdict,
    precondition,
    session_contract,
)
from edictum.core.limits import Reservation, Settlement
from edictum.errors import BackendError
from edictum.sessions import open as open_ledger
from support.processes import run_python


@pytest.mark.parametrize("read", ["executions", "per_tool"])
async def test_calls_that_start_together_are_judged_in_one_order(url: str, read: str) -> None:
    """Of fifty, three run: each is judged by the counters of the moment when it took its slot."""

    def used(session: SessionView) -> int:
        return session.executions if read == "executions" else session.per_tool.get("work", 0)

    three = session_contract(
        lambda session: Verdict.fail("three are enough") if used(session) >= 3 else Verdict.pass_()
    )
    guard, session, ran = Edictum(contracts=[three], tools=READ, backend=url), unique("order"), []

    async def body() -> None:
        ran.append(1)
        await asyncio.sleep(0.01)

    await asyncio.gather(*(call(guard, session, body) for _ in range(50)))
    assert len(ran) == 3
    await guard.close()


async def test_one_guard_serves_coroutines_threads_and_other_loops(shared_url: str) -> None:
    session = unique("both")
    guard = Edictum(limits=OperationLimits(max_tool_calls=6), backend=shared_url)
    await guard.run("work", {}, lambda: 1, session_id=session)
    guard.run_sync("work", {}, lambda: 1, session_id=session)
    await asyncio.to_thread(lambda: guard.run_sync("work", {}, lambda: 1, session_id=session))
    for _ in range(2):
        await asyncio.to_thread(
            lambda: asyncio.run(guard.run("work", {}, lambda: 1, session_id=session))
        )
    assert (await guard.run("work", {}, lambda: 1, session_id=session)) == 1
    with pytest.raises(EdictumDenied, match="limit reached"):
        await guard.run("work", {}, lambda: 1, session_id=session)
    assert guard.session(session).executions == 6
    await guard.close()


def test_a_fork_may_use_the_guard_of_its_parent(shared_url: str) -> None:
    said = run_python(
        """
        import json, os, sys
        from edictum import Edictum, OperationLimits
        guard = Edictum(limits=OperationLimits(max_tool_calls=20), backend=sys.argv[1])
        guard.run_sync("work", {}, lambda: 1, session_id=sys.argv[2])
        children = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                for _ in range(4):
                    guard.run_sync("work", {}, lambda: 1, session_id=sys.argv[2])
                os._exit(0)
            children.append(pid)
        guard.run_sync("work", {}, lambda: 1, session_id=sys.argv[2])
        codes = [os.waitpid(pid, 0)[1] for pid in children]
        guard.run_sync("work", {}, lambda: 1, session_id=sys.argv[2])
        totals = guard.session(sys.argv[2]).snapshot().totals
        print(json.dumps([codes, totals.executions, totals.in_flight]))
        """,
        shared_url,
        unique("fork"),
    )
    assert said == [[0, 0, 0], 15, 0]


async def test_closing_sees_settlements_through(shared_url: str, opened: Any) -> None:
    session = unique("closing")
    ledger = open_ledger(shared_url)
    await ledger.reserve(Reservation(session, "a", SCOPES, ()))  # type: ignore[misc]
    ledger.settle(Settlement(session, "a", SCOPES, (), "success"))  # sent, not awaited
    await ledger.close()  # type: ignore[attr-defined]
    await ledger.close()  # type: ignore[attr-defined]
    with pytest.raises(BackendError, match="closed"):
        await ledger.snapshot(session)  # type: ignore[misc]
    assert (await opened(shared_url).snapshot(session)).totals.executions == 1


def test_a_ledger_that_is_forgotten_ends_its_thread(tmp_path: Path) -> None:
    ledger = open_ledger(f"sqlite:///{tmp_path}/s.db")
    thread = ledger._pool._thread.thread  # type: ignore[attr-defined]
    assert thread.is_alive()
    del ledger
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


async def test_a_call_whose_loop_goes_away_is_counted(shared_url: str, opened: Any) -> None:
    """The coroutine is thrown away while the tool runs: nobody can wait any more, and the call
    counts all the same.
    """
    session, guard = unique("gone"), Edictum(tools=READ, backend=shared_url)

    reached: list[bool] = []

    async def body() -> None:
        reached.append(True)
        await asyncio.Future()

    walk = guard.dispatch("work", {}, body, session_id=session)
    task = asyncio.get_running_loop().create_task(_steps(walk, reached))
    await task
    await guard.close()
    totals = (await opened(shared_url).snapshot(session)).totals
    assert (totals.executions, totals.in_flight) == (1, 0)


async def _steps(walk: Any, reached: list[bool]) -> None:
    """Drive a coroutine by hand to where its tool waits, then drop it."""
    running = walk.__await__()
    waiting_for = running.send(None)
    while not reached:
        if waiting_for is not None:
            waiting_for._asyncio_future_blocking = False
            await asyncio.wait({waiting_for}, timeout=60)
        waiting_for = running.send(None)
    running.close()


async def test_a_budget_reserves_the_estimate_and_keeps_the_actual(url: str) -> None:
    session, guard = unique("budget"), Edictum(limits=OperationLimits(max_cost=1.0), backend=url)
    options: dict[str, Any] = {
        "session_id": session,
        "amounts": {"cost": 0.6},
        "actual_amounts": lambda result: {"cost": result},
    }
    running = asyncio.Event()
    go_on = asyncio.Event()

    async def body() -> float:
        running.set()
        await go_on.wait()
        return 0.3

    first = asyncio.create_task(guard.run("work", {}, body, **options))
    await running.wait()
    with pytest.raises(EdictumDenied, match=r"Budget reached: the call asks for .* of cost, 0"):
        await guard.run("work", {}, body, **options)
    go_on.set()
    assert await first == 0.3
    assert await guard.run("work", {}, body, **options) == 0.3
    with pytest.raises(EdictumDenied, match=r"0\.6 is used"):
        await guard.run("work", {}, body, **options)
    assert guard.session(session).snapshot().amounts[""]["cost"].spent == 0.6
    await guard.close()


async def test_an_estimate_may_be_computed_and_a_wrong_actual_is_noted() -> None:
    guard = Edictum(limits=OperationLimits(max_amounts={"tokens": 10}))
    outcome = await guard.dispatch(
        "work",
        {"text": "1234"},
        lambda text: 1,
        amounts=lambda call: {"tokens": len(call.args["text"])},
        actual_amounts=lambda result: {"tokens": -1},
    )
    assert "the estimate was counted" in outcome.notes[0]
    assert guard.session().snapshot().amounts[""]["tokens"].spent == 4
    with pytest.raises(EdictumConfigError):
        await guard.dispatch("work", {}, lambda: 1, amounts={"tokens": "many"})


async def test_a_failed_call_costs_its_estimate(url: str) -> None:
    session, guard = unique("failed"), Edictum(backend=url)
    for body in (lambda: 1 / 0, lambda: {"error": "no"}):
        await guard.dispatch(
            "work",
            {},
            body,
            session_id=session,
            amounts={"cost": 1},
            actual_amounts=lambda result: {"cost": 0.25},
        )
    assert guard.session(session).snapshot().amounts[""]["cost"].spent == 1.25
    await guard.close()


def note(ran: list[int], a: int) -> None:
    ran.append(a)


async def test_the_first_calls_of_a_session_are_all_counted(url: str) -> None:
    """Whether a store gets them one by one, or several at once while the session is new."""

    @precondition("pay")
    def small(call: Any) -> Verdict:
        return Verdict.fail("too much") if call.args["a"] > 99 else Verdict.pass_()

    guard = Edictum(contracts=[small], limits=OperationLimits(max_attempts=5), backend=url)
    for session in (unique("first"), unique("first"), unique("first")):
        ran: list[int] = []
        amounts = [200] * 10 + [1] * 10
        pay = partial(note, ran)
        calls = (guard.dispatch("pay", {"a": a}, pay, session_id=session) for a in amounts)
        await asyncio.gather(*calls)
        assert ran == []
        assert guard.session(session).attempts == 20
    await guard.close()


async def test_spawning_does_not_reset_a_limit(url: str) -> None:
    root, guard = unique("root"), Edictum(limits=OperationLimits(max_tool_calls=3), backend=url)
    ran = 0

    def body() -> None:
        nonlocal ran
        ran += 1

    for number in range(6):
        await guard.dispatch(
            "work", {}, body, session_id=f"{root} child {number}", parent_session_id=root
        )
    assert ran == 3
    assert guard.session(root).executions == 3
    ticket = await guard.begin(
        "work", {}, session_id=f"{root} other", parent_session_id=[f"{root} child 1", root]
    )
    assert ticket.denied is not None
    assert ticket.denied.reason == "limit"
    with pytest.raises(ValueError, match="twice"):
        await guard.dispatch("work", {}, body, session_id=root, parent_session_id=root)
    await guard.close()
