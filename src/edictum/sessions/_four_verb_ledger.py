"""StorageBackend, the older port with four verbs, and the ledger that makes one exact.

A storage can only add to a number and return the new value. That is enough: a call takes a slot by
adding one and comparing, and subtracts it again when the limit was exceeded. The excess lasts a
moment, so a call that was refused checks again before the refusal is final. A call that counts in
several accounts takes its slots one account after the other, the widest first.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from itertools import product
from typing import Protocol

from edictum._logs import LEDGER_STORAGE, log
from edictum.core._records import record
from edictum.core.decide import describe
from edictum.core.limits import (
    RESERVED,
    WHOLE_SESSION,
    Account,
    Breach,
    Counters,
    Grant,
    Limit,
    Metric,
    Reservation,
    SessionSnapshot,
    Settlement,
    has_mark,
)
from edictum.errors import EdictumConfigError
from edictum.execution.forks import protect
from edictum.sessions._accounts import in_account, name_in_account, reserve_one_by_one
from edictum.sessions.memory import attempts_before

MAX_LOOKS = 50
MAX_KNOWN_ENTRIES = 10_000  # remembered by a process; the others are looked up again


class StorageBackend(Protocol):
    """Text values and atomic numbers under keys."""

    async def get(self, key: str) -> str | None: ...

    async def set(self, key: str, value: str) -> None: ...

    async def delete(self, key: str) -> None: ...

    async def increment(self, key: str, amount: float = 1) -> float: ...


class MemoryBackend:
    """A StorageBackend in this process; safe for threads and any number of event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        protect(self)
        self._values: dict[str, str] = {}

    async def get(self, key: str) -> str | None:
        with self._lock:
            return self._values.get(key)

    async def set(self, key: str, value: str) -> None:
        with self._lock:
            self._values[key] = value

    async def delete(self, key: str) -> None:
        with self._lock:
            self._values.pop(key, None)

    async def increment(self, key: str, amount: float = 1) -> float:
        with self._lock:
            value = float(self._values.get(key, 0)) + amount
            self._values[key] = str(int(value)) if value.is_integer() else str(value)
            return value


def is_storage(backend: object) -> bool:
    return all(
        callable(getattr(backend, verb, None)) for verb in ("get", "set", "delete", "increment")
    )


# The keys of the older library, so that existing stores keep their counts. A slot that is held is
# counted at once.
COUNTER_NAMES = {
    Metric.ATTEMPTS: "attempts",
    Metric.EXECUTIONS: "execs",
    Metric.SUCCESSES: "succ",
    Metric.FAILURES: "fail",
    Metric.CONSECUTIVE_FAILURES: "consec_fail",
}
SLOTS = (Metric.EXECUTIONS, Metric.SUCCESSES, Metric.FAILURES)
Found = dict[tuple[str, Metric], int]  # how many there were of each, per tool
Attempts = dict[str, int]  # how many there were, per tool


def _key(session_id: str, tool: str, metric: Metric) -> str:
    if tool == WHOLE_SESSION:
        return f"s:{session_id}:{COUNTER_NAMES[metric]}"
    if metric is Metric.EXECUTIONS:
        return f"s:{session_id}:tool:{tool}"
    return f"s:{session_id}:tool:{tool}:{COUNTER_NAMES[metric]}"


def _list_key(session_id: str, entry: int | str) -> str:
    """Return the key of an entry of a session's list of tools; ``count``: how many were added,
    ``first``: the first that may be there. A number is never used twice, even after a reset.
    """
    return f"s:{session_id}:tools:{entry}"


def _check_possible(reservation: Reservation) -> None:
    """Refuse, before anything is counted, what four verbs cannot do exactly."""
    of_accounts = [limit for account in reservation.accounts for limit in account.limits]
    limits = [*reservation.limits, *of_accounts]
    asked = {
        "limits with a window": any(limit.window_s is not None for limit in limits),
        "budgets": any(limit.amount is not None for limit in limits),
    }
    for what, is_needed in asked.items():
        if is_needed:
            raise EdictumConfigError(
                f"A StorageBackend cannot keep {what}.",
                hint="Use a ledger: memory, sqlite, redis or postgresql.",
            )


