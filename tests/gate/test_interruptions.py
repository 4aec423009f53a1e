"""Somebody says stop, wherever the gate stands: the call is closed, its slot is free, and the
interruption goes on.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from edictum import (
    Edictum,
    HookRegistration,
    ToolFailure,
    Verdict,
    postcondition,
    precondition,
    session_contract,
)
from edictum.execution.portal import Portal
from edictum.testing import AsyncLedger

CLOSING = {"call_denied", "call_executed", "call_failed"}


class Stop(BaseException):
    """Neither an error nor an exit, as frameworks have them."""


def closings(guard: Edictum) -> list[str]:
    return [
        event.action.value for event in guard.local_sink.events if event.action.value in CLOSING
    ]


def in_flight(guard: Edictum) -> int:
    return guard.session().in_flight


# --- In an asynchronous part ----------------------------------------------------------------------

PLACES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "precondition": lambda part: {"contracts": [precondition("*")(part)]},
    "session contract": lambda part: {"contracts": [session_contract(part)]},
    "postcondition": lambda part: {"contracts": [postcondition("*")(part)]},
    "before-hook": lambda part: {"hooks": [HookRegistration("before", "*", part)]},
    "after-hook": lambda part: {"hooks": [HookRegistration("after", "*", part)]},
    "on_allow": lambda part: {"on_allow": part},
    "success check": lambda part: {"success_check": part},
    "resolver": lambda part: {"principal_resolver": part},
}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Stop])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_a_part_that_says_stop_stops_the_caller_once_the_call_is_closed(
    place: str, kind: type[BaseException], sync: bool
) -> None:
    """One closing event, no slot held, and what was raised arrives."""

    async def part(*args: Any) -> Any:
        raise kind

    guard = Edictum(**PLACES[place](part))
    with pytest.raises(kind):
        (
            guard.dispatch_sync("t", {}, lambda: 1)
            if sync
            else asyncio.run(guard.dispatch("t", {}, lambda: 1))
        )
    assert (len(closings(guard)), in_flight(guard)) == (1, 0)


@pytest.mark.parametrize("place", ["contract", "resolver"])
def test_an_exit_in_an_asynchronous_part_does_not_leave_evaluate(place: str) -> None:
    """As it does not leave a call."""

    async def leaves(*args: Any) -> Any:
        sys.exit(3)

    guard = (
        Edictum(contracts=[precondition("*")(leaves)])
        if place == "contract"
        else Edictum(principal_resolver=leaves)
    )
    result = guard.evaluate("t", {})
    assert (result.verdict, result.policy_error) == ("deny", True)


# --- Between the parts ----------------------------------------------------------------------------


def interrupt_at(moment: int, call: Callable[[], Any]) -> bool:
    """Make a call and press Ctrl-C at one of the moments at which the interpreter looks for it.
    False: it ended before that.
    """
    seen = 0

    def watch(frame: Any, event: str, arg: Any) -> None:
        nonlocal seen
        if event in ("call", "c_return") and frame.f_globals.get("__name__", "edictum.").startswith(
            "edictum."
        ):
            seen += 1
            if seen == moment:
                sys.setprofile(None)
                raise KeyboardInterrupt

    gc.disable()  # what it collects, of other tests, is none of this call's moments
    sys.setprofile(watch)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False


@pytest.mark.parametrize(
    "options", [{}, {"parent_session_id": "above"}], ids=["straight road", "long way"]
)
def test_ctrl_c_at_any_moment_leaves_no_slot_held(options: dict[str, Any]) -> None:
    """Every moment of a synchronous call is tried, one after the other."""
    guard, moment = Edictum(), 1
    guard.run_sync("t", {}, lambda: "ran", **options)
    while interrupt_at(moment, lambda: guard.run_sync("t", {"x": [1]}, lambda x: x, **options)):
        assert in_flight(guard) == 0, f"at moment {moment}"
        assert guard.session("above").in_flight == 0, f"at moment {moment}"
        moment += 1
    assert moment > 20
    opened = sum(event.action == "call_allowed" for event in guard.local_sink.events)
    assert len(closings(guard)) >= opened


# --- Thrown away ----------------------------------------------------------------------------------


async def never(*args: Any) -> Any:
    await asyncio.get_running_loop().create_future()


async def test_begin_that_is_thrown_away_gives_its_slot_back() -> None:
    """A framework may drop the coroutine of its hook."""
    guard = Edictum(on_allow=never)
    opening = guard.begin("t", {})
    opening.send(None)
    opening.close()
    assert (closings(guard), in_flight(guard)) == (["call_denied"], 0)


async def test_finish_that_is_thrown_away_counts_the_call() -> None:
    """Its tool has run, and the ticket is used up."""
    guard = Edictum(success_check=never)
    ticket = await guard.begin("t", {})
    closing = ticket.finish(1)
    closing.send(None)
    closing.close()
    assert (closings(guard), in_flight(guard), ticket.allowed) == (["call_failed"], 0, False)


@pytest.mark.parametrize("place", ["postcondition", "after-hook", "success check"])
async def test_a_call_that_is_thrown_away_while_its_tool_runs_does_not_wait(place: str) -> None:
    """What comes after the tool may want to be awaited, and cannot be."""

    async def part(*args: Any) -> Any:
        await asyncio.sleep(0)
        return Verdict.pass_()

    guard = Edictum(**PLACES[place](part))
    guard.run_sync("warm", {}, lambda: 1, session_id=guard.session_id)
    call = guard.dispatch("t", {}, never)
    call.send(None)
    call.close()  # raises RuntimeError if the coroutine awaits
    assert (closings(guard)[-1], in_flight(guard)) == ("call_failed", 0)


class LaterSink:
    """Gives control away before it writes."""

    def __init__(self, on: str = "") -> None:
        self.written: list[str] = []
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()
        self._on = on

    async def emit(self, event: Any) -> None:
        if event.action == self._on:
            self.reached.set()
            await self.go_on.wait()
        self.written.append(event.action.value)


async def test_what_counts_and_records_a_call_that_was_thrown_away_is_left_to_the_loop() -> None:
    """Neither the slot nor the closing event is lost, and no coroutine complains."""
    sink, reached = LaterSink(), asyncio.Event()
    guard = Edictum(backend=AsyncLedger(), audit_sink=sink)

    async def tool() -> None:
        reached.set()
        await never()

    call = guard.dispatch("t", {}, tool)
    while not reached.is_set():
        waited_for = call.send(None)
        if waited_for is not None and not reached.is_set():
            waited_for._asyncio_future_blocking = False
            await asyncio.wait((waited_for,))
    call.close()
    for _ in range(10_000):
        in_flight = (await guard.backend.snapshot(guard.session_id)).totals.in_flight
        if sink.written == ["call_allowed", "call_failed"] and not in_flight:
            break
        await asyncio.sleep(0)
    assert (sink.written, in_flight) == (["call_allowed", "call_failed"], 0)


# --- While an event is written --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "ends"), [("call_allowed", "call_denied"), ("call_executed", "call_executed")]
)
async def test_a_cancelled_caller_does_not_cut_an_event_off(at: str, ends: str) -> None:
    """It reaches the sink that was writing it, and the next one."""
    first, second = LaterSink(at), LaterSink()
    guard = Edictum(audit_sink=[first, second])
    call = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1))
    await first.reached.wait()
    call.cancel()
    await asyncio.sleep(0)
    first.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    expected = ["call_allowed", ends]
    assert (first.written, second.written) == (expected, expected)
    if ends == "call_denied":
        assert guard.local_sink.last().decision_source == "cancelled"


# --- Bodies that cannot be begun, or looked at ----------------------------------------------------


class Thing:
    """Can be referred to weakly."""


@pytest.mark.parametrize("options", [{}, {"run_in": "thread"}], ids=["inline", "thread"])
@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_a_result_that_cannot_be_asked_what_it_is_is_a_failure(
    options: dict[str, Any], sync: bool
) -> None:
    """A proxy of an object that is gone raises whatever it is asked."""
    guard = Edictum()

    def tool() -> Any:
        return weakref.proxy(Thing())

    outcome = (
        guard.dispatch_sync("t", {}, tool, **options)
        if sync
        else asyncio.run(guard.dispatch("t", {}, tool, **options))
    )
    assert isinstance(outcome, ToolFailure)
    assert (closings(guard), in_flight(guard)) == (["call_failed"], 0)


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_a_machine_without_threads_ends_the_call_as_failed(
    monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    """It says so, and that the body did not begin."""
    guard, bodies = Edictum(), []

    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def tool() -> None:
        bodies.append("ran")

    monkeypatch.setattr("edictum.execution.threads.POOL._idle", [])
    monkeypatch.setattr(threading.Thread, "start", refuses)
    outcome = (
        guard.dispatch_sync("t", {}, tool, timeout_s=1)
        if sync
        else asyncio.run(guard.dispatch("t", {}, tool, timeout_s=1))
    )
    assert isinstance(outcome, ToolFailure)
    assert "No thread could be started" in outcome.error
    assert (bodies, closings(guard), in_flight(guard)) == ([], ["call_failed"], 0)


def test_a_portal_that_could_not_be_started_is_started_when_it_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not wait for a thread that never began."""

    async def answer() -> int:
        return 1

    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Portal() as portal:
        with monkeypatch.context() as machine:
            machine.setattr(threading.Thread, "start", refuses)
            with pytest.raises(Exception, match="No thread could be started"):
                portal.run(answer())
        assert portal.run(answer()) == 1


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e10])
def test_a_timeout_beyond_what_the_platform_can_wait_is_a_long_one(timeout_s: float) -> None:
    """The body has its value returned."""
    assert Edictum().run_sync("t", {}, lambda: "ran", timeout_s=timeout_s) == "ran"


def test_a_function_in_a_thread_of_ours_that_raises_stop_iteration_is_told_of() -> None:
    """No future of asyncio carries it, so nobody would learn of it."""
    from edictum.execution.threads import POOL

    async def waited() -> Any:
        return await asyncio.wrap_future(POOL.submit(lambda: next(iter(()))))

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        asyncio.run(asyncio.wait_for(waited(), 30))
