"""Replies: what an adapter hands back to its framework for an outcome of the guard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, assert_never

from edictum._logs import ADAPTER_FAILED, CALLBACK_FAILED, log
from edictum.adapters._large_results import NO_LIMIT, ResultLimit
from edictum.core._records import record
from edictum.core.decide import describe
from edictum.core.values import dumps
from edictum.errors import EdictumInputError, EdictumToolError
from edictum.execution.portal import PORTAL
from edictum.findings import Finding
from edictum.outcomes import (
    ToolArtifactReference,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    ToolOutcome,
    ToolTimeout,
    denial_for_model,
    effect_for_model,
    failure_for_model,
    outcome_to_model_content,
    timeout_for_model,
)

BROKEN_CALLBACK = "on_postcondition_warn raised; the result stays as it is"

OnWarn = Callable[[Any, list[Finding]], Any] | None
ReplaceText = Callable[[BaseException, str], BaseException]


@record
class ToolReply:
    """One of three: the tool's ``value``, a ``text`` in its place, or an ``error`` to raise. The
    value is whole; ``get`` shortens one that is too large for a model.
    """

    outcome: ToolOutcome
    value: Any = None
    text: str | None = None
    error: BaseException | None = None
    limit: ResultLimit = NO_LIMIT

    @property
    def denied(self) -> bool:
        return isinstance(self.outcome, ToolDenied)

    @property
    def failed(self) -> bool:
        """Whether the framework should mark the result as an error: denied, failed, timed out."""
        return not isinstance(self.outcome, (ToolExecutionResult, ToolArtifactReference))

    def get(self) -> Any:
        """Return the value as a model may read it, or the text; raise the tool's exception."""
        return self.limit.fit(self.get_whole())

    def get_whole(self) -> Any:
        """Do as ``get`` does, for a value with parts that no model reads: fit the others."""
        if self.error is not None:
            raise self.error
        return self.value if self.text is None else self.text


def make_reply(
    outcome: ToolOutcome, with_redacted_text: ReplaceText, limit: ResultLimit = NO_LIMIT
) -> ToolReply:
    match outcome:
        case ToolExecutionResult():
            return ToolReply(outcome, value=outcome.value, limit=limit)
        case ToolDenied():
            text = limit.fit(f"DENIED: {denial_for_model(outcome)}")
            return ToolReply(outcome, text=text)
        case ToolFailure():
            return _reply_to_failure(outcome, with_redacted_text, limit)
        case ToolTimeout():
            return ToolReply(outcome, text=timeout_for_model(outcome))
        case ToolArtifactReference():
            return ToolReply(outcome, text=outcome_to_model_content(outcome))
        case _:
            assert_never(outcome)


def _reply_to_failure(
    outcome: ToolFailure, with_redacted_text: ReplaceText, limit: ResultLimit
) -> ToolReply:
    error = outcome.exception
    if error is None:
        return ToolReply(outcome, value=outcome.value, limit=limit)
    text = limit.fit(failure_for_model(outcome)) + effect_for_model(outcome)
    if describe(error) != text:
        error = with_redacted_text(error, text)
    return ToolReply(outcome, error=error)


def replace_text(error: BaseException, text: str) -> BaseException:
    """Return the exception with another text; one of another type if its text cannot be
    replaced.
    """
    error.args = (text,)
    return error if describe(error) in (text, repr(text)) else EdictumToolError(text)


def deny_broken_gate(name: str, exc: BaseException) -> ToolDenied:
    """Return the denial of a call for which the gate itself failed."""
    message = "the gate failed for a call of %r, which is denied"
    log(ADAPTER_FAILED, message, name, exc_info=exc, tool=name)
    details = f"The gate failed: {describe(exc)}"
    is_input = isinstance(exc, EdictumInputError)
    return ToolDenied(
        "",
        name,
        "policy_error",
        details,
        decision_source="input" if is_input else "adapter",
        policy_error=True,
    )


def to_text(value: Any) -> str:
    """Return text as it is and everything else as JSON, as frameworks do in messages."""
    return value if isinstance(value, str) else dumps(value)


# --- Telling findings -----------------------------------------------------------------------------


def tell_findings(reply: ToolReply, on_warn: OnWarn) -> ToolReply:
    """Pass the findings of postconditions to ``on_warn``; what it returns replaces the value."""
    answer = _ask(reply, on_warn)
    return _replace_value(reply, PORTAL.run(_wait(answer)) if isawaitable(answer) else answer)


async def tell_findings_async(reply: ToolReply, on_warn: OnWarn) -> ToolReply:
    answer = _ask(reply, on_warn)
    return _replace_value(reply, await _wait(answer) if isawaitable(answer) else answer)


def _ask(reply: ToolReply, on_warn: OnWarn) -> Any:
    findings: tuple[Finding, ...] = getattr(reply.outcome, "findings", ())
    if on_warn is None or not findings:
        return None
    shown = reply.value if reply.error is None else describe(reply.error)
    try:
        return on_warn(shown, list(findings))
    except Exception:
        log(CALLBACK_FAILED, BROKEN_CALLBACK, exc_info=True)
        return None


async def _wait(answer: Awaitable[Any]) -> Any:
    try:
        return await answer
    except Exception:
        log(CALLBACK_FAILED, BROKEN_CALLBACK, exc_info=True)
        return None


def _replace_value(reply: ToolReply, answer: Any) -> ToolReply:
    """Return the reply with another value, unless it is None or stands for an exception."""
    if answer is None or reply.error is not None:
        return reply
    return ToolReply(reply.outcome, value=answer, limit=reply.limit)
