"""AuditEvent, and one constructor per action.

A call writes an opening event (allowed, denied, approval requested ...) and, when it ran, one
closing event. Writing down has two steps, so that a call pays little for what nobody may read: the
lifecycle makes an ``Entry``, which only refers to the call's frozen parts; ``entry.event()`` makes
the redacted ``AuditEvent``, at once for sinks that write, on first reading for the in-memory one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeAlias

from edictum.core._records import record
from edictum.core.call import ToolCall
from edictum.core.contract import Mode
from edictum.core.decide import AfterDecision
from edictum.core.decision import Decision, Objection
from edictum.core.freeze import kept
from edictum.core.limits import NO_COUNTERS, Counters
from edictum.core.redaction import MAX_SUMMARY, RedactionPolicy, shorten
from edictum.core.wait_policy import RECORD
from edictum.success import SuccessVerdict


class AuditAction(StrEnum):
    CALL_DENIED = "call_denied"
    CALL_WOULD_DENY = "call_would_deny"
    CALL_ALLOWED = "call_allowed"
    CALL_EXECUTED = "call_executed"
    CALL_FAILED = "call_failed"
    CALL_PAUSED = "call_paused"
    CALL_REPLAYED = "call_replayed"
    POSTCONDITION_WARNING = "postcondition_warning"
    CALL_APPROVAL_REQUESTED = "call_approval_requested"
    CALL_APPROVAL_GRANTED = "call_approval_granted"
    CALL_APPROVAL_DENIED = "call_approval_denied"
    CALL_APPROVAL_TIMEOUT = "call_approval_timeout"
    CALL_APPROVAL_WITHDRAWN = "call_approval_withdrawn"


# Looking a member up on its enum costs as much as making the rest of an entry.
CALL_ALLOWED, CALL_EXECUTED, CALL_FAILED = (
    AuditAction.CALL_ALLOWED,
    AuditAction.CALL_EXECUTED,
    AuditAction.CALL_FAILED,
)


@dataclass(slots=True)
class AuditEvent:
    """One line of the audit. All texts and structures in it are redacted and bounded."""

    schema_version: str = "0.4.0"
    timestamp: datetime = field(default_factory=lambda: datetime.fromtimestamp(0, UTC))
    run_id: str = ""
    call_id: str = ""
    call_index: int = 0
    parent_call_id: str | None = None
    tool_name: str = ""
    tool_args: dict[str, Any] = field(default_factory=dict)
    side_effect: str = ""
    environment: str = ""
    principal: dict[str, Any] | None = None
    action: AuditAction = AuditAction.CALL_DENIED
    decision_source: str | None = None
    decision_name: str | None = None
    reason: str | None = None
    hooks_evaluated: list[dict[str, Any]] = field(default_factory=list)
    contracts_evaluated: list[dict[str, Any]] = field(default_factory=list)
    tool_success: bool | None = None
    postconditions_passed: bool | None = None
    duration_ms: int = 0
    error: str | None = None
    result_summary: str | None = None
    session_attempt_count: int = 0
    session_execution_count: int = 0
    mode: str = "enforce"
    policy_version: str | None = None
    policy_error: bool = False
    session_id: str = ""
    outcome: str | None = None
    success_source: str | None = None
    success_reason: str | None = None
    approval_id: str | None = None
    approver: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The event as JSON-ready data."""
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        data["timestamp"] = self.timestamp.isoformat()
        data["action"] = self.action.value
        return data


@record
class Context:
    """What all events of a guard have in common."""

    mode: Mode
    policy_version: str | None
    redaction: RedactionPolicy


@record
class Closing:
    """What is known once a call has ended."""

    outcome: str
    verdict: SuccessVerdict | None = None
    after: AfterDecision | None = None
    duration_ms: int = 0
    error: str | None = None
    summary: str | None = None  # of the result, not redacted yet


@record
class Approval:
    approval_id: str
    approver: str | None = None


class Entry:
    """An event in the making: references to frozen parts, stamped with the time by the driver.

    Of the counters two numbers are kept, not the object: entries stay in memory by the thousand,
    and what is not kept need not be looked at by the garbage collector either.
    """

    wait = RECORD
    __slots__ = (
        "_event",
        "about",
        "action",
        "approval",
        "at",
        "attempts",
        "call",
        "closing",
        "context",
        "decision",
        "executions",
        "reason",
    )

    def __init__(
        self,
        context: Context,
        action: AuditAction,
        call: ToolCall,
        decision: Decision,
        counters: Counters = NO_COUNTERS,
        closing: Closing | None = None,
        about: Objection | None = None,  # for would-deny events: the one objection that was waived
        approval: Approval | None = None,
        reason: str | None = None,
    ) -> None:
        self.context = context
        self.action = action
        self.call = call
        self.decision = decision
        self.attempts = counters.attempts
        self.executions = counters.executions
        self.closing = closing
        self.about = about
        self.approval = approval
        self.reason = reason
        self.at = 0.0
        self._event: AuditEvent | None = None

    def event(self) -> AuditEvent:
        """The redacted event; made once."""
        if self._event is None:
            self._event = _event(self)
        return self._event


