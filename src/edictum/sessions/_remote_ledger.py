"""RemoteLedger: a Ledger on a store outside this process.

A store does the counting. Operations reach it in batches (``_batching.py``), from any thread and
any number of event loops. A caller waits ``wait_s`` at most and then gets a ``BackendError`` that
names the store; the guard denies the call.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Generator
from typing import Any

from edictum.core.limits import Counters, Grant, Reservation, SessionSnapshot, Settlement
from edictum.errors import BackendError
from edictum.sessions._batching import (
    DEFAULT_WAIT_S,
    MAX_BATCH,
    NO_ANSWER,
    Kind,
    LoopTimer,
    Operation,
    Renewal,
    SenderPool,
    Store,
)

DEFAULT_LEASE_S = 60.0


class SentSettlement:
    """A settlement on its way; awaiting it gives the answer, in any event loop."""

    __slots__ = ("_ledger", "_op")

    def __init__(self, ledger: RemoteLedger, op: Operation) -> None:
        self._ledger = ledger
        self._op = op

    def __await__(self) -> Generator[Any, None, Any]:
        op = self._op
        future = self._ledger._wait_for(op)
        if op.answer is not NO_ANSWER:  # it came before the future was there
            self._ledger._resolve_now(op)
        self._ledger._pool.move_to_thread(op, future.get_loop())
        return future.__await__()


class RemoteLedger:
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
        self._pool = SenderPool(store, wait_s, max_batch)
        self._finalizer = weakref.finalize(self, self._pool.stop)

    def _wait_for(self, op: Operation) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future = op.future = loop.create_future()
        op.timer = LoopTimer(loop, self.wait_s, lambda: self._give_up(future))
        return future

    def _give_up(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            why = f"The session store {self.name} did not answer within {self.wait_s:g} s."
            self._pool.open_circuit(why)
            future.set_exception(BackendError(why))

    def _resolve_now(self, op: Operation) -> None:
        self._pool._resolve([(op, op.answer)])

    def _ask(self, kind: Kind, step: Any) -> asyncio.Future[Any]:
        """Send an operation; return the future of its answer in the running event loop."""
        pool = self._pool
        if pool.circuit.why_open is not None:
            raise BackendError(pool.circuit.why_open)
        op = Operation(kind, step)
        future = self._wait_for(op)
        pool.send(op)
        return future

    async def reserve(self, reservation: Reservation) -> Grant:
        grant: Grant = await self._ask("reserve", reservation)
        return grant

    def settle(self, settlement: Settlement) -> Awaitable[Counters]:
        """Send a settlement when called, not when awaited: a call must count even when its
        caller's event loop is going away.
        """
        op = Operation("settle", settlement)
        self._pool.send(op)
        return SentSettlement(self, op)

    async def renew(self, session_id: str, call_id: str, lease_s: float) -> bool:
        renewed: bool = await self._ask("renew", Renewal(session_id, call_id, lease_s))
        return renewed

    async def snapshot(self, session_id: str) -> SessionSnapshot:
        snapshot: SessionSnapshot = await self._ask("snapshot", session_id)
        return snapshot

    async def reset(self, session_id: str) -> None:
        await self._ask("reset", session_id)

    async def sessions(self, limit: int = 100) -> list[SessionSnapshot]:
        """Return sessions with their counters, the most recently used first where the store keeps
        an order.
        """
        listed: list[SessionSnapshot] = await self._ask("sessions", limit)
        return listed

    async def ping(self) -> None:
        """Return if the store can be used; raise what is wrong otherwise."""
        await self._ask("ping", None)

    async def close(self) -> None:
        """Wait for settlements, for a bounded time, and disconnect."""
        await self._pool.leave()
        await asyncio.get_running_loop().run_in_executor(None, self._finalizer)
