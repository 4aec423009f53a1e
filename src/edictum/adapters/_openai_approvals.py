"""The SDK's own pause: ``needs_approval`` of a tool ends a run, ``RunState`` goes on with it.

The SDK asks before it invokes a tool, and cannot pause any more once it has. So the question is put
in the queue when the SDK asks whether the call needs approval, and the tool looks at the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from edictum.core.parking import Park, tell_once
from edictum.core.values import dumps

OWN = "own_needs_approval"  # on a governed tool: what it says itself
GUARDRAILS_WAIT = "the SDK asks guardrails only once it has begun a call. Use govern(agent)"
PREPARE = "__agents_prepare_arguments__"


class NestedApproval(Exception):
    """An agent that runs as a tool waits for a person; the SDK calls it again with the answer."""


def let_pause(adapter: Any, tool: Any) -> Any:
    """Return a governed tool whose ``needs_approval`` asks the guard too, if the guard can ask."""
    if not hasattr(tool, "needs_approval"):
        return tool
    own = vars(tool).setdefault(OWN, tool.needs_approval)
    tool.needs_approval = _make_check(adapter, tool, own) if adapter.can_pause(tool.name) else own
    return tool


def keep_marks(adapter: Any, inner: Any, tool: Any) -> dict[str, Any]:
    """Return the marks by which the SDK knows how a tool's arguments are prepared, and which
    function is behind it.

    For a tool that can say by a function whether it needs approval, the SDK requires it for all
    arguments that it cannot inspect. That is for functions of users: the guard judges what it gets.
    """
    marks = dict(vars(inner))
    if adapter.can_pause(tool.name) and not callable(getattr(tool, "needs_approval", None)):
        marks.pop(PREPARE, None)
    return marks


def _make_check(adapter: Any, tool: Any, own: Any) -> Callable[..., Awaitable[bool]]:
    make_context = adapter.load("agents.tool_context").ToolContext

    async def needs_approval(ctx: Any, args: dict[str, Any], call_id: str) -> bool:
        about = {"tool_name": tool.name, "tool_arguments": dumps(args)}
        details = {"call_id": call_id, "parameters": tool.params_json_schema}
        details["context"] = make_context.from_agent_context(ctx, call_id, **about)
        is_open = await adapter.ask_ahead(tool.name, args, **details)
        needs = own(ctx, args, call_id) if callable(own) else own
        return is_open or bool(await needs if isawaitable(needs) else needs)

    return needs_approval


class PausesRuns:
    """The part of the adapter that has to do with the SDK's approvals."""

    def control_flow(self) -> tuple[type[BaseException], ...]:
        return (NestedApproval,)

    def make_park(self, context: Any) -> Park:
        """Return what a call does about an open question once the SDK has begun it: it tells that
        it was approved in the run's state, and then waits.
        """
        approved = context.is_tool_approved(context.tool_name, context.tool_call_id)
        return tell_once(approved or None, "OpenAI Agents")  # what was rejected is not begun
