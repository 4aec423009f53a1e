"""The lifecycle: the one walk that every governed call takes.

This file knows the order of a call and nothing else. It is a generator: it yields what it needs
(see ``effects``), it gets the answer sent back, and it returns exactly one ToolOutcome. It never
awaits, sleeps, reads a clock or does I/O, so the same walk serves asynchronous callers, synchronous
ones, and frameworks that only offer a hook before and a hook after the tool.

    identify -> hooks, preconditions, sandbox -> [approval] -> reserve, session contracts
    -> RunTool -> success detection -> postconditions, after-hooks -> commit -> closing event
    -> outcome

Three rules hold everywhere:

1. Every way through ends in one closing event and one outcome, also when a port fails or the caller
   is cancelled.
2. Until RunTool, any failure refuses the call, and slots that were reserved are given back. From
   RunTool on the tool has run, whatever happens: the call is counted, and the result is kept even
   if the ledger or the audit is down.
3. The tool gets the arguments that were checked, because nobody else can reach them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from inspect import isawaitable
from typing import Any

from edictum.core import events
from edictum.core._records import record, replace
from edictum.core.call import Principal, SideEffect, ToolCall, with_principal
from edictum.core.consult import ask_hooks, consult, holds
from edictum.core.contract import Mode
from edictum.core.decide import (
    AfterDecision,
    as_answer,
    decide_after,
    decide_before,
    describe,
    explain_failure,
)
from edictum.core.decision import USER_ERRORS, Decision, Failed, HookAnswer, Objection
from edictum.core.effects import (
    Ask,
    AwaitDecision,
    AwaitTwin,
    Declined,
    Delay,
    Effect,
    Notify,
    Pause,
    Ran,
    Rewritten,
    RunTool,
    Settle,
    StoreArtifact,
    Withdraw,
    Within,
)
from edictum.core.ending import (
    as_shown,
    closing_of,
    error_text,
    failed_outcome,
    verdict_on,
    with_note,
)
from edictum.core.events import (
    CALL_ALLOWED,
    CALL_EXECUTED,
    CALL_FAILED,
    Approval,
    AuditAction,
    Closing,
    Entry,
)
from edictum.core.freeze import kept
from edictum.core.hooks import HookResult
from edictum.core.limits import (
    NO_COUNTERS,
    Breach,
    Counters,
    Grant,
    Metric,
    Reservation,
    SessionSnapshot,
    Settlement,
)
from edictum.core.policy import Plan
from edictum.core.session import SessionView
from edictum.core.terms import Admission, Flag, Flow, Terms
from edictum.core.turn import (
    Answer,
    CallInTurn,
    Doubtful,
    Gate,
    Gates,
    Once,
    Oversized,
    Refusal,
    Repeat,
    TurnOver,
    Twin,
)
from edictum.core.values import TooDeepError, digest
from edictum.core.within import LATE_ANSWER_S, bounded, tell, timed, within
from edictum.outcomes import (
    OUTCOME_KINDS,
    ToolDenied,
    ToolFailure,
    ToolOutcome,
    ToolTimeout,
    execution_result,
)
from edictum.success import (
    Checker,
    SuccessCheck,
    SuccessVerdict,
    verdict_from_check,
    verdict_from_problem,
)

NOT_ASKED = AfterDecision()
IRREVERSIBLE = SideEffect.IRREVERSIBLE
BEGUN = Ran()  # the tool was asked for, and nobody has said yet what came of it
NOT_YET: list[Any] = [None]  # the contracts have not been asked yet
NO_DECISION = Decision(effect="deny")  # of the guard: a gate of the turn has decided
# Which gate a denial came from, for ToolDenied.reason.
REASONS = {
    "hook": "pre_hook",
    "operation_limit": "limit",
    "attempt_limit": "limit",
    "yaml_session": "limit",
}


def lifecycle(
    run: RunTool,
    plan: Plan,
    terms: Terms,
    flag: Flag | None = None,
    turn: CallInTurn | None = None,
    whole: bool = False,
) -> Flow:
    """Govern one call. ``flag`` is the framework's own way to say that a result is a failure.

    A call of a ``turn`` comes here straight when no gate of the turn stands in its way, and this is
    the ``whole`` of it; or by ``in_turn``, once for each of its attempts.

    Nearly every call takes the straight road through here: no contract objects, no limit is full,
    nothing has to be waited for. It is written without helpers, because it is the price of every
    call; whatever is unusual is handed to a function below.
    """
    call, context, at_once, seat, asked = run.call, terms.context, terms.at_once, plan.seat, run
    decision, counters, counted, closed = plan.passed, NO_COUNTERS, None, None
    ran: Any = None
    try:
        special = (
            plan.ask_before(call)
            if plan.straight and (terms.principal_resolver is None or run.identified)
            else NOT_YET
        )
        counted = (
            at_once.enter(call.run_id, run.key, seat) if seat is not None and not special else None
        )
        if counted is not None:
            at_once.note(
                (at_once.now(), context, CALL_ALLOWED, call, decision, counted[0], counted[1])
            )
        else:
            admission = yield from within(turn, _admit(run, plan, terms, special, turn))
            call, decision, counters = admission.call, admission.decision, admission.counters
            if decision.effect != "allow":
                return (closed := (yield from within(turn, _stop(run, plan, terms, admission))))
            run = run if call is run.call else replace(run, call=call)
        if terms.on_allow is not None:
            yield from within(turn, tell(Notify(terms.on_allow, (call,), "on_allow")))
        started = run if turn is None else turn.start(run)
        ran = BEGUN
        ran = (yield started) if type(started) is RunTool else Failed(TurnOver(started))  # type: ignore[arg-type]
        if turn is not None and type(ran) is Ran:
            ran = turn.ran(ran)
        if type(ran) is Failed:
            held = Admission(call, decision, _counters(counters, counted), holds=True)
            return (closed := (yield from within(turn, _left(run, plan, terms, ran, held))))
        # From here on the tool has run: the call is counted and its result is kept, whatever else
        # goes wrong.
        verdict = verdict_on(call, plan, ran, flag, terms.success_check)
        if verdict is None:
            verdict = yield from within(
                turn,
                _custom_verdict(terms.success_check, call.tool_name, ran.value, turn),  # type: ignore[arg-type]
            )
        value, after = (
            (yield from within(turn, _review(call, plan, terms, ran, turn)))
            if plan.reviewed
            else (ran.value, NOT_ASKED)
        )
        if verdict.success and counted is not None and after.passed:
            ended = at_once.leave(call.run_id, run.key, seat)  # type: ignore[arg-type]
            if ended is not None:
                elapsed_ms = int(ran.elapsed_s * 1000)
                outcome: ToolOutcome = execution_result(
                    call.call_id, call.tool_name, value, elapsed_ms, after.findings
                )
                if turn is not None:
                    shaped = turn.shape(outcome)
                    outcome = (
                        (yield from _shaped(outcome, shaped, call, turn))  # type: ignore[assignment]
                        if type(shaped) is Oversized
                        else shaped
                    )
                kind, error = (
                    OUTCOME_KINDS[type(outcome)],
                    error_text(outcome) if outcome.notes else None,
                )
                judged, summary = after if plan.after else None, context.redaction.summarize(value)
                at_once.last_note(
                    (
                        at_once.now(),
                        context,
                        CALL_EXECUTED,
                        call,
                        decision,
                        ended[0],
                        ended[1],
                        kind,
                        verdict,
                        judged,
                        elapsed_ms,
                        error,
                        summary,
                    )
                )
                return (closed := outcome)
        admission, end = (
            Admission(call, decision, _counters(counters, counted)),
            _End(ran, verdict, value, after),
        )
        closed = yield from within(turn, _close(run, plan, terms, turn, admission, end))
        if whole and type(closed) in MAY_BE_RETRIED:
            closed = yield from _try_again(asked, plan, terms, flag, turn, closed)  # type: ignore[arg-type]
        return closed
    # somebody said stop inside a contract, a hook or a checker; or the gate itself is broken
    except BaseException as exc:
        if closed is None and type(exc) is not GeneratorExit:
            yield from within(
                turn,
                _broken_off(
                    run,
                    plan,
                    terms,
                    Admission(call, decision, _counters(counters, counted)),
                    exc,
                    ran,
                ),
            )
        raise
    finally:
        if whole:
            turn.ended(closed)  # type: ignore[union-attr]


@record
class _End:
    """How a tool's body ended, and what was found out about it."""

    ran: Ran
    verdict: SuccessVerdict
    value: Any
    after: AfterDecision


