"""The lifecycle: the one walk that every governed call takes.

This file knows the order of a call and nothing else. It is a generator: it yields what it needs (see ``effects``), it gets
the answer sent back, and it returns exactly one ToolOutcome. It never awaits, sleeps, reads a clock or does I/O, so the same
walk serves asynchronous callers, synchronous ones, and frameworks that only offer a hook before and a hook after the tool.

    identify  ->  hooks, preconditions, sandbox  ->  [approval]  ->  reserve, session contracts  ->  RunTool
              ->  success detection  ->  postconditions, after-hooks  ->  commit  ->  closing event  ->  outcome

Three rules hold everywhere:

1. Every way through ends in one closing event and one outcome, also when a port fails or the caller is cancelled.
2. Until RunTool, any failure refuses the call, and slots that were reserved are given back. From RunTool on the tool has run,
   whatever happens: the call is counted, and the result is kept even if the ledger or the audit is down.
3. The tool gets the arguments that were checked, because nobody else can reach them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from inspect import isawaitable
from typing import Any, Literal, TypeAlias

from edictum.core import events
from edictum.core._draft import record
from edictum.core.call import Principal, SideEffect, ToolCall
from edictum.core.contract import Mode
from edictum.core.decide import (
    AfterDecision,
    as_answer,
    as_hook_answer,
    ask,
    ask_after,
    ask_hooks,
    decide_after,
    decide_before,
    describe,
)
from edictum.core.decision import Decision, Objection, Raised
from edictum.core.effects import Ask, AwaitDecision, Effect, Notify, Ran, ReadSession, RunTool, Settle, Withdraw
from edictum.core.events import Approval, AuditAction, Closing, Context
from edictum.core.jsonable import dumps, jsonable
from edictum.core.limits import NO_COUNTERS, Counters, Grant, Reservation, Settlement
from edictum.core.policy import Plan
from edictum.core.redaction import shorten
from edictum.core.session import SessionView
from edictum.findings import build_findings
from edictum.outcomes import (
    TOOL_MESSAGE_MAX_CHARS,
    ToolDenied,
    ToolFailure,
    ToolOutcome,
    ToolTimeout,
    execution_result,
    outcome_kind,
)
from edictum.success import Checker, SuccessCheck, SuccessVerdict, verdict_by_default, verdict_from_check

Flow: TypeAlias = Generator[Effect, Any, ToolOutcome]
Flag: TypeAlias = Callable[[Any], str | None]

NOT_ASKED = AfterDecision(value=None)
# Which gate a denial came from, for ToolDenied.reason.
REASONS = {"hook": "pre_hook", "operation_limit": "limit", "attempt_limit": "limit", "yaml_session": "limit"}


@record
class Terms:
    """What all calls of a guard have in common."""

    context: Context
    success_check: SuccessCheck | None = None
    principal_resolver: Callable[..., Any] | None = None
    on_deny: Callable[..., Any] | None = None
    on_allow: Callable[..., Any] | None = None
    can_ask: bool = False
    lease_s: float | None = None

    @property
    def mode(self) -> Mode:
        return self.context.mode


@record
class Admission:
    """The state of a call at the door: what was decided, and the counters it was decided by."""

    call: ToolCall
    decision: Decision
    counters: Counters
    gate: str | None = None  # for denials that ToolDenied.reason names otherwise than by their source
    announced: bool = False  # an event that says so is already written


def lifecycle(call: ToolCall, plan: Plan, terms: Terms, run: RunTool, flag: Flag | None = None) -> Flow:
    """Govern one call. ``flag`` is the framework's own way to say that a result is a failure."""
    admission = yield from _admit(call, plan, terms)
    call, decision = admission.call, admission.decision
    for objection in decision.waived:
        yield events.would_deny(terms.context, call, decision, admission.counters, objection)
    if decision.effect != "allow":
        return (yield from _refuse(admission, terms))
    if not admission.announced:
        problem = yield events.allowed(terms.context, call, decision, admission.counters)
        if problem is not None:
            yield _settlement(call, plan, "release")
            return (yield from _refuse(_unrecorded(admission, problem), terms))
    if terms.on_allow is not None:
        yield Notify(terms.on_allow, (call,), "on_allow")
    ran = yield (run if call is run.call else replace(run, call=call))
    if isinstance(ran, Raised):
        yield _settlement(call, plan, "release")
        return (yield from _refuse(_not_started(admission), terms))
    return (yield from _close(admission, plan, terms, ran, flag))


