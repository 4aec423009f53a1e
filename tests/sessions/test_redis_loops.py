"""Event loops have a connection of their own; threads share one; what a loop leaves behind when it
ends is not lost.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from loops import Loop, OnLoop
from store_helpers import READ, SCOPES, unique
from timed import OnValkey

from edictum import Edictum, OperationLimits, ToolDenied, ToolExecutionResult
from edictum.core.limits import Reservation, Settlement
from edictum.errors import BackendError
from edictum.execution.portal import PORTAL
from edictum.sessions import open as open_ledger
from edictum.sessions._batching import OWN_CONNECTION_AFTER, LoopSender
from support.processes import run_python
from support.proxy import Proxy
from support.servers import NoServer, Valkey


class TestValkeyFromALoop(OnValkey):
    def make_ledger(self) -> Any:
        return OnLoop(super().make_ledger())


@pytest.fixture
def ledger(valkey_url: str) -> Iterator[Any]:
    ledger: Any = open_ledger(f"{valkey_url}?wait=10")
    yield ledger
    PORTAL.run(ledger.close())


@pytest.fixture
def own_server() -> Iterator[Valkey]:
    try:
        server = Valkey()
    except (NoServer, OSError) as exc:
        pytest.skip(str(exc))
    yield server
    server.stop()


@pytest.fixture
def quiet_url(own_server: Valkey) -> str:
    """A server that nobody else is connected to, for tests that count connections."""
    return own_server.url


@pytest.fixture
def quiet_ledger(quiet_url: str) -> Iterator[Any]:
    ledger: Any = open_ledger(f"{quiet_url}?wait=10")
    yield ledger
    PORTAL.run(ledger.close())


async def settle_in(ledger: Any) -> None:
    """Ask often enough for the running loop to get a connection of its own."""
    for _ in range(OWN_CONNECTION_AFTER + 1):
        await ledger.ping()
    assert isinstance(ledger._pool._sender_here(), LoopSender)


def connections_become(url: str, number: int) -> bool:
    """Whether the server comes to have so many besides the one that asks: it notices a little later
    that a client has gone.
    """
    with redis.Redis.from_url(url) as admin:
        for _ in range(500):
            if len(admin.client_list()) == number + 1:
                return True
            time.sleep(0.01)
    return False


# --- Who uses which -------------------------------------------------------------------------------


async def test_coroutines_have_a_connection_of_their_loop_and_threads_share_one(
    quiet_ledger: Any, quiet_url: str
) -> None:
    assert connections_become(quiet_url, 1)
    await settle_in(quiet_ledger)
    assert connections_become(quiet_url, 2)
    assert await asyncio.to_thread(quiet_ledger._pool._sender_here) is None
    for _ in range(3):
        await asyncio.to_thread(PORTAL.run, quiet_ledger.ping())
    assert connections_become(quiet_url, 2)
    await quiet_ledger.close()
    assert connections_become(quiet_url, 0)


def test_the_connection_of_a_loop_ends_with_the_loop(quiet_ledger: Any, quiet_url: str) -> None:
    async def work() -> None:
        await settle_in(quiet_ledger)
        assert connections_become(quiet_url, 2)

    for _ in range(3):
        asyncio.run(work())
        assert connections_become(quiet_url, 1)
        assert quiet_ledger._pool._by_loop == {}


async def test_a_ledger_that_is_forgotten_lets_go_of_its_connections(quiet_url: str) -> None:
    ledger: Any = open_ledger(quiet_url)
    await settle_in(ledger)
    assert connections_become(quiet_url, 2)
    del ledger
    gc.collect()
    assert await asyncio.to_thread(connections_become, quiet_url, 0)


def test_a_loop_for_one_call_opens_no_connection(quiet_url: str) -> None:
    guard = Edictum(backend=quiet_url)
    with redis.Redis.from_url(quiet_url) as admin:
        before = admin.info("stats")["total_connections_received"]
        for _ in range(20):
            assert asyncio.run(guard.run("work", {}, lambda: 1, session_id=unique("short"))) == 1
        assert admin.info("stats")["total_connections_received"] == before
    asyncio.run(guard.close())


async def test_calls_that_wait_together_go_out_together(ledger: Any, valkey_url: str) -> None:
    """Scripts that one write carries run in the order they were sent, and take one turn of the
    server's loop.
    """
    await settle_in(ledger)
    sizes: list[int] = []
    connection = ledger._pool._sender_here().connection
    execute = connection.execute

    async def count(batch: Any) -> list[Any]:
        sizes.append(len(batch.ops))
        answers: list[Any] = await execute(batch)
        return answers

    connection.execute = count
    session = unique("together")
    grants = await asyncio.gather(
        *(ledger.reserve(Reservation(session, str(number), SCOPES, ())) for number in range(40))
    )
    assert [grant.counters.attempts for grant in grants] == list(range(1, 41))
    assert sizes == [40]


# --- Synchronous calls inside a loop, and loops that are blocked ----------------------------------


async def test_a_synchronous_call_inside_a_loop_does_not_wait_for_that_loop(
    valkey_url: str,
) -> None:
    session = unique("inside")
    guard = Edictum(tools=READ, backend=f"{valkey_url}?wait=5")
    await settle_in(guard.backend)
    for _ in range(3):
        outcome = guard.dispatch_sync("work", {}, lambda: "done", session_id=session)
        assert isinstance(outcome, ToolExecutionResult)
        assert outcome.notes == ()
    assert guard.session(session).executions == 3
    guard.session(session).reset()
    await settle_in(
        guard.backend
    )  # nothing is left in the loop that would be sent now, after the reset
    assert (await guard.backend.snapshot(session)).totals.executions == 0  # type: ignore[misc]
    await guard.close()


async def test_a_loop_that_was_blocked_is_not_held_against_the_store(valkey_url: str) -> None:
    """A tool that does not await stops the loop for longer than calls wait, while others wait for
    the store.
    """
    guard = Edictum(
        limits=OperationLimits(max_tool_calls=None), tools=READ, backend=f"{valkey_url}?wait=0.5"
    )
    await settle_in(guard.backend)
    bodies = [lambda: time.sleep(1.2), *[lambda: "done"] * 20]
    session = unique("blocked")
    for _ in range(2):
        outcomes = await asyncio.gather(
            *(guard.dispatch("work", {}, body, session_id=session) for body in bodies)
        )
        assert [type(it) for it in outcomes] == [ToolExecutionResult] * len(bodies)
    assert (await guard.backend.snapshot(session)).totals.executions == 2 * len(bodies)  # type: ignore[misc]
    await guard.close()


# --- Loops that end -------------------------------------------------------------------------------


async def _held(ledger: Any, session: str) -> None:
    await settle_in(ledger)
    await ledger.reserve(Reservation(session, "a", SCOPES, ()))
    ledger.settle(Settlement(session, "a", SCOPES, (), "success"))  # sent, not awaited


def test_what_a_loop_did_not_send_is_sent_when_it_ends(ledger: Any, valkey_url: str) -> None:
    session = unique("ends")
    asyncio.run(_held(ledger, session))
    PORTAL.run(ledger.close())
    assert executions(valkey_url, session) == (1, 0)


@pytest.mark.parametrize(
    "then",
    ["PORTAL.run(ledger.close())", "asyncio.run(ask()); time.sleep(1)"],
    ids=["closing", "another loop"],
)
def test_what_a_loop_did_not_send_is_sent_even_if_it_was_closed_without_an_end(
    valkey_url: str, then: str
) -> None:
    """By whoever comes next: the end of the ledger, or another loop that asks."""
    session = unique("closed")
    said = run_python(
        """
        import asyncio, json, os, sys, time
        from edictum.core.limits import Reservation, Settlement
        from edictum.execution.portal import PORTAL
        from edictum.sessions import open

        async def ask():
            for _ in range(10):
                await ledger.ping()

        async def hold():
            await ask()
            await ledger.reserve(Reservation(sys.argv[2], "a", ("",), ()))
            ledger.settle(Settlement(sys.argv[2], "a", ("",), (), "success"))

        ledger, loop = open(sys.argv[1]), asyncio.new_event_loop()
        loop.run_until_complete(hold())
        loop.close()
        exec(sys.argv[3])
        print(json.dumps("done"), flush=True)
        os._exit(0)  # nothing more is sent at the end of the process
        """,
        valkey_url,
        session,
        then,
    )
    assert said == "done"
    assert executions(valkey_url, session) == (1, 0)


def test_a_call_that_is_cancelled_with_its_loop_is_counted(ledger: Any, valkey_url: str) -> None:
    """All tasks are cancelled at once, the one that carries operations too."""
    session = unique("cancelled")
    guard = Edictum(tools=READ, backend=ledger)

    async def agent() -> None:
        await settle_in(ledger)
        started = asyncio.Event()

        async def body() -> None:
            started.set()
            await asyncio.Future()

        calls = [
            asyncio.create_task(guard.dispatch("work", {}, body, session_id=session))
            for _ in range(5)
        ]
        await started.wait()
        while (await ledger.snapshot(session)).totals.in_flight < len(calls):
            pass

    asyncio.run(agent())
    PORTAL.run(ledger.close())
    assert executions(valkey_url, session) == (5, 0)


async def test_cancelling_every_task_of_a_loop_that_goes_on_mixes_up_no_answers(
    ledger: Any, valkey_url: str
) -> None:
    await settle_in(ledger)
    session = unique("every task")
    for number in range(20):
        steps = [
            Reservation(session, f"{number}-{call}", SCOPES, (), lease_s=1.0) for call in range(5)
        ]
        asking = [asyncio.ensure_future(ledger.reserve(step)) for step in steps]
        for _ in range(1 + number % 4):  # not sent yet, under way, answered
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        answer = await ledger.renew(
            session, "another call", 10.0
        )  # not the answer to a reservation
        assert answer is False
    await ledger.close()
    for _ in range(
        200
    ):  # a reservation may reach the server after its release did; then its lease ends it
        if executions(valkey_url, session) == (0, 0):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("slots stayed lost")


def executions(url: str, session: str) -> tuple[int, int]:
    """Executions and calls in flight, as another process sees them."""
    ledger: Any = open_ledger(url)
    totals = PORTAL.run(ledger.snapshot(session)).totals
    PORTAL.run(ledger.close())
    return totals.executions, totals.in_flight


def test_a_loop_that_stops_while_the_store_is_down_does_not_keep_the_circuit_open(
    valkey_url: str,
) -> None:
    port = urlsplit(valkey_url).port
    proxy = Proxy(port or 0)
    guard = Edictum(
        tools=READ, backend=f"{valkey_url.replace(f':{port}', f':{proxy.port}')}?wait=1"
    )
    loop = asyncio.new_event_loop()
    loop.run_until_complete(settle_in(guard.backend))
    proxy.cut()
    outcome = loop.run_until_complete(guard.dispatch("work", {}, lambda: "ran"))
    assert isinstance(outcome, ToolDenied)
    assert outcome.policy_error
    proxy.mode = "clean"  # the loop stands still now, and what it was sending with it
    for _ in range(100):
        if isinstance(
            guard.dispatch_sync("work", {}, lambda: "ran", session_id=unique("stops")),
            ToolExecutionResult,
        ):
            break
        time.sleep(0.1)
    else:
        raise AssertionError("the circuit stayed open")
    loop.run_until_complete(guard.close())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    proxy.close()


async def test_a_store_that_falls_silent_is_not_asked_for_every_call(
    valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread has a connection that looks sound; that is no reason to think that the store
    answers.
    """
    port = urlsplit(valkey_url).port
    proxy = Proxy(port or 0)
    guard = Edictum(
        tools=READ, backend=f"{valkey_url.replace(f':{port}', f':{proxy.port}')}?wait=0.5"
    )
    await settle_in(guard.backend)
    proxy.mode = "silent"
    for _ in range(20):
        outcome = await guard.dispatch("work", {}, lambda: "ran")
        assert isinstance(outcome, ToolDenied)
        assert outcome.policy_error
    assert "Calls are denied until it answers again" in caplog.text
    assert caplog.text.count("answers again") == 1  # it was not taken for healthy in between
    proxy.mode = "clean"
    for _ in range(100):
        if isinstance(await guard.dispatch("work", {}, lambda: "ran"), ToolExecutionResult):
            break
        await asyncio.sleep(0.1)
    else:
        raise AssertionError("the store did not come back")
    await guard.close()
    proxy.close()


