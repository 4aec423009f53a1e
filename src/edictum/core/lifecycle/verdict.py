"""Verdict: whether a call that ran has succeeded, and what its outcome and closing event say.

Nothing here waits: these are functions from values to values.
"""

from __future__ import annotations

from typing import Any

from edictum.core._records import replace
from edictum.core.call import SideEffect, ToolCall
from edictum.core.config import FailureFlag
from edictum.core.decide import AfterDecision, describe, explain_failure, type_and_text
from edictum.core.effects import NotReturned, Ran
from edictum.core.events import Context
from edictum.core.policy import Plan, SuccessRule
from edictum.core.redaction import shorten
from edictum.findings import Finding
from edictum.outcomes import (
    OUTCOME_KINDS,
    TOOL_MESSAGE_MAX_CHARS,
    ToolExecutionResult,
    ToolFailure,
    ToolOutcome,
    ToolTimeout,
    failure_text,
    make_failure,
    make_result,
)
from edictum.success import (
    SUCCEEDED_BY_DEFAULT,
    NotCollected,
    SchemaMismatch,
    SuccessCheck,
    SuccessVerdict,
    default_problem,
)

CHANGES_THE_WORLD = frozenset({SideEffect.WRITE, SideEffect.IRREVERSIBLE})


def with_note(outcome: ToolOutcome, context: Context, what: str, problem: Any) -> ToolOutcome:
    return replace(
        outcome,
        notes=(
            *outcome.notes,
            context.redaction.redact_text(f"{what}: {explain_failure(problem)}"),
        ),
    )


def closing_fields(
    plan: Plan,
    context: Context,
    ran: Ran,
    verdict: SuccessVerdict,
    value: Any,
    after: AfterDecision,
    outcome: ToolOutcome,
) -> tuple[Any, ...]:
    """Return the fields of a Closing, in order."""
    return (
        OUTCOME_KINDS[type(outcome)],
        verdict,
        after if plan.after else None,
        int(ran.elapsed_s * 1000),
        None if verdict.success and not outcome.notes else error_text(outcome),
        context.redaction.summarize(value)
        if ran.error is None and ran.deadline_s is None
        else None,
    )


def succeeded_outcome(
    call: ToolCall, ran: Ran, value: Any, findings: tuple[Finding, ...] = ()
) -> ToolExecutionResult:
    """Return the outcome for what a tool returned.

    The output of a value that is not a dict is ``{"result": value}``.
    """
    output = value if type(value) is dict else {"result": value}
    elapsed_ms = int(ran.elapsed_s * 1000)
    return make_result(
        call.call_id, call.tool_name, output, elapsed_ms, value=value, findings=findings
    )


def find_verdict(
    call: ToolCall,
    plan: Plan,
    ran: Ran,
    failure_flag: FailureFlag | None,
    check: SuccessCheck | None,
) -> SuccessVerdict | None:
    """Return whether the call succeeded, or None when the guard's ``success_check`` must be asked.

    A tool that raised or timed out has failed, whatever a check says.
    """
    if ran.error is not None or ran.deadline_s is not None:
        return _judge_missing_value(ran)
    value = ran.value
    if check is not None and type(value) is not NotCollected:
        return None
    try:
        for rule in plan.success_rules:
            if (reason := rule.judge(call, value)) is not None:
                return _rule_verdict(rule, reason)
        if failure_flag is not None and (reason := failure_flag(value)) is not None:
            is_mismatch = type(reason) is SchemaMismatch
            return SuccessVerdict(False, "schema" if is_mismatch else "framework", str(reason))
        problem = default_problem(value)
    except Exception as exc:
        reason = f"Success detection failed: {type_and_text(exc)}"
        return SuccessVerdict(False, "policy", reason, policy_error=True)
    return SUCCEEDED_BY_DEFAULT if problem is None else SuccessVerdict(False, "default", problem)


def _rule_verdict(rule: SuccessRule, reason: str) -> SuccessVerdict:
    return SuccessVerdict(
        False,
        f"success_rule:{rule.name}",
        str(reason),
        retryable=rule.retryable,
        for_model=rule.for_model,
    )


def _judge_missing_value(ran: Ran) -> SuccessVerdict:
    if ran.cancelled:
        return SuccessVerdict(False, "cancelled", "The caller was cancelled while the tool ran.")
    if ran.error is None:
        return SuccessVerdict(False, "timeout", "The tool did not end by its deadline.")
    if ran.lost is not None:
        return SuccessVerdict(False, "lost", ran.lost)
    return SuccessVerdict(False, "exception", f"{type(ran.error).__name__}: {describe(ran.error)}")


FIXED_REASONS = frozenset({"default", "cancelled", "timeout"})  # these quote nothing
HIDDEN_REASON = "The reason is hidden: it may quote text that a contract removed from the result."