# --- Before the tool runs -------------------------------------------------------------------------------------------------


def _admit(call: ToolCall, plan: Plan, terms: Terms) -> Generator[Effect, Any, Admission]:
    """Everything up to a held reservation, or the reason why there is none."""
    if terms.principal_resolver is not None:
        identified = yield from _identify(call, terms.principal_resolver)
        if isinstance(identified, Decision):
            return (yield from _count_refused(call, plan, terms, identified))
        call = identified
    hooks = ask_hooks(plan.hooks_before, call) if plan.hooks_before else ()
    special = plan.ask_before(call) if plan.ask_before is not None else None
    decision = (yield from _settle_before(plan, special or (), hooks, terms.mode)) if special or hooks else plan.passed
    if decision.effect == "deny":
        return (yield from _count_refused(call, plan, terms, decision))
    if decision.effect == "approve":
        return (yield from _admit_with_approval(call, plan, terms, decision))
    return (yield from _reserve(call, plan, terms, decision))


def _identify(call: ToolCall, resolver: Callable[..., Any]) -> Generator[Effect, Any, ToolCall | Decision]:
    principal = yield from _answer(lambda: resolver(call.tool_name, call.args))
    if principal is None or isinstance(principal, Principal):
        return replace(call, principal=principal)
    problem = describe(principal.error) if isinstance(principal, Raised) else f"it returned {type(principal).__name__}, not a Principal"
    return _error("principal_resolver", "principal_resolver", f"The principal could not be resolved: {problem}")


def _error(source: str, name: str, reason: str, base: Decision | None = None) -> Decision:
    """A denial because a part of the gate itself failed."""
    return replace(base or Decision(), effect="deny", reason=reason, source=source, name=name, policy_error=True)


def _answer(ask_for: Callable[[], Any]) -> Generator[Effect, Any, Any]:
    """Call a function of the user and settle what it returned; an exception is returned as ``Raised``."""
    try:
        answer = ask_for()
    except Exception as exc:
        return Raised(exc)
    return (yield Settle(answer)) if isawaitable(answer) else answer


def _settle_all(raw: Sequence[tuple[Any, Any]]) -> Generator[Effect, Any, list[tuple[Any, Any]]]:
    settled = []
    for asked, answer in raw:
        settled.append((asked, (yield Settle(answer)) if isawaitable(answer) else answer))
    return settled


def _settle_before(plan: Plan, special: Any, hooks: Any, mode: Mode) -> Generator[Effect, Any, Decision]:
    settled_hooks = yield from _settle_all(hooks)
    settled = yield from _settle_all(special)
    answers = [as_answer(contract, raw, mode) for contract, raw in settled]
    return decide_before(plan.before, answers, [as_hook_answer(hook, raw) for hook, raw in settled_hooks], mode)


def _reservation(call: ToolCall, plan: Plan, terms: Terms, *, count_attempt: bool = True, hold: bool = True) -> Reservation:
    return Reservation(
        call.run_id,
        call.call_id,
        plan.scopes,
        plan.limits,
        count_attempt,
        hold,
        terms.context.mode == "enforce",
        terms.lease_s,
        call.side_effect is SideEffect.IRREVERSIBLE,
    )


def _settlement(call: ToolCall, plan: Plan, result: Literal["success", "failure", "release"]) -> Settlement:
    return Settlement(call.run_id, call.call_id, plan.scopes, plan.limits, result)