def _close(
    run: RunTool, plan: Plan, terms: Terms, turn: CallInTurn | None, admission: Admission, end: _End
) -> Flow:
    """Count a call that has run, write down how it ended, and give its outcome."""
    call, decision, context, after = admission.call, admission.decision, terms.context, end.after
    verdict = as_shown(call, plan, end.ran, end.verdict, end.value, after)
    outcome: ToolOutcome
    if verdict.success:
        outcome = execution_result(
            call.call_id, call.tool_name, end.value, int(end.ran.elapsed_s * 1000), after.findings
        )
    else:
        outcome = failed_outcome(call, plan, context, end.ran, verdict, end.value, after)
    settled = yield Settlement(
        call.run_id, run.key, plan.scopes, plan.limits, "success" if verdict.success else "failure"
    )
    if type(settled) is not Counters:
        outcome, settled = (
            with_note(outcome, context, "The call could not be counted", settled),
            admission.counters,
        )
    if turn is not None:
        shaped = turn.shape(outcome)
        outcome = (
            (yield from _shaped(outcome, shaped, call, turn))  # type: ignore[assignment]
            if type(shaped) is Oversized
            else shaped
        )
    closing = closing_of(plan, context, end.ran, verdict, end.value, after, outcome)
    if not after.passed:
        yield events.postcondition_warning(context, call, decision, settled, closing)
    problem = yield Entry(
        context, CALL_EXECUTED if verdict.success else CALL_FAILED, call, decision, settled, closing
    )
    return (
        outcome
        if problem is None
        else with_note(outcome, context, "The result could not be written to the audit", problem)
    )


def _counters(counters: Counters, counted: tuple[int, int] | None) -> Counters:
    return counters if counted is None else Counters(*counted)


