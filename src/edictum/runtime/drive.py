"""Drivers: they take a lifecycle from effect to effect and get what it asks for.

``Walk.step`` is the one loop. It goes on until something must be waited for, the tool must be run,
or the call has ended. The asynchronous and the synchronous driver differ only in how they wait, and
a ticket stops at RunTool and lets its host run the tool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, final

from edictum.core._records import record
from edictum.core.config import Flow
from edictum.core.decision import USER_ERRORS, Failed
from edictum.core.effects import Effect, Pause, Ran, RunTool, Within, ran_to_end
from edictum.core.events import Entry
from edictum.core.freeze import FlatDict, thaw_args
from edictum.core.limits import Reservation, Settlement
from edictum.execution.body import (
    PLAIN,
    await_sync,
    clock,
    ended_by,
    needs_await,
    run_async,
    run_sync,
)
from edictum.execution.portal import PORTAL
from edictum.execution.tasks import ABANDONED, Ended, caught, leave
from edictum.outcomes import ToolOutcome
from edictum.runtime.bounded import close
from edictum.runtime.perform import Ports
from edictum.runtime.renewal import LeasedFlow

# A ledger operation that has been sent must be seen through, or nobody would know whether the slot
# was taken.
NOT_TO_BE_CUT = frozenset({Reservation, Settlement})
# for how long a caller who was cancelled waits for an event to be written; then it goes on without
# him
LINGER_S = 0.5
# What a call that is thrown away still sends. Not a reservation: nobody would be there to give back
# what it is granted.
LAST_WORDS = frozenset({Settlement, Entry})


@record
class Wait:
    """Something must be awaited before the walk can go on."""

    kind: type[Any]
    awaitable: Awaitable[Any]


class Walk:
    """One call under way."""

    __slots__ = ("_flow", "_handlers", "_may_wait", "interrupted")

    def __init__(
        self,
        flow: Flow,
        ports: Ports,
        interrupted: BaseException | None = None,
        effect: Effect | None = None,
    ) -> None:
        """``effect``: where the walk stands, if it has begun."""
        self._flow: Flow | LeasedFlow = (
            flow if ports.renewals is None else LeasedFlow(flow, ports.renewals, effect)
        )
        self._handlers = ports.handlers
        self._may_wait = ports.may_wait
        self.interrupted = interrupted

    def step(self, value: Any = None) -> RunTool | Wait | ToolOutcome:
        """Answer the last effect, then perform effects until one needs waiting for, is RunTool, or
        the outcome is there.
        """
        try:
            return self._perform(self._flow.send(value))
        except StopIteration as end:
            outcome: ToolOutcome = end.value
            return outcome

    def go_on(self, effect: Effect) -> RunTool | Wait | ToolOutcome:
        """As ``step``, from an effect that nobody has seen to yet."""
        try:
            return self._perform(effect)
        except StopIteration as end:
            outcome: ToolOutcome = end.value
            return outcome

    def _perform(self, effect: Effect) -> RunTool | Wait:
        send, handlers, may_wait = self._flow.send, self._handlers, self._may_wait
        while True:
            kind = type(effect)
            if kind is RunTool:
                if self.interrupted is None:
                    return effect  # type: ignore[return-value]
                effect = send(Failed(self.interrupted))
                continue
            try:
                value = handlers[kind](effect)
            except USER_ERRORS as exc:
                effect = send(Failed(exc))
                continue
            # somebody said stop: the call is closed first, then it goes on to where it was meant
            except BaseException as exc:
                self.interrupted = self.interrupted or exc
                # Nobody knows whether the ledger has counted: the walk breaks off, which settles
                # the call in any case.
                effect = self._flow.throw(exc) if kind in NOT_TO_BE_CUT else send(Failed(exc))
                continue
            if kind in may_wait and needs_await(value):
                return Wait(type(effect.effect) if kind is Within else kind, value)  # type: ignore[union-attr]
            effect = send(value)

    def interrupt(self, ran: Ran) -> RunTool | Wait | ToolOutcome:
        """Go on with a tool that was stopped from outside; who stopped it is remembered, and told
        at the end.
        """
        if isinstance(ran.error, Pause):
            self.interrupted = ran.error.signal
            return self.step(Failed(ran.error))
        self.interrupted = ran.error
        return self.step(ran)

    def broken(self, exc: BaseException) -> RunTool | Wait | ToolOutcome:
        """Its driver was stopped between two steps. The walk is told so where it stands, closes the
        call and raises it again.
        """
        return self.go_on(self._flow.throw(exc))

    def ended(self, outcome: ToolOutcome) -> ToolOutcome:
        """Hand over the outcome; an interruption of the caller goes on to where it was meant, now
        that the call is closed.
        """
        if self.interrupted is not None:
            raise self.interrupted
        return outcome


async def settle_async(walk: Walk, step: RunTool | Wait | ToolOutcome) -> RunTool | ToolOutcome:
    """Take a walk to its next RunTool or to its end."""
    try:
        while type(step) is Wait:
            step = walk.step(await _wait_async(walk, step))
    except GeneratorExit as exc:
        _finish_without_waiting(walk, Failed(exc))
        raise
    return step  # type: ignore[return-value]


async def _wait_async(walk: Walk, wait: Wait) -> Any:
    try:
        if wait.kind in NOT_TO_BE_CUT:
            return await _see_through(walk, wait.awaitable)
        if wait.kind is Entry:
            return await _see_written(walk, wait.awaitable)
        return await wait.awaitable
    except USER_ERRORS as exc:
        return Failed(exc)
    except asyncio.CancelledError as exc:
        if asyncio.current_task().cancelling():  # type: ignore[union-attr]
            walk.interrupted = walk.interrupted or exc
        return Failed(exc)
    except GeneratorExit:
        raise
    except BaseException as exc:  # as in ``Walk.step``: the call is closed first
        walk.interrupted = walk.interrupted or exc
        return Failed(exc)


async def _see_through(walk: Walk, awaitable: Awaitable[Any]) -> Any:
    """Wait to the end, however often the caller is cancelled meanwhile; the cancellation is
    remembered.
    """
    task = asyncio.get_running_loop().create_task(caught(awaitable))
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as exc:
            if (
                not task.cancelled()
            ):  # it is this task that was cancelled, perhaps in the moment in which the answer came
                walk.interrupted = walk.interrupted or exc
    return _answer_of(task)


async def _see_written(walk: Walk, awaitable: Awaitable[Any]) -> Any:
    """Wait for an event to be written. Who is cancelled does not cut it off, but does not wait for
    a sink that hangs either.
    """
    task = asyncio.get_running_loop().create_task(caught(awaitable))
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError as exc:
        walk.interrupted = walk.interrupted or exc
        with suppress(asyncio.CancelledError):
            await asyncio.wait((task,), timeout=LINGER_S)
    if task.done():
        return _answer_of(task)
    leave(task)
    return None


def _answer_of(task: asyncio.Task[Ended]) -> Any:
    value, error = task.result()
    if error is not None:
        raise error
    return value


@final
@record
class Rest:
    """What is left of a walk: it stopped at ``effect``; its tool has run (``ran``), or is a
    coroutine that still has to (``running``).

    ``interrupted``: the caller was, and is told so once the call is closed.
    """

    flow: Flow
    ports: Ports
    effect: Effect
    ran: Ran | None = None
    running: Awaitable[Any] | None = None
    started: float = 0.0
    interrupted: BaseException | None = None


def walk_on(flow: Flow, ports: Ports) -> ToolOutcome | Rest:
    """Take a call to its end if it can be done without waiting, or as far as it goes.

    With ports that answer at once nearly every walk asks for one thing, its tool, and then ends.
    That much is done here, for synchronous and asynchronous callers; the drivers below take over at
    anything else.
    """
    started: float | None = None
    try:
        effect = flow.send(None)
        if (
            type(effect) is not RunTool
            or effect.timeout_s is not None
            or effect.run_in != "inline"
            or ports.renewals is not None
        ):
            return Rest(flow, ports, effect)
        args, started = effect.call.args, clock()
        try:
            value = effect.body(**(args if type(args) is FlatDict else thaw_args(args)))  # type: ignore[misc]
            waits = type(value) not in PLAIN and needs_await(
                value
            )  # which raises for a proxy of an object that is gone
        except BaseException as exc:
            return Rest(flow, ports, effect, ended_by(exc, clock() - started))
        if waits:
            return Rest(flow, ports, effect, running=value, started=started)
        return Rest(flow, ports, flow.send(ran_to_end(value, None, clock() - started)))
    except StopIteration as end:
        outcome: ToolOutcome = end.value
        return outcome
    except (
        BaseException
    ) as exc:  # of the walk itself, which is over then; or somebody pressed Ctrl-C just here
        return (
            _not_begun(flow, ports, exc) if started is None else Rest(flow, ports, flow.throw(exc))
        )


def _not_begun(flow: Flow, ports: Ports, exc: BaseException) -> Rest:
    """Tell a walk that it is stopped before its tool has begun."""
    effect: Effect | None = None
    with suppress(StopIteration):
        effect = flow.send(Failed(exc))
    if effect is None:
        raise exc
    return Rest(flow, ports, effect, interrupted=exc)


async def drive_async(rest: Rest) -> ToolOutcome:
    """Drive what is left of a call for an asynchronous caller."""
    flow = rest.flow
    if rest.running is None:
        return await _drive_on(
            Walk(flow, rest.ports, rest.interrupted, rest.effect), rest.effect, rest.ran
        )
    try:
        value = await rest.running
    except BaseException as exc:
        walk, elapsed_s = Walk(flow, rest.ports), clock() - rest.started
        if _being_closed(exc):
            _finish_without_waiting(walk, Ran(None, exc, elapsed_s, cancelled=True))
            raise
        return await _drive_on(walk, rest.effect, ended_by(exc, elapsed_s))
    try:
        effect = flow.send(ran_to_end(value, None, clock() - rest.started))
    except StopIteration as end:
        outcome: ToolOutcome = end.value
        return outcome
    return await _drive_on(Walk(flow, rest.ports), effect)


def _being_closed(exc: BaseException) -> bool:
    """Whether the coroutine that caught this is being closed, as opposed to a tool that raised a
    GeneratorExit of its own.
    """
    return (
        isinstance(exc, GeneratorExit)
        and exc.__traceback__ is not None
        and exc.__traceback__.tb_next is None
    )


async def _drive_on(walk: Walk, effect: Effect, ran: Ran | None = None) -> ToolOutcome:
    """Go on with a walk that has stopped at ``effect``, or, if its tool has run already, with what
    came of it.
    """
    step: RunTool | Wait | ToolOutcome | None = None
    try:
        step = walk.go_on(effect) if ran is None else _after_tool(walk, ran)
        while True:
            kind = type(step)
            if kind is RunTool:
                step = _after_tool(walk, await run_async(step))  # type: ignore[arg-type]
            elif kind is Wait:
                step = walk.step(await _wait_async(walk, step))  # type: ignore[arg-type]
            else:
                return walk.ended(step)  # type: ignore[arg-type]
    except GeneratorExit as exc:
        _finish_without_waiting(
            walk, Ran(None, exc, cancelled=True) if type(step) is RunTool else Failed(exc)
        )
        raise
    except BaseException as exc:
        return walk.ended(await settle_async(walk, walk.broken(exc)))  # type: ignore[arg-type]


def _finish_without_waiting(walk: Walk, answer: Ran | Failed) -> None:
    """The caller's coroutine is being thrown away, and may not await any more: close the call with
    what answers at once.
    """
    walk.interrupted = answer.error
    step = walk.step(answer)
    while type(step) is Wait:
        _let_go(step)
        step = walk.step(
            Failed(RuntimeError("the caller was thrown away, and nobody waits for the answer"))
        )


def _let_go(wait: Wait) -> None:
    """What counts and records the end of a call is left to the loop, if there is one; nothing else
    is begun any more.
    """
    with suppress(RuntimeError):
        if wait.kind in LAST_WORDS:
            task = asyncio.get_running_loop().create_task(caught(wait.awaitable))
            ABANDONED.add(task)
            task.add_done_callback(ABANDONED.discard)
            task.add_done_callback(
                lambda _: close(wait.awaitable)
            )  # the loop may end before it begins
            return
    close(wait.awaitable)


def settle_sync(walk: Walk, step: RunTool | Wait | ToolOutcome) -> RunTool | ToolOutcome:
    """As ``settle_async``, for a synchronous caller."""
    while type(step) is Wait:
        try:
            value = PORTAL.run(step.awaitable)
        except (*USER_ERRORS, asyncio.CancelledError) as exc:
            value = Failed(exc)
        except BaseException as exc:
            walk.interrupted = walk.interrupted or exc
            value = Failed(exc)
        step = walk.step(value)
    return step  # type: ignore[return-value]


def drive_sync(rest: Rest) -> ToolOutcome:
    """Drive what is left of a call for a synchronous caller, inside or outside a running event
    loop.
    """
    walk = Walk(rest.flow, rest.ports, rest.interrupted, rest.effect)
    try:
        step = _drive_on_sync(walk, rest)
    except BaseException as exc:
        step = settle_sync(walk, walk.broken(exc))
    return walk.ended(step)  # type: ignore[arg-type]


def _drive_on_sync(walk: Walk, rest: Rest) -> RunTool | ToolOutcome:
    ran = rest.ran if rest.running is None else await_sync(rest.running, rest.started, PORTAL.run)
    step = settle_sync(walk, walk.go_on(rest.effect) if ran is None else _after_tool(walk, ran))
    while type(step) is RunTool:
        step = settle_sync(walk, _after_tool(walk, run_sync(step, PORTAL.run)))
    return step


def _after_tool(walk: Walk, ran: Ran) -> RunTool | Wait | ToolOutcome:
    return walk.interrupt(ran) if ran.cancelled else walk.step(ran)
