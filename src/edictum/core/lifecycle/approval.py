"""Approval: ask a person whether a call may run. Only a call that nothing denies gets here.

    Ask -> record the request -> AwaitDecision -> record the answer

The answer is bound to a digest of the call. It lets the call run if it is a yes to this very call
under the policy in force, a grant that covers the call, or silence where the contract's
``timeout_effect`` is "allow". Anything else denies. No slot is held while a person decides.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from edictum._audit_event import AuditAction
from edictum.core._records import record, replace
from edictum.core.approvers import identify
from edictum.core.call import ToolCall
from edictum.core.changed_args import change_args
from edictum.core.config import LifecycleConfig
from edictum.core.contract import Contract
from edictum.core.decide import explain_failure
from edictum.core.decision import Decision, Failed
from edictum.core.effects import (
    Ask,
    AwaitDecision,
    Effect,
    EndApproval,
    NoApprovalBackend,
    Pause,
    UseApproval,
    Withdraw,
    Within,
)
from edictum.core.events import Approval, Closing, Entry
from edictum.core.freeze import get_original_args
from edictum.core.parameters import fill_args
from edictum.core.redaction import shorten
from edictum.core.turn import CallInTurn
from edictum.core.values import TooDeepError, digest, dumps, is_same
from edictum.errors import EdictumInputError
from edictum.outcomes import ToolDenied

if TYPE_CHECKING:
    from edictum.core.lifecycle.admission import Admission, Admitting

DENIED_BY_PERSON = "write_denied"
REQUESTED = AuditAction.CALL_APPROVAL_REQUESTED
GRANTED = AuditAction.CALL_APPROVAL_GRANTED
DENIED = AuditAction.CALL_APPROVAL_DENIED
WITHDRAWN = AuditAction.CALL_APPROVAL_WITHDRAWN
VOID = AuditAction.CALL_APPROVAL_VOID
GRANT_USED = AuditAction.CALL_GRANT_USED
NOTE_MAX_CHARS = 1_000
PROMPT_MAX_CHARS = 2_000
CALLER_CANCELLED = "The caller was cancelled."
NO_REQUESTER = (
    "Approval must not come from the requester, but the call has no principal that says who the"
    " requester is"
)


@record
class PersonsAnswer:
    """How an approval ended: the event to record, whether the call may run, and why."""

    action: AuditAction
    granted: bool
    reason: str | None
    changed_args: Any = None  # in place of those that were asked about


def obtain_approval(
    admission: Admission, config: LifecycleConfig, turn: CallInTurn | None
) -> Admitting:
    """Ask a person, unless this very call was approved before in its turn.

    Returns the admission, allowed or denied. If the person has changed the arguments, it is the
    admission of another call, which is not judged yet.
    """
    try:
        metadata = _make_metadata(admission, config.context.policy_digest)
    except TooDeepError as exc:
        return _deny_for_backend_failure(admission, "could not be asked", Failed(exc))
    known = None if turn is None else turn.approvals.get(metadata["digest"])
    if known is None:
        return (yield from _ask_person(admission, config, metadata, turn))
    reason = "Granted before: this is a retry of the same call."
    again = PersonsAnswer(GRANTED, True, reason, known.changed_args)
    return (yield from _apply_answer(admission, config, _check_policy(again, config), known))


def approval_digest(call: ToolCall, policy_digest: str, askers: Sequence[str] = ()) -> str:
    """Return the digest that an approval is bound to: of the tool, the arguments as sent and with
    defaults filled in, the principal, the policy, and the contracts and limits that ask.
    """
    sent = get_original_args(call.args)
    filled = fill_args(sent, call.parameters)
    return digest(call.tool_name, sent, filled, call.principal, policy_digest, *askers)


def _make_metadata(admission: Admission, policy_digest: str) -> dict[str, Any]:
    """Return what binds the answer, and grants that may come with it, to the call."""
    call, decision = admission.call, admission.decision
    askers, requester = name_askers(decision), identify(call.principal)
    bound = (call.tool_name, call.principal, policy_digest)
    bindings = {"session": digest("session", call.run_id, *bound)}
    if requester:
        bindings["principal"] = digest("principal", *bound)
    return {
        "digest": approval_digest(call, policy_digest, askers),
        "contract": decision.name,
        "call_id": call.call_id,
        "call_digest": make_call_digest(call),
        "askers": askers,
        "approvers": [it.as_dict() for it in decision.approvers],
        "requester": list(requester),
        "bindings": bindings,
    }


def name_askers(decision: Decision) -> list[str]:
    """Return a name for each contract and limit that asks, unique within the policy."""
    names = []
    for asker in decision.askers:
        if isinstance(asker, Contract):
            same = [it for it in decision.asked if it.id == asker.id]
            number = next((n for n, it in enumerate(same) if it is asker), 0)
            names.append(f"{asker.id}#{number + 1}" if number else asker.id)
        else:
            names.append(f"{asker.name}:{asker.counter}:{asker.tool}")
    return names


def make_call_digest(call: ToolCall) -> str:
    """Return a digest of the call alone: of tool, arguments as sent and principal. It does not
    depend on the policy or on defaults.
    """
    return digest(call.tool_name, get_original_args(call.args), call.principal)


def _ask_person(
    admission: Admission, config: LifecycleConfig, metadata: dict[str, Any], turn: CallInTurn | None
) -> Admitting:
    call, decision = admission.call, admission.decision
    if any(it.not_requester for it in decision.approvers) and not identify(call.principal):
        reason = f"{NO_REQUESTER}: {decision.reason}"
        return admission.deny(replace(decision, effect="deny", reason=reason), DENIED_BY_PERSON)
    if turn is not None:
        problem = yield from _extend_reservation(decision.timeout + config.late_answer_s, turn)
        if problem is not None:
            return admission.deny(decision.fail("ledger", problem))
    shown = _hide_secrets(call, decision, config)
    metadata["context"] = _describe_context(admission, config, turn)
    ask = Ask(call, decision, metadata, shown, config.control_flow, config.preview)
    request = yield from _ask_in_time(ask, decision.timeout + config.late_answer_s, turn)
    if (pause := _find_pause(request)) is not None:
        return (yield from record_pause(admission, pause, config))
    if not hasattr(request, "approval_id"):
        return _deny_without_question(admission, request)
    is_asked = getattr(request, "grant_id", None) is None  # else no person is asked
    if is_asked and getattr(request, "is_parked", False) is not True:  # else it was recorded then
        about = Approval(request.approval_id)
        problem = yield Entry(
            config.context, REQUESTED, call, decision, admission.counters, approval=about
        )
        if problem is not None:
            yield Withdraw(request)
            return admission.deny_for_audit_failure(problem)
    asked = Asked(request, metadata["digest"], shown["tool_args"])
    ended, about = yield from _await_person(admission, config, asked, turn)
    if turn is not None and ended.decision.effect == "allow":
        turn.approvals[metadata["digest"]] = about
    return ended


def _deny_without_question(admission: Admission, failed: Any) -> Admission:
    """Deny a call about which no person could be asked."""
    decision, error = admission.decision, getattr(failed, "error", None)
    if isinstance(error, NoApprovalBackend):
        reason = f"Approval required but no approval backend configured: {decision.reason}"
    elif isinstance(error, BaseException) and not isinstance(error, Exception):
        reason = CALLER_CANCELLED
    else:
        return _deny_for_backend_failure(admission, "could not be asked", failed)
    return admission.deny(replace(decision, effect="deny", reason=reason), DENIED_BY_PERSON)


def _hide_secrets(call: ToolCall, decision: Decision, config: LifecycleConfig) -> dict[str, Any]:
    """Return what a person is shown, without secrets: the question may be posted where others read
    it.
    """
    redaction, principal = config.context.redaction, call.principal
    return {
        # copies of objects, not those that run
        "tool_args": redaction.redact_value(call.effective_args),
        "message": redaction.redact_text(decision.reason or ""),
        "principal": None if principal is None else redaction.redact_value(principal.as_dict()),
    }


def _describe_context(
    admission: Admission, config: LifecycleConfig, turn: CallInTurn | None
) -> dict[str, Any]:
    """Return context that helps a person to decide, without secrets."""
    redact, decision = config.context.redaction.redact_text, admission.decision
    messages = {id(it.contract): it.verdict.message for it in decision.exceptions}
    context: dict[str, Any] = {
        "asked_by": [
            {
                "name": asker.id if isinstance(asker, Contract) else asker.name,
                "type": asker.source.removeprefix("yaml_"),
                "message": redact(messages.get(id(asker)) or decision.reason or ""),
            }
            for asker in decision.askers
        ],
        "side_effect": str(admission.call.side_effect),
        "policy_version": config.context.policy_version,
    }
    if turn is not None and turn.prompt:
        context["prompt"] = shorten(redact(turn.prompt), PROMPT_MAX_CHARS)
    return context


def _find_pause(answer: Any) -> Pause | None:
    """Return the framework's interrupt if the backend raised one, else None."""
    error = answer.error if isinstance(answer, Failed) else None
    return error if isinstance(error, Pause) else None


