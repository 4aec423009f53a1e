"""Conclusion: how a call ends. It ran, was denied, did not start, or was interrupted.

Once the tool has run the call is counted and its result is kept, whatever else fails.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from inspect import isawaitable
from typing import Any

from edictum._audit_event import AuditAction
from edictum.core import events
from edictum.core._records import record, replace
from edictum.core.call import ToolCall
from edictum.core.charges import NO_CHARGES, Charges
from edictum.core.config import FailureFlag, Flow, LifecycleConfig
from edictum.core.contract import Mode, Verdict
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
    RunTool,
    StoreArtifact,
    Within,
)
from edictum.core.events import CALL_EXECUTED, CALL_FAILED, Closing, Entry
from edictum.core.library_values import count_parts
from edictum.core.lifecycle.admission import Admission, decide, with_estimate
from edictum.core.lifecycle.approval import DENIED_BY_PERSON, end_approvals, record_pause
from edictum.core.lifecycle.verdict import (
    closing_fields,
    failed_outcome,
    find_verdict,
    succeeded_outcome,
    with_note,
    without_removed_text,
)
from edictum.core.limits import NO_AMOUNTS, Counters, Settlement, make_settlement
from edictum.core.policy import Plan
from edictum.core.scopes import parent_accounts
from edictum.core.turn import CallInTurn, Oversized, TurnOver
from edictum.core.user_code import await_answers, call_user_code, is_applicable
from edictum.outcomes import ToolDenied, ToolExecutionResult, ToolOutcome, make_denied
from edictum.success import (
    LAZY_TYPES,
    Checker,
    SuccessVerdict,
    close_lazy_result,
    verdict_from_check,
    verdict_from_problem,
)

LONG_TEXT = 100_000  # characters
MANY_PARTS = 10_000  # rows of a frame, elements of a list
SHORTEST_SEARCH_S = 0.05  # the time left to a call whose tool used all of it
NOT_REVIEWED = AfterDecision()
_WARNING = AuditAction.POSTCONDITION_WARNING
CHANGED = "The tool ran with arguments other than the ones that were checked."
NOT_SHOWN = "Its result is not shown."
NOT_COUNTED = "The call could not be counted"
TOO_LARGE = "The result is too large to be shown in the time that was left. Ask for less of it."
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
    "approval": DENIED_BY_PERSON,
    "approval_backend": "policy_error",
    "principal_resolver": "policy_error",
}


def conclude(
    admission: Admission,
    ran: Ran | RanChanged | Failed,
    asked: RunTool,
    plan: Plan,
    config: LifecycleConfig,
    failure_flag: FailureFlag | None = None,
    turn: CallInTurn | None = None,
) -> Flow:
    """Judge a call that has run, count it, record how it ended, and return its outcome.

    ``asked`` is the call as the caller asked for it, with its charges before an estimate.
    """
    if isinstance(ran, Failed):
        return (yield from release_unstarted_call(admission, ran.error, plan, config))
    if isinstance(ran, RanChanged):
        admission, ran = yield from judge_real_args(admission, ran, asked.charges, plan, config)
    ran = _read_end(ran, config, turn)
    if asked.charges is not NO_CHARGES:
        admission = admission.measure(ran)
    call = admission.run.call
    verdict = find_verdict(call, plan, ran, failure_flag, config.success_check)
    if verdict is None:
        verdict = yield from _ask_success_check(config, call.tool_name, ran.value, turn)
    value, after = ran.value, NOT_REVIEWED
    if plan.after or plan.hooks_after:
        verdict, value, after = yield from _review(admission, ran, plan, config, verdict, turn)
    ended = JudgedCall(admission, plan, config.context, ran, verdict, value, after)
    outcome = yield from _count_and_record(ended, ended.make_outcome(), turn)
    if admission.approvals:
        yield from end_approvals(admission, started=not ran.not_started)
    return _with_admission_notes(outcome, admission)


def _read_end(ran: Ran, config: LifecycleConfig, turn: CallInTurn | None) -> Ran:
    """Return how the body ended as its turn sees it, and without a generator as the value."""
    if turn is not None:
        ran = turn.end_body(ran)
    if type(ran.value) in LAZY_TYPES and (turn is not None or config.success_check is None):
        return replace(ran, value=close_lazy_result(ran.value))
    return ran


def _with_admission_notes(outcome: ToolOutcome, admission: Admission) -> ToolOutcome:
    """Return the outcome with notes about its amounts and about arguments that a person changed."""
    if note := admission.run.charges.note:
        outcome = replace(outcome, notes=(*outcome.notes, note))
    if changes := admission.changes:
        assert not isinstance(outcome, ToolDenied)  # it ran
        facts = replace(outcome.turn, changes=changes)
        outcome = replace(outcome, notes=(*changes, *outcome.notes), turn=facts)
    return outcome


@record
class JudgedCall:
    """A call that has run, and how it was judged."""

    admission: Admission
    plan: Plan
    context: events.Context
    ran: Ran
    verdict: SuccessVerdict
    value: Any
    after: AfterDecision

    def make_outcome(self) -> ToolOutcome:
        call, ran, verdict, value = self.admission.call, self.ran, self.verdict, self.value
        if verdict.success:
            return succeeded_outcome(call, ran, value, self.after.findings)
        return failed_outcome(call, self.plan, self.context, ran, verdict, value, self.after)

    def build_settlement(self, entries: tuple[Entry, ...]) -> Settlement:
        result = "success" if self.verdict.success else "failure"
        return _settlement(self.admission, self.plan, result, entries)

    def make_entries(self, outcome: ToolOutcome) -> tuple[Entry, ...]:
        """Return the warnings of postconditions, and the event that closes the call."""
        admission, context = self.admission, self.context
        call, decision, counters = admission.call, admission.decision, admission.counters
        judged = (self.ran, self.verdict, self.value, self.after, outcome)
        closing = Closing(*closing_fields(self.plan, context, *judged))
        action = CALL_EXECUTED if self.verdict.success else CALL_FAILED
        end = Entry(context, action, call, decision, counters, closing)
        if self.after.passed:
            return (end,)
        found, warning = replace(closing, outcome=None, verdict=None, error=None), _WARNING
        warnings = [
            Entry(context, warning, call, decision, counters, found, objection)
            for objection in self.after.objections()
        ]
        return (*warnings, end)


def _count_and_record(ended: JudgedCall, outcome: ToolOutcome, turn: CallInTurn | None) -> Flow:
    """Settle the reservation, record how the call ended, and return its outcome.

    The events are sent with the settlement, unless an output must be stored first: their fields
    about the outcome are known only then.
    """
    oversized: Oversized | None = None
    entries: tuple[Entry, ...] = ()
    shaped = outcome if turn is None else (yield from _shape(outcome, turn))
    if isinstance(shaped, Oversized):
        oversized = shaped
    else:
        outcome = shaped
        entries = ended.make_entries(outcome)
    counters = yield ended.build_settlement(entries)
    if type(counters) is not Counters:
        outcome = with_note(outcome, ended.context, NOT_COUNTED, counters)
    if oversized is not None:
        outcome = yield from _store(outcome, oversized, ended.admission, turn)
    if oversized is not None or type(counters) is not Counters:
        entries = _follow(ended.make_entries(outcome), entries)
    problem = None
    for entry in entries:
        entry.take_answer(counters)
        problem = yield entry
    return outcome if problem is None else with_note(outcome, ended.context, NOT_WRITTEN, problem)


def _shape(
    outcome: ToolOutcome, turn: CallInTurn
) -> Generator[Effect, Any, ToolOutcome | Oversized]:
    """Return the outcome as the turn shows it, or the output that must be stored first.

    A large result takes long to serialize, so that is done in a thread, within the time that the
    turn has left.
    """
    if type(outcome) is not ToolExecutionResult or not _is_large(outcome.value):
        return turn.shape(outcome)
    shaped = yield CallUserCode(turn.shape, (outcome,))
    if type(shaped) is not Failed:
        return shaped  # type: ignore[no-any-return]  # what shape returns
    return replace(outcome, output={"truncated": True, "note": TOO_LARGE})


def _follow(entries: tuple[Entry, ...], before: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Return new events in place of those that were sent with a settlement. It may not have been
    answered, so it is not known whether those were written.
    """
    for entry, sent in zip(entries, before, strict=False):
        entry.is_sent = sent.is_sent
    return entries