@record
class HeldCall:
    """A call in flight: what its reservation was answered, and where else it counts."""

    grant: Grant
    accounts: tuple[Account, ...]


class StorageLedger:
    """A Ledger on top of any StorageBackend. Leases do not run out, sessions are not forgotten, and
    limits with a window are refused: four verbs cannot keep time.
    """

    name = "storage"
    default_lease_s: float | None = None

    def __init__(self, storage: StorageBackend) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        protect(self)
        self._held: dict[tuple[str, str], HeldCall] = {}
        # Calls in flight whose session was reset: what they held is gone.
        self._forgotten: set[tuple[str, str]] = set()
        # The entry that lists a tool of a session. It may be gone: another process can reset.
        self._entries: dict[tuple[str, str], int] = {}

    async def reserve(self, reservation: Reservation) -> Grant:
        held = self._held.get((reservation.session_id, reservation.call_id))
        if held is not None:
            return held.grant
        _check_possible(reservation)
        name = name_in_account(reservation.session_id, reservation.call_id)
        # one that holds the call still, because only its session was reset, has counted it
        apart = [it for it in reservation.accounts if (it.key, name) not in self._held]
        taken: list[Settlement] = []
        try:
            return await reserve_one_by_one(
                reservation, apart, self._reserve_one, self._settle_one, taken
            )
        except (Exception, asyncio.CancelledError):
            for step in taken:
                await self._release(step)
            raise

    async def _release(self, step: Settlement) -> None:
        try:
            await self._settle_one(step)
        except Exception as exc:
            told = "A slot of the account %r could not be given back: %s"
            log(LEDGER_STORAGE, told, step.session_id, describe(exc), session_id=step.session_id)

    async def _reserve_one(self, reservation: Reservation) -> Grant:
        """Reserve in one account."""
        if reservation.hold or reservation.count_attempt:
            await self._list_tools(reservation.session_id, reservation.tools)
        attempts = {
            tool: await self._count(
                _key(reservation.session_id, tool, Metric.ATTEMPTS), reservation.count_attempt
            )
            for tool in reservation.tools
        }
        for _ in range(MAX_LOOKS):
            grant = await self._try(reservation, attempts)
            if grant.granted or await self._still_full(reservation, grant):
                break
        if grant.granted and reservation.hold:
            with self._lock:
                held = HeldCall(grant, reservation.accounts)
                self._held[(reservation.session_id, reservation.call_id)] = held
        return grant

    async def _list_tools(self, session_id: str, tools: Iterable[str]) -> None:
        """List tools in the store before their first slot is taken, so that other processes find
        them.
        """
        for tool in tools:
            if tool == WHOLE_SESSION or await self._is_listed(session_id, tool):
                continue
            entry = int(await self._storage.increment(_list_key(session_id, "count")))
            await self._storage.set(_list_key(session_id, entry), tool)
            self._entries[session_id, tool] = entry

    async def _is_listed(self, session_id: str, tool: str) -> bool:
        known = self._entries.get((session_id, tool))
        if known is not None and await self._storage.get(_list_key(session_id, known)) == tool:
            return True
        if len(self._entries) >= MAX_KNOWN_ENTRIES:
            self._entries.clear()
        listed = await self._read_list(session_id)
        self._entries.update({(session_id, name): entry for entry, name in listed.items()})
        return tool in listed.values()

    async def _read_list(self, session_id: str) -> dict[int, str]:
        """Return the tools that were called in a session, by any process, with their entries."""
        first = await self._number(_list_key(session_id, "first")) or 1
        last = await self._number(_list_key(session_id, "count"))
        read = {
            entry: await self._storage.get(_list_key(session_id, entry))
            for entry in range(first, last + 1)
        }
        return {entry: tool for entry, tool in read.items() if tool is not None}

    async def _count(self, key: str, adds: bool) -> int:
        """Return a number, increased by one unless this is a look."""
        return int(await self._storage.increment(key)) if adds else await self._number(key)

    async def _try(self, reservation: Reservation, attempts: Attempts) -> Grant:
        """Take all slots, compare, and give them back if one limit was exceeded. A look takes
        none.
        """
        values: Found = {}
        try:
            for tool, metric in product(reservation.tools, SLOTS):
                key = _key(reservation.session_id, tool, metric)
                # how many were taken before
                values[tool, metric] = await self._count(key, reservation.hold) - reservation.hold
            grant = await self._compare(reservation, values, attempts)
        except (Exception, asyncio.CancelledError):
            if reservation.hold:
                await self._give_back(reservation.session_id, values)
            raise
        if reservation.hold and not grant.granted:
            await self._add(reservation.session_id, reservation.tools, SLOTS, -1)
        return grant

    async def _give_back(self, session_id: str, taken: Iterable[tuple[str, Metric]]) -> None:
        """Subtract what was added before a storage failed, one by one, since it may fail again."""
        for tool, metric in taken:
            try:
                await self._add(session_id, (tool,), (metric,), -1)
            except Exception as exc:
                log(
                    LEDGER_STORAGE,
                    "A slot of the session %r could not be given back: %s",
                    session_id,
                    describe(exc),
                    session_id=session_id,
                )

    async def _compare(self, reservation: Reservation, values: Found, attempts: Attempts) -> Grant:
        breaches = [
            breach
            for limit in reservation.limits
            if (breach := await self._judge(reservation, limit, values, attempts))
        ]
        granted = not (reservation.enforce and any(breach.limit.enforce for breach in breaches))
        own = int(granted and reservation.hold)
        whole = attempts[WHOLE_SESSION]
        counters = await self._reconstruct_counters(
            reservation.session_id, WHOLE_SESSION, values, whole, own
        )
        per_tool = None
        if reservation.per_tool:
            per_tool = await self._per_tool(reservation, values, attempts, own)
        return Grant(granted, counters, tuple(breaches), per_tool)

    async def _reconstruct_counters(
        self, session_id: str, tool: str, values: Found, attempts: int, own: int
    ) -> Counters:
        """Return a tool's counters at the moment when the call took its slots, with the call."""
        executions, successes, failures = (values[(tool, metric)] for metric in SLOTS)
        # each call in flight was added to all three at once; a finished one is in two of them
        others = max(0, successes + failures - executions)
        row = await self._number(_key(session_id, tool, Metric.CONSECUTIVE_FAILURES))
        return Counters(
            attempts, executions - others, successes - others, failures - others, row, others + own
        )

    async def _per_tool(
        self, reservation: Reservation, values: Found, attempts: Attempts, own: int
    ) -> dict[str, Counters]:
        """Return the counters of each tool: the call's own from when it took its slot, the others
        as of now.
        """
        sid = reservation.session_id
        own_tools = [tool for tool in reservation.tools if tool and not has_mark(tool)]
        others = [tool for tool in await self._list_called_tools(sid) if tool not in own_tools]
        found = {tool: await self._counters(sid, tool) for tool in others}
        return found | {
            tool: await self._reconstruct_counters(sid, tool, values, attempts[tool], own)
            for tool in own_tools
        }

    async def _list_called_tools(self, session_id: str) -> list[str]:
        """Return the tools that were called in a session, by any process."""
        tools = set((await self._read_list(session_id)).values())
        return sorted(tool for tool in tools if not has_mark(tool))

    async def _judge(
        self, reservation: Reservation, limit: Limit, values: Found, attempts: Attempts
    ) -> Breach | None:
        if limit.metric is Metric.ATTEMPTS:
            used = attempts[limit.tally]
            full = attempts_before(used, reservation) >= limit.maximum
            return Breach(limit, used, 0) if full else None
        if limit.metric in RESERVED:
            used = values[(limit.tally, limit.metric)]
        else:
            used = await self._number(_key(reservation.session_id, limit.tally, limit.metric))
        return Breach(limit, used, 0) if used >= limit.maximum else None

    async def _still_full(self, reservation: Reservation, grant: Grant) -> bool:
        """Return whether an enforced limit is full, and not only exceeded by another call for a
        moment.
        """
        for limit in (breach.limit for breach in grant.breaches if breach.limit.enforce):
            key = _key(reservation.session_id, limit.tally, limit.metric)
            if limit.metric not in RESERVED or await self._number(key) >= limit.maximum:
                return True
        return False

    async def settle(self, settlement: Settlement) -> Counters:
        held = self._held.get((settlement.session_id, settlement.call_id))
        for account in settlement.accounts if held is None else held.accounts:
            await self._settle_one(in_account(settlement, account))
        return await self._settle_one(settlement)

    async def _settle_one(self, settlement: Settlement) -> Counters:
        """End a call in one account."""
        call = (settlement.session_id, settlement.call_id)
        with self._lock:
            known = self._held.pop(call, None) is not None
            late = call in self._forgotten and settlement.result != "release"
            self._forgotten.discard(call)
        if late:  # it still counts, in the session as it is now
            await self._list_tools(settlement.session_id, settlement.tools)
            await self._add(settlement.session_id, settlement.tools, SLOTS, 1)
        if known or late:
            await self._settle(settlement)
        return await self._counters(settlement.session_id, WHOLE_SESSION)

    async def _settle(self, settlement: Settlement) -> None:
        sid, tools = settlement.session_id, settlement.tools
        if settlement.result == "release":
            await self._add(sid, tools, SLOTS, -1)
            return
        success = settlement.result == "success"
        await self._add(sid, tools, (Metric.FAILURES if success else Metric.SUCCESSES,), -1)
        for tool in tools:
            key = _key(sid, tool, Metric.CONSECUTIVE_FAILURES)
            await (self._storage.delete(key) if success else self._storage.increment(key))

    async def _add(
        self, session_id: str, tools: Iterable[str], metrics: Iterable[Metric], amount: int
    ) -> None:
        for tool in tools:
            for metric in metrics:
                await self._storage.increment(_key(session_id, tool, metric), amount)

    async def renew(self, session_id: str, call_id: str, lease_s: float) -> bool:
        return (session_id, call_id) in self._held

    async def snapshot(self, session_id: str) -> SessionSnapshot:
        tools = await self._list_called_tools(session_id)
        per_tool = {tool: await self._counters(session_id, tool) for tool in tools}
        return SessionSnapshot(
            session_id, await self._counters(session_id, WHOLE_SESSION), per_tool
        )

    async def _counters(self, session_id: str, tool: str) -> Counters:
        attempts = await self._number(_key(session_id, tool, Metric.ATTEMPTS))
        values = {
            (tool, metric): await self._number(_key(session_id, tool, metric)) for metric in SLOTS
        }
        return await self._reconstruct_counters(session_id, tool, values, attempts, own=0)

    async def _number(self, key: str) -> int:
        return int(float(await self._storage.get(key) or 0))

    async def reset(self, session_id: str) -> None:
        listed = await self._read_list(session_id)
        with self._lock:
            running = [call for call in self._held if call[0] == session_id]
            self._forgotten.update(running)
            for call in running:
                del self._held[call]
        for tool in {WHOLE_SESSION, *listed.values()}:
            for metric in COUNTER_NAMES:
                await self._storage.delete(_key(session_id, tool, metric))
        for entry in listed:  # last: a reset that was broken off can be repeated
            await self._storage.delete(_list_key(session_id, entry))
        if listed:
            await self._storage.set(_list_key(session_id, "first"), str(max(listed) + 1))
