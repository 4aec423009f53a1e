"""Conclusion: how a call ends. It ran, was refused, did not start, or was interrupted.

Once the tool has run the call is counted and its result is kept, whatever else fails.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from edictum._audit_event import AuditAction
from edictum.core import events
from edictum.core._records import replace
from edictum.core.call import ToolCall
from edictum.core.charges import Charges
from edictum.core.config import FailureFlag, Flow, LifecycleConfig
from edictum.core.decide import AfterDecision, as_answer, decide_after, describe
from edictum.core.decision import USER_ERRORS, Answer, Decision, Failed
from edictum.core.effects import (
    ArgumentsChanged,
    CallUserCode,
    Declined,
    Effect,
    HostRefusal,
    NoCapacity,
    Notify,
    Pause,
    Ran,
    RanChanged,
    StoreArtifact,
)
from edictum.core.events import CALL_EXECUTED, CALL_FAILED, Closing, Entry
from edictum.core.lifecycle.admission import Admission, decide, with_estimate
from edictum.core.lifecycle.approval import end_approvals, record_pause
from edictum.core.lifecycle.verdict import (
    closing_fields,
    failed_outcome,
    find_verdict,
    shown_verdict,
    succeeded_outcome,
    with_note,
)
from edictum.core.limits import NO_AMOUNTS, Counters, Settlement, make_settlement
from edictum.core.policy import Plan
from edictum.core.scopes import parent_accounts
from edictum.core.turn import CallInTurn, Oversized, TurnOver
from edictum.core.user_code import await_answers, call_user_code, is_applicable
from edictum.outcomes import ToolDenied, ToolOutcome, make_denied
from edictum.success import (
    Checker,
    SuccessVerdict,
    verdict_from_check,
    verdict_from_problem,
)

LONG_TEXT = 100_000  # characters
NOT_REVIEWED = AfterDecision()
POSTCONDITION_WARNING = AuditAction.POSTCONDITION_WARNING
CHANGED = "The tool ran with other arguments than those that were checked."
NOT_SHOWN = "Its result is not shown."
NOT_WRITTEN = "The result could not be written to the audit"
# ToolDenied.reason by the source of the decision; every other source is a contract
DENIAL_REASONS = {
    "hook": "pre_hook",
    "operation_limit": "limit",
    "attempt_limit": "limit",
    "yaml_session": "limit",
    "amounts": "policy_error",
    "ledger": "policy_error",
    "audit": "policy_error",
    "approval_backend": "policy_error",
    "principal_resolver": "policy_error",
}


def conclude(
    admission: Admission,
    ran: Ran,
    plan: Plan,
    config: LifecycleConfig,
    failure_flag: FailureFlag | None = None,
    turn: CallInTurn | None = None,
) -> Flow:
    """Judge a call that has run, count it, record how it ended, and return its outcome."""
    call, decision, context = admission.run.call, admission.decision, config.context
    verdict = find_verdict(call, plan, ran, failure_flag, config.success_check)
    if verdict is None:
        verdict = yield from _ask_success_check(config, call.tool_name, ran.value, turn)
    value, after = ran.value, NOT_REVIEWED
    if plan.after or plan.hooks_after:
        verdict, value, after = yield from _review(admission, ran, plan, config, verdict, turn)
    outcome: ToolOutcome
    if verdict.success:
        outcome = succeeded_outcome(call, ran, value, after.findings)
    else:
        outcome = failed_outcome(call, plan, context, ran, verdict, value, after)
    result = "success" if verdict.success else "failure"
    counters = yield _settlement(admission, plan, result)
    if type(counters) is not Counters:
        outcome = with_note(outcome, context, "The call could not be counted", counters)
        counters = admission.counters
    if turn is not None:
        outcome = yield from _shape(outcome, admission, turn)
    closing = Closing(*closing_fields(plan, context, ran, verdict, value, after, outcome))
    if not after.passed:
        found = replace(closing, outcome=None, verdict=None, error=None)
        for objection in after.objections():
            yield Entry(context, POSTCONDITION_WARNING, call, decision, counters, found, objection)
    action = CALL_EXECUTED if verdict.success else CALL_FAILED
    problem = yield Entry(context, action, call, decision, counters, closing)
    if problem is not None:
        outcome = with_note(outcome, context, NOT_WRITTEN, problem)
    note = admission.run.charges.note
    if note:
        outcome = replace(outcome, notes=(*outcome.notes, note))
    if changes := admission.changes:
        assert not isinstance(outcome, ToolDenied)  # it ran
        facts = replace(outcome.turn, changes=changes)
        outcome = replace(outcome, notes=(*changes, *outcome.notes), turn=facts)
    return outcome


def judge_real_args(
    admission: Admission,
    changed: RanChanged,
    charges: Charges,
    plan: Plan,
    config: LifecycleConfig,
) -> Generator[Effect, Any, tuple[Admission, Ran]]:
    """Ask the contracts about the arguments that the tool was really given, and record them.

    Returns the admission of the call as it ran, for which it is counted, and how it ended: as a
    failure without a result, unless the guard only observes. ``charges`` are those before an
    estimate.
    """
    call, reserved = replace(admission.call, args=changed.args), admission.run.charges
    run = with_estimate(replace(admission.run, call=call, charges=charges))
    amounts = {**reserved.amounts, **run.charges.amounts}  # what is not known stays as reserved
    run = replace(run, charges=replace(run.charges, amounts=amounts))
    decision = yield from decide(plan, plan.ask_before(call), (), config.mode)
    reason = f"{CHANGED} {decision.reason or 'No contract objects to them.'}"
    action, counters = AuditAction.CALL_CHANGED, admission.counters
    yield Entry(config.context, action, call, decision, counters, reason=reason)
    admission, ran = replace(admission, run=run), changed.ran
    if config.mode == "observe" or (changed.is_completed and decision.effect == "allow"):
        return admission, ran
    return admission, Ran(None, ArgumentsChanged(f"{CHANGED} {NOT_SHOWN}"), ran.elapsed_s)


def _settlement(admission: Admission, plan: Plan, result: Any) -> Settlement:
    run, asked = admission.run, admission.reservation
    used = NO_AMOUNTS if result == "release" else run.charges.amounts
    if asked is None:  # the ledger knows in which accounts the call is held
        own = (run.call.run_id, run.key, plan.tools, plan.limits)
        return make_settlement(*own, result, used, parent_accounts(plan, run.charges.parents))
    own = (asked.session_id, asked.call_id, asked.tools, asked.limits)
    return make_settlement(*own, result, used, asked.accounts)


def _review(
    admission: Admission,
    ran: Ran,
    plan: Plan,
    config: LifecycleConfig,
    verdict: SuccessVerdict,
    turn: CallInTurn | None,
) -> Generator[Effect, Any, tuple[SuccessVerdict, Any, AfterDecision]]:
    """Ask postconditions and after-hooks about the tool's own value.

    Returns the verdict and the value as they may be shown, and what was said about the value.
    """
    call = admission.call
    value = ran.value if ran.error is None else describe(ran.error)
    shown, after = yield from ask_postconditions(admission, plan, config, value)
    for hook in plan.hooks_after:
        if (yield from is_applicable(hook, (call,), turn is not None)) is True:
            yield Notify(hook.callback, (call, value), f"after-hook {hook.name}")
    return shown_verdict(call, plan, ran, verdict, shown, after), shown, after


def ask_postconditions(
    admission: Admission, plan: Plan, config: LifecycleConfig, value: Any
) -> Generator[Effect, Any, tuple[Any, AfterDecision]]:
    """Return the value that may be shown, and what the postconditions said about it."""
    settled = yield from await_answers(plan.ask_after(admission.call, value))
    answers = [as_answer(contract, raw, config.mode) for contract, raw in settled]
    redact = config.context.redaction.redact_value
    asked = (plan.after, answers, admission.call, value, redact)
    if _is_slow_to_redact(value, answers):
        decided = yield CallUserCode(decide_after, asked)
        if type(decided) is not Failed:  # as when the caller is cancelled: then without waiting
            return decided  # type: ignore[no-any-return]  # what decide_after returns
    return decide_after(*asked)


def _is_slow_to_redact(value: Any, answers: Sequence[Answer]) -> bool:
    """Return whether matches are replaced in a long text, which would hold the event loop."""
    if not any(answer.contract.effect == "redact" for answer in answers):
        return False
    parts = value.values() if isinstance(value, dict) else value
    texts = parts if isinstance(value, (dict, list, tuple)) else (value,)
    return any(isinstance(text, str) and len(text) >= LONG_TEXT for text in texts)


def _ask_success_check(
    config: LifecycleConfig, tool: str, value: Any, turn: CallInTurn | None
) -> Generator[Effect, Any, SuccessVerdict]:
    check = config.success_check
    assert check is not None  # else there is a verdict
    try:
        if isinstance(check, Checker):
            return verdict_from_problem(check.problem(tool, value))
        answer = yield from call_user_code(check, (tool, value), turn is not None)
        if type(answer) is Failed:  # even by a cancellation, which the driver raises again
            raise RuntimeError(describe(answer.error)) from answer.error
        return verdict_from_check(check, tool, answer)
    except USER_ERRORS as exc:
        problem = (
            f"success_check did not give an answer, so the call counts as failed: {describe(exc)}"
        )
        return SuccessVerdict(False, "success_check", problem, policy_error=True)


def _shape(outcome: ToolOutcome, admission: Admission, turn: CallInTurn) -> Flow:
    """Return the outcome as the turn shows it, with an output that is too large stored."""
    shaped = turn.shape(outcome)
    if type(shaped) is not Oversized:
        return shaped  # type: ignore[return-value]  # not Oversized: an outcome
    reference: Any = Failed(LookupError("no artifact store"))
    if shaped.store is not None:
        call = admission.call
        reference = yield StoreArtifact(shaped.store, call.run_id, call.tool_name, shaped.content)
    return turn.stored(outcome, shaped, reference)


# --- The tool does not run -----------------------------------------------------------------------


def refuse(admission: Admission, plan: Plan, config: LifecycleConfig) -> Flow:
    """End a call that is denied: release what it holds, record the denial, tell ``on_deny``."""
    if admission.approvals:
        yield from end_approvals(admission, started=False)
    if admission.outcome is not None:
        return admission.outcome
    if admission.holds:
        yield _settlement(admission, plan, "release")
    call, decision, context = admission.call, admission.decision, config.context
    notes = admission.changes
    if not admission.recorded:
        problem = yield events.denied(context, call, decision, admission.counters)
        if problem is not None:
            why = f"The denial could not be written to the audit: {describe(problem.error)}"
            notes = (*notes, context.redaction.redact_text(why))
    if config.on_deny is not None:
        yield Notify(config.on_deny, (call, decision.reason or "", decision.name), "on_deny")
    return make_denied_outcome(call, decision, context, admission.denial_reason, notes)


def make_denied_outcome(
    call: ToolCall,
    decision: Decision,
    context: events.Context,
    reason: str | None = None,
    notes: tuple[str, ...] = (),
) -> ToolOutcome:
    """Return the outcome of a call that is denied, for ``reason`` or that of its decision."""
    return make_denied(
        call.call_id,
        call.tool_name,
        reason or DENIAL_REASONS.get(decision.source or "", "contract"),
        # a model reads it: an error may quote a password
        context.redaction.redact_text(decision.reason or ""),
        decision_source=decision.source,
        decision_name=decision.name,
        policy_error=decision.policy_error,
        notes=notes,
    )


def release_unstarted(
    admission: Admission, error: BaseException, plan: Plan, config: LifecycleConfig
) -> Flow:
    """End an allowed call whose tool did not start, or whose framework will run it again."""
    if isinstance(error, Pause):
        return (yield from _pause(admission, error, plan, config))
    return (yield from refuse(_deny_unstarted(admission, error), plan, config))


def _pause(admission: Admission, pause: Pause, plan: Plan, config: LifecycleConfig) -> Flow:
    settled = yield _settlement(admission, plan, "release")
    yield from end_approvals(admission, started=False)
    if type(settled) is Counters:
        admission = replace(admission, counters=settled)
    closed = yield from record_pause(admission, pause, config)
    assert closed.outcome is not None
    return closed.outcome


def _deny_unstarted(admission: Admission, error: BaseException) -> Admission:
    decision = admission.decision
    if isinstance(error, TurnOver):
        refusal = error.refusal
        late = decision.deny("turn", "deadline", refusal.details, policy_error=refusal.policy_error)
        return admission.deny(late, refusal.reason)
    if isinstance(error, NoCapacity):
        return admission.deny(decision.deny("execution", "capacity", str(error)), "capacity")
    if isinstance(error, HostRefusal):
        return admission.deny(decision.deny("host", "permissions", str(error)), "refused")
    if isinstance(error, Declined):
        return admission.deny(decision.fail("host", str(error), "declined"), "pre_hook")
    reason = "The caller was cancelled before the tool started."
    return admission.deny(decision.deny("cancelled", "cancelled", reason), "cancelled")


def abort(
    admission: Admission,
    error: BaseException,
    ran: Ran | Failed | None,
    plan: Plan,
    config: LifecycleConfig,
) -> Generator[Effect, Any, None]:
    """Close a call that an exception such as KeyboardInterrupt has interrupted.

    Its slots are released, or, once the tool has been started, it is counted as failed. A repeated
    settlement changes nothing.
    """
    started = type(ran) is Ran
    yield _settlement(admission, plan, "failure" if started else "release")
    context, call, counters = config.context, admission.call, admission.counters
    reason = f"The gate was interrupted: {type(error).__name__}: {describe(error)}"
    decision = admission.decision.fail("gate", reason)
    if not started:
        yield events.denied(context, call, decision, counters)
        return
    closing = Closing(
        "failed",
        SuccessVerdict(False, "gate", reason, policy_error=True),
        error=context.redaction.redact_text(reason),
    )
    yield Entry(context, CALL_FAILED, call, decision, counters, closing)