def test_two_loops_and_a_thread_share_a_limit(valkey_url: str) -> None:
    guard, session, ran = (
        Edictum(limits=OperationLimits(max_tool_calls=30), backend=f"{valkey_url}?wait=10"),
        unique("share"),
        [],
    )
    loops = [Loop(), Loop()]

    async def agent() -> None:
        await settle_in(guard.backend)
        await asyncio.gather(
            *(
                guard.dispatch("work", {}, lambda: ran.append(1), session_id=session)
                for _ in range(30)
            )
        )

    working = [asyncio.run_coroutine_threadsafe(agent(), loop.loop) for loop in loops]
    for _ in range(30):
        guard.dispatch_sync("work", {}, lambda: ran.append(1), session_id=session)
    for work in working:
        work.result(60)
    assert len(ran) == 30
    assert executions(valkey_url, session) == (30, 0)
    asyncio.run(guard.close())
    assert guard.backend._pool._by_loop == {}  # type: ignore[attr-defined]
    for loop in loops:
        loop.end()


def test_a_fork_leaves_the_connection_of_its_parents_loop_alone(valkey_url: str) -> None:
    said = run_python(
        """
        import asyncio, json, os, sys, threading
        from edictum import Edictum, OperationLimits
        guard = Edictum(limits=OperationLimits(max_tool_calls=None), backend=sys.argv[1])
        session, loop = sys.argv[2], asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()

        async def calls():
            for _ in range(10):
                await guard.run("work", {}, lambda: 1, session_id=session)

        asyncio.run_coroutine_threadsafe(calls(), loop).result(20)
        pid = os.fork()
        if pid == 0:
            asyncio.run(calls())
            guard.run_sync("work", {}, lambda: 1, session_id=session)
            os._exit(0)
        asyncio.run_coroutine_threadsafe(calls(), loop).result(20)
        code = os.waitpid(pid, 0)[1]
        totals = guard.session(session).snapshot().totals
        print(json.dumps([code, totals.executions, totals.in_flight]))
        """,
        valkey_url,
        unique("fork"),
    )
    assert said == [0, 31, 0]


# --- A server that cannot write now ---------------------------------------------------------------


@pytest.mark.parametrize("in_loop", [False, True], ids=["thread", "loop"])
def test_a_call_that_ran_while_the_server_was_a_replica_is_counted_later(
    own_server: Valkey, in_loop: bool
) -> None:
    """As in a fail-over: for a while the server refuses every write, and then it is a primary
    again.
    """
    ledger: Any = open_ledger(f"{own_server.url}?wait=1&lease=30")
    book: Any = OnLoop(ledger) if in_loop else ledger
    answer = (lambda it: it) if in_loop else PORTAL.run
    with redis.Redis.from_url(own_server.url) as admin:
        assert answer(book.reserve(Reservation("s", "a", SCOPES, ()))).granted
        admin.replicaof("127.0.0.1", 1)
        with pytest.raises(BackendError):
            answer(book.settle(Settlement("s", "a", SCOPES, (), "success")))
        assert admin.hget("edictum:{s}:h:s", "x:") is None
        admin.replicaof("NO", "ONE")
        answer(book.close())
        assert admin.hmget("edictum:{s}:h:s", "x:", "h:") == [b"1", b"0"]
