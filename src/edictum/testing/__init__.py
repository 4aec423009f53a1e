"""Fakes for every port, and the suites that a port's implementation must pass.

Nothing here needs pytest. A suite is a class of test methods; subclass it beside your
implementation::

    class TestMySink(AuditConformance):
        def make_sink(self): ...
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from edictum.testing.approval import ApprovalConformance
from edictum.testing.audit import AuditConformance
from edictum.testing.fakes import (
    AsyncLedger,
    FailingApprovalBackend,
    FailingLedger,
    FailingSink,
    FakeClock,
    RecordingSink,
    ScriptedApprovalBackend,
    audit_trail,
)

if TYPE_CHECKING:
    from edictum.testing.adapter import AdapterConformance
    from edictum.testing.approval_queue import ApprovalQueueConformance
    from edictum.testing.cases import Case, load_cases, run_cases
    from edictum.testing.ledger import LedgerConformance

# Imported on first use: they need more of the library, and reading cases needs the extra `yaml`.
_LAZY = {
    "AdapterConformance": "adapter",
    "ApprovalQueueConformance": "approval_queue",
    "LedgerConformance": "ledger",
    **dict.fromkeys(("Case", "load_cases", "run_cases"), "cases"),
}
__all__ = [
    "AdapterConformance",
    "ApprovalConformance",
    "ApprovalQueueConformance",
    "AsyncLedger",
    "AuditConformance",
    "Case",
    "FailingApprovalBackend",
    "FailingLedger",
    "FailingSink",
    "FakeClock",
    "LedgerConformance",
    "RecordingSink",
    "ScriptedApprovalBackend",
    "audit_trail",
    "load_cases",
    "run_cases",
]


if not TYPE_CHECKING:  # with it, type checkers would believe that every name exists

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"edictum.testing.{_LAZY[name]}"), name)