def without_removed_text(
    call: ToolCall, plan: Plan, ran: Ran, verdict: SuccessVerdict, value: Any, after: AfterDecision
) -> SuccessVerdict:
    """Return the verdict without text that a postcondition has removed from the result.

    The verdict was found in the tool's own result, so its reason may quote what was removed.
    """
    if verdict.success or not after.has_withheld or verdict.source in FIXED_REASONS:
        return verdict
    if ran.error is not None:
        shown = f"{type(ran.error).__name__}: {value}" if isinstance(value, str) else None
    else:
        shown = _judge_again(call, plan, verdict, value)
    return replace(verdict, reason=shown or HIDDEN_REASON)


def _judge_again(call: ToolCall, plan: Plan, verdict: SuccessVerdict, value: Any) -> str | None:
    """Return what the rule that found the failure says about the redacted value."""
    try:
        return next(
            (
                rule.judge(call, value)
                for rule in plan.success_rules
                if verdict.source == f"success_rule:{rule.name}"
            ),
            None,
        )
    except Exception:
        return None


def failed_outcome(
    call: ToolCall,
    plan: Plan,
    context: Context,
    ran: Ran,
    verdict: SuccessVerdict,
    value: Any,
    after: AfterDecision,
) -> ToolFailure | ToolTimeout:
    elapsed_ms = int(ran.elapsed_s * 1000)
    unknown = _is_effect_unknown(call, ran, verdict)
    if ran.deadline_s is not None:
        return ToolTimeout(
            call.call_id,
            call.tool_name,
            ran.deadline_s,
            elapsed_ms,
            (
                _can_be_repeated(call, unknown)
                if plan.entry.retry_on_timeout is None
                else plan.entry.retry_on_timeout
            ),
            body_may_be_running=ran.body_may_be_running,
            effect_unknown=unknown,
            verify_tool=plan.entry.verify if unknown else None,
        )
    shown = context.redaction.redact_secrets(value)
    if ran.cancelled:
        error = verdict.reason
    elif ran.error is not None:
        error = shown if isinstance(shown, str) else describe(ran.error)
    else:
        error = _failure_text(shown, verdict)
    error, reason = _redact_texts(context, error, verdict)
    return make_failure(
        call.call_id,
        call.tool_name,
        shorten(error, TOOL_MESSAGE_MAX_CHARS),
        _is_worth_repeating(plan, ran, verdict) and _can_be_repeated(call, unknown),
        elapsed_ms,
        value=shown if ran.error is None else None,
        exception=ran.error,
        success_source=verdict.source,
        success_reason=reason,
        policy_error=verdict.policy_error,
        effect_unknown=unknown,
        verify_tool=plan.entry.verify if unknown else None,
        findings=after.findings,
    )


def _redact_texts(context: Context, error: str, verdict: SuccessVerdict) -> tuple[str, str]:
    """Return the error and the reason of a failure with secrets redacted.

    The reason usually ends with the error: then one search is enough to see that both are clean.
    """
    redaction, reason = context.redaction, verdict.reason
    if reason.endswith(error) and redaction.is_clean(reason):
        return error, reason
    return redaction.redact_and_remember(error), redaction.redact_and_remember(reason)


def _is_effect_unknown(call: ToolCall, ran: Ran, verdict: SuccessVerdict) -> bool:
    """Return whether the tool changes the world, was started, and may or may not have had its
    effect.

    That is so when it did not report its end, or when its report cannot be understood.
    """
    unfinished = ran.deadline_s is not None or ran.lost is not None or ran.cancelled
    unclear = (
        verdict.source == "schema" or verdict.policy_error or isinstance(ran.error, NotReturned)
    )
    return (unfinished or unclear) and not ran.not_started and call.side_effect in CHANGES_THE_WORLD


def _is_worth_repeating(plan: Plan, ran: Ran, verdict: SuccessVerdict) -> bool:
    """Return whether the same call may end differently if it is repeated, as the success rule says,
    else the tool's entry.

    An engine that could not start the call will not be able to start it a moment later either.
    """
    if ran.not_started and ran.lost is None:
        return False
    if verdict.retryable is not None:
        return verdict.retryable
    return plan.entry.retry_on_failure


def _can_be_repeated(call: ToolCall, effect_unknown: bool) -> bool:
    """Return whether it is safe to repeat the call: its effect is known, or a second one changes
    nothing.
    """
    return not effect_unknown or call.idempotent


def _failure_text(value: Any, verdict: SuccessVerdict) -> str:
    """Return a failed result's own error text, else the reason why it counts as a failure."""
    if verdict.policy_error or verdict.for_model or verdict.source == "schema":
        return verdict.reason
    return failure_text(value) or verdict.reason


def error_text(outcome: ToolOutcome) -> str:
    texts = [outcome.error] if isinstance(outcome, ToolFailure) else []
    if isinstance(outcome, ToolTimeout):
        texts = [f"timed out after {outcome.elapsed_ms} ms"]
    return shorten("; ".join([*texts, *outcome.notes]), 2_000)
