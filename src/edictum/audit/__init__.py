"""Audit: events and where they go."""

import edictum.redaction  # noqa: F401 # redaction searches with RE2 from then on
from edictum._audit_event import AuditAction, AuditEvent
from edictum.audit._evidence import Evidence, write_evidence
from edictum.audit._export import export
from edictum.audit._filters import EventFilter
from edictum.audit._heads import Chain
from edictum.audit._keys import generate_key
from edictum.audit._query import Events, query, report
from edictum.audit._reading import EventReader, JsonLinesReader, LogReading
from edictum.audit._report import Report
from edictum.audit._verify import ChainProblem, ChainReader, Verification, verify
from edictum.audit.composite import CompositeSink
from edictum.audit.file import FileAuditSink
from edictum.audit.memory import CollectingAuditSink, MarkEvictedError
from edictum.audit.sinks import AuditSink
from edictum.audit.stdout import StdoutAuditSink
from edictum.audit.stores import (
    PostgresAuditSink,
    SqliteAuditSink,
    StoreAuditSink,
    migrate_audit,
    open_audit,
)
from edictum.core.redaction import RedactionPolicy

__all__ = [
    "AuditAction",
    "AuditEvent",
    "AuditSink",
    "Chain",
    "ChainProblem",
    "ChainReader",
    "CollectingAuditSink",
    "CompositeSink",
    "Evidence",
    "EventFilter",
    "EventReader",
    "Events",
    "FileAuditSink",
    "JsonLinesReader",
    "MarkEvictedError",
    "LogReading",
    "PostgresAuditSink",
    "RedactionPolicy",
    "Report",
    "SqliteAuditSink",
    "StdoutAuditSink",
    "StoreAuditSink",
    "Verification",
    "export",
    "generate_key",
    "migrate_audit",
    "open_audit",
    "query",
    "report",
    "verify",
    "write_evidence",
]
