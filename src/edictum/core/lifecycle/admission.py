"""Admission: everything up to the moment at which the tool may run, or is denied.

    identify -> before-hooks -> contracts -> [approval] -> reserve -> session contracts -> record

Until the tool runs, any failure denies the call. The attempt of a denied call is counted too, by a
reservation that takes no slot.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from edictum._audit_event import AuditAction
from edictum.core._records import maker, record, replace
from edictum.core.call import Principal, SideEffect, ToolCall, with_principal
from edictum.core.charges import NO_CHARGES, Charges, estimate_charges, measure_charges
from edictum.core.config import LifecycleConfig
from edictum.core.contract import Contract, Mode
from edictum.core.decide import as_answer, decide_before, describe, explain_failure
from edictum.core.decision import Decision, Failed, HookAnswer, Objection
from edictum.core.effects import Effect, Ran, RunTool, Withdraw
from edictum.core.events import CALL_ALLOWED, Entry, make_denied_entry
from edictum.core.hooks import HookResult
from edictum.core.lifecycle.approval import obtain_approval
from edictum.core.lifecycle.questions import recall_question
from edictum.core.limits import (
    NO_COUNTERS,
    Breach,
    Counters,
    Grant,
    Limit,
    Reservation,
    SessionSnapshot,
    make_reservation,
    with_amounts,
)
from edictum.core.policy import Plan
from edictum.core.scopes import Selection, select_limits
from edictum.core.session import SessionView
from edictum.core.turn import CallInTurn
from edictum.core.user_code import ask_hooks, await_answers, call_user_code
from edictum.outcomes import ToolOutcome

IRREVERSIBLE = SideEffect.IRREVERSIBLE
CALL_WOULD_DENY = AuditAction.CALL_WOULD_DENY
LATE_GRANT = "The session ledger answered after the lease that it granted had expired. Try again."
NO_DECISION = Decision(effect="deny")  # by the guard: a gate of the turn has decided
RawAnswers = Sequence[tuple[Contract, Any]]


@record
class Admission:
    """The decision about a call before its tool runs, and the counters that it was based on."""

    run: RunTool
    decision: Decision
    counters: Counters = NO_COUNTERS
    denial_reason: str | None = None  # ToolDenied.reason, if not that of the decision's source
    recorded: bool = False  # an event that says so is already written
    holds: bool = False  # slots are held, and must be released if the tool does not run
    outcome: ToolOutcome | None = None  # a gate of the turn has ended the call with this
    per_tool: Mapping[str, Counters] | None = None  # of the same moment as ``counters``
    reservation: Reservation | None = None  # what ``counters`` answer; None on the fast path
    approvals: tuple[Any, ...] = ()  # requests that were granted, to be used by this call
    approved: tuple[Any, ...] = ()  # contracts and limits to which a person has said yes already
    changes: tuple[str, ...] = ()  # what a person has changed, as sentences for the model
    opening: Entry | None = None  # the event of the decision, which went with the reservation

    @property
    def call(self) -> ToolCall:
        return self.run.call

    def deny(self, decision: Decision, denial_reason: str | None = None) -> Admission:
        """Return this admission with a denial that is not recorded yet."""
        return replace(
            self, decision=decision, denial_reason=denial_reason, recorded=False, opening=None
        )

    def deny_for_audit_failure(self, problem: Failed) -> Admission:
        """Return this admission denied because its events cannot be written."""
        reason = (
            "The audit could not be written, so the call was not started:"
            f" {describe(problem.error)}"
        )
        return self.deny(self.decision.fail("audit", reason))

    def measure(self, ran: Ran) -> Admission:
        """Return this admission with the amounts that the call has really used, if its body
        returned.
        """
        charges = self.run.charges
        if not charges.is_measured or ran.error is not None or ran.deadline_s is not None:
            return self
        return replace(self, run=replace(self.run, charges=measure_charges(charges, ran.value)))


make_admission = maker(Admission)
Admitting = Generator[Effect, Any, Admission]
Hooked = Generator[Effect, Any, tuple[RunTool, Sequence[HookAnswer]] | Admission]


def admit(
    run: RunTool,
    plan: Plan,
    config: LifecycleConfig,
    turn: CallInTurn | None = None,
    answers: RawAnswers | None = None,
    stated: Charges | None = None,
) -> Admitting:
    """Decide about a call, reserve its slots and record that it is allowed.

    Returns an Admission, whose decision is "allow" or "deny". A caller that has already asked the
    contracts passes the ``answers`` of those that do not pass. ``stated`` are the charges as the
    call states them, before an estimate.
    """
    hooks: Sequence[HookAnswer] = ()
    stated = stated or run.charges
    if answers is None:
        if plan.hooks_before or config.principal_resolver is not None:
            prepared = yield from _prepare(run, plan, config, turn)
            if isinstance(prepared, Admission):
                return (yield from _record_allowed_call(prepared, config))
            run, hooks = prepared
        if run.charges is not NO_CHARGES:
            run = with_estimate(run)
        answers = plan.ask_before(run.call)
    decision = plan.passed
    if answers or hooks:
        decision = yield from decide(plan, answers, hooks, config.mode)
    if run.charges.problem:
        decision = _object_to_amounts(decision, run, plan, config)
    if config.park is not None and decision.effect == "allow":
        decision = yield from recall_question(run.call, decision, plan, config)
    if decision.effect == "deny":
        admission = yield from count_refused_call(run, plan, config, decision)
    else:  # no slot is held while a person decides
        holds = decision.effect == "allow"
        admission = yield from _reserve(run, plan, config, decision, hold=holds, records=holds)
        if admission.decision.effect == "approve":
            asking = AskContext(plan, config, turn, stated)
            admission = yield from _ask_then_reserve(admission, decision, asking)
    return (yield from _record_allowed_call(admission, config))


def _prepare(run: RunTool, plan: Plan, config: LifecycleConfig, turn: CallInTurn | None) -> Hooked:
    """Resolve the principal, then ask the before-hooks. Returns as ``_run_hooks`` does."""
    resolver = None if run.identified else config.principal_resolver
    if resolver is not None:
        principal = yield from _resolve_principal(run.call, resolver, turn is not None)
        if isinstance(principal, Decision):
            return (yield from count_refused_call(run, plan, config, principal))
        run = replace(run, call=with_principal(run.call, principal))
    if plan.hooks_before or (resolver is not None and turn is not None):
        return (yield from _run_hooks(run, plan, config, turn))
    return run, ()


def decide(
    plan: Plan,
    answers: RawAnswers,
    hooks: Sequence[HookAnswer],
    mode: Mode,
    approved: Sequence[Any] = (),
) -> Generator[Effect, Any, Decision]:
    """Await the contracts' answers, and return the decision that follows.

    Contracts in ``approved`` do not ask again: a person has already said yes to them.
    """
    settled = yield from await_answers(answers)
    judged = [as_answer(contract, raw, mode) for contract, raw in settled]
    return decide_before(plan.before, judged, hooks, mode, approved)


def _resolve_principal(
    call: ToolCall, resolver: Callable[..., Any], in_turn: bool
) -> Generator[Effect, Any, Principal | Decision | None]:
    principal = yield from call_user_code(resolver, (call.tool_name, call.args), in_turn)
    if principal is None or isinstance(principal, Principal):
        return principal
    reason = f"The principal could not be resolved: {explain_failure(principal)}"
    return Decision().fail("principal_resolver", reason)


def _run_hooks(
    run: RunTool, plan: Plan, config: LifecycleConfig, turn: CallInTurn | None
) -> Hooked:
    """Ask the before-hooks, then the gates of the turn that judge the final arguments.

    Returns the run with those arguments and what the hooks answered, or the admission that ends
    the call here.
    """
    call, hooks = yield from ask_hooks(plan.hooks_before, run.call, config.mode, turn is not None)
    rewritten = call is not run.call
    run = replace(run, call=call)
    if _is_denied(hooks, config.mode):
        return run, hooks
    if turn is not None:
        passed = yield from _pass_later_gates(run, plan, config, turn, hooks, rewritten)
        if type(passed) is not RunTool:
            return Admission(run, NO_DECISION, outcome=passed)  # type: ignore[arg-type]  # outcome
        run = passed
    return run, hooks


def _is_denied(hooks: Sequence[HookAnswer], mode: Mode) -> bool:
    return mode == "enforce" and any(it.decision.result is HookResult.DENY for it in hooks)


def _pass_later_gates(
    run: RunTool,
    plan: Plan,
    config: LifecycleConfig,
    turn: CallInTurn,
    hooks: Sequence[HookAnswer],
    rewritten: bool,
) -> Generator[Effect, Any, RunTool | ToolOutcome]:
    from edictum.core.lifecycle.turn import pass_gates  # it imports this module

    gates, given_up = turn.gates_after_hooks(run.call, rewritten)
    if given_up is not None:
        yield given_up
    return (yield from pass_gates(run, plan, config, turn, gates, hooks))


def with_estimate(run: RunTool) -> RunTool:
    """Return the run with the amounts that depend on its call as it will be made."""
    charges = estimate_charges(run.charges, run.call)
    return run if charges is run.charges else replace(run, charges=charges)


def _object_to_amounts(
    decision: Decision, run: RunTool, plan: Plan, config: LifecycleConfig
) -> Decision:
    """Deny a call some of whose amounts cannot be determined.

    It is only reported where nothing would be enforced: when the guard observes, or when all limits
    that read these amounts do.
    """
    charges = run.charges
    limits = [limit for limit in plan.limits if limit.amount in charges.unknown]
    observed = bool(limits) and not any(limit.enforce for limit in limits)
    if observed or config.mode == "observe":
        objection = Objection("amounts", "amounts", charges.problem)
        return replace(decision, waived=(*decision.waived, objection))
    if decision.effect == "deny":
        return decision
    failed = decision.fail("amounts", charges.problem)
    return replace(failed, for_operators=charges.for_operators)


# --- The ledger ----------------------------------------------------------------------------------


def reservation_for(
    run: RunTool,
    plan: Plan,
    config: LifecycleConfig,
    selection: Selection | None = None,
    *,
    count_attempt: bool = True,
    hold: bool = True,
    opening: Entry | None = None,
) -> Reservation:
    """Return the reservation of a call. ``hold=False`` counts its attempt without taking a slot."""
    call, charges = run.call, run.charges
    selection = selection or select_limits(plan, call, charges.parents)
    enforce = config.context.mode == "enforce"
    # without the value of a scope the call is refused, and its attempt counts
    is_known = not (enforce and selection.enforced)
    return make_reservation(
        call.run_id,
        run.key,
        selection.tools,
        selection.limits,
        count_attempt,
        hold and is_known,
        enforce,
        config.lease_s,
        call.side_effect is IRREVERSIBLE,
        charges.amounts,
        selection.accounts,
        bool(plan.session),
        () if opening is None else (opening,),
    )


def read_grant(run: RunTool, answer: Any) -> Any:
    """Return the ledger's answer with the stated amounts added to the breaches of budgets."""
    amounts = run.charges.amounts
    return with_amounts(answer, amounts) if amounts and isinstance(answer, Grant) else answer


