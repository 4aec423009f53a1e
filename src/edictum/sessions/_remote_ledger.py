"""RemoteLedger: a Ledger on a store outside this process.

A store does the counting. Operations reach it in batches (``_batching.py``), from any thread and
any number of event loops. A caller waits ``wait_s`` at most and then gets a ``BackendError`` that
names the store; the guard denies the call.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Generator
from functools import partial
from typing import Any

from edictum.core.limits import Counters, Grant, Reservation, SessionSnapshot, Settlement
from edictum.errors import BackendError
from edictum.sessions._batching import (
    DEFAULT_WAIT_S,
    MAX_BATCH,
    LoopTimer,
    Operation,
    Renewal,
    SenderPool,
    Store,
)

DEFAULT_LEASE_S = 60.0


class StoreRequest:
    """An operation for a store. Awaiting it sends it, unless it was sent before, and gives the
    answer, in any event loop.
    """

    __slots__ = ("_is_sent", "_op", "_pool", "ends_within_s")

    def __init__(self, pool: SenderPool, op: Operation, *, send_now: bool = False) -> None:
        self._pool = pool
        self._op = op
        self._is_sent = send_now
        self.ends_within_s = pool.wait_s
        if send_now:
            pool.send(op)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.to_future().__await__()

    def to_future(self) -> asyncio.Future[Any]:
        """Return a future of the running event loop that gets the answer or an error in time."""
        pool, op = self._pool, self._op
        loop = asyncio.get_running_loop()
        future = op.future = loop.create_future()
        op.timer = LoopTimer(loop, pool.wait_s, partial(pool.give_up, future))
        if not self._is_sent:
            self._is_sent = True
            try:
                pool.check_circuit()
                pool.send(op)
            except BackendError as exc:
                op.timer.cancel()
                future.set_exception(exc)
        else:
            pool.await_elsewhere(op, loop)
        return future


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

    def reserve(self, reservation: Reservation) -> Awaitable[Grant]:
        return StoreRequest(self._pool, Operation("reserve", reservation))

    def settle(self, settlement: Settlement) -> Awaitable[Counters]:
        """Send a settlement when called, not when awaited: a call must count even when its
        caller's event loop is going away.
        """
        return StoreRequest(self._pool, Operation("settle", settlement), send_now=True)

    def renew(self, session_id: str, call_id: str, lease_s: float) -> Awaitable[bool]:
        return StoreRequest(self._pool, Operation("renew", Renewal(session_id, call_id, lease_s)))

    def snapshot(self, session_id: str) -> Awaitable[SessionSnapshot]:
        return StoreRequest(self._pool, Operation("snapshot", session_id))

    def reset(self, session_id: str) -> Awaitable[None]:
        return StoreRequest(self._pool, Operation("reset", session_id))

    def sessions(self, limit: int = 100) -> Awaitable[list[SessionSnapshot]]:
        """Return sessions with their counters, the most recently used first where the store keeps
        an order.
        """
        return StoreRequest(self._pool, Operation("sessions", limit))

    def ping(self) -> Awaitable[None]:
        """Return if the store can be used; raise what is wrong otherwise."""
        return StoreRequest(self._pool, Operation("ping", None))

    async def close(self) -> None:
        """Wait for settlements, for a bounded time, and disconnect."""
        await self._pool.leave()
        await asyncio.get_running_loop().run_in_executor(None, self._finalizer)
