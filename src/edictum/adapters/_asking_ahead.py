"""Ask a person before a framework begins a call, for frameworks that can pause only at that
point.
"""

from __future__ import annotations

import asyncio
from inspect import isawaitable
from typing import Any

from edictum._options import EVALUATE_OPTIONS
from edictum.core.parking import ApprovalPending


class AskOnly:
    """Parks a call as soon as its question is in the queue, even if it is answered there."""

    only_asks = True

    def __call__(self, request: Any) -> Any:
        raise ApprovalPending(request)


ASK_ONLY = AskOnly()


async def ask_ahead(call: Any) -> bool:
    """Ask about a GuardCall, if the guard would ask; return whether the answer is still awaited.

    Any other answer of the guard is given when the call is made.
    """
    if call.problem or not await is_asked_about(call):
        return False
    options = {**call.options, "control_flow": (ApprovalPending,)}
    try:
        await call.guard.dispatch(call.name, call.args, _must_not_run, **options)
    except ApprovalPending as pending:
        found = await call.guard.approvals.get(pending.request.approval_id)
        return found is not None and found.status == "pending"
    return False


async def is_asked_about(call: Any) -> bool:
    """Return whether the guard would ask a person, without making the call."""
    options = {name: it for name, it in call.options.items() if name in EVALUATE_OPTIONS}
    resolver = call.options.get("principal_resolver")
    if resolver is not None:
        who = resolver(call.name, call.args)
        options["principal"] = await who if isawaitable(who) else who
    # in a thread: contracts may wait, and this is the event loop of the framework
    judged = await asyncio.to_thread(call.guard.evaluate, call.name, call.args, **options)
    return bool(judged.needs_approval)


def _must_not_run(**args: Any) -> Any:
    raise AssertionError("a call that is only asked about does not run")