def count_refused_call(
    run: RunTool, plan: Plan, config: LifecycleConfig, decision: Decision
) -> Admitting:
    """Count the attempt of a call that is denied, and return its admission.

    Limits and contracts that only observe still report what they would have done.
    """
    opening = None
    if _is_final(decision, plan):
        opening = make_denied_entry(config.context, run.call, decision, NO_COUNTERS)
    reservation = reservation_for(run, plan, config, hold=False, opening=opening)
    grant = read_grant(run, (yield reservation))
    if not isinstance(grant, Grant):
        return Admission(run, decision)
    if grant.breaches:
        observed = [_objection(breach) for breach in grant.breaches if not breach.limit.enforce]
        decision = replace(decision, waived=(*decision.waived, *observed))
    admission = make_admission(
        run,
        decision,
        grant.counters,
        per_tool=grant.per_tool,
        opening=count_opening(opening, grant),
    )
    return (yield from _ask_session(admission, plan, config)) if plan.session else admission


def _is_final(decision: Decision, plan: Plan) -> bool:
    """Return whether the decision will stand if the reservation is granted, with no other event to
    record before its own. Then the event can be sent with the reservation.
    """
    return not plan.session and not decision.waived


def count_opening(opening: Entry | None, grant: Grant) -> Entry | None:
    """Return the event that was sent with a reservation, with the counters of the answer; None if
    the answer changes what must be recorded.
    """
    if opening is None or not grant.granted or grant.breaches:
        return None
    opening.count(grant.counters)
    return opening