Note: TypeAlias = tuple[Any, ...]


def entry_of(note: Note) -> Entry:
    """An entry from its shortest form, a tuple: ``(at, context, action, call, decision, attempts,
    executions)``, and for a closing event the fields of its Closing behind these. Making a tuple
    costs a sixth of what an Entry costs, and few are ever read.
    """
    at, context, action, call, decision, attempts, executions, *closing = note
    entry = Entry(
        context,
        action,
        call,
        decision,
        Counters(attempts, executions),
        Closing(*closing) if closing else None,
    )
    entry.at = at
    return entry


def denied(context: Context, call: ToolCall, decision: Decision, counters: Counters) -> Entry:
    return Entry(context, AuditAction.CALL_DENIED, call, decision, counters, Closing("denied"))


def would_deny(
    context: Context, call: ToolCall, decision: Decision, counters: Counters, about: Objection
) -> Entry:
    return Entry(context, AuditAction.CALL_WOULD_DENY, call, decision, counters, about=about)


def postcondition_warning(
    context: Context, call: ToolCall, decision: Decision, counters: Counters, closing: Closing
) -> Entry:
    return Entry(context, AuditAction.POSTCONDITION_WARNING, call, decision, counters, closing)


def approval(
    context: Context,
    action: AuditAction,
    call: ToolCall,
    decision: Decision,
    counters: Counters,
    about: Approval,
    reason: str | None = None,
) -> Entry:
    """An approval event; one that ends the call is its closing event."""
    ends = action in (AuditAction.CALL_APPROVAL_DENIED, AuditAction.CALL_APPROVAL_WITHDRAWN)
    return Entry(
        context,
        action,
        call,
        decision,
        counters,
        Closing("denied") if ends else None,
        approval=about,
        reason=reason,
    )


def _event(entry: Entry) -> AuditEvent:
    context, call, decision, closing = entry.context, entry.call, entry.decision, entry.closing
    redact = context.redaction
    event = AuditEvent(
        timestamp=datetime.fromtimestamp(entry.at, UTC),
        run_id=call.run_id,
        call_id=call.call_id,
        call_index=call.call_index,
        parent_call_id=call.parent_call_id,
        tool_name=call.tool_name,
        tool_args=redact.redact_args(kept(call.args)),
        side_effect=call.side_effect.value,
        environment=call.environment,
        principal=redact.redact_args(call.principal.as_dict()) if call.principal else None,
        action=entry.action,
        session_attempt_count=entry.attempts,
        session_execution_count=entry.executions,
        mode=context.mode,
        policy_version=context.policy_version,
        session_id=call.run_id,
        hooks_evaluated=redact.redact_args([answer.as_record() for answer in decision.hooks]),
    )
    _describe_decision(event, entry)
    if closing is not None:
        _describe_closing(event, closing, redact)
    if entry.approval is not None:
        event.approval_id, event.approver = entry.approval.approval_id, entry.approval.approver
    return event


def _describe_decision(event: AuditEvent, entry: Entry) -> None:
    redact, decision, about = entry.context.redaction, entry.decision, entry.about
    event.contracts_evaluated = redact.redact_args(
        [answer.as_record() for answer in decision.answers()]
    )
    if about is not None:
        event.decision_source, event.decision_name, event.mode = about.source, about.name, "observe"
        event.policy_error = about.policy_error
        reason: str | None = about.reason
    else:
        event.decision_source, event.decision_name, event.policy_error = (
            decision.source,
            decision.name,
            decision.policy_error,
        )
        reason = entry.reason or decision.reason
    event.reason = redact.redact_text(reason) if reason else None


def _describe_closing(event: AuditEvent, closing: Closing, redact: RedactionPolicy) -> None:
    event.outcome, event.duration_ms = closing.outcome, closing.duration_ms
    event.error = closing.error
    event.result_summary = (
        None
        if closing.summary is None
        else shorten(redact.redact_text(closing.summary), MAX_SUMMARY)
    )
    if closing.verdict is not None:
        event.tool_success = closing.verdict.success
        event.success_source = closing.verdict.source
        event.success_reason = redact.redact_text(closing.verdict.reason) or None
        event.policy_error = event.policy_error or closing.verdict.policy_error
    if closing.after is not None:
        event.postconditions_passed = closing.after.passed
        event.policy_error = event.policy_error or closing.after.policy_error
        event.contracts_evaluated += redact.redact_args(
            [answer.as_record() for answer in closing.after.all_answers()]
        )