def _broken_off(
    run: RunTool,
    plan: Plan,
    terms: Terms,
    admission: Admission,
    error: BaseException,
    ran: Ran | Failed | None,
) -> Generator[Effect, Any, None]:
    """Give the slots back, or count the call if its tool has run, and write down what stopped it. A
    repeated settlement is harmless.
    """
    call, reason = (
        admission.call,
        f"The gate was interrupted: {type(error).__name__}: {describe(error)}",
    )
    started = type(ran) is Ran
    yield Settlement(
        call.run_id, run.key, plan.scopes, plan.limits, "failure" if started else "release"
    )
    decision = _error("gate", "gate", reason, admission.decision)
    if started:
        told = terms.context.redaction.redact_text(reason)
        closing = Closing(
            "failed", SuccessVerdict(False, "gate", reason, policy_error=True), error=told
        )
        yield Entry(terms.context, CALL_FAILED, call, decision, admission.counters, closing)
    else:
        yield events.denied(terms.context, call, decision, admission.counters)


def _announce(admission: Admission, terms: Terms) -> Generator[Effect, Any, Admission]:
    """Write down what was waived, and that the call is allowed. What cannot be written down does
    not start.
    """
    for objection in admission.decision.waived:
        problem = yield events.would_deny(
            terms.context, admission.call, admission.decision, admission.counters, objection
        )
        if problem is not None and admission.decision.effect == "allow":
            return _unrecorded(admission, problem)
    if admission.decision.effect != "allow" or admission.announced:
        return admission
    problem = yield Entry(
        terms.context, CALL_ALLOWED, admission.call, admission.decision, admission.counters
    )
    return admission if problem is None else _unrecorded(admission, problem)


def _stop(run: RunTool, plan: Plan, terms: Terms, admission: Admission) -> Flow:
    """End a call that does not run; what it held is given back first, so that the next call finds
    it free.
    """
    if admission.answered is not None:
        return admission.answered
    if admission.holds:
        yield Settlement(admission.call.run_id, run.key, plan.scopes, plan.limits, "release")
    return (yield from _refuse(admission, terms))


# --- Before the tool runs -------------------------------------------------------------------------


def _admit(
    run: RunTool, plan: Plan, terms: Terms, special: Any, turn: CallInTurn | None
) -> Generator[Effect, Any, Admission]:
    """The long way to where the tool may run: decided, reserved and written down."""
    return (yield from _announce((yield from _reach(run, plan, terms, special, turn)), terms))


def _reach(
    run: RunTool, plan: Plan, terms: Terms, special: Any, turn: CallInTurn | None
) -> Generator[Effect, Any, Admission]:
    """Everything up to a held reservation, or the reason why there is none."""
    call: ToolCall = run.call
    hooks: Sequence[HookAnswer] = ()
    resolver = None if run.identified else terms.principal_resolver
    if resolver is not None:
        identified = yield from _identify(call, resolver, turn is not None)
        if isinstance(identified, Decision):
            return (yield from _count_refused(run, call, plan, terms, identified))
        call = identified
    if plan.hooks_before or (resolver is not None and turn is not None):
        hooked = yield from _hooked(run, call, plan, terms, turn)
        if isinstance(hooked, Admission):
            return hooked
        call, hooks = hooked
    if special is NOT_YET:
        special = plan.ask_before(call)
    decision = (
        (yield from _settle_before(plan, special, hooks, terms.mode))
        if special or hooks
        else plan.passed
    )
    if decision.effect == "deny":
        return (yield from _count_refused(run, call, plan, terms, decision))
    if decision.effect == "approve":
        return (yield from _admit_with_approval(run, call, plan, terms, decision, turn))
    return (yield from _reserve(run, call, plan, terms, decision))


def _hooked(
    run: RunTool, call: ToolCall, plan: Plan, terms: Terms, turn: CallInTurn | None
) -> Generator[Effect, Any, tuple[ToolCall, Sequence[HookAnswer]] | Admission]:
    """Ask the before-hooks. The call with the arguments that they leave it, and what they said; or
    how a turn ends it then.

    A turn's last gates are asked after them, since only now it is known on whose behalf which call
    will be made.
    """
    asked = call
    call, hooks = yield from ask_hooks(plan.hooks_before, call, terms.mode, turn is not None)
    if any(hook.decision.result is HookResult.DENY for hook in hooks) and terms.mode == "enforce":
        return call, hooks
    if turn is not None:
        entered = yield from _gate_again(
            replace(run, call=call), plan, terms, turn, hooks, call is not asked
        )
        if type(entered) is not RunTool:
            return Admission(call, NO_DECISION, NO_COUNTERS, answered=entered)  # type: ignore[arg-type]
        call = entered.call
    problem = (yield Rewritten(call)) if call is not asked else None
    if problem is not None:
        wrong = _error(
            "hook",
            "rewritten",
            f"The rewritten call cannot be made: {explain_failure(problem)}",
            Decision(hooks=tuple(hooks)),
        )
        return (yield from _count_refused(run, call, plan, terms, wrong))
    return call, hooks


def _identify(
    call: ToolCall, resolver: Callable[..., Any], in_turn: bool
) -> Generator[Effect, Any, ToolCall | Decision]:
    principal = yield from consult(resolver, (call.tool_name, call.args), in_turn)
    if principal is None or isinstance(principal, Principal):
        return with_principal(call, principal)
    return _error(
        "principal_resolver",
        "principal_resolver",
        f"The principal could not be resolved: {explain_failure(principal)}",
    )


