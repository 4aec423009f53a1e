"""Edictum: every tool call that an AI agent makes goes through one gate and ends as exactly one typed outcome."""

from edictum._version import __version__
from edictum.approval import (
    ApprovalBackend,
    ApprovalDecision,
    ApprovalRequest,
    ApprovalStatus,
    InMemoryApprovalBackend,
    LocalApprovalBackend,
)
from edictum.audit import (
    AuditAction,
    AuditEvent,
    AuditSink,
    CollectingAuditSink,
    CompositeSink,
    FileAuditSink,
    MarkEvictedError,
    RedactionPolicy,
    StdoutAuditSink,
)
from edictum.builtins import deny_sensitive_reads
from edictum.contracts.report import CompositionOverride, CompositionReport, ShadowContract, TemplateInfo
from edictum.core.call import Principal, SideEffect, ToolCall
from edictum.core.contract import Contract, Verdict, postcondition, precondition, session_contract
from edictum.core.hooks import HookDecision, HookRegistration, HookResult
from edictum.core.limits import OperationLimits
from edictum.errors import BackendError, EdictumConfigError, EdictumDenied, EdictumError, EdictumInputError, EdictumToolError, TicketError
from edictum.evaluation import ContractResult, EvaluationResult
from edictum.explanation import Explanation
from edictum.findings import Finding, PostCallResult
from edictum.guard import Edictum
from edictum.outcomes import (
    TOOL_MESSAGE_MAX_CHARS,
    ToolArtifactReference,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    ToolOutcome,
    ToolTimeout,
    outcome_blocks_tool,
    outcome_is_error,
    outcome_is_retryable,
    outcome_to_model_content,
)
from edictum.registry import BashClassifier, ToolRegistry, create_envelope
from edictum.runtime.ticket import Ticket
from edictum.sessions.session import Session
from edictum.sessions.storage import MemoryBackend, StorageBackend

ToolEnvelope = ToolCall  # its name in the older library

__all__ = [
    "TOOL_MESSAGE_MAX_CHARS",
    "ApprovalBackend",
    "ApprovalDecision",
    "ApprovalRequest",
    "ApprovalStatus",
    "AuditAction",
    "AuditEvent",
    "AuditSink",
    "BackendError",
    "BashClassifier",
    "CollectingAuditSink",
    "CompositeSink",
    "CompositionOverride",
    "CompositionReport",
    "Contract",
    "ContractResult",
    "Edictum",
    "EdictumConfigError",
    "EdictumDenied",
    "EdictumError",
    "EdictumInputError",
    "EdictumToolError",
    "EvaluationResult",
    "Explanation",
    "FileAuditSink",
    "Finding",
    "HookDecision",
    "HookRegistration",
    "HookResult",
    "InMemoryApprovalBackend",
    "LocalApprovalBackend",
    "MarkEvictedError",
    "MemoryBackend",
    "OperationLimits",
    "PostCallResult",
    "Principal",
    "RedactionPolicy",
    "Session",
    "ShadowContract",
    "SideEffect",
    "StdoutAuditSink",
    "StorageBackend",
    "TemplateInfo",
    "Ticket",
    "TicketError",
    "ToolArtifactReference",
    "ToolCall",
    "ToolDenied",
    "ToolEnvelope",
    "ToolExecutionResult",
    "ToolFailure",
    "ToolOutcome",
    "ToolRegistry",
    "ToolTimeout",
    "Verdict",
    "__version__",
    "create_envelope",
    "deny_sensitive_reads",
    "outcome_blocks_tool",
    "outcome_is_error",
    "outcome_is_retryable",
    "outcome_to_model_content",
    "postcondition",
    "precondition",
    "session_contract",
]