def _count_refused(call: ToolCall, plan: Plan, terms: Terms, decision: Decision) -> Generator[Effect, Any, Admission]:
    """Count the attempt of a call that a contract or hook has refused."""
    grant = yield _reservation(call, plan, terms, hold=False)
    counters = NO_COUNTERS if isinstance(grant, Raised) else grant.counters
    return Admission(call, decision, counters)


def _reserve(
    call: ToolCall, plan: Plan, terms: Terms, decision: Decision, *, count_attempt: bool = True, hold: bool = True
) -> Generator[Effect, Any, Admission]:
    """Take the call's slots, all or none, then ask the session contracts with the slots held: a race cannot slip between."""
    grant = yield _reservation(call, plan, terms, count_attempt=count_attempt, hold=hold)
    if isinstance(grant, Raised):
        reason = f"The session ledger could not be asked: {describe(grant.error)}"
        return Admission(call, _error("ledger", "ledger", reason, decision), NO_COUNTERS)
    if grant.breaches:
        decision = _with_breaches(decision, grant)
    if plan.session and decision.effect != "deny":
        decision = yield from _ask_session(call, plan, terms, decision, holding=hold)
        if decision.effect == "deny" and hold:
            yield _settlement(call, plan, "release")
    return Admission(call, decision, grant.counters)


def _with_breaches(decision: Decision, grant: Grant) -> Decision:
    """The decision with full limits taken into account: as a refusal, or as objections that are waived."""
    objections = [(breach.limit.enforce, Objection(breach.limit.source, breach.limit.name, breach.reason)) for breach in grant.breaches]
    if grant.granted:
        return replace(decision, waived=decision.waived + tuple(objection for _, objection in objections))
    waived = tuple(objection for enforced, objection in objections if not enforced)
    first = next(objection for enforced, objection in objections if enforced)
    return replace(decision, effect="deny", reason=first.reason, source=first.source, name=first.name, waived=decision.waived + waived)


def _ask_session(call: ToolCall, plan: Plan, terms: Terms, decision: Decision, *, holding: bool) -> Generator[Effect, Any, Decision]:
    snapshot = yield ReadSession(call.run_id)
    if isinstance(snapshot, Raised):
        return _error("ledger", "ledger", f"The session could not be read: {describe(snapshot.error)}", decision)
    view = SessionView(snapshot, own_tool=call.tool_name if holding else None)
    settled = yield from _settle_all(ask(plan.session, view))
    answers = [as_answer(contract, raw, terms.mode) for contract, raw in settled]
    judged = decide_before(plan.session, answers, (), terms.mode)
    merged = replace(
        decision,
        asked=decision.asked + judged.asked,
        exceptions=decision.exceptions + judged.exceptions,
        waived=decision.waived + judged.waived,
    )
    if judged.effect == "allow":
        return merged
    return replace(merged, effect="deny", reason=judged.reason, source=judged.source, name=judged.name, policy_error=judged.policy_error)


# --- Approval: asked only when nothing denies ---------------------------------------------------------------------------


def _admit_with_approval(call: ToolCall, plan: Plan, terms: Terms, decision: Decision) -> Generator[Effect, Any, Admission]:
    """Look first, so that nobody is asked for a call that a limit refuses; hold nothing while a person thinks; then reserve."""
    looked = yield from _reserve(call, plan, terms, decision, hold=False)
    if looked.decision.effect == "deny":
        return looked
    approved = yield from _approve(looked, terms)
    if approved.decision.effect == "deny":
        return approved
    admission = yield from _reserve(call, plan, terms, approved.decision, count_attempt=False)
    # Waived objections of the first look are repeated by the second; one report of each is enough.
    waived = tuple({(o.source, o.name): o for o in admission.decision.waived}.values())
    allowed = admission.decision.effect == "allow"
    return replace(admission, decision=replace(admission.decision, waived=waived), announced=allowed)


