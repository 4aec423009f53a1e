"""Drivers: take a lifecycle from effect to effect and get it what it asks for.

``CallDriver`` is the one loop. It answers effects until something must be awaited, the tool must be
run elsewhere, or the call has ended. ``advance`` takes a call as far as that goes without waiting;
``resume`` and ``resume_sync`` take the rest, and differ only in how they wait. A ticket stops at
RunTool and lets its host run the tool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from inspect import isawaitable
from time import perf_counter
from typing import Any, TypeAlias, final

from edictum._logs import CALLBACK_FAILED, log
from edictum.core._records import record
from edictum.core.config import Flow
from edictum.core.decision import USER_ERRORS, Failed
from edictum.core.effects import Declined, Effect, NoCapacity, Notify, Pause, Ran, RunTool, Within
from edictum.core.limits import Counters, Grant
from edictum.core.turn import CallInTurn
from edictum.execution.body import (
    NOT_AWAITABLE,
    Running,
    finish_inline,
    finish_inline_sync,
    run_async,
    run_sync,
    runs_inline,
    start_inline,
)
from edictum.execution.captured import close
from edictum.execution.failures import NotStarted
from edictum.execution.portal import PORTAL
from edictum.execution.waiting import (
    await_or_finish_later,
    await_until,
    is_being_cancelled,
    start_in_background,
)
from edictum.outcomes import ToolOutcome
from edictum.runtime.handlers import EffectHandlers
from edictum.runtime.renewal import CallLeases

LINGER_S = 0.5  # for an event to be written when its caller was cancelled; then it goes on alone
ANSWERS = NOT_AWAITABLE | {Grant, Counters}  # answers that certainly need no awaiting


@record
class Wait:
    """An effect whose answer must be awaited before the call can go on."""

    effect: Any
    awaitable: Awaitable[Any]
    timeout_s: float | None = None


Step: TypeAlias = RunTool | Running | Wait | ToolOutcome
SUSPENDING = (Wait, Running, RunTool)
RESUMABLE = (*SUSPENDING, Ran)


class CallDriver:
    """One call under way.

    In a ``turn`` waits are bounded by the time that the turn has left, as the effect's ``wait``
    says. ``interrupted`` is what stopped the caller: a cancellation, a KeyboardInterrupt. It is
    raised again once the call is closed.
    """

    __slots__ = ("_flow", "_leases", "_runs_tool", "_turn", "handlers", "interrupted")

    def __init__(
        self,
        flow: Flow,
        handlers: EffectHandlers,
        turn: CallInTurn | None = None,
        *,
        runs_tool: bool = True,
    ) -> None:
        self._flow = flow
        self.handlers = handlers
        self._turn = turn
        self._leases = None if handlers.renewals is None else CallLeases(handlers.renewals)
        self._runs_tool = runs_tool
        self.interrupted: BaseException | None = None

    def start(self) -> Step:
        """Begin the call, and close it if it is interrupted."""
        try:
            return self.advance()
        except BaseException as exc:
            return self.abort(exc)

    def advance(self, answer: Any = None, awaited: Effect | None = None) -> Step:
        """Answer the last effect, then perform effects until one must be waited for, the tool must
        be run elsewhere, or the outcome is there.

        ``awaited`` is the effect whose answer was waited for.
        """
        if awaited is not None and self._leases is not None:
            answer = self._leases.take_answer(awaited, answer)
        try:
            return self._perform(self._flow.send(answer))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the outcome

    def _perform(self, effect: Effect) -> RunTool | Running | Wait:
        send, handlers, leases = self._flow.send, self.handlers, self._leases
        turn = self._turn
        while True:
            if isinstance(effect, RunTool):
                step = self._start_tool(effect)
                if type(step) in SUSPENDING:
                    return step  # type: ignore[return-value] # mypy does not narrow by ``in``
                effect = send(self._note_interruption(step) if type(step) is Ran else step)
                del step  # see ``start_inline``
                continue
            timeout_s = None
            if isinstance(effect, Within):
                timeout_s, effect = effect.timeout_s, effect.effect
            kind = type(effect)
            if leases is not None:
                leases.note_sending(effect)
            try:
                if turn is not None and kind in handlers.in_turn:
                    value: Any = handlers.in_turn[kind](effect, turn.time_left_s())
                else:
                    value = handlers.by_kind[kind](effect)
                if type(value) not in ANSWERS and isawaitable(value):
                    if timeout_s is None:
                        timeout_s = self._time_left_s(effect)
                    return Wait(effect, value, timeout_s)
            except USER_ERRORS as exc:
                value = _to_failure(effect, exc)
            except BaseException as exc:  # the call is closed first, then it is raised again
                self.interrupt(exc)
                if effect.wait.on_cancel == "finish":
                    # The ledger may have counted: breaking off settles the call in any case.
                    effect = self._flow.throw(exc)
                    continue
                value = Failed(exc)
            if leases is not None and effect.wait.on_cancel == "finish":
                value = leases.take_answer(effect, value)
            effect = send(value)

    def _time_left_s(self, effect: Effect) -> float | None:
        """Return how long the turn allows to wait for the answer; None without a bound."""
        turn, bound = self._turn, effect.wait.bound
        if turn is None or type(effect) in self.handlers.in_turn:  # these have their bound
            return None
        return turn.time_left_s(port=bound == "port") if bound in ("turn", "port") else None

    def _start_tool(self, effect: RunTool) -> RunTool | Running | Ran | Failed:
        if self.interrupted is not None:
            return Failed(self.interrupted)
        if not self._runs_tool or not runs_inline(effect):
            return effect
        return start_inline(effect)

    def _note_interruption(self, ran: Ran) -> Ran | Failed:
        """Return the answer to RunTool; note the exception that stopped the tool from outside, if
        there was one.
        """
        if not ran.cancelled:
            return ran
        if isinstance(ran.error, Pause):
            self.interrupted = ran.error.signal
            return Failed(ran.error)
        if isinstance(ran.error, Declined):  # the body has not run, and the caller goes on
            return Failed(ran.error)
        self.interrupted = ran.error
        return ran

    def take_result(self, ran: Ran) -> Step:
        """Continue the call with how its tool ended."""
        if isinstance(ran.error, NoCapacity):
            return self.advance(Failed(ran.error))
        return self.advance(self._note_interruption(ran))

    def interrupt(self, exc: BaseException) -> None:
        """Note what stops the caller; the first exception counts."""
        self.interrupted = self.interrupted or (exc.signal if isinstance(exc, Pause) else exc)

    def abort(self, exc: BaseException) -> Step:
        """Raise the exception inside the lifecycle, which closes the call and raises it again."""
        try:
            return self._perform(self._flow.throw(exc))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the outcome

    def close(self, step: Step | Ran | None, exc: BaseException) -> None:
        """Close the call without awaiting anything, because the caller's coroutine is being closed.

        What must be counted and recorded is left to the event loop, if there is one.
        """
        self.interrupted = exc
        in_tool = isinstance(step, (RunTool, Running, Ran))
        step = self.advance(Ran(None, exc, cancelled=True) if in_tool else Failed(exc))
        while isinstance(step, Wait):
            if step.effect.wait.outlives_caller:
                start_in_background(step.awaitable)
            else:
                close(step.awaitable)
            step = self.advance(Failed(RuntimeError("the caller's coroutine was closed")))

    def end(self, outcome: ToolOutcome) -> ToolOutcome:
        """Return the outcome of the closed call, or raise what interrupted the caller."""
        if self.interrupted is not None:
            raise self.interrupted
        return outcome


def _to_failure(effect: Effect, exc: BaseException) -> Failed:
    if isinstance(effect, Notify):
        message = "%s raised; the call goes on"
        log(CALLBACK_FAILED, message, effect.what, exc_info=exc, redact=effect.redact)
    return Failed(exc)


@final
@record
class Suspended:
    """A call that has not ended: what it waits for, or how its tool ended."""

    driver: CallDriver
    step: Step | Ran


def advance(
    flow: Flow, handlers: EffectHandlers, turn: CallInTurn | None = None
) -> ToolOutcome | Suspended:
    """Take a call to its end, or as far as it goes without waiting."""
    driver = CallDriver(flow, handlers, turn)
    return suspend_or_end(driver, driver.start())


def suspend_or_end(driver: CallDriver, step: Step) -> ToolOutcome | Suspended:
    """Return the outcome of a call that has ended, or the call that must wait."""
    return Suspended(driver, step) if isinstance(step, SUSPENDING) else driver.end(step)


# --- For an asynchronous caller -------------------------------------------------------------------


async def resume(suspended: Suspended) -> ToolOutcome:
    """Take a suspended call to its end."""
    driver = suspended.driver
    step: Step | Ran = suspended.step
    try:
        while True:
            if isinstance(step, Wait):
                step = driver.advance(await _await_answer(driver, step), step.effect)
            elif isinstance(step, Ran):
                step = driver.take_result(step)
            elif isinstance(step, Running):
                step = driver.take_result(await finish_inline(step))
            elif isinstance(step, RunTool):
                step = driver.take_result(await run_async(step, driver.handlers.wiring.abandoned))
            else:
                return driver.end(step)
    except GeneratorExit as exc:
        driver.close(step, exc)
        raise
    except BaseException as exc:
        outcome = await advance_to_tool(driver, driver.abort(exc))
        return driver.end(outcome)  # type: ignore[arg-type]  # an aborted call runs no tool
    finally:
        del step, suspended  # see ``start_inline``


async def advance_to_tool(driver: CallDriver, step: Step) -> RunTool | ToolOutcome:
    """Take a call to its RunTool or to its end."""
    try:
        while isinstance(step, Wait):
            step = driver.advance(await _await_answer(driver, step), step.effect)
    except GeneratorExit as exc:
        driver.close(None, exc)
        raise
    assert not isinstance(step, Running)
    return step


async def _await_answer(driver: CallDriver, wait: Wait) -> Any:
    started = perf_counter()
    try:
        return await _take_answer(driver, wait)
    finally:
        driver.handlers.figures.count_wait(wait.effect, perf_counter() - started)


async def _take_answer(driver: CallDriver, wait: Wait) -> Any:
    on_cancel, timeout_s = wait.effect.wait.on_cancel, wait.timeout_s
    try:
        if on_cancel != "stop":
            late = partial(driver.handlers.take_late_answer, wait.effect)
            return await await_or_finish_later(
                wait.awaitable,
                timeout_s,
                late=None if timeout_s is None else late,
                on_cancel=driver.interrupt,
                linger_s=LINGER_S if on_cancel == "linger" else None,
            )
        if timeout_s is None:
            return await wait.awaitable
        return await await_until(wait.awaitable, timeout_s)
    except USER_ERRORS as exc:
        return _to_failure(wait.effect, exc)
    except asyncio.CancelledError as exc:
        if is_being_cancelled():  # else the port raised it
            driver.interrupt(exc)
        return Failed(exc)
    except GeneratorExit:
        raise
    except BaseException as exc:  # the call is closed first, then it is raised again
        driver.interrupt(exc)
        return Failed(exc)


# --- For a synchronous caller ---------------------------------------------------------------------


def resume_sync(suspended: Suspended) -> ToolOutcome:
    """Take a suspended call to its end, from synchronous code inside or outside a running event
    loop.
    """
    driver = suspended.driver
    step: Step | Ran = suspended.step
    try:
        while isinstance(step, RESUMABLE):
            if isinstance(step, Wait):
                step = driver.advance(_await_answer_sync(driver, step), step.effect)
            elif isinstance(step, Ran):
                step = driver.take_result(step)
            elif isinstance(step, Running):
                step = driver.take_result(finish_inline_sync(step))
            else:
                step = driver.take_result(run_sync(step, driver.handlers.wiring.abandoned))
        return driver.end(step)
    except BaseException as exc:
        outcome = advance_to_tool_sync(driver, driver.abort(exc))
        return driver.end(outcome)  # type: ignore[arg-type] # an aborted call runs no tool
    finally:
        del step, suspended


def advance_to_tool_sync(driver: CallDriver, step: Step) -> RunTool | ToolOutcome:
    """Take a call to its RunTool or to its end, from synchronous code."""
    while isinstance(step, Wait):
        step = driver.advance(_await_answer_sync(driver, step), step.effect)
    assert not isinstance(step, Running)
    return step


def _await_answer_sync(driver: CallDriver, wait: Wait) -> Any:
    awaitable: Awaitable[Any] = wait.awaitable
    if wait.timeout_s is not None:
        if wait.effect.wait.on_cancel == "stop":
            awaitable = await_until(awaitable, wait.timeout_s)
        else:
            late = partial(driver.handlers.take_late_answer, wait.effect)
            awaitable = await_or_finish_later(awaitable, wait.timeout_s, late=late)
    started = perf_counter()
    try:
        return PORTAL.run(awaitable)
    except (*USER_ERRORS, asyncio.CancelledError) as exc:
        if isinstance(exc, NotStarted):
            close(wait.awaitable)
        return _to_failure(wait.effect, exc)
    except BaseException as exc:
        driver.interrupt(exc)
        return Failed(exc)
    finally:
        driver.handlers.figures.count_wait(wait.effect, perf_counter() - started)