def _error(source: str, name: str, reason: str, base: Decision | None = None) -> Decision:
    """A denial because a part of the gate itself failed."""
    return replace(
        base or Decision(),
        effect="deny",
        reason=reason,
        source=source,
        name=name,
        policy_error=True,
    )


def _settle_all(raw: Sequence[tuple[Any, Any]]) -> Generator[Effect, Any, list[tuple[Any, Any]]]:
    settled = []
    for asked, answer in raw:
        settled.append((asked, (yield Settle(answer)) if isawaitable(answer) else answer))
    return settled


def _settle_before(
    plan: Plan, special: Any, hooks: Sequence[HookAnswer], mode: Mode
) -> Generator[Effect, Any, Decision]:
    settled = yield from _settle_all(special)
    answers = [as_answer(contract, raw, mode) for contract, raw in settled]
    return decide_before(plan.before, answers, hooks, mode)


def _reservation(
    run: RunTool,
    call: ToolCall,
    plan: Plan,
    terms: Terms,
    count_attempt: bool = True,
    hold: bool = True,
) -> Reservation:
    return Reservation(
        call.run_id,
        run.key,
        plan.scopes,
        plan.limits,
        count_attempt,
        hold,
        terms.enforcing,
        terms.lease_s,
        call.side_effect is IRREVERSIBLE,
        per_tool=bool(plan.session),
    )


def _count_refused(
    run: RunTool, call: ToolCall, plan: Plan, terms: Terms, decision: Decision
) -> Generator[Effect, Any, Admission]:
    """Count the attempt of a call that a contract or hook has refused."""
    grant = yield _reservation(run, call, plan, terms, True, False)
    if not isinstance(grant, Grant):
        return Admission(call, decision, NO_COUNTERS)
    # What only observes reports what it would have done, also when something else has refused the
    # call.
    observed = tuple(_objection(breach) for breach in grant.breaches if not breach.limit.enforce)
    admission = Admission(
        call,
        replace(decision, waived=decision.waived + observed),
        grant.counters,
        per_tool=grant.per_tool,
    )
    return (yield from _ask_session(admission, plan, terms)) if plan.session else admission


def _reserve(
    run: RunTool,
    call: ToolCall,
    plan: Plan,
    terms: Terms,
    decision: Decision,
    *,
    count_attempt: bool = True,
    hold: bool = True,
) -> Generator[Effect, Any, Admission]:
    """Take the call's slots, all or none, then ask the session contracts with the slots held: a
    race cannot slip between.
    """
    grant = yield _reservation(run, call, plan, terms, count_attempt, hold)
    admission = _granted(call, decision, grant)
    if not hold:
        admission = replace(admission, holds=False)
    return (yield from _ask_session(admission, plan, terms)) if plan.session else admission


def _granted(call: ToolCall, decision: Decision, grant: Grant | Failed) -> Admission:
    """The ledger's answer, taken into the decision."""
    if not isinstance(grant, Grant):
        reason = f"The session ledger could not be asked: {explain_failure(grant)}"
        return Admission(call, _error("ledger", "ledger", reason, decision), NO_COUNTERS)
    if not grant.granted and not any(
        breach.limit.enforce for breach in grant.breaches
    ):  # its lease has ended before it was answered
        refused = _error(
            "ledger",
            "ledger",
            "The session ledger has refused the call and named no full limit. Try again.",
            decision,
        )
        return Admission(call, refused, grant.counters)
    judged = _with_breaches(decision, grant) if grant.breaches else decision
    return Admission(call, judged, grant.counters, holds=grant.granted, per_tool=grant.per_tool)


def _objection(breach: Breach) -> Objection:
    return Objection(breach.limit.source, breach.limit.name, breach.reason)


def _with_breaches(decision: Decision, grant: Grant) -> Decision:
    """The decision with full limits taken into account: as a refusal, or as objections that are
    waived.
    """
    objections = [(breach.limit.enforce, _objection(breach)) for breach in grant.breaches]
    if grant.granted:
        return replace(
            decision, waived=decision.waived + tuple(objection for _, objection in objections)
        )
    waived = tuple(objection for enforced, objection in objections if not enforced)
    first = next(objection for enforced, objection in objections if enforced)
    return replace(
        decision,
        effect="deny",
        reason=first.reason,
        source=first.source,
        name=first.name,
        waived=decision.waived + waived,
    )


def _ask_session(
    admission: Admission, plan: Plan, terms: Terms
) -> Generator[Effect, Any, Admission]:
    """Ask the session contracts, with the counters as they were when this call took its slot.

    That moment puts calls in an order: of fifty that start at once the third sees two before it and
    the fourth three. Counters read later would show every call all the others, and all could be
    refused. A call that is refused already is asked about as well, so that the record is complete;
    its first reason stays.
    """
    call, decision = admission.call, admission.decision
    if not isinstance(admission.per_tool, Mapping):
        unread = _error(
            "ledger",
            "ledger",
            "The session ledger did not tell the counters of each tool.",
            decision,
        )
        return admission if decision.effect == "deny" else replace(admission, decision=unread)
    seen = SessionSnapshot(call.run_id, admission.counters, admission.per_tool)
    view = SessionView(seen, call.tool_name if admission.holds else None, call)
    settled = yield from _settle_all(plan.ask_session(view))
    answers = [as_answer(contract, raw, terms.mode) for contract, raw in settled]
    judged = decide_before(plan.session, answers, (), terms.mode)
    merged = replace(
        decision,
        asked=decision.asked + judged.asked,
        exceptions=decision.exceptions + judged.exceptions,
        waived=decision.waived + judged.waived,
    )
    if judged.effect != "allow" and decision.effect != "deny":
        merged = replace(
            merged,
            effect="deny",
            reason=judged.reason,
            source=judged.source,
            name=judged.name,
            policy_error=judged.policy_error,
        )
    return replace(admission, decision=merged)


