"""CompositeSink: one event to several sinks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable

from edictum._audit_event import AuditEvent
from edictum._logs import AUDIT_FAILED, log
from edictum.audit.sinks import AuditSink, emitter_of, takes_entries
from edictum.core.decide import describe
from edictum.core.events import Entry


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

    @takes_entries
    async def emit(self, event: AuditEvent | Entry) -> None:
        failures: list[Exception] = []
        for sink, error in await self._try_all(lambda sink: emitter_of(sink)(event)):
            if getattr(sink, "required", True):
                failures.append(error)
            else:
                kind = type(sink).__name__
                log(AUDIT_FAILED, "audit sink %s failed: %s", kind, describe(error), sink=kind)
        self._raise("failed", failures)

    async def close(self) -> None:
        failed = await self._try_all(lambda sink: sink.close() if hasattr(sink, "close") else None)
        self._raise("could not be closed", [error for _, error in failed])

    async def _try_all(
        self, act: Callable[[AuditSink], Awaitable[None] | None]
    ) -> list[tuple[AuditSink, Exception]]:
        """Do the same with every sink; return those that raised, with what they raised."""
        failed = []
        for sink in self._sinks:
            try:
                pending = act(sink)
                if isawaitable(pending):
                    await pending
            except Exception as exc:
                failed.append((sink, exc))
        return failed

    def _raise(self, what: str, failures: list[Exception]) -> None:
        if failures:
            raise ExceptionGroup(
                f"{len(failures)} of {len(self._sinks)} audit sinks {what}", failures
            )
