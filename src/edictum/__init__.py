"""Edictum: every tool call that an AI agent makes goes through one gate and ends as exactly one
typed outcome.

Names are imported from their modules on first use, so that ``import edictum`` costs next to
nothing. Type checkers read the imports under TYPE_CHECKING; a test keeps the three lists equal.
``__getattr__`` is hidden from them, because with it they would believe that every name exists.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from edictum._version import __version__

if TYPE_CHECKING:
    from edictum.approval import (
        ApprovalBackend,
        ApprovalDecision,
        ApprovalRequest,
        ApprovalStatus,
        Approvers,
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
    from edictum.compat.calls import BashClassifier, ToolEnvelope, create_envelope
    from edictum.compat.calls import ToolCatalog as ToolRegistry
    from edictum.contracts._report import (
        CompositionOverride,
        CompositionReport,
        ShadowContract,
        TemplateInfo,
    )
    from edictum.core.call import Principal, SideEffect, ToolCall
    from edictum.core.contract import (
        Contract,
        Verdict,
        postcondition,
        precondition,
        session_contract,
    )
    from edictum.core.hooks import HookDecision, HookRegistration, HookResult
    from edictum.core.limits import OperationLimits
    from edictum.core.scopes import ScopedLimits
    from edictum.core.session import SessionView
    from edictum.errors import (
        BackendError,
        EdictumConfigError,
        EdictumDenied,
        EdictumError,
        EdictumInputError,
        EdictumToolError,
        TicketError,
    )
    from edictum.evaluation import ContractResult, EvaluationResult
    from edictum.explanation import Explanation
    from edictum.findings import Finding, PostCallResult
    from edictum.guard import Edictum
    from edictum.health import Health, PartHealth
    from edictum.otel import configure_otel, has_otel
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
    from edictum.runtime.ticket import Ticket
    from edictum.sessions._four_verb_ledger import MemoryBackend, StorageBackend
    from edictum.sessions.session import Session
    from edictum.stats import CallCount, Histogram, Stats

_HOMES: dict[str, tuple[str, ...]] = {
    "edictum.approval": (
        "ApprovalBackend",
        "ApprovalDecision",
        "ApprovalRequest",
        "ApprovalStatus",
        "Approvers",
        "InMemoryApprovalBackend",
        "LocalApprovalBackend",
    ),
    "edictum.audit": (
        "AuditAction",
        "AuditEvent",
        "AuditSink",
        "CollectingAuditSink",
        "CompositeSink",
        "FileAuditSink",
        "MarkEvictedError",
        "RedactionPolicy",
        "StdoutAuditSink",
    ),
    "edictum.builtins": ("deny_sensitive_reads",),
    "edictum.compat.calls": ("ToolEnvelope",),
    "edictum.contracts._report": (
        "CompositionOverride",
        "CompositionReport",
        "ShadowContract",
        "TemplateInfo",
    ),
    "edictum.core.call": ("Principal", "SideEffect", "ToolCall"),
    "edictum.core.contract": (
        "Contract",
        "Verdict",
        "postcondition",
        "precondition",
        "session_contract",
    ),
    "edictum.core.hooks": ("HookDecision", "HookRegistration", "HookResult"),
    "edictum.core.limits": ("OperationLimits",),
    "edictum.core.scopes": ("ScopedLimits",),
    "edictum.core.session": ("SessionView",),
    "edictum.errors": (
        "BackendError",
        "EdictumConfigError",
        "EdictumDenied",
        "EdictumError",
        "EdictumInputError",
        "EdictumToolError",
        "TicketError",
    ),
    "edictum.evaluation": ("ContractResult", "EvaluationResult"),
    "edictum.explanation": ("Explanation",),
    "edictum.findings": ("Finding", "PostCallResult"),
    "edictum.guard": ("Edictum",),
    "edictum.health": ("Health", "PartHealth"),
    "edictum.otel": ("configure_otel", "has_otel"),
    "edictum.outcomes": (
        "TOOL_MESSAGE_MAX_CHARS",
        "ToolArtifactReference",
        "ToolDenied",
        "ToolExecutionResult",
        "ToolFailure",
        "ToolOutcome",
        "ToolTimeout",
        "outcome_blocks_tool",
        "outcome_is_error",
        "outcome_is_retryable",
        "outcome_to_model_content",
    ),
    "edictum.registry": ("BashClassifier", "ToolRegistry", "create_envelope"),
    "edictum.runtime.ticket": ("Ticket",),
    "edictum.sessions.session": ("Session",),
    "edictum.sessions._four_verb_ledger": ("MemoryBackend", "StorageBackend"),
    "edictum.stats": ("CallCount", "Histogram", "Stats"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
# importable for programs written for the older library, but not offered
_OLDER = dict.fromkeys(("GovernancePipeline", "PostDecision", "PreDecision"), "edictum.pipeline")


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        home = _HOME_OF.get(name) or _OLDER.get(name)
        if home is None:
            raise AttributeError(f"module 'edictum' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(home), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "TOOL_MESSAGE_MAX_CHARS",
    "ApprovalBackend",
    "ApprovalDecision",
    "ApprovalRequest",
    "ApprovalStatus",
    "Approvers",
    "AuditAction",
    "AuditEvent",
    "AuditSink",
    "BackendError",
    "BashClassifier",
    "CallCount",
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
    "Health",
    "Histogram",
    "HookDecision",
    "HookRegistration",
    "HookResult",
    "InMemoryApprovalBackend",
    "LocalApprovalBackend",
    "MarkEvictedError",
    "MemoryBackend",
    "OperationLimits",
    "PartHealth",
    "PostCallResult",
    "Principal",
    "RedactionPolicy",
    "ScopedLimits",
    "Session",
    "SessionView",
    "ShadowContract",
    "SideEffect",
    "Stats",
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
    "configure_otel",
    "create_envelope",
    "deny_sensitive_reads",
    "has_otel",
    "outcome_blocks_tool",
    "outcome_is_error",
    "outcome_is_retryable",
    "outcome_to_model_content",
    "postcondition",
    "precondition",
    "session_contract",
]