def record_pause(admission: Admission, pause: Pause, config: LifecycleConfig) -> Admitting:
    """Record that the framework deferred the call; return the admission with its outcome.

    The request is not withdrawn: the framework makes the same call again, and it finds its
    question.
    """
    call, decision = admission.call, admission.decision
    signal = type(pause.signal).__name__
    reason = f"Deferred by the framework ({signal}); not counted as an execution."
    paused = AuditAction.CALL_PAUSED
    yield Entry(config.context, paused, call, decision, admission.counters, reason=reason)
    outcome = ToolDenied(call.call_id, call.tool_name, "paused", reason)
    return replace(admission, decision=replace(decision, effect="deny"), outcome=outcome)


@record
class Asked:
    """A request that waits for its answer."""

    request: Any
    digest: str
    shown_args: Any


def _await_person(
    admission: Admission, config: LifecycleConfig, asked: Asked, turn: CallInTurn | None
) -> Generator[Effect, Any, tuple[Admission, Approval]]:
    """Wait for the answer to a request, and record it."""
    decision, request = admission.decision, asked.request
    about = Approval(getattr(request, "grant_id", None) or request.approval_id)
    wait = AwaitDecision(request, decision.timeout, config.control_flow, config.park)
    reply = yield from _ask_in_time(wait, decision.timeout + config.late_answer_s, turn)
    if hasattr(reply, "approved"):
        answer = _read_changes(_read_reply(reply, asked, decision), reply, asked, admission.call)
        answer = _check_policy(answer, config)
        approver = getattr(reply, "approver", None)
        about = Approval(about.approval_id, approver, answer.changed_args)
        if answer.action is VOID and reply.approved is True:  # a yes that no call may use
            yield Withdraw(request)
    elif (pause := _find_pause(reply)) is not None:
        return (yield from record_pause(admission, pause, config)), about
    else:
        yield Withdraw(request)
        if not isinstance(reply, Failed) or isinstance(reply.error, Exception):
            return _deny_for_backend_failure(admission, "did not answer", reply), about
        answer = PersonsAnswer(WITHDRAWN, False, CALLER_CANCELLED)
    ended = yield from _apply_answer(admission, config, answer, about)
    # without a yes there is nothing to use: silence was taken for consent
    if answer.action in (GRANTED, GRANT_USED):
        ended = replace(ended, approvals=(*admission.approvals, request))
    return ended, about


