"""AuditEvent, the value that sinks are given, and the actions that an event can be about.

It stands beside the core, which reads no clock: the events of a call are dated by the driver.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from edictum.core.values import write_sorted

EVENT_SCHEMA_VERSION = "0.6.0"


class AuditAction(StrEnum):
    CALL_DENIED = "call_denied"
    CALL_WOULD_DENY = "call_would_deny"
    CALL_ALLOWED = "call_allowed"
    CALL_EXECUTED = "call_executed"
    CALL_FAILED = "call_failed"
    CALL_PAUSED = "call_paused"
    CALL_CHANGED = "call_changed"
    CALL_REPLAYED = "call_replayed"
    POSTCONDITION_WARNING = "postcondition_warning"
    CALL_APPROVAL_REQUESTED = "call_approval_requested"
    CALL_APPROVAL_GRANTED = "call_approval_granted"
    CALL_APPROVAL_DENIED = "call_approval_denied"
    CALL_APPROVAL_TIMEOUT = "call_approval_timeout"
    CALL_APPROVAL_WITHDRAWN = "call_approval_withdrawn"
    CALL_APPROVAL_VOID = "call_approval_void"
    CALL_GRANT_USED = "call_grant_used"
    APPROVAL_REFUSED = "approval_refused"
    POLICY_RELOADED = "policy_reloaded"
    POLICY_NOT_RELOADED = "policy_not_reloaded"
    POLICY_FILE_MISSING = "policy_file_missing"
    EVENTS_DROPPED = "events_dropped"


@dataclass(slots=True)
class AuditEvent:
    """One line of the audit. All texts and structures in it are redacted and bounded.

    An event that an application makes itself is dated now, unless it sets another time.
    """

    schema_version: str = EVENT_SCHEMA_VERSION
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))
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
    policy_digest: str | None = None
    host: str | None = None
    pid: int | None = None
    instance_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON-ready data."""
        data = {name: getattr(self, name) for name in AuditEvent.__slots__}
        data["timestamp"] = self.timestamp.isoformat()
        data["action"] = self.action.value
        return data

    def to_json(self) -> str:
        """Return the event as one line of JSON, with sorted keys."""
        return write_sorted(self.to_dict())
