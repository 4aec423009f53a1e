"""The attributes of the span of a call.

Names are those of the semantic conventions for generative AI (``gen_ai.*``, ``error.type``);
attributes without such a name are under ``edictum.*``. By ``langfuse.*`` and ``openinference.*``
Langfuse and Phoenix recognise the span of a tool.
"""

from __future__ import annotations

from inspect import isfunction, ismethod
from typing import Any, Final, assert_never

from edictum.core.call import ToolCall
from edictum.core.decision import Decision
from edictum.core.effects import RunTool
from edictum.core.events import Context
from edictum.core.freeze import get_original_args
from edictum.core.redaction import shorten
from edictum.core.values import dumps
from edictum.outcomes import (
    ToolArtifactReference,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    ToolOutcome,
    ToolTimeout,
    outcome_kind,
)

Attributes = dict[str, str | bool | int | float]

MAX_CONTENT: Final = 32_000  # characters of arguments, and of a result
MAX_SAID: Final = 1_000
TOOL_SPAN: Final[Attributes] = {
    "gen_ai.operation.name": "execute_tool",
    "gen_ai.tool.type": "function",
    "langfuse.observation.type": "tool",
    "openinference.span.kind": "TOOL",
}


def describe_call(run: RunTool, context: Context, description: str) -> Attributes:
    """Return what is known of a call before it is decided."""
    call = run.call
    attributes: Attributes = {
        **TOOL_SPAN,
        "gen_ai.tool.name": call.tool_name,
        "gen_ai.tool.call.id": call.call_id,
        "gen_ai.conversation.id": call.run_id,
        "tool.name": call.tool_name,
        "session.id": call.run_id,
        "edictum.mode": context.mode,
        "edictum.environment": call.environment,
        "edictum.side_effect": call.side_effect.value,
    }
    if context.policy_version is not None:
        attributes["edictum.policy.version"] = context.policy_version
    if text := shorten(description or read_docstring(run), MAX_SAID):
        attributes["gen_ai.tool.description"] = attributes["tool.description"] = text
    return attributes


def read_docstring(run: RunTool) -> str:
    """Return the first line of the docstring of a tool's function.

    A callable object has that of its class, which says nothing about the tool.
    """
    is_plain = isfunction(run.body) or ismethod(run.body)
    text = (run.body.__doc__ or "").strip() if is_plain else ""
    return text.partition("\n")[0]


def describe_caller(call: ToolCall, context: Context) -> Attributes:
    """Return on whose behalf a call was made; a resolver may have determined it."""
    principal = call.principal
    if principal is None:
        return {}
    said = {
        "user.id": principal.user_id,
        "edictum.principal.role": principal.role,
        "edictum.principal.org_id": principal.org_id,
    }
    redact = context.redaction.redact_text
    return {name: redact(str(value)) for name, value in said.items() if value is not None}


def describe_decision(decision: Decision, context: Context) -> Attributes:
    """Return what was decided, by which part of the policy, and why."""
    attributes: Attributes = {"edictum.decision": decision.effect}
    if decision.source is not None:
        attributes["edictum.decision.source"] = decision.source
    if decision.name is not None:
        attributes["edictum.decision.name"] = decision.name
    if decision.reason:
        reason = context.redaction.redact_text(decision.reason)
        attributes["edictum.decision.reason"] = shorten(reason, MAX_SAID)
    if decision.policy_error:
        attributes["edictum.policy_error"] = True
    return attributes


def describe_outcome(outcome: ToolOutcome) -> Attributes:
    """Return how a call ended."""
    attributes: Attributes = {"edictum.outcome": outcome_kind(outcome)}
    if (error := error_type(outcome)) is not None:
        attributes["error.type"] = error
    if isinstance(outcome, ToolDenied):
        return attributes
    if outcome.turn.attempts > 1:
        attributes["edictum.attempts"] = outcome.turn.attempts
    if outcome.turn.replayed:
        attributes["edictum.replayed"] = True
    if isinstance(outcome, ToolFailure | ToolTimeout) and outcome.effect_unknown:
        attributes["edictum.effect_unknown"] = True
    return attributes


def error_type(outcome: ToolOutcome) -> str | None:
    """Return the kind of a refusal or a failure; None for a call that is not one.

    A call that its framework paused continues later, so it is not an error.
    """
    match outcome:
        case ToolDenied():
            return None if outcome.reason == "paused" else outcome.reason
        case ToolTimeout():
            return "timeout"
        case ToolFailure():
            return _failure_type(outcome)
        case ToolExecutionResult() | ToolArtifactReference():
            return None
        case _:
            assert_never(outcome)


def _failure_type(outcome: ToolFailure) -> str:
    if outcome.exception is not None:
        return exception_type(outcome.exception)
    return outcome.success_source.partition(":")[0] or "_OTHER"


def exception_type(error: BaseException) -> str:
    """Return the name of an exception's class, with its module unless it is a built-in one."""
    remote = getattr(error, "type_name", None)  # of one that was raised on another machine
    if isinstance(remote, str) and remote:
        return remote
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def show_arguments(call: ToolCall, context: Context) -> Attributes:
    """Return the arguments as they stand in the audit: redacted."""
    text = shorten(dumps(context.redaction.redact_args(get_original_args(call.args))), MAX_CONTENT)
    return {
        "gen_ai.tool.call.arguments": text,
        "input.value": text,
        "input.mime_type": "application/json",
    }


def show_result(outcome: ToolOutcome, context: Context) -> Attributes:
    """Return what a call returned, or the error that it ended with, redacted and bounded."""
    match outcome:
        case ToolExecutionResult():
            value: Any = outcome.value
        case ToolArtifactReference():
            value = outcome.summary
        case ToolFailure():
            value = outcome.error
        case _:
            return {}
    text = context.redaction.redact_result(value, MAX_CONTENT)
    mime = "text/plain" if isinstance(value, str) else "application/json"
    return {"gen_ai.tool.call.result": text, "output.value": text, "output.mime_type": mime}
