"""Wiring: the ports of one guard, and how its tools run. What the lifecycle needs to know is in
``core.config``; a new option is a field of one of the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edictum.approval.port import ApprovalBackend
from edictum.audit.memory import CollectingAuditSink
from edictum.audit.sinks import AuditSink
from edictum.core.call import Principal
from edictum.core.effects import Engine, RunIn
from edictum.execution.threads import AbandonedByTool
from edictum.runtime.clock import Clock
from edictum.runtime.figures import Figures
from edictum.sessions.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The ports of one guard, and what its calls have in common."""

    ledger: Ledger
    local_sink: CollectingAuditSink
    sinks: tuple[AuditSink, ...] = ()
    clock: Clock
    approval_backend: ApprovalBackend | None = None
    run_in: RunIn | Engine = "inline"
    environment: str = "production"
    principal: Principal | None = None
    abandoned: AbandonedByTool = field(default_factory=AbandonedByTool)
    figures: Figures = field(default_factory=Figures)