# --- Approval: asked only when nothing denies -----------------------------------------------------


def _admit_with_approval(
    run: RunTool,
    call: ToolCall,
    plan: Plan,
    terms: Terms,
    decision: Decision,
    turn: CallInTurn | None,
) -> Generator[Effect, Any, Admission]:
    """Look first, so that nobody is asked for a call that a limit refuses; hold nothing while a
    person thinks; then reserve.
    """
    looked = yield from _reserve(run, call, plan, terms, decision, hold=False)
    if looked.decision.effect == "deny":
        return looked
    approved = yield from _approve(looked, terms, turn)
    if approved.decision.effect == "deny":
        return approved
    # From the decision as it was before the look: the session is asked again, and says its
    # objections once.
    granted = replace(decision, effect="allow", reason=None, source=None, name=None)
    admission = yield from _reserve(run, call, plan, terms, granted, count_attempt=False)
    return replace(admission, announced=admission.decision.effect == "allow")


def _approve(
    admission: Admission, terms: Terms, turn: CallInTurn | None
) -> Generator[Effect, Any, Admission]:
    """Ask a person, unless this very call has been approved before: one approval covers its retries
    in the turn.
    """
    if not terms.can_ask:
        decision = admission.decision
        reason = f"Approval required but no approval backend configured: {decision.reason}"
        return replace(
            admission, decision=replace(decision, effect="deny", reason=reason), gate="write_denied"
        )
    try:
        digest = approval_digest(admission.call, terms.context.policy_version)
    except TooDeepError as exc:
        return _no_answer(admission, "could not be asked", Failed(exc))
    known = None if turn is None else turn.approvals.get(digest)
    if known is None:
        return (yield from _ask_person(admission, terms, digest, turn))
    action, granted, why = _in_force(
        terms,
        AuditAction.CALL_APPROVAL_GRANTED,
        True,
        "Granted before: this is a retry of the same call.",
    )
    return (yield from _end_approval(admission, terms, action, known, why, granted=granted))


def _ask_person(
    admission: Admission, terms: Terms, digest: str, turn: CallInTurn | None
) -> Generator[Effect, Any, Admission]:
    call, decision, counters = admission.call, admission.decision, admission.counters
    if turn is not None and (lost := (yield from _keep_place(admission, turn))) is not None:
        return lost
    request = yield _in_time(Ask(call, decision, digest), decision.timeout, turn)
    if not hasattr(request, "approval_id"):
        return _no_answer(admission, "could not be asked", request)
    about = Approval(request.approval_id)
    problem = yield events.approval(
        terms.context, AuditAction.CALL_APPROVAL_REQUESTED, call, decision, counters, about
    )
    if problem is not None:
        yield Withdraw(request)
        return _unrecorded(admission, problem)
    answer = yield _in_time(AwaitDecision(request, decision.timeout), decision.timeout, turn)
    if not hasattr(answer, "approved"):
        yield Withdraw(request)
        if not isinstance(answer, Failed) or isinstance(answer.error, Exception):
            return _no_answer(admission, "did not answer", answer)
        return (
            yield from _end_approval(
                admission,
                terms,
                AuditAction.CALL_APPROVAL_WITHDRAWN,
                about,
                "The caller was cancelled.",
            )
        )
    about = Approval(request.approval_id, getattr(answer, "approver", None))
    action, granted, why = _in_force(terms, *_read_answer(answer, request, decision, digest))
    ended = yield from _end_approval(admission, terms, action, about, why, granted=granted)
    if turn is not None and ended.decision.effect == "allow":
        turn.approvals[digest] = about
    return ended


def _keep_place(admission: Admission, turn: CallInTurn) -> Generator[Effect, Any, Admission | None]:
    """A call that may be made once only keeps its place while a person decides, who may take longer
    than any call.
    """
    keep = turn.keep(
        2 * (admission.decision.timeout + LATE_ANSWER_S)
    )  # to reach somebody, and to be answered
    kept = True if keep is None else (yield keep)
    if kept is True:
        return None
    problem = explain_failure(kept) if isinstance(kept, Failed) else "it is gone"
    reason = (
        f"The place of this call within its window cannot be kept while a person decides: {problem}"
    )
    return replace(admission, decision=_error("ledger", "ledger", reason, admission.decision))


def _in_time(effect: Ask | AwaitDecision, timeout_s: float, turn: CallInTurn | None) -> Effect:
    """A backend that does not keep to its time is not waited for without end; a turn sees to that
    itself, and stops its clock.
    """
    return effect if turn is not None else Within(effect, timeout_s + LATE_ANSWER_S)


def _in_force(
    terms: Terms, action: AuditAction, granted: bool, why: str | None
) -> tuple[AuditAction, bool, str | None]:
    """A person's answer, if the policy under which it was given still stands."""
    if granted and terms.in_force is not None and terms.in_force() != terms.context.policy_version:
        return (
            AuditAction.CALL_APPROVAL_DENIED,
            False,
            "The policy has changed since approval was asked for. Call again.",
        )
    return action, granted, why


