"""A call in a turn: the turn's gates, then the same lifecycle, once per attempt.

A duplicate of an answered call does not run. Its contracts are asked again anyway: a caller who may
not make a call may not read its result either.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from edictum._audit_event import AuditAction
from edictum.core._records import replace
from edictum.core.call import ToolCall
from edictum.core.config import FailureFlag, Flow, LifecycleConfig
from edictum.core.decide import describe, explain_failure
from edictum.core.decision import Decision, Failed, HookAnswer
from edictum.core.effects import AwaitDuplicate, Delay, Effect, RunTool
from edictum.core.events import Closing, Entry
from edictum.core.lifecycle import lifecycle
from edictum.core.lifecycle.admission import (
    admission_of,
    count_refused_call,
    decide,
    read_grant,
    reservation_for,
)
from edictum.core.lifecycle.approval import end_approvals, obtain_approval
from edictum.core.lifecycle.conclusion import refuse
from edictum.core.lifecycle.verdict import with_note
from edictum.core.limits import Counters, Grant, Metric
from edictum.core.policy import Plan
from edictum.core.turn import (
    CallInTurn,
    DuplicateInFlight,
    Gate,
    GateAnswer,
    Gates,
    OncePerWindow,
    Refusal,
    Replay,
    UncheckedReplay,
)
from edictum.core.user_code import call_user_code
from edictum.outcomes import (
    OUTCOME_KINDS,
    ToolDenied,
    ToolFailure,
    ToolOutcome,
    ToolTimeout,
)

RETRIED = (ToolFailure, ToolTimeout)
NOT_REPLAYED = (
    "The person who approved the call has changed its arguments, so the earlier answer does not"
    " fit. Call again with the changed arguments."
)


def lifecycle_in_turn(
    run: RunTool,
    plan: Plan,
    config: LifecycleConfig,
    failure_flag: FailureFlag | None,
    turn: CallInTurn,
) -> Flow:
    """Govern one call of a turn.

    ``turn.note_end`` is called once with the outcome, even when the generator is thrown away. All
    waits are bounded by the time that the turn has left; the driver asks the turn for it.
    """
    outcome: Any = None
    try:
        identified = config.principal_resolver is None or run.identified
        settled = identified and not plan.hooks_before  # the call is final
        gates = turn.gates if settled else turn.gates_before_hooks
        passed = yield from pass_gates(run, plan, config, turn, gates)
        if type(passed) is not RunTool:
            outcome = passed
        else:
            outcome = yield from lifecycle(passed, plan, config, failure_flag, turn)
            if isinstance(outcome, RETRIED):
                outcome = yield from _retry(passed, plan, config, failure_flag, turn, outcome)
        if (held := turn.reserved) is not None:
            counted = yield turn.settlement(held, outcome)
            if type(counted) is not Counters:
                problem = "The call could not be recorded as made in its window"
                outcome = with_note(outcome, config.context, problem, counted)
        return outcome  # type: ignore[no-any-return]  # of Any: set by one of the lines above
    finally:
        turn.note_end(outcome)


def _retry(
    run: RunTool,
    plan: Plan,
    config: LifecycleConfig,
    failure_flag: FailureFlag | None,
    turn: CallInTurn,
    outcome: ToolOutcome,
) -> Flow:
    """Make further attempts while the turn allows them. To the guard each is a call of its own."""
    while (pause_s := turn.retry_in(outcome)) is not None and (yield Delay(pause_s)) is None:
        attempt = replace(run, key=f"{run.key}~{turn.attempts + 1}")
        again = yield from lifecycle(attempt, plan, config, failure_flag, turn)
        if type(again) is ToolDenied:  # the body has run before: the call did not end as denied
            note = f"It was not tried again: {again.details}"
            return replace(outcome, notes=(*outcome.notes, note))
        outcome = again
    return outcome


def pass_gates(
    run: RunTool,
    plan: Plan,
    config: LifecycleConfig,
    turn: CallInTurn,
    gates: Gates,
    hooks: Sequence[HookAnswer] = (),
) -> Generator[Effect, Any, RunTool | ToolOutcome]:
    """Ask the gates in order. Return the run with its final arguments, or the outcome of a denied
    or duplicate call.
    """
    call = run.call
    for name, gate in gates:
        try:
            answer = gate(turn, call)
        except Exception as exc:  # a gate that fails refuses
            problem = f"The gate {name!r} failed: {describe(exc)}"
            answer = Refusal("policy_error", problem, policy_error=True)
        if answer is None:
            continue
        if type(answer) is not ToolCall:
            answer = yield from _settle_gate(gate, call, answer, turn)
        if type(answer) is Refusal:
            return (yield from _refuse_by_gate(run, call, plan, config, name, answer, hooks))
        if type(answer) is Replay:
            run = replace(run, call=call)
            return (yield from _replay(run, plan, config, answer.outcome, hooks, turn))
        if type(answer) is ToolCall:
            call = answer
    return run if call is run.call else replace(run, call=call)


def _settle_gate(
    gate: Gate, call: ToolCall, answer: GateAnswer, turn: CallInTurn
) -> Generator[Effect, Any, GateAnswer]:
    """Wait for whatever a gate's answer depends on, until the answer is final.

    A duplicate that ended as denied does not answer this call: the gate is asked again.
    """
    while isinstance(answer, DuplicateInFlight | UncheckedReplay):
        if isinstance(answer, UncheckedReplay):
            answer = yield from _check_replay(gate, call, answer, turn)
            continue
        outcome = yield AwaitDuplicate(answer.outcome, answer.timeout_s)
        if type(outcome) is Failed:
            return Refusal("cancelled", "The caller was cancelled while the same call was running.")
        answer = gate(turn, call) if outcome is None else Replay(turn.replay(outcome))
    if isinstance(answer, OncePerWindow):
        grant = yield answer.reservation
        if isinstance(grant, Grant):
            return turn.read_grant(grant)
        problem = f"The session ledger could not be asked: {explain_failure(grant)}"
        return Refusal("policy_error", problem, policy_error=True)
    return answer


def _check_replay(
    gate: Gate, call: ToolCall, unchecked: UncheckedReplay, turn: CallInTurn
) -> Generator[Effect, Any, GateAnswer]:
    found = yield from call_user_code(unchecked.look, unchecked.args, in_turn=True)
    if found is not None and type(found) is not Failed:
        return turn.confirm_replay(unchecked.done)
    turn.forget_replay(unchecked.done)
    return gate(turn, call)


def _refuse_by_gate(
    run: RunTool,
    call: ToolCall,
    plan: Plan,
    config: LifecycleConfig,
    gate: str,
    refusal: Refusal,
    hooks: Sequence[HookAnswer],
) -> Flow:
    decision = Decision(hooks=tuple(hooks)).deny(
        "turn",
        gate,
        refusal.details,
        policy_error=refusal.policy_error,
        for_operators=refusal.for_operators,
    )
    admission = yield from count_refused_call(replace(run, call=call), plan, config, decision)
    refused = replace(admission, denial_reason=refusal.reason)
    return (yield from refuse(refused, plan, config))


def _replay(
    run: RunTool,
    plan: Plan,
    config: LifecycleConfig,
    outcome: ToolOutcome,
    hooks: Sequence[HookAnswer],
    turn: CallInTurn,
) -> Flow:
    """Return the earlier outcome of the same call, if this call would be allowed now.

    It counts as an attempt, not as an execution. Where a person must approve the call, the approval
    of the first call covers this one under the same policy; else a person is asked.
    """
    call, context = run.call, config.context
    decision = yield from decide(plan, plan.ask_before(call), hooks, config.mode)
    if decision.effect == "deny":
        refused = yield from count_refused_call(run, plan, config, decision)
        return (yield from refuse(refused, plan, config))
    reservation = reservation_for(run, plan, config, hold=False)
    grant = read_grant(run, (yield reservation))
    if isinstance(grant, Grant):
        grant = _only_attempts(grant)
    admission = admission_of(run, decision, grant, reservation)
    if admission.decision.effect == "approve":
        admission = yield from obtain_approval(admission, config, turn)
    if admission.call is not call:  # what was answered before was another call
        admission = admission.deny(admission.decision.deny("turn", "duplicate", NOT_REPLAYED))
    if admission.decision.effect == "deny":
        return (yield from refuse(admission, plan, config))
    yield from end_approvals(admission, started=True)
    replayed = replace(
        decision,
        effect="allow",
        source="turn",
        name="duplicate",
        reason="The same call has been answered in this turn.",
    )
    closing = Closing(OUTCOME_KINDS[type(outcome)])
    problem = yield Entry(
        context, AuditAction.CALL_REPLAYED, call, replayed, admission.counters, closing
    )
    again = replace(outcome, call_id=call.call_id)
    if problem is None:
        return again
    return with_note(again, context, "The repetition could not be written to the audit", problem)


def _only_attempts(grant: Grant) -> Grant:
    """Return the grant as it concerns a call that does not run: only limits on attempts count."""
    full = tuple(breach for breach in grant.breaches if breach.limit.metric is Metric.ATTEMPTS)
    granted = grant.granted or not any(breach.limit.enforce for breach in full)
    return Grant(granted, grant.counters, full)