def judge_real_args(
    admission: Admission,
    changed: RanChanged,
    charges: Charges,
    plan: Plan,
    config: LifecycleConfig,
) -> Generator[Effect, Any, tuple[Admission, Ran]]:
    """Ask the contracts about the arguments that the tool was really given, and record these.

    Returns the admission of the call as it ran, by which it is counted, and how it ended: as a
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


def _settlement(
    admission: Admission, plan: Plan, result: Any, entries: tuple[Entry, ...] = ()
) -> Settlement:
    run, asked = admission.run, admission.reservation
    used = NO_AMOUNTS if result == "release" else run.charges.amounts
    if asked is None:  # the ledger knows in which accounts the call is held
        own = (run.call.run_id, run.key, plan.tools, plan.limits)
        accounts = parent_accounts(plan, run.charges.parents)
        return make_settlement(*own, result, used, accounts, entries)
    own = (asked.session_id, asked.call_id, asked.tools, asked.limits)
    return make_settlement(*own, result, used, asked.accounts, entries)


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
    shown, after = yield from ask_postconditions(admission, plan, config, ran, value)
    for hook in plan.hooks_after:
        if (yield from is_applicable(hook, (call,), turn is not None)) is True:
            yield Notify(
                hook.callback,
                (call, value),
                f"after-hook {hook.name}",
                config.context.redaction.redact_text,
            )
    return without_removed_text(call, plan, ran, verdict, shown, after), shown, after


def ask_postconditions(
    admission: Admission, plan: Plan, config: LifecycleConfig, ran: Ran, value: Any
) -> Generator[Effect, Any, tuple[Any, AfterDecision]]:
    """Return the value that may be shown, and what the postconditions said about it.

    A large value is searched in a thread, within the time that the call has left. If that is not
    enough, the postconditions count as failed, and the value is not shown.
    """
    call, redact = admission.call, config.context.redaction.redact_value
    raw: Any = None
    if _is_large(value):
        judging = CallUserCode(_judge_value, (plan, config.mode, call, value, redact))
        raw = yield _bound(judging, admission, ran)
        if type(raw) is tuple:
            return raw
        if type(raw) is Failed:
            raw = [(contract, _explain_timeout(raw, admission)) for contract in plan.after]
    settled = yield from await_answers(plan.ask_after(call, value) if raw is None else raw)
    answers = [as_answer(contract, said, config.mode) for contract, said in settled]
    if _is_slow_to_redact(value, answers):
        judging = CallUserCode(decide_after, (plan.after, answers, call, value, redact))
        decided = yield _bound(judging, admission, ran)
        if type(decided) is not Failed:
            return decided  # type: ignore[no-any-return]  # what decide_after returns
        if isinstance(decided.error, TimeoutError):  # else the caller was cancelled
            failed = _explain_timeout(decided, admission)
            answers = [as_answer(answer.contract, failed, config.mode) for answer in answers]
    return decide_after(plan.after, answers, call, value, redact)


def _judge_value(
    plan: Plan, mode: Mode, call: ToolCall, value: Any, redact: Callable[[Any], Any]
) -> tuple[Any, AfterDecision] | list[tuple[Any, Any]]:
    """Return the result of ``decide_after``, or the raw answers if one of them must be awaited."""
    raw = plan.ask_after(call, value)
    if any(isawaitable(said) for _, said in raw):
        return raw
    answers = [as_answer(contract, said, mode) for contract, said in raw]
    return decide_after(plan.after, answers, call, value, redact)


def _bound(effect: CallUserCode, admission: Admission, ran: Ran) -> CallUserCode | Within:
    """Return the effect bounded by what is left of the call's timeout, if it has one."""
    timeout_s = admission.run.timeout_s
    if timeout_s is None:
        return effect
    return Within(effect, max(timeout_s - ran.elapsed_s, SHORTEST_SEARCH_S))