def _approve(admission: Admission, terms: Terms) -> Generator[Effect, Any, Admission]:
    call, decision, counters = admission.call, admission.decision, admission.counters
    if not terms.can_ask:
        reason = f"Approval required but no approval backend configured: {decision.reason}"
        return replace(admission, decision=replace(decision, effect="deny", reason=reason), gate="write_denied")
    request = yield Ask(call, decision, approval_digest(call, terms.context.policy_version))
    if isinstance(request, Raised):
        return _no_answer(admission, "could not be asked", request)
    about = Approval(request.approval_id)
    problem = yield events.approval(terms.context, AuditAction.CALL_APPROVAL_REQUESTED, call, decision, counters, about)
    if problem is not None:
        yield Withdraw(request)
        return _unrecorded(admission, problem)
    answer = yield AwaitDecision(request, decision.timeout)
    if isinstance(answer, Raised):
        yield Withdraw(request)
        if isinstance(answer.error, Exception):
            return _no_answer(admission, "did not answer", answer)
        return (yield from _end_approval(admission, terms, AuditAction.CALL_APPROVAL_WITHDRAWN, about, "The caller was cancelled."))
    about = Approval(request.approval_id, answer.approver)
    action, granted, reason = _read_answer(answer, request, decision)
    return (yield from _end_approval(admission, terms, action, about, reason, granted=granted))


def approval_digest(call: ToolCall, policy_version: str | None) -> str:
    """What an approval is bound to: this tool, these arguments, this principal, under this policy."""
    principal = call.principal.as_dict() if call.principal else None
    subject = [call.tool_name, jsonable(call.args), jsonable(principal), policy_version]
    return hashlib.sha256(dumps(subject).encode()).hexdigest()


def _read_answer(answer: Any, request: Any, decision: Decision) -> tuple[AuditAction, bool, str | None]:
    """An ApprovalDecision as (event, may it run, why not)."""
    if answer.status == "timeout":
        return AuditAction.CALL_APPROVAL_TIMEOUT, decision.timeout_effect == "allow", "Nobody decided in time."
    if answer.status == "withdrawn":
        return AuditAction.CALL_APPROVAL_WITHDRAWN, False, answer.reason or "The request was withdrawn."
    if answer.digest is not None and answer.digest != request.digest:
        return AuditAction.CALL_APPROVAL_DENIED, False, "The approval is for another call."
    if answer.approved:
        return AuditAction.CALL_APPROVAL_GRANTED, True, answer.reason
    return AuditAction.CALL_APPROVAL_DENIED, False, answer.reason


def _end_approval(admission: Admission, terms: Terms, action: AuditAction, about: Approval, reason: str | None,
                  granted: bool = False) -> Generator[Effect, Any, Admission]:  # fmt: skip
    """Write the end of an approval down. A grant that cannot be written is no grant."""
    call, decision = admission.call, admission.decision
    entry = events.approval(terms.context, action, call, decision, admission.counters, about, reason)
    if not granted and entry.closing is None:
        entry.closing = Closing("denied")
    problem = yield entry
    if not granted:
        refused = replace(decision, effect="deny", reason=reason or decision.reason)
        return replace(admission, decision=refused, gate="write_denied", announced=problem is None)
    if problem is not None:
        return _unrecorded(admission, problem)
    return replace(admission, decision=replace(decision, effect="allow", reason=None, source=None, name=None))


def _no_answer(admission: Admission, what: str, raised: Raised) -> Admission:
    reason = f"The approval backend {what}: {describe(raised.error)}"
    return replace(admission, decision=_error("approval_backend", "approval_backend", reason, admission.decision), gate="write_denied")


def _unrecorded(admission: Admission, problem: Raised) -> Admission:
    reason = f"The audit could not be written, so the call was not started: {describe(problem.error)}"
    return replace(admission, decision=_error("audit", "audit", reason, admission.decision), gate=None, announced=False)


