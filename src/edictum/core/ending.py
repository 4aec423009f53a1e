"""How a call ended: did it succeed, what does its outcome say, what does its closing event say.
Nothing here is asked for or waited for.
"""

from __future__ import annotations

from typing import Any

from edictum.core._records import replace
from edictum.core.call import SideEffect, ToolCall
from edictum.core.decide import AfterDecision, describe, explain_failure
from edictum.core.effects import NotReturned, Ran
from edictum.core.events import Closing, Context
from edictum.core.policy import Plan
from edictum.core.redaction import shorten
from edictum.core.terms import Flag
from edictum.core.values import dumps
from edictum.outcomes import (
    OUTCOME_KINDS,
    TOOL_MESSAGE_MAX_CHARS,
    ToolFailure,
    ToolOutcome,
    ToolTimeout,
)
from edictum.success import (
    SUCCEEDED_BY_DEFAULT,
    Misfit,
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


def closing_of(
    plan: Plan,
    context: Context,
    ran: Ran,
    verdict: SuccessVerdict,
    value: Any,
    after: AfterDecision,
    outcome: ToolOutcome,
) -> Closing:
    return Closing(
        OUTCOME_KINDS[type(outcome)],
        verdict,
        after if plan.after else None,
        int(ran.elapsed_s * 1000),
        None if verdict.success and not outcome.notes else error_text(outcome),
        context.redaction.summarize(value)
        if ran.error is None and ran.deadline_s is None
        else None,
    )


def verdict_on(
    call: ToolCall, plan: Plan, ran: Ran, flag: Flag | None, check: SuccessCheck | None
) -> SuccessVerdict | None:
    """Did the call succeed? None: the user's ``success_check`` must be asked, which replaces all
    but the facts stated first.
    """
    if ran.error is not None or ran.deadline_s is not None:
        return _ended_badly(ran)
    if check is not None:
        return None
    try:
        for rule in plan.success_rules:
            if (reason := rule.judge(call, ran.value)) is not None:
                return SuccessVerdict(False, f"success_rule:{rule.name}", str(reason))
        if flag is not None and (reason := flag(ran.value)) is not None:
            misfit = type(reason) is Misfit
            return (
                SuccessVerdict(False, "schema", str(reason))
                if misfit
                else SuccessVerdict(False, "framework", str(reason))
            )
        problem = default_problem(ran.value)
        return (
            SUCCEEDED_BY_DEFAULT if problem is None else SuccessVerdict(False, "default", problem)
        )
    except Exception as exc:
        return SuccessVerdict(
            False, "policy", f"Success detection failed: {describe(exc)}", policy_error=True
        )


def _ended_badly(ran: Ran) -> SuccessVerdict:
    if ran.cancelled:
        return SuccessVerdict(False, "cancelled", "The caller was cancelled while the tool ran.")
    if ran.error is None:
        return SuccessVerdict(False, "timeout", "The tool did not end by its deadline.")
    if ran.lost is not None:
        return SuccessVerdict(False, "lost", ran.lost)
    return SuccessVerdict(False, "exception", f"{type(ran.error).__name__}: {describe(ran.error)}")


FIXED_REASONS = frozenset(
    {"default", "cancelled", "timeout"}
)  # the sources whose reasons quote nothing
NOT_TOLD = "The reason is not shown: it may quote what a contract has taken out of the result."


def as_shown(
    call: ToolCall, plan: Plan, ran: Ran, verdict: SuccessVerdict, value: Any, after: AfterDecision
) -> SuccessVerdict:
    """The verdict as it may be told. It was found in the tool's own result, so its reason may quote
    what a contract has taken out.
    """
    if verdict.success or not after.withheld or verdict.source in FIXED_REASONS:
        return verdict
    if ran.error is not None:
        return replace(
            verdict,
            reason=f"{type(ran.error).__name__}: {value}" if isinstance(value, str) else NOT_TOLD,
        )
    return replace(verdict, reason=_reason_again(call, plan, verdict, value) or NOT_TOLD)


def _reason_again(call: ToolCall, plan: Plan, verdict: SuccessVerdict, value: Any) -> str | None:
    """What the rule that found the failure says about the value that is shown."""
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
    unknown = _effect_unknown(call, ran, verdict)
    if ran.deadline_s is not None:
        return ToolTimeout(
            call.call_id,
            call.tool_name,
            ran.deadline_s,
            elapsed_ms,
            (
                _may_be_repeated(call, unknown)
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
    return ToolFailure(
        call.call_id,
        call.tool_name,
        shorten(context.redaction.redact_text(error), TOOL_MESSAGE_MAX_CHARS),
        plan.entry.retry_on_failure and _may_be_repeated(call, unknown),
        elapsed_ms,
        value=shown if ran.error is None else None,
        exception=ran.error,
        success_source=verdict.source,
        success_reason=context.redaction.redact_text(verdict.reason),
        policy_error=verdict.policy_error,
        effect_unknown=unknown,
        verify_tool=plan.entry.verify if unknown else None,
        findings=after.findings,
    )


def _effect_unknown(call: ToolCall, ran: Ran, verdict: SuccessVerdict) -> bool:
    """Whether a tool that changes the world was begun, and nobody can tell what it has done: it has
    not reported its end, or nobody understands what it has reported.
    """
    unfinished = ran.deadline_s is not None or ran.lost is not None or ran.cancelled
    unclear = (
        verdict.source == "schema" or verdict.policy_error or isinstance(ran.error, NotReturned)
    )
    return (unfinished or unclear) and not ran.not_started and call.side_effect in CHANGES_THE_WORLD


def _may_be_repeated(call: ToolCall, effect_unknown: bool) -> bool:
    """A call of which nobody knows whether it took effect is safe to repeat only if repeating it
    changes nothing.
    """
    return not effect_unknown or call.idempotent


def _failure_text(value: Any, verdict: SuccessVerdict) -> str:
    """What a failed result says about itself, for the model."""
    if verdict.policy_error or verdict.source == "schema":
        return verdict.reason
    if isinstance(value, str) and value:
        return value
    if type(value) is dict:
        said = [
            value[key]
            for key in ("error", "message")
            if isinstance(value.get(key), str) and value[key]
        ]
        return said[0] if said else dumps(value)
    return verdict.reason if value is None else dumps(value)


def error_text(outcome: ToolOutcome) -> str:
    texts = [outcome.error] if isinstance(outcome, ToolFailure) else []
    if isinstance(outcome, ToolTimeout):
        texts = [f"timed out after {outcome.elapsed_ms} ms"]
    return shorten("; ".join([*texts, *outcome.notes]), 2_000)