def _explain_timeout(failed: Failed, admission: Admission) -> Failed | Verdict:
    if not isinstance(failed.error, TimeoutError):
        return failed
    limit = admission.run.timeout_s
    within = "the time of its turn" if limit is None else f"the {limit:g} s of its call"
    reason = f"Postcondition error: TimeoutError: the result could not be searched within {within}"
    return Verdict.fail(reason, policy_error=True)


def _is_slow_to_redact(value: Any, answers: Sequence[Answer]) -> bool:
    """Return whether matches must be replaced in much text, which would block the event loop."""
    if not any(
        answer.contract.effect == "redact" and not answer.verdict.policy_error for answer in answers
    ):
        return False
    return _is_large(value) or any(
        isinstance(text, str) and len(text) >= LONG_TEXT for text in _list_parts(value)
    )


def _is_large(value: Any) -> bool:
    """Return whether a value is so large that searching it would block the event loop."""
    if type(value) is str:
        return False
    if isinstance(value, (dict, list, tuple)) and len(value) >= MANY_PARTS:
        return True
    return any(count_parts(part) >= MANY_PARTS for part in _list_parts(value))


def _list_parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else (value,)


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


def _store(
    outcome: ToolOutcome, oversized: Oversized, admission: Admission, turn: CallInTurn | None
) -> Flow:
    """Return the outcome as the turn shows it, with its output stored."""
    assert turn is not None  # only a turn has outputs that are too large
    reference: Any = Failed(LookupError("no artifact store"))
    if oversized.store is not None:
        call, content = admission.call, oversized.content
        reference = yield StoreArtifact(oversized.store, call.run_id, call.tool_name, content)
    return turn.take_reference(outcome, oversized, reference)