def _not_started(admission: Admission) -> Admission:
    decision = replace(admission.decision, effect="deny", source="cancelled", name="cancelled",
                       reason="The caller was cancelled before the tool started.")  # fmt: skip
    return replace(admission, decision=decision, gate="cancelled", announced=False)


# --- Refused ------------------------------------------------------------------------------------------------------------


def _refuse(admission: Admission, terms: Terms) -> Flow:
    call, decision = admission.call, admission.decision
    notes: tuple[str, ...] = ()
    if not admission.announced:
        problem = yield events.denied(terms.context, call, decision, admission.counters)
        notes = _note(problem, "The denial could not be written to the audit")
    if terms.on_deny is not None:
        yield Notify(terms.on_deny, (call, decision.reason or "", decision.name), "on_deny")
    source = decision.source or ""
    gate = admission.gate or REASONS.get(source) or ("policy_error" if source in PORTS else "contract")
    return ToolDenied(
        call.call_id,
        call.tool_name,
        gate,
        decision.reason or "",
        decision_source=decision.source,
        decision_name=decision.name,
        policy_error=decision.policy_error,
        notes=notes,
    )


PORTS = frozenset({"ledger", "audit", "approval_backend", "principal_resolver"})


def _note(problem: Any, what: str) -> tuple[str, ...]:
    return () if problem is None else (f"{what}: {describe(problem.error)}",)


# --- After the tool ran -------------------------------------------------------------------------------------------------


def _close(admission: Admission, plan: Plan, terms: Terms, ran: Ran, flag: Flag | None) -> Flow:
    call, context = admission.call, terms.context
    verdict = yield from _judge(call, plan, terms, ran, flag)
    after = (yield from _review(call, plan, terms, ran)) if plan.after or plan.hooks_after else NOT_ASKED
    value = ran.value if after is NOT_ASKED else after.value
    outcome = _outcome(call, plan, context, ran, verdict, value, after)
    settled = yield _settlement(call, plan, "success" if verdict.success else "failure")
    notes: tuple[str, ...] = ()
    counters = settled
    if isinstance(settled, Raised):
        notes, counters = _note(settled, "The call could not be counted"), admission.counters
    closing = Closing(
        outcome=outcome_kind(outcome),
        verdict=verdict,
        after=after if plan.after else None,
        duration_ms=int(ran.elapsed_s * 1000),
        error=_error_text(outcome, notes),
        summary=None if ran.error is not None or ran.deadline_s is not None else context.redaction.redact_result(value),
    )
    if not after.passed:
        yield events.postcondition_warning(context, call, admission.decision, counters, closing)
    problem = yield events.closed(context, call, admission.decision, counters, closing)
    notes += _note(problem, "The result could not be written to the audit")
    return replace(outcome, notes=notes) if notes else outcome


def _judge(call: ToolCall, plan: Plan, terms: Terms, ran: Ran, flag: Flag | None) -> Generator[Effect, Any, SuccessVerdict]:
    """Did the call succeed? A ``success_check`` replaces everything but the fact that the tool raised or ran out of time."""
    if ran.cancelled:
        return SuccessVerdict(False, "cancelled", "The caller was cancelled while the tool ran.")
    if ran.deadline_s is not None:
        return SuccessVerdict(False, "timeout", "The tool did not end by its deadline.")
    if ran.error is not None:
        return SuccessVerdict(False, "exception", f"{type(ran.error).__name__}: {describe(ran.error)}")
    if terms.success_check is not None:
        return (yield from _custom_verdict(terms.success_check, call.tool_name, ran.value))
    try:
        return _built_in_verdict(call, plan, ran.value, flag)
    except Exception as exc:
        return SuccessVerdict(False, "policy", f"Success detection failed: {describe(exc)}", policy_error=True)


