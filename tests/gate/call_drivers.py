"""The ways to drive one call, behind one face: each gives the outcome, or raises what the host
would see.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from edictum import Edictum, ToolOutcome
from edictum.success import error_key

Driving = Callable[..., Awaitable[ToolOutcome]]


async def drive_async(
    guard: Edictum, tool: str, args: dict[str, Any], fn: Callable[..., Any], **options: Any
) -> ToolOutcome:
    return await guard.dispatch(tool, args, fn, **options)


async def drive_sync(
    guard: Edictum, tool: str, args: dict[str, Any], fn: Callable[..., Any], **options: Any
) -> ToolOutcome:
    """In a thread that has no event loop."""
    return await asyncio.to_thread(guard.dispatch_sync, tool, args, fn, **options)


async def drive_sync_in_loop(
    guard: Edictum, tool: str, args: dict[str, Any], fn: Callable[..., Any], **options: Any
) -> ToolOutcome:
    """In the thread of a running event loop."""
    return guard.dispatch_sync(tool, args, fn, **options)


async def drive_ticket(
    guard: Edictum, tool: str, args: dict[str, Any], fn: Callable[..., Any], **options: Any
) -> ToolOutcome:
    """As a framework with before- and after-hooks would: it runs the tool itself, under its own
    deadline.
    """
    timeout_s = options.pop("timeout_s", None)
    ticket = await guard.begin(tool, args, flag=error_key, **options)
    if ticket.outcome is not None:
        return ticket.outcome
    try:
        async with asyncio.timeout(timeout_s) as scope:
            value = fn(**ticket.args)
            if isawaitable(value):
                value = await value
    except TimeoutError as exc:
        return await (
            ticket.timed_out(time.perf_counter()) if scope.expired() else ticket.fail(exc)
        )
    except Exception as exc:
        return await ticket.fail(exc)
    except (asyncio.CancelledError, KeyboardInterrupt):
        await asyncio.shield(ticket.cancel())
        raise
    return await ticket.finish(value)


async def drive_ticket_sync(
    guard: Edictum, tool: str, args: dict[str, Any], fn: Callable[..., Any], **options: Any
) -> ToolOutcome:
    """As a synchronous framework would."""
    return await asyncio.to_thread(_drive_ticket_sync, guard, tool, args, fn, **options)


def _drive_ticket_sync(
    guard: Edictum, tool: str, args: dict[str, Any], fn: Callable[..., Any], **options: Any
) -> ToolOutcome:
    timeout_s = options.pop("timeout_s", None)
    ticket = guard.begin_sync(tool, args, flag=error_key, **options)
    if ticket.outcome is not None:
        return ticket.outcome
    try:
        value = fn(**ticket.args)
        if isawaitable(value):
            value = asyncio.run(_bounded(value, timeout_s))
    except _HostTimeout:
        return ticket.timed_out_sync(time.perf_counter())
    except Exception as exc:
        return ticket.fail_sync(exc)
    except (asyncio.CancelledError, KeyboardInterrupt):
        ticket.cancel_sync()
        raise
    return ticket.finish_sync(value)


class _HostTimeout(Exception):
    """The host's own deadline passed."""


async def _bounded(value: Awaitable[Any], timeout_s: float | None) -> Any:
    try:
        async with asyncio.timeout(timeout_s) as scope:
            return await value
    except TimeoutError:
        if scope.expired():
            raise _HostTimeout from None
        raise


DRIVINGS: dict[str, Driving] = {
    "async": drive_async,
    "sync": drive_sync,
    "sync in a loop": drive_sync_in_loop,
    "ticket": drive_ticket,
    "sync ticket": drive_ticket_sync,
}