def _reserve(
    run: RunTool,
    plan: Plan,
    config: LifecycleConfig,
    decision: Decision,
    *,
    count_attempt: bool = True,
    hold: bool = True,
    waived: tuple[Limit, ...] = (),
    records: bool = False,
) -> Admitting:
    """Take the call's slots, all or none, then ask the session contracts with the slots held.

    No other call can slip in between. ``waived`` are full limits that a person has waived for this
    call. ``records``: no event has said yet that the call is allowed.
    """
    selection = select_limits(plan, run.call, run.charges.parents)
    if waived:
        selection = selection.waive(waived)
    opening = None
    if records and _is_final(decision, plan) and not (selection.enforced or selection.observed):
        opening = Entry(config.context, CALL_ALLOWED, run.call, decision)
    reservation = reservation_for(
        run, plan, config, selection, count_attempt=count_attempt, hold=hold, opening=opening
    )
    grant = read_grant(run, (yield reservation))
    if waived and isinstance(grant, Grant):
        grant = _drop_waived_limits(grant, waived)
    admission = admission_of(run, decision, grant, reservation)
    if selection.enforced or selection.observed:
        admission = _with_unusable_limits(admission, selection, config.mode)
    return (yield from _ask_session(admission, plan, config)) if plan.session else admission


def _drop_waived_limits(grant: Grant, waived: tuple[Limit, ...]) -> Grant:
    """Return the grant without the limits that a person has waived."""
    kept = [it for it in grant.breaches if replace(it.limit, enforce=True) not in waived]
    return replace(grant, breaches=tuple(kept))


