"""Tools under a deadline in this process: coroutines are cancelled, threads are left behind and
counted; the call ends in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from typing import Any

import pytest

from edictum import (
    Edictum,
    EdictumConfigError,
    EdictumInputError,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    ToolTimeout,
    outcome_to_model_content,
)
from edictum.core.effects import Ran, RunTool
from edictum.execution.engines import as_run_in
from edictum.execution.processes import PROCESSES
from edictum.execution.waiting import DETACHED
from support.guards import count_calls
from support.waiting import wait_until

SHORT = 0.05


async def dispatch(guard: Edictum, sync: bool, tool: str, fn: Any, **options: Any) -> Any:
    if sync:
        return await asyncio.to_thread(guard.dispatch_sync, tool, {}, fn, **options)
    return await guard.dispatch(tool, {}, fn, **options)


# --- Coroutines -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [False, True])
async def test_a_coroutine_is_cancelled_at_its_deadline(sync: bool) -> None:
    cleaned = threading.Event()

    async def tool() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            cleaned.set()

    outcome = await dispatch(Edictum(), sync, "t", tool, timeout_s=SHORT)
    assert isinstance(outcome, ToolTimeout)
    assert not outcome.body_may_be_running
    assert outcome.effect_unknown
    assert cleaned.is_set()


@pytest.mark.parametrize("sync", [False, True])
async def test_a_coroutine_whose_finally_hangs_is_left_after_a_short_grace(sync: bool) -> None:
    """It is kept referenced, its late result is dropped, and nobody complains about it."""
    release, before = (
        threading.Event(),
        set(DETACHED),
    )  # other tests may have left some whose loops are gone

    async def tool() -> str:
        try:
            await asyncio.sleep(600)
        finally:
            for _ in range(6_000):
                if release.is_set():
                    break
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)
        return "too late"

    guard = Edictum()
    outcome = await dispatch(guard, sync, "t", tool, timeout_s=SHORT)
    assert isinstance(outcome, ToolTimeout)
    assert outcome.body_may_be_running
    assert "It may still be running. Whether it took effect is unknown" in outcome_to_model_content(
        outcome
    )
    gc.collect()
    assert len(DETACHED - before) == 1
    release.set()
    await asyncio.to_thread(wait_until, lambda: not DETACHED - before)
    assert count_calls(guard) == (1, 0, 1, 0)


async def test_a_coroutine_that_swallows_cancellation_and_answers_is_too_late() -> None:
    """Its deadline has passed: one call has one outcome, and it is the timeout."""

    async def tool() -> str:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            return "never mind"
        return ""

    outcome = await Edictum().dispatch("t", {}, tool, timeout_s=SHORT)
    assert isinstance(outcome, ToolTimeout)
    assert not outcome.body_may_be_running


async def test_a_result_in_the_moment_of_the_deadline_is_one_outcome() -> None:
    """Either the value or the timeout, never both and never none; what is counted agrees."""
    guard = Edictum()

    async def later() -> str:
        await asyncio.sleep(0.01)
        return "value"

    def blocking() -> str:
        time.sleep(0.01)
        return "value"

    outcomes = []
    for _ in range(25):
        outcomes.append(await guard.dispatch("t", {}, later, timeout_s=0.01))
        outcomes.append(await guard.dispatch("t", {}, blocking, timeout_s=0.0102))
    good = sum(isinstance(outcome, ToolExecutionResult) for outcome in outcomes)
    late = sum(isinstance(outcome, ToolTimeout) for outcome in outcomes)
    assert good + late == 50
    assert count_calls(guard) == (50, good, late, 0)


async def test_a_caller_who_is_cancelled_again_while_the_tool_cleans_up() -> None:
    """The call is closed once, and the cancellation arrives."""
    guard, started, cleaning = Edictum(), asyncio.Event(), asyncio.Event()

    async def tool() -> None:
        started.set()
        try:
            await asyncio.sleep(600)
        finally:
            cleaning.set()
            await asyncio.sleep(0.05)

    call = asyncio.ensure_future(guard.dispatch("t", {}, tool, timeout_s=60))
    await started.wait()
    call.cancel()
    await cleaning.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert count_calls(guard) == (1, 0, 1, 0)


async def test_a_caller_who_is_cancelled_in_the_grace_after_a_deadline() -> None:
    guard, cleaning = Edictum(), asyncio.Event()

    async def tool() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            cleaning.set()
            await asyncio.sleep(0.06)

    call = asyncio.ensure_future(guard.dispatch("t", {}, tool, timeout_s=0.01))
    await cleaning.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert count_calls(guard) == (1, 0, 1, 0)


# --- Threads --------------------------------------------------------------------------------------


def count_hung(guard: Edictum) -> int:
    return guard._state.wiring.abandoned.count()


@pytest.mark.parametrize("sync", [False, True])
async def test_hung_threads_of_a_tool_are_counted_and_bounded(sync: bool) -> None:
    """Past the limit a call is refused, which is not a failure of the tool; when the old ones end,
    there is room again.
    """
    release = threading.Event()
    guard = Edictum(max_hung_threads=3)
    for number in range(3):
        outcome = await dispatch(guard, sync, "t", lambda: release.wait(60), timeout_s=SHORT)
        assert isinstance(outcome, ToolTimeout)
        assert outcome.body_may_be_running
        assert outcome.effect_unknown
        assert count_hung(guard) == number + 1
    outcome = await dispatch(guard, sync, "t", lambda: 1, run_in="thread")
    assert isinstance(outcome, ToolDenied)
    assert outcome.reason == "capacity"
    assert outcome.details == (
        "3 calls of 't' that timed out are still running in their threads, so no further one"
        " is started."
    )
    assert await guard.run("t", {}, lambda: 1) == 1  # inline needs no thread
    assert guard.local_sink.filter("call_denied")[0].decision_source == "execution"
    release.set()
    wait_until(lambda: count_hung(guard) == 0)
    assert await guard.run("t", {}, lambda: 1, run_in="thread") == 1
    assert count_calls(guard) == (5, 2, 3, 0)


@pytest.mark.parametrize("sync", [False, True])
async def test_hung_threads_stop_no_other_tool_and_no_other_guard(sync: bool) -> None:
    release = threading.Event()
    guard, other = Edictum(max_hung_threads=1), Edictum(max_hung_threads=1)
    await dispatch(guard, sync, "fetch", lambda: release.wait(60), timeout_s=SHORT)
    refused = await dispatch(guard, sync, "fetch", lambda: 1, run_in="thread")
    assert isinstance(refused, ToolDenied)
    for each, tool in ((guard, "lookup"), (other, "fetch")):
        outcome = await dispatch(each, sync, tool, lambda: 1, run_in="thread")
        assert isinstance(outcome, ToolExecutionResult)
    release.set()


@pytest.mark.parametrize("maximum", [0, -1, True, 1.5, "64"])
def test_a_number_of_hung_threads_that_cannot_be_is_refused(maximum: Any) -> None:
    with pytest.raises(EdictumConfigError, match="max_hung_threads is"):
        Edictum(max_hung_threads=maximum)


async def test_a_late_result_is_dropped() -> None:
    """Also a coroutine, which nobody will await any more, and an exception."""
    release = threading.Event()

    async def inner() -> None: ...

    def returns_a_coroutine() -> Any:
        release.wait(60)
        return inner()

    def raises() -> None:
        release.wait(60)
        raise SystemExit

    guard = Edictum()
    for fn in (returns_a_coroutine, raises):
        assert isinstance(await guard.dispatch("t", {}, fn, timeout_s=SHORT), ToolTimeout)
    release.set()
    wait_until(lambda: count_hung(guard) == 0)
    gc.collect()


async def test_a_cancelled_caller_leaves_a_thread_that_is_counted() -> None:
    release, started = threading.Event(), threading.Event()

    def tool() -> None:
        started.set()
        release.wait(60)

    guard = Edictum()
    call = asyncio.ensure_future(guard.run("t", {}, tool, run_in="thread"))
    await asyncio.to_thread(started.wait, 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert count_hung(guard) == 1
    release.set()
    wait_until(lambda: count_hung(guard) == 0)


async def test_threads_are_used_again() -> None:
    guard = Edictum()
    threads = {await guard.run("t", {}, threading.get_ident, run_in="thread") for _ in range(20)}
    assert len(threads) <= 3


# --- Engines --------------------------------------------------------------------------------------


class Echo:
    """An engine that says what it was asked to run."""

    async def run(self, effect: RunTool) -> Ran:
        return Ran(f"ran {effect.call.tool_name} elsewhere")

    def run_sync(self, effect: RunTool) -> Ran:
        return Ran(f"ran {effect.call.tool_name} elsewhere")


class Broken:
    async def run(self, effect: RunTool) -> Ran:
        raise OSError("no route to host")

    def run_sync(self, effect: RunTool) -> Ran:
        raise OSError("no route to host")


async def test_any_object_with_run_and_run_sync_is_an_engine() -> None:
    """For the guard or for one call; a tool's own entry goes before the guard's engine."""
    guard = Edictum(execution=Echo(), tools={"home": {"run_in": "inline"}})
    assert await guard.run("t", {}, lambda: 1) == "ran t elsewhere"
    assert guard.run_sync("t", {}, lambda: 1) == "ran t elsewhere"
    assert await guard.run("home", {}, lambda: 1) == 1
    assert await Edictum().run("t", {}, lambda: 1, run_in=Echo()) == "ran t elsewhere"


async def test_an_engine_that_raises_may_have_begun() -> None:
    guard = Edictum(execution=Broken())
    for outcome in (
        await guard.dispatch("t", {}, lambda: 1),
        guard.dispatch_sync("t", {}, lambda: 1),
    ):
        assert isinstance(outcome, ToolFailure)
        assert "no route to host" in outcome.error
        assert outcome.effect_unknown
    assert count_calls(guard) == (2, 0, 2, 0)


def test_execution_is_a_word_an_engine_or_refused() -> None:
    assert [as_run_in(word) for word in (None, "inline", "thread", "process")] == [
        "inline",
        "inline",
        "thread",
        "process",
    ]
    assert as_run_in(PROCESSES) is PROCESSES
    for wrong in ("elsewhere", 3, "http://host"):
        with pytest.raises(EdictumConfigError, match="execution is"):
            Edictum(execution=wrong)
    with pytest.raises(EdictumInputError, match="run_in is"):
        Edictum().run_sync("t", {}, lambda: 1, run_in="elsewhere")
    with pytest.raises(EdictumConfigError, match="run_in"):
        Edictum(tools={"t": {"run_in": "elsewhere"}})
    with pytest.raises(EdictumConfigError, match="verify"):
        Edictum(tools={"t": {"verify": 3}})


def test_the_more_careful_description_of_a_tool_wins() -> None:
    one = Edictum(tools={"t": {"run_in": "process"}})
    two = Edictum(tools={"t": {"run_in": "thread", "verify": "look"}})
    entry = Edictum.from_multiple([one, two]).policy.entry("t")
    assert (entry.run_in, entry.verify) == ("process", "look")