# --- The tool does not run -----------------------------------------------------------------------


def refuse(admission: Admission, plan: Plan, config: LifecycleConfig) -> Flow:
    """End a call that is denied: release its slots, record the denial, call ``on_deny``."""
    if admission.approvals:
        yield from end_approvals(admission, started=False)
    if admission.outcome is not None:
        return admission.outcome
    call, decision, context = admission.call, admission.decision, config.context
    entry = admission.opening or events.make_denied_entry(
        context, call, decision, admission.counters
    )
    if admission.holds:
        told = () if admission.recorded else (entry,)
        entry.take_answer((yield _settlement(admission, plan, "release", told)))
    notes = admission.changes
    if not admission.recorded:
        problem = yield entry
        if problem is not None:
            why = f"The denial could not be written to the audit: {describe(problem.error)}"
            notes = (*notes, context.redaction.redact_text(why))
    if config.on_deny is not None:
        said = (call, decision.reason or "", decision.name)
        yield Notify(config.on_deny, said, "on_deny", context.redaction.redact_text)
    return make_denied_outcome(call, decision, context, admission.denial_reason, notes)


def make_denied_outcome(
    call: ToolCall,
    decision: Decision,
    context: events.Context,
    reason: str | None = None,
    notes: tuple[str, ...] = (),
) -> ToolOutcome:
    """Return the outcome of a denied call. ``reason`` replaces the one that follows from the
    decision.
    """
    return make_denied(
        call.call_id,
        call.tool_name,
        reason or DENIAL_REASONS.get(decision.source or "", "contract"),
        # a model reads it: an error may quote a password
        context.redaction.redact_and_remember(decision.reason or ""),
        decision_source=decision.source,
        decision_name=decision.name,
        policy_error=decision.policy_error,
        for_operators=decision.for_operators,
        notes=notes,
    )


def release_unstarted_call(
    admission: Admission, error: BaseException, plan: Plan, config: LifecycleConfig
) -> Flow:
    """End an allowed call whose tool was not started, or which its framework deferred."""
    if isinstance(error, Pause):
        return (yield from _pause(admission, error, plan, config))
    return (yield from refuse(_deny_unstarted_call(admission, error), plan, config))


def _pause(admission: Admission, pause: Pause, plan: Plan, config: LifecycleConfig) -> Flow:
    settled = yield _settlement(admission, plan, "release")
    yield from end_approvals(admission, started=False)
    if type(settled) is Counters:
        admission = replace(admission, counters=settled)
    closed = yield from record_pause(admission, pause, config)
    assert closed.outcome is not None
    return closed.outcome


def _deny_unstarted_call(admission: Admission, error: BaseException) -> Admission:
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
    ran: Ran | RanChanged | Failed | None,
    plan: Plan,
    config: LifecycleConfig,
) -> Generator[Effect, Any, None]:
    """Close a call that was interrupted, by KeyboardInterrupt for example.

    Its slots are released or, once the tool has been started, it is counted as failed. Settling a
    call a second time changes nothing.
    """
    started = ran is not None and not isinstance(ran, Failed)
    context, call, counters = config.context, admission.call, admission.counters
    reason = f"The gate was interrupted: {type(error).__name__}: {describe(error)}"
    decision = admission.decision.fail("gate", reason)
    if started:
        closing = Closing(
            "failed",
            SuccessVerdict(False, "gate", reason, policy_error=True),
            error=context.redaction.redact_text(reason),
        )
        entry = Entry(context, CALL_FAILED, call, decision, counters, closing)
    else:
        entry = events.make_denied_entry(context, call, decision, counters)
    result = "failure" if started else "release"
    entry.take_answer((yield _settlement(admission, plan, result, (entry,))))
    yield entry