def _with_unusable_limits(admission: Admission, selection: Selection, mode: Mode) -> Admission:
    """Add limits that could not be evaluated for the call: as its denial, or as waived
    objections.
    """
    refusals, observed = selection.enforced, selection.observed
    if mode == "observe":
        refusals, observed = (), (*refusals, *observed)
    decision = replace(admission.decision, waived=(*admission.decision.waived, *observed))
    if refusals and decision.effect != "deny":
        first = refusals[0]
        error = any(it.policy_error for it in refusals)
        decision = decision.deny(
            first.source,
            first.name,
            first.reason,
            policy_error=error,
            for_operators=first.for_operators,
        )
    return replace(admission, decision=decision)


def admission_of(
    run: RunTool, decision: Decision, grant: Grant | Failed, reservation: Reservation
) -> Admission:
    """Return the admission that follows from a decision and the ledger's answer."""
    if not isinstance(grant, Grant):
        reason = f"The session ledger could not be asked: {explain_failure(grant)}"
        return Admission(run, decision.fail("ledger", reason))
    if grant.is_late:
        failed = decision.fail("ledger", LATE_GRANT)
        return Admission(run, failed, grant.counters, holds=True, reservation=reservation)
    if not grant.granted and not any(breach.limit.enforce for breach in grant.breaches):
        # the lease ended before the ledger's answer came
        reason = "The session ledger refused the call without naming a limit. Try again."
        return Admission(run, decision.fail("ledger", reason), grant.counters)
    if grant.breaches:
        decision = _with_breaches(decision, grant)
    return make_admission(
        run,
        decision,
        grant.counters,
        holds=grant.granted and reservation.hold,
        per_tool=grant.per_tool,
        reservation=reservation,
        opening=count_opening(next(iter(reservation.events), None), grant),
    )


