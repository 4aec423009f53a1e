"""Previews: find out by a read tool what a call would change, before a person is asked about it.

The guard calls the read tool like any other: its contracts judge it, it counts in the session, and
the audit has it, with the call that it is for as its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from edictum.core._records import record
from edictum.core.call import CONSEQUENTIAL, ToolCall
from edictum.core.freeze import get_original_args
from edictum.core.policy import Plan
from edictum.core.redaction import RedactionPolicy, shorten
from edictum.core.tool_entry import UNKNOWN_TOOL
from edictum.core.turn import OpenedCall
from edictum.outcomes import ToolExecutionResult, ToolOutcome, outcome_to_model_content

if TYPE_CHECKING:
    from edictum.guard import Edictum

PREVIEW_TIMEOUT_S = 10.0
PREVIEW_MAX_CHARS = 4_000


@record
class ReadTool:
    """The tool that a preview calls. ``takes`` is the function whose parameters name its
    arguments.
    """

    plan: Plan
    body: Callable[..., Any]
    takes: Callable[..., Any]
    is_stated: bool = True  # the policy or its spec says what effect it has


@record
class Preview:
    """Makes the preview of one call, when a person is asked."""

    guard: Edictum
    plan: Plan
    turn: OpenedCall | None
    redaction: RedactionPolicy

    async def __call__(self, call: ToolCall) -> dict[str, Any]:
        """Return what the read tool returned, or why it was not called."""
        wanted = self.plan.entry.preview
        name = wanted if isinstance(wanted, str) else getattr(wanted, "__name__", "preview")
        tool = self._find(wanted, name)
        if tool is None:
            return {"tool": name, "problem": "No function is known for it."}
        if tool.is_stated and tool.plan.entry.side_effect in CONSEQUENTIAL:
            return {"tool": name, "problem": "It is not a tool that only reads."}
        args = _pick_args(tool.takes, get_original_args(call.args))
        about: dict[str, Any] = {"session_id": call.run_id, "principal": call.principal}
        judged = self.guard.evaluate(name, args, **about)
        if judged.decision != "allow":
            reason = "; ".join(judged.deny_reasons)
            return {"tool": name, "problem": self.redaction.redact_text(f"Not allowed: {reason}")}
        outcome = await self.guard.dispatch(
            name,
            args,
            tool.body,
            parent_call_id=call.call_id,
            timeout_s=tool.plan.entry.timeout_s or PREVIEW_TIMEOUT_S,
            **about,
        )
        said = self.redaction.redact_text(_show(outcome))
        return {"tool": name, "result": shorten(said, PREVIEW_MAX_CHARS)}

    def _find(self, wanted: Any, name: str) -> ReadTool | None:
        plan = self.guard.policy.plan(name)
        if callable(wanted):
            return ReadTool(plan, wanted, wanted, plan.entry is not UNKNOWN_TOOL)
        known = None if self.turn is None else self.turn.find_tool(name)
        if known is None or known.body is None:
            return None
        return ReadTool(known.plan, known.body, known.function or known.body)


def _show(outcome: ToolOutcome) -> str:
    """Return an outcome as a person reads it: a text as it is, anything else as a model would read
    it.
    """
    if isinstance(outcome, ToolExecutionResult) and isinstance(outcome.value, str):
        return outcome.value
    return outcome_to_model_content(outcome)


def _pick_args(function: Callable[..., Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the arguments that a function takes."""
    try:
        parameters = signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return dict(args)
    if any(it.kind is Parameter.VAR_KEYWORD for it in parameters.values()):
        return dict(args)
    return {name: value for name, value in args.items() if name in parameters}
