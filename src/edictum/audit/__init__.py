"""Audit: events and where they go."""

import edictum.redaction  # noqa: F401 # redaction searches with RE2 from then on
from edictum._audit_event import AuditAction, AuditEvent
from edictum.audit.composite import CompositeSink
from edictum.audit.file import FileAuditSink
from edictum.audit.memory import CollectingAuditSink, MarkEvictedError
from edictum.audit.sinks import AuditSink
from edictum.audit.stdout import StdoutAuditSink
from edictum.core.redaction import RedactionPolicy

__all__ = [
    "AuditAction",
    "AuditEvent",
    "AuditSink",
    "CollectingAuditSink",
    "CompositeSink",
    "FileAuditSink",
    "MarkEvictedError",
    "RedactionPolicy",
    "StdoutAuditSink",
]