def _objection(breach: Breach) -> Objection:
    limit = breach.limit
    return Objection(limit.source, limit.name, breach.reason, observed=not limit.enforce)


def _with_breaches(decision: Decision, grant: Grant) -> Decision:
    """Add full limits to the decision: as its denial, as a question, or as waived objections."""
    enforced = [] if grant.granted else [it for it in grant.breaches if it.limit.enforce]
    waived = tuple(_objection(breach) for breach in grant.breaches if breach not in enforced)
    decision = replace(decision, waived=decision.waived + waived)
    denying = [breach for breach in enforced if breach.limit.effect == "deny"]
    if denying:
        first = _objection(denying[0])
        return decision.deny(first.source, first.name, first.reason)
    return _ask_about_limits(decision, enforced) if enforced else decision


def _ask_about_limits(decision: Decision, full: Sequence[Breach]) -> Decision:
    """Return the decision to ask a person once, on the strictest terms of all contracts and limits
    that want it.
    """
    first, limits = full[0], [breach.limit for breach in full]
    timeouts, effects = [it.timeout for it in limits], [it.timeout_effect for it in limits]
    asked = (first.reason, first.limit.source, first.limit.name)
    if decision.effect == "approve":
        timeouts, effects = [*timeouts, decision.timeout], [*effects, decision.timeout_effect]
        both = f"{decision.reason} {first.reason}"
        asked = (both, decision.source or "", decision.name or "")
    return replace(
        decision,
        effect="approve",
        reason=asked[0],
        source=asked[1],
        name=asked[2],
        timeout=min(timeouts),
        timeout_effect="deny" if "deny" in effects else "allow",
        askers=(*decision.askers, *limits),
    )


def _ask_session(admission: Admission, plan: Plan, config: LifecycleConfig) -> Admitting:
    """Ask the session contracts with the counters of the moment at which the call took its slot.

    That moment orders the calls: of fifty that start at once, the third sees two before it and the
    fourth three. Counters that are read later would show each call all the others, and all could be
    refused. A call that is already denied is judged too, so that the record is complete.
    """
    call, decision = admission.call, admission.decision
    if not isinstance(admission.per_tool, Mapping):
        if decision.effect == "deny":
            return admission
        reason = "The session ledger did not return the counters of each tool."
        return replace(admission, decision=decision.fail("ledger", reason))
    seen = SessionSnapshot(call.run_id, admission.counters, admission.per_tool)
    view = SessionView(seen, call.tool_name if admission.holds else None, call)
    settled = yield from await_answers(plan.ask_session(view))
    answers = [as_answer(contract, raw, config.mode) for contract, raw in settled]
    judged = decide_before(plan.session, answers, (), config.mode)
    merged = replace(
        decision,
        asked=decision.asked + judged.asked,
        exceptions=decision.exceptions + judged.exceptions,
        waived=decision.waived + judged.waived,
    )
    if judged.effect != "allow" and decision.effect != "deny":
        merged = merged.deny(
            judged.source or "",
            judged.name or "",
            judged.reason,
            policy_error=judged.policy_error,
            for_operators=judged.for_operators,
        )
    return replace(admission, decision=merged)


@record
class AskContext:
    """What stays the same while a person is asked about a call, perhaps more than once.

    ``stated`` are the charges as the call states them, before an estimate.
    """

    plan: Plan
    config: LifecycleConfig
    turn: CallInTurn | None
    stated: Charges


