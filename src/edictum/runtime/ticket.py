"""Tickets: a call paused at RunTool, for frameworks with a hook before the tool and one after it.

The host opens a ticket before the tool, runs the tool itself with ``ticket.args``, and finishes the
ticket, once, with what happened. In between the call holds its slots. A ticket that its framework
may forget belongs in a TicketTable, which closes it when its time is over. One that is dropped
keeps its slots until its lease runs out, and for good where leases do not run out.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from edictum.core.call import ToolCall, snapshot
from edictum.core.decision import Failed
from edictum.core.effects import (
    ArgumentsChanged,
    Declined,
    HostRefusal,
    Pause,
    Ran,
    RanChanged,
    RunTool,
)
from edictum.core.freeze import thaw_args
from edictum.errors import EdictumInputError, TicketError
from edictum.execution.forks import protect
from edictum.outcomes import ToolDenied, ToolOutcome
from edictum.runtime.drive import CallDriver, advance_to_tool, advance_to_tool_sync

MAX_OPEN = 10_000
MAX_AGE_S = 3_600.0


class Ticket:
    """One call between its before- and its after-hook."""

    __slots__ = ("_driver", "_opened", "_outcome", "call", "rewritten")

    def __init__(self, call: ToolCall, driver: CallDriver, step: RunTool | ToolOutcome) -> None:
        self._driver = [driver]  # until it is taken: pop is atomic, and no lock for a fork to hold
        self._opened = time.perf_counter()
        self.call = step.call if isinstance(step, RunTool) else call
        self.rewritten = self.call.args is not call.args  # by a hook
        self._outcome: ToolOutcome | None = None if isinstance(step, RunTool) else step

    @property
    def allowed(self) -> bool:
        """Whether the host may run the tool."""
        return self._outcome is None and bool(self._driver)

    @property
    def denied(self) -> ToolDenied | None:
        return self._outcome if isinstance(self._outcome, ToolDenied) else None

    @property
    def outcome(self) -> ToolOutcome | None:
        return self._outcome

    @property
    def args(self) -> dict[str, Any]:
        """A fresh copy of the arguments that were checked: run the tool with these."""
        return thaw_args(self.call.args)

    @property
    def age_s(self) -> float:
        return time.perf_counter() - self._opened

    async def finish(self, value: Any) -> ToolOutcome:
        """Close the call: the tool returned ``value``."""
        return await self._close(Ran(value, None, self.age_s))

    async def fail(self, error: BaseException) -> ToolOutcome:
        """Close the call: the tool raised."""
        return await self._close(Ran(None, error, self.age_s))

    async def timed_out(self, deadline_s: float) -> ToolOutcome:
        """Close the call: the host gave up waiting at ``deadline_s`` of the monotonic clock."""
        return await self._close(Ran(None, None, self.age_s, deadline_s, body_may_be_running=True))

    async def cancel(self) -> ToolOutcome:
        """Close the call: the host stopped it while the tool ran."""
        return await self._close(self._make_cancellation())

    async def pause(self, signal: BaseException) -> ToolOutcome:
        """Release the slots and count nothing: the framework will make the call again."""
        return await self._close(Failed(Pause(signal)))

    async def decline(self, reason: str) -> ToolOutcome:
        """Deny the call and release its slots: the host cannot run it with these arguments."""
        return await self._close(Failed(Declined(reason)))

    async def refuse(self, reason: str) -> ToolOutcome:
        """Deny the call and release its slots: the host's own permissions refused it."""
        return await self._close(Failed(HostRefusal(reason)))

    async def finish_otherwise(
        self,
        args: Mapping[str, Any],
        value: Any = None,
        error: BaseException | None = None,
        *,
        is_completed: bool = False,
    ) -> ToolOutcome:
        """Close the call as failed: the tool ran with ``args``, which were not checked.

        They are judged and recorded. ``is_completed``: the host completes arguments (a default, an
        absolute path), so if contracts allow these, the call ends as it did.
        """
        return await self._close(self._describe_change(args, value, error, is_completed))

    def finish_sync(self, value: Any) -> ToolOutcome:
        return self._close_sync(Ran(value, None, self.age_s))

    def fail_sync(self, error: BaseException) -> ToolOutcome:
        return self._close_sync(Ran(None, error, self.age_s))

    def timed_out_sync(self, deadline_s: float) -> ToolOutcome:
        return self._close_sync(Ran(None, None, self.age_s, deadline_s, body_may_be_running=True))

    def cancel_sync(self) -> ToolOutcome:
        return self._close_sync(self._make_cancellation())

    def pause_sync(self, signal: BaseException) -> ToolOutcome:
        return self._close_sync(Failed(Pause(signal)))

    def decline_sync(self, reason: str) -> ToolOutcome:
        return self._close_sync(Failed(Declined(reason)))

    def refuse_sync(self, reason: str) -> ToolOutcome:
        return self._close_sync(Failed(HostRefusal(reason)))

    def finish_otherwise_sync(
        self,
        args: Mapping[str, Any],
        value: Any = None,
        error: BaseException | None = None,
        *,
        is_completed: bool = False,
    ) -> ToolOutcome:
        return self._close_sync(self._describe_change(args, value, error, is_completed))

    def _describe_change(
        self, args: Mapping[str, Any], value: Any, error: BaseException | None, is_completed: bool
    ) -> RanChanged | Ran:
        """Describe how a call ended; arguments that cannot be recorded make it fail as well."""
        try:
            known = snapshot(self.call.tool_name, args)
        except EdictumInputError as exc:
            return Ran(None, ArgumentsChanged(str(exc)), self.age_s)
        return RanChanged(known, Ran(value, error, self.age_s), is_completed)

    def _make_cancellation(self) -> Ran:
        text = f"The call {self.call.call_id} of {self.call.tool_name} was cancelled."
        return Ran(None, TicketError(text), self.age_s, cancelled=True)

    def _take_driver(self) -> CallDriver:
        driver = None
        with suppress(IndexError):
            driver = self._driver.pop()
        if driver is None or self._outcome is not None:
            ticket = f"The ticket of call {self.call.call_id} ({self.call.tool_name})"
            hint = "Finish a ticket once, and only when it was allowed."
            raise TicketError(f"{ticket} is closed already.", hint=hint)
        return driver

    async def _close(self, ran: Ran | RanChanged | Failed) -> ToolOutcome:
        driver = self._take_driver()
        return self._end(driver, await advance_to_tool(driver, driver.advance(ran)))

    def _close_sync(self, ran: Ran | RanChanged | Failed) -> ToolOutcome:
        driver = self._take_driver()
        return self._end(driver, advance_to_tool_sync(driver, driver.advance(ran)))

    def _end(self, driver: CallDriver, outcome: RunTool | ToolOutcome) -> ToolOutcome:
        assert not isinstance(outcome, RunTool)  # a ticket's tool runs once
        self._outcome = outcome
        return driver.end(outcome)


