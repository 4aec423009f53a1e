"""For tests of code that uses Edictum: fakes for every port, and the suites that a port's
implementation must pass.

Nothing here needs pytest. A suite is a class of test methods; subclass it beside your
implementation::

    class TestMySink(AuditConformance):
        def make_sink(self): ...
"""

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
    from edictum.testing.cases import Case, load_cases, run_cases
    from edictum.testing.ledger import LedgerConformance

__all__ = [
    "AdapterConformance",
    "ApprovalConformance",
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
        if name == "AdapterConformance":
            from edictum.testing.adapter import AdapterConformance

            return AdapterConformance
        if name == "LedgerConformance":  # on first use: it needs more of the library than the rest
            from edictum.testing.ledger import LedgerConformance

            return LedgerConformance
        if name in (
            "Case",
            "load_cases",
            "run_cases",
        ):  # on first use: reading cases needs the extra `yaml`
            from edictum.testing import cases

            return getattr(cases, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