def approval_digest(call: ToolCall, policy_version: str | None) -> str:
    """What an approval is bound to: this tool, these arguments, this principal, under this
    policy.
    """
    return digest(call.tool_name, kept(call.args), call.principal, policy_version)


def _read_answer(
    answer: Any, request: Any, decision: Decision, digest: str
) -> tuple[AuditAction, bool, str | None]:
    """An ApprovalDecision, possibly of an older backend, as (event, may it run, why not). Who tells
    a digest, means that call.
    """
    status, reason, told = (getattr(answer, name, None) for name in ("status", "reason", "digest"))
    if status == "timeout":
        return (
            AuditAction.CALL_APPROVAL_TIMEOUT,
            decision.timeout_effect == "allow",
            "Nobody decided in time.",
        )
    if status == "withdrawn":
        return AuditAction.CALL_APPROVAL_WITHDRAWN, False, reason or "The request was withdrawn."
    if told not in (None, digest) or (getattr(request, "digest", None) or digest) != digest:
        return AuditAction.CALL_APPROVAL_DENIED, False, "The approval is for another call."
    if answer.approved is True and status != "denied":
        return AuditAction.CALL_APPROVAL_GRANTED, True, reason
    return AuditAction.CALL_APPROVAL_DENIED, False, reason


def _end_approval(
    admission: Admission,
    terms: Terms,
    action: AuditAction,
    about: Approval,
    reason: str | None,
    granted: bool = False,
) -> Generator[Effect, Any, Admission]:
    """Write the end of an approval down. A grant that cannot be written is no grant."""
    call, decision = admission.call, admission.decision
    entry = events.approval(
        terms.context, action, call, decision, admission.counters, about, reason
    )
    if not granted and entry.closing is None:
        entry.closing = Closing("denied")
    problem = yield entry
    if not granted:
        refused = replace(decision, effect="deny", reason=reason or decision.reason)
        return replace(admission, decision=refused, gate="write_denied", announced=problem is None)
    if problem is not None:
        return _unrecorded(admission, problem)
    return replace(admission, decision=replace(decision, effect="allow"))


def _no_answer(admission: Admission, what: str, answer: Any) -> Admission:
    reason = f"The approval backend {what}: {explain_failure(answer)}"
    return replace(
        admission,
        decision=_error("approval_backend", "approval_backend", reason, admission.decision),
        gate="write_denied",
    )


def _unrecorded(admission: Admission, problem: Failed) -> Admission:
    reason = (
        f"The audit could not be written, so the call was not started: {describe(problem.error)}"
    )
    return replace(
        admission,
        decision=_error("audit", "audit", reason, admission.decision),
        gate=None,
        announced=False,
    )


def _left(run: RunTool, plan: Plan, terms: Terms, left: Failed, admission: Admission) -> Flow:
    """The tool did not start, or its framework put the call off and will run it again: what it held
    is given back.
    """
    if not isinstance(left.error, Pause):
        return (yield from _stop(run, plan, terms, _not_started(admission, left.error)))
    call = admission.call
    settled = yield Settlement(call.run_id, run.key, plan.scopes, plan.limits, "release")
    reason = (
        f"Put off by the framework ({type(left.error.signal).__name__}); not counted as an"
        " execution."
    )
    counters = settled if type(settled) is Counters else admission.counters
    yield Entry(
        terms.context, AuditAction.CALL_PAUSED, call, admission.decision, counters, reason=reason
    )
    return ToolDenied(call.call_id, call.tool_name, "paused", reason)


def _not_started(admission: Admission, error: BaseException) -> Admission:
    if isinstance(error, TurnOver):
        refusal = error.refusal
        return replace(
            admission,
            decision=_refusal("deadline", refusal, admission.decision),
            gate=refusal.reason,
            announced=False,
        )
    if isinstance(error, Declined):
        return replace(
            admission,
            decision=_error("host", "declined", str(error), admission.decision),
            gate="pre_hook",
            announced=False,
        )
    decision = replace(
        admission.decision,
        effect="deny",
        source="cancelled",
        name="cancelled",
        reason="The caller was cancelled before the tool started.",
    )
    return replace(admission, decision=decision, gate="cancelled", announced=False)


# --- Refused --------------------------------------------------------------------------------------


def _refuse(admission: Admission, terms: Terms) -> Flow:
    call, decision, redact = admission.call, admission.decision, terms.context.redaction.redact_text
    notes: tuple[str, ...] = ()
    if not admission.announced:
        problem = yield events.denied(terms.context, call, decision, admission.counters)
        if problem is not None:
            notes = (
                redact(f"The denial could not be written to the audit: {describe(problem.error)}"),
            )
    if terms.on_deny is not None:
        yield Notify(terms.on_deny, (call, decision.reason or "", decision.name), "on_deny")
    source = decision.source or ""
    gate = (
        admission.gate or REASONS.get(source) or ("policy_error" if source in PORTS else "contract")
    )
    return ToolDenied(
        call.call_id,
        call.tool_name,
        gate,
        redact(
            decision.reason or ""
        ),  # the model reads it, and the error of a port or a contract may hold a password
        decision_source=decision.source,
        decision_name=decision.name,
        policy_error=decision.policy_error,
        notes=notes,
    )