def use_approvals(
    admission: Admission, config: LifecycleConfig
) -> Generator[Effect, Any, Admission | None]:
    """Record that an approved call starts, so that its approvals cannot be used again.

    Returns None, or the denied admission if an approval is no longer valid or its use cannot be
    recorded.
    """
    for request in admission.approvals:
        used = yield UseApproval(request)
        if used is False:
            reason = "The approval was revoked, or another call has used it. Call again."
            answer, about = PersonsAnswer(VOID, False, reason), Approval(request.approval_id)
            return (yield from _apply_answer(admission, config, answer, about))
        if used is not True:
            return _deny_for_backend_failure(
                admission, "could not record that the call starts", used
            )
    return None


def end_approvals(admission: Admission, *, started: bool) -> Generator[Effect, Any, None]:
    """Record that an approved call has ended, or release its approvals if it did not start.

    A failure changes nothing: the approval then counts as used.
    """
    for request in admission.approvals:
        yield EndApproval(request, started)


def _extend_reservation(timeout_s: float, turn: CallInTurn) -> Generator[Effect, Any, str | None]:
    """Extend the reservation of a call that may run once per window, for as long as a person may
    take.

    Returns why that failed, or None.
    """
    # once for reaching a person, once for the answer
    renew = turn.extend_reservation(2 * timeout_s)
    renewed = True if renew is None else (yield renew)
    if renewed is True:
        return None
    problem = explain_failure(renewed) if isinstance(renewed, Failed) else "it is gone"
    return (
        f"The place of this call within its window cannot be kept while a person decides: {problem}"
    )


