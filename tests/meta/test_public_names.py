"""What people import, pinned: a name that appears or disappears does so on purpose."""

from __future__ import annotations

import subprocess
import sys

import pytest

import edictum

NAMES = [
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
    "TOOL_MESSAGE_MAX_CHARS",
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

OPTIONAL = [
    "yaml",
    "re2",
    "redis",
    "asyncpg",
    "rich",
    "jsonschema_rs",
    "sqlite3",
    "langchain_core",
    "pydantic",
    "celery",
    "opentelemetry",
]


def test_the_public_names_are_exactly_these() -> None:
    """Sorted as written, each importable."""
    assert sorted(edictum.__all__) == sorted(NAMES)
    assert len(set(edictum.__all__)) == len(edictum.__all__)
    for name in NAMES:
        assert getattr(edictum, name) is not None


@pytest.mark.parametrize(
    "name",
    [
        "Edictum",
        "EdictumConfigError",
        "EdictumDenied",
        "EdictumToolError",
        "ApprovalBackend",
        "ApprovalDecision",
        "ApprovalRequest",
        "ApprovalStatus",
        "LocalApprovalBackend",
        "SideEffect",
        "Principal",
        "ToolEnvelope",
        "create_envelope",
        "ToolRegistry",
        "BashClassifier",
        "HookDecision",
        "HookRegistration",
        "HookResult",
        "Verdict",
        "precondition",
        "postcondition",
        "session_contract",
        "OperationLimits",
        "ScopedLimits",
        "Session",
        "StorageBackend",
        "MemoryBackend",
        "AuditAction",
        "AuditEvent",
        "AuditSink",
        "CollectingAuditSink",
        "CompositeSink",
        "FileAuditSink",
        "MarkEvictedError",
        "StdoutAuditSink",
        "RedactionPolicy",
        "deny_sensitive_reads",
        "configure_otel",
        "has_otel",
        "Finding",
        "PostCallResult",
        "EvaluationResult",
        "ContractResult",
        "CompositionReport",
        "TemplateInfo",
        "__version__",
    ],
)
def test_the_names_of_the_older_library_are_there(name: str) -> None:
    """What a user of it would write; its internals aside."""
    assert name in edictum.__all__


@pytest.mark.parametrize(
    "module",
    [
        "approval",
        "audit",
        "contracts",
        "findings",
        "hooks",
        "limits",
        "session",
        "storage",
        "outcomes",
        "success",
        "sessions",
        "testing",
    ],
)
def test_the_modules_that_users_import_from_are_there(module: str) -> None:
    """By their old and new names."""
    __import__(f"edictum.{module}")


def test_importing_edictum_loads_no_optional_library() -> None:
    """Core without dependencies: what is optional is loaded when it is first used."""
    code = f"import sys, edictum\nprint(*[name for name in {OPTIONAL!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_what_is_for_type_checkers_is_not_loaded() -> None:
    """Making a TypedDict takes time, and calls need none."""
    code = "import sys\nfrom edictum import Edictum, precondition\nEdictum()\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "edictum.core.contract" in done.stdout.split()
    assert {"edictum.call_options", "edictum.core.contract_types"}.isdisjoint(done.stdout.split())


def test_importing_edictum_starts_nothing() -> None:
    """No thread, no event loop, no child."""
    code = "import edictum, threading\nprint(threading.active_count())"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"


def test_a_guard_needs_only_the_standard_library() -> None:
    """A whole call, with everything optional hidden."""
    code = f"""
import sys
for name in {[name for name in OPTIONAL if name != "sqlite3"]!r}:
    sys.modules[name] = None
from edictum import Edictum, OperationLimits, Verdict, precondition
guard = Edictum(contracts=[precondition("*")(lambda call: Verdict.pass_())], limits=OperationLimits(max_tool_calls=1))
print(guard.run_sync("t", {{}}, lambda: "ran"))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "ran"