PORTS = frozenset({"ledger", "audit", "approval_backend", "principal_resolver"})


# --- After the tool ran ---------------------------------------------------------------------------


def _custom_verdict(
    check: SuccessCheck, tool: str, value: Any, turn: CallInTurn | None
) -> Generator[Effect, Any, SuccessVerdict]:
    try:
        if isinstance(check, Checker):
            return verdict_from_problem(check.problem(tool, value))
        answer = yield from consult(check, (tool, value), turn is not None)
        if (
            type(answer) is Failed
            # also a cancellation of the caller: it goes on to where it was meant once the call is
            # closed
        ):
            raise RuntimeError(describe(answer.error)) from answer.error
        return verdict_from_check(check, tool, answer)
    except USER_ERRORS as exc:
        problem = (
            f"success_check did not give an answer, so the call counts as failed: {describe(exc)}"
        )
        return SuccessVerdict(False, "success_check", problem, policy_error=True)


def _review(
    call: ToolCall, plan: Plan, terms: Terms, ran: Ran, turn: CallInTurn | None
) -> Generator[Effect, Any, tuple[Any, AfterDecision]]:
    """Postconditions and after-hooks see the tool's own value, or the text of its exception. The
    value to show, and what was said.
    """
    value = ran.value if ran.error is None else describe(ran.error)
    settled = yield from _settle_all(plan.ask_after(call, value))
    answers = [as_answer(contract, raw, terms.mode) for contract, raw in settled]
    reviewed = decide_after(plan.after, answers, call, value, terms.context.redaction.redact_value)
    for hook in plan.hooks_after:
        if (yield from holds(hook, (call,), turn is not None)) is True:
            yield Notify(hook.callback, (call, value), f"after-hook {hook.name}")
    return reviewed


# --- In a turn ------------------------------------------------------------------------------------
#
# The turn's gates come first, in their order; what passes them takes the walk above, once per
# attempt. A call that the same call has answered already does not run, but the contracts are asked
# again: who may not make a call may not read its result either.


def in_turn(run: RunTool, plan: Plan, terms: Terms, flag: Flag | None, turn: CallInTurn) -> Flow:
    """Govern one call of a turn. The turn is told how it ended, once, also when the walk is thrown
    away.
    """
    outcome: Any = None
    try:
        settled = not plan.hooks_before and (terms.principal_resolver is None or run.identified)
        gates = turn.gates if settled else turn.gates_before_hooks
        stop = _ask_gates(gates, run.call, turn)
        entered: Any = (
            run
            if stop is None
            else (yield from timed(_enter(run, plan, terms, turn, gates, stop), turn))
        )
        outcome = (
            (yield from lifecycle(entered, plan, terms, flag, turn))
            if type(entered) is RunTool
            else entered
        )
        if type(outcome) in MAY_BE_RETRIED:
            outcome = yield from _try_again(entered, plan, terms, flag, turn, outcome)
        if (held := turn.reserved) is not None:
            settled = yield from bounded(turn.settlement(held, outcome), turn)
            if type(settled) is not Counters:
                outcome = with_note(
                    outcome, terms.context, "The call could not be written down as made", settled
                )
        return outcome  # type: ignore[no-any-return]
    finally:
        turn.ended(outcome)


MAY_BE_RETRIED = frozenset({ToolFailure, ToolTimeout})


def _try_again(
    run: RunTool,
    plan: Plan,
    terms: Terms,
    flag: Flag | None,
    turn: CallInTurn,
    outcome: ToolOutcome,
) -> Flow:
    """Further attempts, for as long as the turn wants them. Each is judged, counted and recorded as
    a call of its own.
    """
    while (pause_s := turn.retry_in(outcome)) is not None and (yield Delay(pause_s)) is None:
        again = yield from lifecycle(
            replace(run, key=f"{run.key}~{turn.attempts + 1}"), plan, terms, flag, turn
        )
        if (
            type(again) is ToolDenied
        ):  # the body has run before, so a denial is not how the call ended
            return replace(
                outcome, notes=(*outcome.notes, f"It was not tried again: {again.details}")
            )
        outcome = again
    return outcome


def _ask_gates(
    gates: Gates, call: ToolCall, turn: CallInTurn, place: int = 0
) -> tuple[int, Answer] | None:
    """The first gate from ``place`` on that has something to say, and what; nearly every call
    passes them all.
    """
    for name, gate in gates[place:] if place else gates:
        try:
            answer = gate(turn, call)
        except Exception as exc:  # a gate that fails refuses
            answer = Refusal(
                "policy_error", f"The gate {name!r} failed: {describe(exc)}", policy_error=True
            )
        if answer is not None:
            return place, answer
        place += 1
    return None


def _gate_again(
    run: RunTool,
    plan: Plan,
    terms: Terms,
    turn: CallInTurn,
    hooks: Sequence[HookAnswer],
    rewritten: bool,
) -> Generator[Effect, Any, RunTool | ToolOutcome]:
    """The gates that judge what will run are asked once the before-hooks have had their say about
    it.
    """
    gates, given_up = turn.gates_after_hooks(run.call, rewritten)
    if given_up is not None:
        yield given_up
    stop = _ask_gates(gates, run.call, turn)
    return run if stop is None else (yield from _enter(run, plan, terms, turn, gates, stop, hooks))


