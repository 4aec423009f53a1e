"""How the line of a call is written.

A call writes an opening event (allowed, denied, approval requested ...) and, when it ran, one
closing event. The lifecycle makes an ``Entry``, which only refers to the call's frozen parts.
``entry.to_json()`` writes the redacted line, once for all sinks; ``entry.event()`` is the same line
as an ``AuditEvent``, for sinks that want an object. Both are made when they are asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from edictum._audit_event import EVENT_SCHEMA_VERSION, AuditAction, AuditEvent
from edictum.core._records import record
from edictum.core.call import ToolCall
from edictum.core.contract import Mode
from edictum.core.decide import AfterDecision
from edictum.core.decision import Answer, Decision, Objection
from edictum.core.freeze import kept
from edictum.core.limits import NO_COUNTERS, Counters
from edictum.core.redaction import RedactionPolicy
from edictum.core.values import dumps
from edictum.core.wait_policy import RECORD
from edictum.success import SuccessVerdict

# Looking a member up on its enum costs as much as making the rest of an entry.
CALL_ALLOWED, CALL_DENIED, CALL_EXECUTED, CALL_FAILED = (
    AuditAction.CALL_ALLOWED,
    AuditAction.CALL_DENIED,
    AuditAction.CALL_EXECUTED,
    AuditAction.CALL_FAILED,
)


@record
class Closing:
    """What is known once a call has ended."""

    outcome: str | None
    verdict: SuccessVerdict | None = None
    after: AfterDecision | None = None
    duration_ms: int = 0
    error: str | None = None
    summary: str | None = None  # of the result, not redacted yet


@record
class Approval:
    """Which approval an event is about. ``changed_args`` are not written."""

    approval_id: str
    approver: str | None = None
    changed_args: Any = None  # with which the call was approved, in place of its own


@record
class Origin:
    """The process that writes an event."""

    host: str
    pid: int
    instance_id: str


class Context:
    """What all events of a guard have in common, and the texts that several events share."""

    __slots__ = (
        "_calls",
        "_decisions",
        "_digest_policy",
        "_open_end",
        "mode",
        "origin_text",
        "policy_version",
        "redaction",
    )

    def __init__(
        self,
        mode: Mode,
        policy_version: str | None,
        redaction: RedactionPolicy,
        digest_policy: Callable[[], str],
        origin: Origin,
    ) -> None:
        self.mode = mode
        self.policy_version = policy_version
        self.redaction = redaction
        self._digest_policy = digest_policy
        fields = {"host": origin.host, "pid": origin.pid, "instance_id": origin.instance_id}
        self.origin_text = dumps(fields)[1:]  # written once: it is the same in all events
        self._calls: dict[int, tuple[ToolCall, str]] = {}  # that have not ended yet
        self._decisions: dict[int, tuple[Decision, str, str, str]] = {}
        self._open_end: tuple[str, ...] = ()

    @property
    def policy_digest(self) -> str:
        """What the policy says, as a digest; worked out when it is first asked for."""
        return self._digest_policy()

    def call_text(self, call: ToolCall, *, ends: bool) -> str:
        """Return the fields of a call as JSON; they are the same in all its events."""
        known = self._calls.pop(id(call), None) if ends else self._calls.get(id(call))
        if known is not None and known[0] is call:
            return known[1]
        text = _write_call(call, self.redaction)
        if not ends:
            _remember(self._calls, call, (call, text))
        return text

    def open_end(self, entry: Entry) -> str:
        """Return the end of the event of a call that has not ended; all but three values of it
        are the same in all events.
        """
        if not self._open_end:
            fields = _list_end(entry, _OPEN) | dict.fromkeys(_OWN_FIELDS, _SLOT)
            self._open_end = tuple(dumps(fields)[1:-1].split(dumps(_SLOT)))
        first, second, third, last = self._open_end
        session = dumps(entry.call.run_id)
        return f"{first}{entry.attempts}{second}{entry.executions}{third}{session}{last}"

    def decision_texts(self, decision: Decision) -> tuple[str, str, str]:
        """Return who decided and why, the records of hooks and those of contracts, as JSON without
        the brackets around them.

        All calls that no contract objects to share a decision.
        """
        known = self._decisions.get(id(decision))
        if known is None or known[0] is not decision:
            hooks = self.redaction.redact_args([answer.as_record() for answer in decision.hooks])
            contracts = self.contract_texts(decision.answers())
            reason = self.reason_text(decision, decision.reason)
            known = (decision, reason, dumps(hooks)[1:-1], contracts)
            _remember(self._decisions, decision, known)
        return known[1:]

    def reason_text(self, said: Decision | Objection, reason: str | None) -> str:
        fields = {
            "decision_source": said.source,
            "decision_name": said.name,
            "reason": self.redaction.redact_text(reason) if reason else None,
        }
        return dumps(fields)[1:-1]

    def contract_texts(self, answers: list[Answer]) -> str:
        return dumps(self.redaction.redact_args([answer.as_record() for answer in answers]))[1:-1]


MAX_REMEMBERED = 1_000
# What the ends of two events of calls that have not ended differ in, in the order of the fields.
_OWN_FIELDS = ("session_attempt_count", "session_execution_count", "session_id")
_SLOT = "\x00"  # in the text of an event a character that is always escaped


def _remember(texts: dict[int, Any], owner: object, entry: Any) -> None:
    if len(texts) >= MAX_REMEMBERED:  # calls that never ended, decisions of one call each
        texts.clear()
    texts[id(owner)] = entry


class Entry:
    """An event in the making: references to frozen parts, stamped with the time by the driver.

    Of the counters two numbers are kept, not the object: entries stay in memory by the thousand,
    and what is not kept need not be looked at by the garbage collector either.
    """

    wait = RECORD
    __slots__ = (
        "_event",
        "_line",
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
        about: Objection | None = None,  # the one objection that the event is about, if it is
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
        self._line: str | None = None
        self._event: AuditEvent | None = None

    @property
    def policy_error(self) -> bool:
        """Whether a contract, a checker or a part of the gate itself failed."""
        closing, said = self.closing, self.about or self.decision
        if said.policy_error or closing is None:
            return said.policy_error
        verdict, after = closing.verdict, closing.after
        return (verdict is not None and verdict.policy_error) or (
            self.about is None and after is not None and after.policy_error
        )

    def to_json(self) -> str:
        """Return the redacted event as one line of JSON; written once."""
        if self._line is None:
            self._line = _write(self)
        return self._line

    def event(self) -> AuditEvent:
        """Return the event of that line; made once."""
        if self._event is None:
            self._event = event_from_json(self.to_json())
        return self._event


def event_from_json(line: str) -> AuditEvent:
    """Return the event that a line of ``Entry.to_json`` tells."""
    data = json.loads(line)
    data["timestamp"] = datetime.fromisoformat(data["timestamp"])
    data["action"] = AuditAction(data["action"])
    return AuditEvent(**data)


def denied(context: Context, call: ToolCall, decision: Decision, counters: Counters) -> Entry:
    return Entry(context, CALL_DENIED, call, decision, counters, Closing("denied"))


def policy_event(
    context: Context, action: AuditAction, at: float, reason: str, environment: str
) -> AuditEvent:
    """Return an event about the policy in force, which is not that of a call."""
    return AuditEvent(
        timestamp=datetime.fromtimestamp(at, UTC),
        action=action,
        reason=context.redaction.redact_text(reason),
        environment=environment,
        mode=context.mode,
        policy_version=context.policy_version,
        policy_digest=context.policy_digest,
    )


# --- The line -------------------------------------------------------------------------------------


def _write(entry: Entry) -> str:
    """Write an event with its fields in the order of ``AuditEvent``."""
    context, closing = entry.context, entry.closing or _OPEN
    ends = closing is not _OPEN and entry.action is not AuditAction.POSTCONDITION_WARNING
    said = entry.about or entry.decision
    reason, hooks, contracts = context.decision_texts(entry.decision)
    if entry.about is not None or entry.reason is not None:
        reason = context.reason_text(said, entry.reason or said.reason)
    if closing.after is not None:
        judged = context.contract_texts(closing.after.all_answers())
        contracts = ", ".join(filter(None, (contracts, judged)))
    return (
        f'{{"schema_version": "{EVENT_SCHEMA_VERSION}"'
        f', "timestamp": "{datetime.fromtimestamp(entry.at, UTC).isoformat()}"'
        f", {context.call_text(entry.call, ends=ends)}"
        f', "action": "{entry.action.value}", {reason}'
        f', "hooks_evaluated": [{hooks}]'
        f', "contracts_evaluated": [{contracts}]'
        f", {_write_end(entry, closing)}"
        f", {context.origin_text}"
    )


def _write_end(entry: Entry, closing: Closing) -> str:
    is_usual = closing is _OPEN and entry.about is None and entry.approval is None
    if is_usual and not entry.policy_error:
        return entry.context.open_end(entry)
    return dumps(_list_end(entry, closing))[1:-1]


def _list_end(entry: Entry, closing: Closing) -> dict[str, Any]:
    """Return the fields that say how the call ended, as far as it has."""
    context, redaction, about = entry.context, entry.context.redaction, entry.about
    verdict: Any = closing.verdict or _ABSENT
    after: Any = closing.after or _ABSENT
    approval: Any = entry.approval or _ABSENT
    summary = closing.summary
    return {
        "tool_success": verdict.success,
        "postconditions_passed": after.passed,
        "duration_ms": closing.duration_ms,
        "error": closing.error,
        "result_summary": None if summary is None else redaction.write_summary(summary),
        "session_attempt_count": entry.attempts,
        "session_execution_count": entry.executions,
        "mode": context.mode if about is None or not about.observed else "observe",
        "policy_version": context.policy_version,
        "policy_error": entry.policy_error,
        "session_id": entry.call.run_id,
        "outcome": closing.outcome,
        "success_source": verdict.source,
        "success_reason": redaction.redact_text(verdict.reason) if verdict.reason else None,
        "approval_id": approval.approval_id,
        "approver": approval.approver,
        "policy_digest": context.policy_digest,
    }


def _write_call(call: ToolCall, redact: RedactionPolicy) -> str:
    fields = {
        "run_id": call.run_id,
        "call_id": call.call_id,
        "call_index": call.call_index,
        "parent_call_id": call.parent_call_id,
        "tool_name": call.tool_name,
        "tool_args": redact.redact_args(kept(call.args)),
        "side_effect": call.side_effect.value,
        "environment": call.environment,
        "principal": redact.redact_args(call.principal.as_dict()) if call.principal else None,
    }
    return dumps(fields)[1:-1]


_OPEN = Closing(outcome=None)
# Stands for the verdict, the postconditions and the approval that an event does not have.
_ABSENT = SimpleNamespace(
    success=None,
    source=None,
    reason="",
    passed=None,
    approval_id=None,
    approver=None,
)