class TicketTable:
    """Open tickets by the framework's call id. Their number is bounded, and overdue ones are
    closed.
    """

    def __init__(self, max_open: int = MAX_OPEN, max_age_s: float = MAX_AGE_S) -> None:
        self._max_open = max_open
        self._max_age_s = max_age_s
        self._lock = threading.Lock()
        protect(self)
        self._open: OrderedDict[str, Ticket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def put(self, call_id: str, ticket: Ticket) -> None:
        """Keep a ticket until its after-hook comes; raise EdictumInputError if its id is open."""
        with self._lock:
            duplicate = call_id in self._open
            if not duplicate:
                self._open[call_id] = ticket
        for stale in self._pop_overdue():
            with suppress(TicketError):  # it was finished, and left here
                stale.cancel_sync()
        if duplicate:
            hint = "Give each call an id of its own."
            problem = EdictumInputError(
                f"A call with the id {call_id!r} is already open.", hint=hint
            )
            if ticket.allowed:
                ticket.decline_sync(str(problem))
            raise problem

    def take(self, call_id: str) -> Ticket | None:
        with self._lock:
            return self._open.pop(call_id, None)

    def _pop_overdue(self) -> list[Ticket]:
        overdue: list[Ticket] = []
        with self._lock:
            while self._open:
                oldest = next(iter(self._open.values()))
                if len(self._open) <= self._max_open and oldest.age_s <= self._max_age_s:
                    break
                overdue.append(self._open.popitem(last=False)[1])
        return overdue
