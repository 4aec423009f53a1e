"""RemoteLedger: a Ledger on a store outside this process.

A store does the counting. Operations reach it in batches (``_batching.py``), from any thread and
any number of event loops. A caller waits ``wait_s`` at most and then gets a ``BackendError`` that
names the store; the guard denies the call.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, runtime_checkable

from edictum.core.limits import Counters, Grant, Reservation, SessionSnapshot, Settlement
from edictum.sessions._batching import (
    DEFAULT_WAIT_S,
    MAX_BATCH,
    Operation,
    Renewal,
    SenderPool,
    Store,
)

DEFAULT_LEASE_S = 60.0


@runtime_checkable
class JoinableStore(Protocol):
    """A store that can commit events in its own transactions. ``joined`` is the store of these."""

    joined: Any

    def is_same_database(self, other: Any, /) -> bool: ...


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
        self.store = store
        self.wait_s = wait_s
        self.default_lease_s = lease_s
        self._pool = SenderPool(store, wait_s, max_batch)
        self._finalizer = weakref.finalize(self, self._pool.stop)

    def reserve(self, reservation: Reservation, events: Sequence[Any] = ()) -> Awaitable[Grant]:
        """Reserve. ``events`` are rows of an audit in the same database: see ``join_audit``."""
        return Operation(self._pool, "reserve", reservation, events)

    def settle(self, settlement: Settlement, events: Sequence[Any] = ()) -> Awaitable[Counters]:
        """Send a settlement when called, not when awaited: a call must be counted even when its
        caller's event loop is about to close.
        """
        op = Operation(self._pool, "settle", settlement, events)
        self._pool.send(op)
        return op

    def join_audit(self, store: Any) -> bool:
        """Commit events together with the steps that they describe, if the audit store is the same
        database and no other one is joined. Return whether it is.
        """
        own = self.store
        if not (isinstance(own, JoinableStore) and own.is_same_database(store)):
            return False
        if own.joined is None:
            own.joined = store
        return own.joined is store

    def renew(self, session_id: str, call_id: str, lease_s: float) -> Awaitable[bool]:
        return Operation(self._pool, "renew", Renewal(session_id, call_id, lease_s))

    def snapshot(self, session_id: str) -> Awaitable[SessionSnapshot]:
        return Operation(self._pool, "snapshot", session_id)

    def reset(self, session_id: str) -> Awaitable[None]:
        return Operation(self._pool, "reset", session_id)

    def sessions(self, limit: int = 100) -> Awaitable[list[SessionSnapshot]]:
        """Return sessions with their counters, the most recently used first where the store keeps
        an order.
        """
        return Operation(self._pool, "sessions", limit)

    def ping(self) -> Awaitable[None]:
        """Raise the reason if the store cannot be used."""
        return Operation(self._pool, "ping", None)

    @property
    def why_unavailable(self) -> str | None:
        """The reason why the circuit is open and calls are denied; None while the store answers."""
        return self._pool.why_open

    def count_open_settlements(self) -> int:
        """Return how many ended calls wait for the store to count them."""
        return self._pool.count_open_settlements()

    async def close(self) -> None:
        """Wait for settlements, for a bounded time, and disconnect."""
        await self._pool.leave()
        await asyncio.get_running_loop().run_in_executor(None, self._finalizer)