def _built_in_verdict(call: ToolCall, plan: Plan, value: Any, flag: Flag | None) -> SuccessVerdict:
    for rule in plan.success_rules:
        if (reason := rule.judge(call, value)) is not None:
            return SuccessVerdict(False, f"success_rule:{rule.name}", reason)
    if flag is not None and (reason := flag(value)) is not None:
        return SuccessVerdict(False, "framework", reason)
    return verdict_by_default(call.tool_name, value)


def _custom_verdict(check: SuccessCheck, tool: str, value: Any) -> Generator[Effect, Any, SuccessVerdict]:
    try:
        if isinstance(check, Checker):
            reason = check.problem(tool, value)
            return SuccessVerdict(reason is None, "success_check", reason or "")
        answer = check(tool, value)
        if isawaitable(answer):
            answer = yield Settle(answer)
        if isinstance(answer, Raised):
            raise answer.error
        return verdict_from_check(check, tool, answer)
    except Exception as exc:
        problem = f"success_check did not give an answer, so the call counts as failed: {describe(exc)}"
        return SuccessVerdict(False, "success_check", problem, policy_error=True)


def _review(call: ToolCall, plan: Plan, terms: Terms, ran: Ran) -> Generator[Effect, Any, AfterDecision]:
    """Postconditions and after-hooks see the tool's own value, or the text of its exception."""
    value = ran.value if ran.error is None else describe(ran.error)
    settled = yield from _settle_all(ask_after(plan.after, call, value))
    answers = [as_answer(contract, raw, terms.mode) for contract, raw in settled]
    after = decide_after(plan.after, answers, call, value, terms.context.redaction.redact_value)
    for hook in plan.hooks_after:
        if hook.when is None or (yield from _answer(lambda hook=hook: hook.when(call))) is True:  # type: ignore[misc]
            yield Notify(hook.callback, (call, value), f"after-hook {hook.name}")
    return after


def _outcome(
    call: ToolCall, plan: Plan, context: Context, ran: Ran, verdict: SuccessVerdict, value: Any, after: AfterDecision
) -> ToolOutcome:
    elapsed_ms = int(ran.elapsed_s * 1000)
    findings = () if after.passed else build_findings(after)
    if verdict.success:
        return execution_result(call.call_id, call.tool_name, value, elapsed_ms, findings)
    if ran.deadline_s is not None:
        return ToolTimeout(
            call.call_id,
            call.tool_name,
            ran.deadline_s,
            elapsed_ms,
            plan.entry.retry_on_timeout,
            body_may_be_running=ran.body_may_be_running,
        )
    shown = context.redaction.redact_secrets(value)
    if ran.error is not None:
        error = shown if isinstance(shown, str) else context.redaction.redact_text(describe(ran.error))
    else:
        error = _failure_text(shown, verdict)
    return ToolFailure(
        call.call_id,
        call.tool_name,
        shorten(error, TOOL_MESSAGE_MAX_CHARS),
        plan.entry.retry_on_failure,
        elapsed_ms,
        value=shown if ran.error is None else None,
        exception=ran.error,
        success_source=verdict.source,
        success_reason=verdict.reason,
        policy_error=verdict.policy_error,
        findings=findings,
    )


def _failure_text(value: Any, verdict: SuccessVerdict) -> str:
    """What a failed result says about itself, for the model."""
    if verdict.policy_error:
        return verdict.reason
    if isinstance(value, str) and value:
        return value
    if isinstance(value, dict):
        said = value.get("error") or value.get("message")
        return said if isinstance(said, str) else dumps(value)
    return verdict.reason if value is None else dumps(value)


def _error_text(outcome: ToolOutcome, notes: tuple[str, ...]) -> str | None:
    texts = [outcome.error] if isinstance(outcome, ToolFailure) else []
    if isinstance(outcome, ToolTimeout):
        texts = [f"timed out after {outcome.elapsed_ms} ms"]
    return shorten("; ".join([*texts, *notes]), 2_000) or None
