"""Fakes for a guard's ports: a clock, and sinks, ledgers and approval backends that fail."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, TypeVar

from edictum._audit_event import AuditEvent
from edictum.approval.memory import InMemoryApprovalBackend
from edictum.approval.port import ApprovalDecision, ApprovalRequest
from edictum.core.limits import Counters, Grant, Reservation, SessionSnapshot, Settlement
from edictum.execution.forks import protect
from edictum.sessions.memory import MemoryLedger

_Value = TypeVar("_Value")


class FakeClock:
    """A clock that moves by ``advance``, and by ``step`` when read; its ids are ``id-1``, ..."""

    def __init__(self, start: float = 1_000_000.0, *, step: float = 0.0) -> None:
        self._lock = threading.Lock()
        protect(self)
        self._now = start
        self._step = step
        self._ids = 0

    def now(self) -> float:
        with self._lock:
            self._now += self._step
            return self._now

    def new_id(self) -> str:
        with self._lock:
            self._ids += 1
            return f"id-{self._ids}"

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        with self._lock:
            self._now += seconds


class RecordingSink:
    """Keeps events. With ``asynchronous``, ``emit`` suspends before it writes, as on a network."""

    blocking = False

    def __init__(self, *, asynchronous: bool = False) -> None:
        self.events: list[AuditEvent] = []
        self.closed = False
        self._asynchronous = asynchronous

    def emit(self, event: AuditEvent) -> Any:
        if self._asynchronous:
            return self._emit_later(event)
        self.events.append(event)
        return None

    async def _emit_later(self, event: AuditEvent) -> None:
        await asyncio.sleep(0)
        self.events.append(event)

    def close(self) -> None:
        self.closed = True


class FailingSink(RecordingSink):
    """Fails for the actions named in ``on``, by default for all; keeps the other events."""

    def __init__(
        self,
        on: Collection[str] | None = None,
        *,
        error: str = "the disk is full",
        required: bool = True,
        asynchronous: bool = False,
    ) -> None:
        super().__init__(asynchronous=asynchronous)
        self.required = required
        self._on = on
        self._error = error

    def emit(self, event: AuditEvent) -> Any:
        if self._on is not None and event.action not in self._on:
            return super().emit(event)
        if self._asynchronous:
            return self._fail_later()
        raise OSError(self._error)

    async def _fail_later(self) -> None:
        await asyncio.sleep(0)
        raise OSError(self._error)


class FailingLedger(MemoryLedger):
    """A MemoryLedger whose verbs named in ``on`` raise; the names can change between calls."""

    def __init__(self, on: Iterable[str] = (), *, error: str = "the ledger is down") -> None:
        super().__init__()
        self.on = set(on)
        self._error = error

    def _check(self, verb: str) -> None:
        if verb in self.on:
            raise ConnectionError(self._error)

    def reserve(self, reservation: Reservation) -> Grant:
        self._check("reserve")
        return super().reserve(reservation)

    def settle(self, settlement: Settlement) -> Counters:
        self._check("settle")
        return super().settle(settlement)

    def renew(self, session_id: str, call_id: str, lease_s: float) -> bool:
        self._check("renew")
        return super().renew(session_id, call_id, lease_s)

    def snapshot(self, session_id: str) -> SessionSnapshot:
        self._check("snapshot")
        return super().snapshot(session_id)


class AsyncLedger:
    """An asynchronous ledger that suspends around every operation, as one on a network."""

    name = "async"
    default_lease_s: float | None = None

    def __init__(self, inner: MemoryLedger | None = None) -> None:
        self.inner = inner or MemoryLedger()

    async def _answer(self, verb: Callable[[], _Value]) -> _Value:
        await asyncio.sleep(0)
        answer = verb()
        await asyncio.sleep(0)
        return answer

    async def reserve(self, reservation: Reservation) -> Grant:
        return await self._answer(lambda: self.inner.reserve(reservation))

    async def settle(self, settlement: Settlement) -> Counters:
        return await self._answer(lambda: self.inner.settle(settlement))

    async def renew(self, session_id: str, call_id: str, lease_s: float) -> bool:
        return await self._answer(lambda: self.inner.renew(session_id, call_id, lease_s))

    async def snapshot(self, session_id: str) -> SessionSnapshot:
        return await self._answer(lambda: self.inner.snapshot(session_id))

    async def reset(self, session_id: str) -> None:
        await self._answer(lambda: self.inner.reset(session_id))


class ScriptedApprovalBackend(InMemoryApprovalBackend):
    """Answers with ``request`` and ``decision``, however wrong they are."""

    UNSCRIPTED: Any = object()

    def __init__(self, *, request: Any = UNSCRIPTED, decision: Any = UNSCRIPTED) -> None:
        super().__init__(answer=True)
        self._request = request
        self._decision = decision

    async def request_approval(self, *args: Any, **kwargs: Any) -> ApprovalRequest:
        request = await super().request_approval(*args, **kwargs)
        return request if self._request is self.UNSCRIPTED else self._request

    async def wait_for_decision(
        self, approval_id: str, timeout: float | None = None
    ) -> ApprovalDecision:
        decision = await super().wait_for_decision(approval_id, timeout)
        return decision if self._decision is self.UNSCRIPTED else self._decision


class FailingApprovalBackend(InMemoryApprovalBackend):
    """Raises when it is asked (``at="request"``), while it waits or when it withdraws."""

    def __init__(
        self,
        at: Literal["request", "wait", "withdraw"],
        *,
        error: str = "the approval service is down",
    ) -> None:
        super().__init__()
        self._at = at
        self._error = error

    def _check(self, step: str) -> None:
        if self._at == step:
            raise ConnectionError(self._error)

    async def request_approval(self, *args: Any, **kwargs: Any) -> ApprovalRequest:
        self._check("request")
        return await super().request_approval(*args, **kwargs)

    async def wait_for_decision(
        self, approval_id: str, timeout: float | None = None
    ) -> ApprovalDecision:
        self._check("wait")
        return await super().wait_for_decision(approval_id, timeout)

    async def withdraw(self, approval_id: str) -> None:
        self._check("withdraw")
        await super().withdraw(approval_id)


_MEASURED = re.compile(r"\b\d+ ms\b")


def audit_trail(events: Iterable[AuditEvent]) -> list[Mapping[str, Any]]:
    """Return events as data to compare between two runs: durations and approval ids are masked."""
    trail: list[Mapping[str, Any]] = []
    for event in events:
        data = event.to_dict()
        data["duration_ms"] = 0
        data["approval_id"] = "approval" if data["approval_id"] else None
        data["error"] = _MEASURED.sub("N ms", data["error"]) if data["error"] else None
        trail.append(data)
    return trail
