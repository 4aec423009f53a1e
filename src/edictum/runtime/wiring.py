"""Wiring: one frozen value with every port and option of a guard. A new option is one edit here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edictum.approval.port import ApprovalBackend
from edictum.audit.memory import CollectingAuditSink
from edictum.audit.sinks import AuditSink
from edictum.core.call import Principal
from edictum.core.config import LifecycleConfig
from edictum.core.contract import Mode
from edictum.core.effects import Engine, RunIn
from edictum.core.events import Context
from edictum.core.redaction import RedactionPolicy
from edictum.runtime.clock import Clock
from edictum.sessions.ledger import Ledger
from edictum.success import SuccessCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The ports and options of one guard."""

    ledger: Ledger
    local_sink: CollectingAuditSink
    sinks: tuple[AuditSink, ...] = ()
    redaction: RedactionPolicy
    clock: Clock
    mode: Mode = "enforce"
    environment: str = "production"
    approval_backend: ApprovalBackend | None = None
    success_check: SuccessCheck | None = None
    principal: Principal | None = None
    principal_resolver: Callable[..., Any] | None = None
    on_deny: Callable[..., Any] | None = None
    on_allow: Callable[..., Any] | None = None
    run_in: RunIn | Engine = "inline"

    def config(
        self, policy_version: str | None, version_in_force: Callable[[], str | None] | None = None
    ) -> LifecycleConfig:
        """Return what the lifecycle needs to know of all this."""
        return LifecycleConfig(
            context=Context(self.mode, policy_version, self.redaction),
            success_check=self.success_check,
            principal_resolver=self.principal_resolver,
            on_deny=self.on_deny,
            on_allow=self.on_allow,
            lease_s=getattr(self.ledger, "default_lease_s", None),
            version_in_force=version_in_force,
        )
