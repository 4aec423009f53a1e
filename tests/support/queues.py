"""Approval queues of other classes than the library's own, and persons who answer."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from edictum import ToolDenied, ToolExecutionResult
from edictum.approval import ApprovalQueue, QueuedApproval
from edictum.approval._sqlite_queue import SqliteApprovalStore

Q = TypeVar("Q", bound=ApprovalQueue)


def open_queue_as(kind: type[Q], url: str, lease_s: float = 30.0) -> Q:
    """Return a queue of a class of the test's own, on the store that a URL names."""
    return kind(SqliteApprovalStore(url.removeprefix("sqlite:///")), lease_s=lease_s)


async def next_request(queue: ApprovalQueue, timeout_s: float = 60.0) -> QueuedApproval:
    """Return the oldest pending request, as soon as there is one."""
    async with asyncio.timeout(timeout_s):
        while not (pending := await queue.pending(limit=1)):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
    return pending[0]


async def answer_next(
    queue: ApprovalQueue, approved: bool = True, *, approver: Any = "ann", **said: Any
) -> QueuedApproval:
    """Answer the oldest pending request, as soon as there is one."""
    request = await next_request(queue)
    return await queue.answer(request.approval_id, approved, approver=approver, **said)


async def is_asked(queue: ApprovalQueue, calling: Any) -> bool:
    """Make a call and return whether a person is asked about it, who says no."""
    running = asyncio.ensure_future(calling)
    while not running.done():
        if pending := await queue.pending(limit=1):
            await queue.answer(pending[0].approval_id, False, approver="ann")
            assert isinstance(await running, ToolDenied)
            return True
        await asyncio.sleep(0)
    assert isinstance(running.result(), ToolExecutionResult)
    return False
