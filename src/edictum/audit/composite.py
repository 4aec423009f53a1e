"""CompositeSink: one event to several sinks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable

from edictum._audit_event import AuditEvent
from edictum.audit._ports import PORTS, SinkPort
from edictum.audit.sinks import AuditSink, takes_entries
from edictum.core.events import Entry


class CompositeSink:
    """Every sink is tried, whatever the others do; then their failures are raised together.

    A sink with ``required = False`` is tried as well; its failures are logged only.
    """

    def __init__(self, sinks: Sequence[AuditSink]) -> None:
        if not sinks:
            raise ValueError("CompositeSink needs at least one sink")
        self._ports = [PORTS.find(sink) for sink in sinks]

    @property
    def sinks(self) -> list[AuditSink]:
        return [port.sink for port in self._ports]

    @takes_entries
    async def emit(self, event: AuditEvent | Entry) -> None:
        failed = await self._try_all(lambda port: port.emit(event))
        for port in self._ports:
            if port in failed:
                port.note_failure(failed[port])
            elif port.failures and not port.drops:
                port.note_success()
        self._raise("failed", [error for port, error in failed.items() if port.is_required])

    async def close(self) -> None:
        failed = await self._try_all(SinkPort.close)
        self._raise("could not be closed", list(failed.values()))

    async def _try_all(
        self, act: Callable[[SinkPort], Awaitable[None] | None]
    ) -> dict[SinkPort, Exception]:
        """Call ``act`` with every sink; return those that raised, with their exceptions."""
        failed = {}
        for port in self._ports:
            try:
                pending = act(port)
                if isawaitable(pending):
                    await pending
            except Exception as exc:
                failed[port] = exc
        return failed

    def _raise(self, what: str, failures: list[Exception]) -> None:
        if failures:
            raise ExceptionGroup(
                f"{len(failures)} of {len(self._ports)} audit sinks {what}", failures
            )


def list_sinks(sink: AuditSink) -> list[AuditSink]:
    """Return the sinks of a CompositeSink, or the sink itself: a guard tries each of them in the
    same way, and its ledger can write to one directly.
    """
    if type(sink) is not CompositeSink:
        return [sink]
    return [inner for one in sink.sinks for inner in list_sinks(one)]
