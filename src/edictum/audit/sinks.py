"""Audit sinks: where events go.

A sink has one method, ``emit(event)``, ordinary or ``async``. A sink that raises stops a call from
starting (the call is denied and says why); after a call has run its result is kept and the failure
is reported in the outcome's notes and in the log.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, runtime_checkable

from edictum.core.events import AuditEvent


@runtime_checkable
class AuditSink(Protocol):
    def emit(self, event: AuditEvent, /) -> Awaitable[None] | None: ...
