"""The one ledger in front of every store outside this process: it batches, waits for a bounded
time, and fails closed.

A store does the counting; this file decides when to ask it and what follows when it does not
answer.

* Operations go by the couriers (``couriers.py``): a thread, so that the same guard serves any
  number of event loops and threads, and, where the store can be asked from an event loop, a task in
  each loop.
* A caller waits ``wait_s`` at most and then gets a ``BackendError`` that names the store; the guard
  denies the call.
* After some failures in a row, or one answer that took too long, the circuit is open: calls are
  refused at once, except settlements, which are kept.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Generator
from typing import Any

from edictum.core.limits import Counters, Grant, Reservation, SessionSnapshot, Settlement
from edictum.errors import BackendError
from edictum.sessions.couriers import MAX_BATCH, Courier, Couriers
from edictum.sessions.operations import (
    DEFAULT_WAIT_S,
    NO_ANSWER,
    Batch,
    Circuit,
    Kind,
    LoopStore,
    Op,
    Refused,
    Renewal,
    Store,
    Unavailable,
    wake,
)
from edictum.sessions.patience import Patience

DEFAULT_LEASE_S = 60.0

__all__ = [
    "DEFAULT_LEASE_S",
    "DEFAULT_WAIT_S",
    "MAX_BATCH",
    "Batch",
    "LoopStore",
    "Op",
    "Refused",
    "Renewal",
    "Store",
    "StoreLedger",
    "Unavailable",
]


class Pending:
    """An operation that was sent; awaiting it gives the answer, in any event loop."""

    __slots__ = ("_courier", "_op", "_owner")

    def __init__(self, owner: StoreLedger, op: Op, courier: Courier) -> None:
        self._owner = owner
        self._op = op
        self._courier = courier

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        op, owner = self._op, self._owner
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        op.wake = (loop, future)
        self._courier.reroute(op, loop)
        if op.answer is NO_ANSWER:  # else it came between sending and waiting
            patience = Patience(loop, owner.wait_s, lambda: wake(future))
            try:
                await future
            finally:
                patience.cancel()
                given_up = op.abandon()
            if given_up and op.answer is NO_ANSWER:
                raise owner.too_slow()
            while op.answer is NO_ANSWER:  # noqa: ASYNC110 - the other side has claimed it, and is about to set it
                await asyncio.sleep(0)
        if isinstance(op.answer, Exception):
            raise op.answer
        return op.answer


class StoreLedger:
    """A Ledger on a store outside this process."""

    def __init__(
        self,
        store: Store,
        *,
        wait_s: float = DEFAULT_WAIT_S,
        lease_s: float | None = DEFAULT_LEASE_S,
        max_batch: int = MAX_BATCH,
    ) -> None:
        self.name = store.name
        self.wait_s = wait_s
        self.default_lease_s = lease_s
        self._circuit = Circuit()
        self._couriers = Couriers(store, self._circuit, max_batch)
        self._finalizer = weakref.finalize(self, self._couriers.stop, wait_s)

    def _send(self, kind: Kind, step: Any) -> Pending:
        if self._circuit.why_open is not None and kind != "settle":
            raise BackendError(self._circuit.why_open)
        op, courier = Op(kind, step), self._couriers.here()
        courier.send(op)
        return Pending(self, op, courier)

    def too_slow(self) -> BackendError:
        why = f"The session store {self.name} did not answer within {self.wait_s:g} s."
        self._couriers.gave_up(why)
        return BackendError(why)

    async def reserve(self, reservation: Reservation) -> Grant:
        grant: Grant = await self._send("reserve", reservation)
        return grant

    def settle(self, settlement: Settlement) -> Awaitable[Counters]:
        """Sent when called, not when awaited: a caller whose event loop is going away still has its
        call counted.
        """
        return self._send("settle", settlement)

    async def renew(self, session_id: str, call_id: str, lease_s: float) -> bool:
        renewed: bool = await self._send("renew", Renewal(session_id, call_id, lease_s))
        return renewed

    async def snapshot(self, session_id: str) -> SessionSnapshot:
        snapshot: SessionSnapshot = await self._send("snapshot", session_id)
        return snapshot

    async def reset(self, session_id: str) -> None:
        await self._send("reset", session_id)

    async def sessions(self, limit: int = 100) -> list[SessionSnapshot]:
        """Sessions with their counters, the most recently used first where the store keeps an
        order.
        """
        listed: list[SessionSnapshot] = await self._send("sessions", limit)
        return listed

    async def ping(self) -> None:
        """Whether the store can be used: returns, or raises what is wrong."""
        await self._send("ping", None)

    async def close(self) -> None:
        """See settlements through, for a bounded time, and disconnect."""
        await self._couriers.leave(self.wait_s)
        await asyncio.get_running_loop().run_in_executor(None, self._finalizer)
