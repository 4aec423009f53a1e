"""How the audit events of a call are written.

A call writes an opening event (allowed, denied, approval requested ...) and, when it ran, one
closing event. The lifecycle makes an ``Entry``, which only refers to the call's frozen parts.
``entry.to_json()`` returns the redacted line, written once for all sinks; ``entry.event()`` returns
the same line as an ``AuditEvent``, for sinks that want an object. Both are made on first use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii
from types import SimpleNamespace
from typing import Any, NamedTuple

from edictum._audit_event import EVENT_SCHEMA_VERSION, AuditAction, AuditEvent
from edictum.core._records import record
from edictum.core.call import ToolCall
from edictum.core.contract import Mode
from edictum.core.decide import AfterDecision
from edictum.core.decision import Answer, Decision, Objection
from edictum.core.freeze import get_original_args
from edictum.core.limits import NO_COUNTERS, Counters
from edictum.core.redaction import RedactionPolicy
from edictum.core.values import write_sorted
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
        "_pid",
        "_policy_text",
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
        fields = {"host": origin.host, "instance_id": origin.instance_id}
        self.origin_text = write_sorted(fields)[1:-1]  # written once: the same in all events
        self._pid, self._policy_text = origin.pid, ""
        self._calls: dict[int, tuple[ToolCall, CallTexts]] = {}  # that have not ended yet
        self._decisions: dict[int, tuple[Decision, tuple[str, str, str, str, bool]]] = {}

    @property
    def policy_digest(self) -> str:
        """Digest of what the policy says, computed on first use."""
        return self._digest_policy()

    @property
    def policy_text(self) -> str:
        """The process and the policy as JSON, as most events have them: those without a policy
        error.
        """
        self._policy_text = self._policy_text or self.write_policy(False)
        return self._policy_text

    def write_policy(self, error: bool) -> str:
        return (
            f'"pid":{self._pid},"policy_digest":{_dump(self.policy_digest)}'
            f',"policy_error":{_dump(error)},"policy_version":{_dump(self.policy_version)}'
        )

    def call_texts(self, call: ToolCall, *, ends: bool) -> CallTexts:
        """Return the fields of a call as JSON; they are the same in all its events."""
        known = self._calls.pop(id(call), None) if ends else self._calls.get(id(call))
        if known is not None and known[0] is call:
            return known[1]
        texts = _write_call(call, self.redaction)
        if not ends:
            _remember(self._calls, call, (call, texts))
        return texts

    def decision_texts(self, decision: Decision) -> tuple[str, str, str, str, bool]:
        """Return who decided, why, the records of hooks and those of contracts, as JSON without the
        enclosing brackets, and whether all numbers in it are written as in canonical JSON.

        All calls that no contract objects to share one decision, so its text is cached.
        """
        known = self._decisions.get(id(decision))
        if known is None or known[0] is not decision:
            records = self.redaction.redact_args([answer.as_record() for answer in decision.hooks])
            hooks, contracts = write_sorted(records), self.contract_texts(decision.answers())
            is_exact = has_exact_numbers(hooks) and has_exact_numbers(contracts)
            who, why = self.reason_texts(decision, decision.reason)
            known = (decision, (who, why, hooks[1:-1], contracts, is_exact))
            _remember(self._decisions, decision, known)
        return known[1]

    def reason_texts(self, said: Decision | Objection, reason: str | None) -> tuple[str, str]:
        """Return who decided, and why, as JSON without the enclosing braces."""
        redacted = self.redaction.redact_and_remember(reason) if reason else None
        who = f'"decision_name":{_dump(said.name)},"decision_source":{_dump(said.source)}'
        return who, f'"reason":{_dump(redacted)}'

    def contract_texts(self, answers: list[Answer]) -> str:
        records = self.redaction.redact_args([answer.as_record() for answer in answers])
        return write_sorted(records)[1:-1]


MAX_REMEMBERED = 1_000


def _remember(texts: dict[int, Any], owner: object, entry: Any) -> None:
    if len(texts) >= MAX_REMEMBERED:  # calls that never ended, decisions of one call each
        texts.clear()
    texts[id(owner)] = entry


class Entry:
    """An event in the making: references to frozen parts, stamped with the time by the driver.

    Of the counters only two numbers are kept, not the object: entries stay in memory by the
    thousand, and the garbage collector need not look at what is not kept.
    """

    wait = RECORD
    __slots__ = (
        "_event",
        "_line",
        "_parts",
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
        "is_counted",
        "is_sent",
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
        self.is_sent = False  # with the step of a ledger that writes it as well
        self.is_counted = False  # that step was answered, so it is written
        self._line: str | None = None
        self._parts: tuple[str, str, bool] | None = None
        self._event: AuditEvent | None = None

    def count(self, counters: Counters) -> None:
        """Set the counters that a ledger answered for the step that this event was sent with."""
        self.attempts, self.executions = counters.attempts, counters.executions
        self.is_counted = True

    def take_answer(self, answer: Any) -> None:
        """Set the counters from a ledger's answer to the settlement that this event was sent with,
        if it succeeded.
        """
        if type(answer) is Counters:
            self.count(answer)

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

    def ends_call(self) -> bool:
        return self.closing is not None and self.action is not AuditAction.POSTCONDITION_WARNING

    def to_json(self) -> str:
        """Return the redacted event as one line of JSON; written once."""
        if self._line is None:
            head, tail, _ = self.write_around_counters()
            self._line = f"{head}{write_counters(self.attempts, self.executions)}{tail}"
        return self._line

    def write_around_counters(self) -> tuple[str, str, bool]:
        """Return the text of the line before and after its counters, for a store that fills them
        in, and whether all numbers are written as in canonical JSON. Written once.

        ``write_counters`` returns the text in between.
        """
        if self._parts is None:
            self._parts = _write_parts(self)
        return self._parts

    def has_exact_numbers(self) -> bool:
        """Return whether all numbers of the line are written as in canonical JSON."""
        return self.write_around_counters()[2]

    def event(self) -> AuditEvent:
        """Return the event of that line; made once."""
        if self._event is None:
            self._event = event_from_json(self.to_json())
        return self._event


def event_from_json(line: str) -> AuditEvent:
    """Return the event of a line that ``Entry.to_json`` wrote."""
    data = json.loads(line)
    data["timestamp"] = datetime.fromisoformat(data["timestamp"])
    data["action"] = AuditAction(data["action"])
    return AuditEvent(**data)


def make_denied_entry(
    context: Context, call: ToolCall, decision: Decision, counters: Counters
) -> Entry:
    """Return the event of a call that is denied without having run."""
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


def make_drop_event(at: float, count: int, waiting: int) -> AuditEvent:
    """Return the event that reports to a sink how many events it missed."""
    reason = f"{count:,} events were dropped here: {waiting:,} were waiting for this sink."
    moment = datetime.fromtimestamp(at, UTC)
    return AuditEvent(timestamp=moment, action=AuditAction.EVENTS_DROPPED, reason=reason)


def refusal_event(
    at: float, approval_id: str | None, approver: str | None, reason: str
) -> AuditEvent:
    """Return an event about a refused link or answer to a request for approval."""
    return AuditEvent(
        timestamp=datetime.fromtimestamp(at, UTC),
        action=AuditAction.APPROVAL_REFUSED,
        approval_id=approval_id,
        approver=approver,
        reason=reason,
    )


# --- The line -------------------------------------------------------------------------------------
#
# Keys are sorted and there are no blanks, so that most lines are canonical JSON (RFC 8785) as they
# are: a chain hashes what is written here, and does not read it again.


def write_counters(attempts: object, executions: object) -> str:
    """Return the counters of a session as they stand in a line, after the name of the first."""
    return f'{attempts},"session_execution_count":{executions}'


def _write_parts(entry: Entry) -> tuple[str, str, bool]:
    """Write an event except for its counters: the text before them, the text after them, and
    whether all numbers are written as in canonical JSON.
    """
    context, closing = entry.context, entry.closing or _OPEN
    call = context.call_texts(entry.call, ends=entry.ends_call())
    names, reason, hooks, contracts, is_exact = context.decision_texts(entry.decision)
    if entry.about is not None or entry.reason is not None:
        said = entry.about or entry.decision
        names, reason = context.reason_texts(said, entry.reason or said.reason)
    if closing.after is not None:
        judged = context.contract_texts(closing.after.all_answers())
        contracts = ",".join(filter(None, (contracts, judged)))
        is_exact = is_exact and has_exact_numbers(judged)
    approval = _write_approval(entry.approval) if entry.approval else _NO_APPROVAL
    head = (
        f'{{"action":"{entry.action.value}",{approval},{call.ids}'
        f',"contracts_evaluated":[{contracts}],{names}'
        f',"duration_ms":{closing.duration_ms:d},{call.environment}'
        f',"error":{_dump(closing.error)}'
        f',"hooks_evaluated":[{hooks}],{context.origin_text}'
        f",{_write_middle(entry, closing, call)},{reason}"
        f',"result_summary":{_write_summary(closing, context)},{call.run_id}'
        f',"schema_version":"{EVENT_SCHEMA_VERSION}"'
        f',"session_attempt_count":'
    )
    return head, _write_rest(entry, closing, call), is_exact and call.is_exact


def _write_approval(approval: Any) -> str:
    return f'"approval_id":{_dump(approval.approval_id)},"approver":{_dump(approval.approver)}'


def _write_middle(entry: Entry, closing: Closing, call: CallTexts) -> str:
    """Write the fields from ``mode`` to ``principal``."""
    context, about = entry.context, entry.about
    mode = context.mode if about is None or not about.observed else "observe"
    after: Any = closing.after or _ABSENT
    policy = context.write_policy(True) if entry.policy_error else context.policy_text
    return (
        f'"mode":"{mode}","outcome":{_dump(closing.outcome)},{call.parent},{policy}'
        f',"postconditions_passed":{_dump(after.passed)},{call.principal}'
    )


def _write_summary(closing: Closing, context: Context) -> str:
    summary = closing.summary
    return "null" if summary is None else _dump(context.redaction.write_summary(summary))


def _write_rest(entry: Entry, closing: Closing, call: CallTexts) -> str:
    """Write the fields after the counters."""
    verdict: Any = closing.verdict or _ABSENT
    reason = entry.context.redaction.redact_and_remember(verdict.reason) if verdict.reason else None
    return (
        f",{call.session}"
        f',"success_reason":{_dump(reason)}'
        f',"success_source":{_dump(verdict.source)}'
        f',"timestamp":"{datetime.fromtimestamp(entry.at, UTC).isoformat()}",{call.tool}'
        f',"tool_success":{_dump(verdict.success)}}}'
    )


class CallTexts(NamedTuple):
    """The fields of a call as JSON, which are the same in all its events. Fields that are adjacent
    in a line share one text.
    """

    ids: str
    environment: str
    parent: str
    principal: str
    run_id: str
    session: str
    tool: str
    is_exact: bool  # all numbers are written as in canonical JSON


def _write_call(call: ToolCall, redact: RedactionPolicy) -> CallTexts:
    principal = _dump(redact.redact_args(call.principal.as_dict()) if call.principal else None)
    args, run_id = redact.write_args(get_original_args(call.args)), _dump(call.run_id)
    return CallTexts(
        f'"call_id":{_dump(call.call_id)},"call_index":{call.call_index:d}',
        f'"environment":{_dump(call.environment)}',
        f'"parent_call_id":{_dump(call.parent_call_id)}',
        f'"principal":{principal}',
        f'"run_id":{run_id}',
        f'"session_id":{run_id},"side_effect":{_dump(call.side_effect.value)}',
        f'"tool_args":{args},"tool_name":{_dump(call.tool_name)}',
        has_exact_numbers(args) and has_exact_numbers(principal),
    )


# What ``json`` may write otherwise than RFC 8785: fractions, and whole numbers beyond 2**53.
_UNUSUAL_NUMBER = re.compile(r"[:,\[]-?[0-9]+[.eE]|[0-9]{16}")


def has_exact_numbers(text: str) -> bool:
    """Return whether all numbers in a JSON text are canonical (RFC 8785); False if unsure."""
    return _UNUSUAL_NUMBER.search(text) is None


_CONSTANTS = {None: "null", True: "true", False: "false"}


def _dump(value: Any) -> str:
    """Write one value as JSON, quickly for the usual ones: text and None."""
    if type(value) is str:
        return encode_basestring_ascii(value)
    return _CONSTANTS[value] if value is None or type(value) is bool else write_sorted(value)


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
_NO_APPROVAL = _write_approval(_ABSENT)