def _ask_in_time(
    effect: Ask | AwaitDecision, timeout_s: float, turn: CallInTurn | None
) -> Generator[Effect, Any, Any]:
    """Wait for the backend with a timeout of our own, while the turn's clock is paused."""
    bounded = Within(effect, timeout_s)
    if turn is None:
        return (yield bounded)
    turn.pause_clock()
    try:
        return (yield bounded)
    finally:
        turn.resume_clock()


def _check_policy(answer: PersonsAnswer, config: LifecycleConfig) -> PersonsAnswer:
    """Return the answer; it is void when the policy has changed since the person was asked."""
    in_force = config.digest_in_force
    if not answer.granted or in_force is None or in_force() == config.context.policy_digest:
        return answer
    return PersonsAnswer(
        VOID, False, "The policy has changed since approval was asked for. Call again."
    )


def _read_changes(answer: PersonsAnswer, reply: Any, asked: Asked, call: ToolCall) -> PersonsAnswer:
    """Return the answer with the arguments that a person has changed, if they can be used."""
    wanted = getattr(reply, "args", None)
    if not answer.granted or wanted is None:
        return answer
    try:
        args = change_args(call, asked.shown_args, wanted)
        changed = replace(call, args=args).args
    except EdictumInputError as exc:
        return PersonsAnswer(VOID, False, f"The call was approved with other arguments. {exc}")
    return answer if is_same(changed, call.args) else replace(answer, changed_args=changed)


def _read_reply(reply: Any, asked: Asked, decision: Decision) -> PersonsAnswer:
    """Read an ApprovalDecision, possibly of an older backend.

    A digest in the reply or the request must be this call's.
    """
    status, reason, told = (getattr(reply, name, None) for name in ("status", "reason", "digest"))
    if status == "timeout":
        granted = decision.timeout_effect == "allow"
        return PersonsAnswer(
            AuditAction.CALL_APPROVAL_TIMEOUT, granted, "The approval timed out without a decision."
        )
    if status == "withdrawn":
        return PersonsAnswer(WITHDRAWN, False, reason or "The request was withdrawn.")
    if status == "void":
        return PersonsAnswer(VOID, False, reason or "The approval is no longer valid.")
    if _is_for_another_call(told, asked.request, asked.digest):
        return PersonsAnswer(VOID, False, "The approval is for another call.")
    if reply.approved is True and status != "denied":
        is_covered = getattr(asked.request, "grant_id", None) is not None
        return PersonsAnswer(GRANT_USED if is_covered else GRANTED, True, reason)
    return PersonsAnswer(DENIED, False, reason or f"A person refused: {decision.reason}")


def _is_for_another_call(told: Any, request: Any, digest: str) -> bool:
    return told not in (None, digest) or (getattr(request, "digest", None) or digest) != digest


def _apply_answer(
    admission: Admission, config: LifecycleConfig, answer: PersonsAnswer, about: Approval
) -> Admitting:
    """Record how an approval ended. A grant that cannot be recorded does not count."""
    decision = admission.decision
    if answer.action is VOID:  # the person who answered has not refused the call
        about = Approval(about.approval_id)
    problem = yield Entry(
        config.context,
        answer.action,
        admission.call,
        decision,
        admission.counters,
        None if answer.granted else Closing("denied"),
        approval=about,
        reason=answer.reason,
    )
    if not answer.granted:
        refused = replace(decision, effect="deny", reason=answer.reason)
        denied = admission.deny(refused, DENIED_BY_PERSON)
        return replace(denied, recorded=problem is None)
    if problem is not None:
        return admission.deny_for_audit_failure(problem)
    allowed = replace(admission, decision=replace(decision, effect="allow"))
    return allowed if answer.changed_args is None else _change_call(allowed, config, answer)


def _change_call(admission: Admission, config: LifecycleConfig, answer: PersonsAnswer) -> Admission:
    """Return the admission of the call with the arguments that a person chose."""
    call = replace(admission.call, args=answer.changed_args)
    shown = dumps(config.context.redaction.redact_args(get_original_args(call.args)))
    note = f"The person who approved the call has changed its arguments to {shown}"
    changes = (*admission.changes, shorten(note, NOTE_MAX_CHARS))
    return replace(admission, run=replace(admission.run, call=call), changes=changes)


def _deny_for_backend_failure(admission: Admission, what: str, reply: Any) -> Admission:
    reason = f"The approval backend {what}: {explain_failure(reply)}"
    return admission.deny(admission.decision.fail("approval_backend", reason), DENIED_BY_PERSON)