def _ask_then_reserve(asked: Admission, decision: Decision, asking: AskContext) -> Admitting:
    """Ask a person about a call that no limit denies, then take its slots.

    A yes waives the full limits that the person was asked about, and no others. ``decision`` is the
    one from before the reservation: the session contracts are asked again, and must not object
    twice.
    """
    approved = yield from obtain_approval(asked, asking.config, asking.turn)
    if approved.decision.effect == "deny":
        return approved
    said = (*asked.approved, *asked.decision.askers)
    if approved.call is not asked.call:
        return (yield from _admit_changed_call(replace(approved, approved=said), asking))
    granted = replace(decision, effect="allow", reason=None, source=None, name=None, askers=())
    admission = yield from _reserve(
        asked.run,
        asking.plan,
        asking.config,
        granted,
        count_attempt=False,
        waived=_limits_among(said),
    )
    if admission.decision.effect == "approve":  # another limit is full, which was not waived
        first = admission.decision
        denied = first.deny(first.source or "", first.name or "", first.reason)
        admission = admission.deny(denied)
    is_allowed = admission.decision.effect == "allow"
    return replace(
        admission, recorded=is_allowed, approvals=approved.approvals, changes=asked.changes
    )


def _limits_among(askers: Sequence[Any]) -> tuple[Limit, ...]:
    return tuple(it for it in askers if isinstance(it, Limit))


def _admit_changed_call(approved: Admission, asking: AskContext) -> Admitting:
    """Judge a call whose arguments a person has changed as if it were a new call.

    Contracts and limits that have been answered do not ask again; others may.
    """
    plan, config = asking.plan, asking.config
    run = with_estimate(replace(approved.run, charges=asking.stated))
    judged = yield from _judge_changed_call(replace(approved, run=run), asking)
    decision, run = judged.decision, judged.run
    if judged.outcome is not None:
        return judged
    if decision.effect == "deny":  # the same yes would be denied again
        for request in approved.approvals:
            yield Withdraw(request)
        return replace(judged, approvals=())
    waived, holds = _limits_among(approved.approved), decision.effect == "allow"
    reserved = yield from _reserve(
        run, plan, config, decision, count_attempt=False, hold=holds, waived=waived
    )
    admission = replace(
        reserved,
        approvals=approved.approvals,
        approved=approved.approved,
        changes=approved.changes,
    )
    if admission.decision.effect == "approve":
        return (yield from _ask_then_reserve(admission, decision, asking))
    return admission


def _judge_changed_call(approved: Admission, asking: AskContext) -> Admitting:
    """Ask the before-hooks, the gates of the turn and the contracts about the arguments that a
    person has changed. The hooks cannot rewrite these.

    Returns the admission with the decision, or with the outcome of a gate.
    """
    plan, config, turn, run = asking.plan, asking.config, asking.turn, approved.run
    in_turn = turn is not None
    _, hooks = yield from ask_hooks(plan.hooks_before, run.call, "observe", in_turn)
    if turn is not None and not _is_denied(hooks, config.mode):
        passed = yield from _pass_later_gates(run, plan, config, turn, hooks, rewritten=True)
        if type(passed) is not RunTool:
            return replace(approved, decision=NO_DECISION, outcome=passed)
        run = passed
    answers = plan.ask_before(run.call)
    decision = yield from decide(plan, answers, hooks, config.mode, approved.approved)
    if run.charges.problem:
        decision = _object_to_amounts(decision, run, plan, config)
    if config.park is not None and decision.effect == "allow":
        decision = yield from recall_question(run.call, decision, plan, config)
    return replace(approved, run=run, decision=decision, recorded=False)


def _record_allowed_call(admission: Admission, config: LifecycleConfig) -> Admitting:
    """Record waived objections, then that the call is allowed. A call that cannot be recorded is
    denied.
    """
    call, decision = admission.run.call, admission.decision
    allowed = decision.effect == "allow"
    for objection in decision.waived:
        problem = yield Entry(
            config.context, CALL_WOULD_DENY, call, decision, admission.counters, about=objection
        )
        if problem is not None and allowed:
            return admission.deny_for_audit_failure(problem)
    if not allowed or admission.recorded:
        return admission
    opening = admission.opening
    problem = yield opening or Entry(
        config.context, CALL_ALLOWED, call, decision, admission.counters
    )
    return admission if problem is None else admission.deny_for_audit_failure(problem)