def _enter(
    run: RunTool,
    plan: Plan,
    terms: Terms,
    turn: CallInTurn,
    gates: Gates,
    stop: tuple[int, Answer] | None,
    hooks: Sequence[HookAnswer] | None = None,
) -> Generator[Effect, Any, RunTool | ToolOutcome]:
    """See to what the gates say. The call that may go on, with the arguments that they have settled
    on, or the outcome.
    """
    call = run.call
    while stop is not None:
        place, answer = stop
        name, gate = gates[place]
        if type(answer) is not ToolCall:
            answer = yield from _settle_gate(gate, call, answer, turn)
        if type(answer) is Refusal:
            admission = yield from _count_refused(
                run, call, plan, terms, _refusal(name, answer, Decision(hooks=tuple(hooks or ())))
            )
            return (yield from _refuse(replace(admission, gate=answer.reason), terms))
        if type(answer) is Repeat:
            return (yield from _repeat(run, call, plan, terms, answer.outcome, hooks or (), turn))
        if type(answer) is ToolCall:
            call = answer
        stop = _ask_gates(gates, call, turn, place + 1)
    return run if call is run.call else replace(run, call=call)


def _settle_gate(
    gate: Gate, call: ToolCall, answer: Answer, turn: CallInTurn
) -> Generator[Effect, Any, Answer]:
    """Wait for a twin, or ask the store or the ledger, until the gate has a final answer. What a
    twin was denied is asked for again.
    """
    while type(answer) in NOT_FINAL:
        if type(answer) is Twin:
            told = yield AwaitTwin(answer.outcome, answer.timeout_s)
            if type(told) is Failed:
                return Refusal(
                    "cancelled", "The caller was cancelled while the same call was running."
                )
            answer = Repeat(turn.again(told)) if told is not None else gate(turn, call)
        else:
            answer = yield from _look(gate, call, answer, turn)  # type: ignore[arg-type]
    if type(answer) is Once:
        grant = yield answer.reservation
        if not isinstance(grant, Grant):
            return Refusal(
                "policy_error",
                f"The session ledger could not be asked: {explain_failure(grant)}",
                policy_error=True,
            )
        return turn.once(grant)
    return answer


NOT_FINAL = frozenset({Twin, Doubtful})


def _look(
    gate: Gate, call: ToolCall, doubtful: Doubtful, turn: CallInTurn
) -> Generator[Effect, Any, Answer]:
    found = yield from consult(doubtful.look, doubtful.args, in_turn=True)
    if found is not None and type(found) is not Failed:
        return turn.certain(doubtful.done)
    turn.forget(doubtful.done)
    return gate(turn, call)


def _refusal(gate: str, refusal: Refusal, base: Decision | None = None) -> Decision:
    return replace(
        base or Decision(),
        effect="deny",
        reason=refusal.details,
        source="turn",
        name=gate,
        policy_error=refusal.policy_error,
    )


def _repeat(
    run: RunTool,
    call: ToolCall,
    plan: Plan,
    terms: Terms,
    outcome: ToolOutcome,
    hooks: Sequence[HookAnswer],
    turn: CallInTurn,
) -> Flow:
    """Give an earlier answer again, if this call would be allowed now. It is counted as an attempt,
    not as an execution.

    Where a person must approve the call, the approval of the first covers this one, under the same
    policy; else a person is asked.
    """
    decision = yield from _settle_before(plan, plan.ask_before(call), hooks, terms.mode)
    if decision.effect == "deny":
        return (
            yield from _refuse((yield from _count_refused(run, call, plan, terms, decision)), terms)
        )
    grant = yield _reservation(run, call, plan, terms, True, False)
    admission = _granted(
        call, decision, _attempts_only(grant) if isinstance(grant, Grant) else grant
    )
    if admission.decision.effect == "approve":
        admission = yield from _approve(admission, terms, turn)
    if admission.decision.effect == "deny":
        return (yield from _refuse(admission, terms))
    said = replace(
        decision,
        effect="allow",
        source="turn",
        name="duplicate",
        reason="The same call has been answered in this turn.",
    )
    problem = yield Entry(
        terms.context,
        AuditAction.CALL_REPLAYED,
        call,
        said,
        admission.counters,
        Closing(OUTCOME_KINDS[type(outcome)]),
    )
    again = replace(outcome, call_id=call.call_id)
    return (
        again
        if problem is None
        else with_note(
            again, terms.context, "The repetition could not be written to the audit", problem
        )
    )


def _attempts_only(grant: Grant) -> Grant:
    """What the ledger says to a call that is asked for and does not run: only the limit on asking
    concerns it.
    """
    full = tuple(breach for breach in grant.breaches if breach.limit.metric is Metric.ATTEMPTS)
    return Grant(
        grant.granted or not any(breach.limit.enforce for breach in full), grant.counters, full
    )


def _shaped(outcome: ToolOutcome, oversized: Oversized, call: ToolCall, turn: CallInTurn) -> Flow:
    """The outcome with its output put away, so that it fits a message."""
    reference: Any = Failed(LookupError("no artifact store"))
    if oversized.store is not None:
        reference = yield from bounded(
            StoreArtifact(oversized.store, call.run_id, call.tool_name, oversized.content), turn
        )
    return turn.stored(outcome, oversized, reference)
