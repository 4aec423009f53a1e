"""CompositeSink: one event to several sinks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from inspect import isawaitable

from edictum.audit.sinks import AuditSink
from edictum.core.decide import describe
from edictum.core.events import AuditEvent

logger = logging.getLogger("edictum")


class CompositeSink:
    """Every sink is tried, whatever the others do; then their failures are raised together.

    A sink with ``required = False`` is tried as well; its failures are logged only.
    """

    def __init__(self, sinks: Sequence[AuditSink]) -> None:
        if not sinks:
            raise ValueError("CompositeSink needs at least one sink")
        self._sinks = list(sinks)

    @property
    def sinks(self) -> list[AuditSink]:
        return list(self._sinks)

    async def emit(self, event: AuditEvent) -> None:
        failures: list[Exception] = []
        for sink in self._sinks:
            try:
                emitted = sink.emit(event)
                if isawaitable(emitted):
                    await emitted
            except Exception as exc:
                if getattr(sink, "required", True):
                    failures.append(exc)
                else:
                    logger.error("audit sink %s failed: %s", type(sink).__name__, describe(exc))
        if failures:
            raise ExceptionGroup(
                f"{len(failures)} of {len(self._sinks)} audit sinks failed", failures
            )

    async def close(self) -> None:
        failures: list[Exception] = []
        for sink in self._sinks:
            try:
                closed = sink.close() if hasattr(sink, "close") else None
                if isawaitable(closed):
                    await closed
            except Exception as exc:
                failures.append(exc)
        if failures:
            raise ExceptionGroup(
                f"{len(failures)} of {len(self._sinks)} audit sinks could not be closed", failures
            )
