"""The in-memory ledger: exact for any number of threads and event loops of one process, and gone with it."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from edictum.core.limits import RESERVED, WHOLE_SESSION, Breach, Counters, Grant, Limit, Metric, Reservation, SessionSnapshot, Settlement

MAX_ENDED = 10_000  # calls per session that are remembered as ended, so that a repeated settle changes nothing


@dataclass(slots=True)
class Tally:
    """The counters of one scope. ``held`` are calls in flight; ``times`` are kept only for limits with a window."""

    attempts: int = 0
    executions: int = 0
    successes: int = 0
    failures: int = 0
    consecutive_failures: int = 0
    held: int = 0
    times: dict[Metric, list[float]] = field(default_factory=dict)

    def count(self, success: bool) -> None:
        self.executions += 1
        if success:
            self.successes += 1
            self.consecutive_failures = 0
        else:
            self.failures += 1
            self.consecutive_failures += 1

    def correct_to_success(self) -> None:
        """A call that was counted as failed when its lease ran out has ended well after all."""
        self.failures -= 1
        self.successes += 1
        self.consecutive_failures = 0

    def stamp(self, limit: Limit, at: float) -> None:
        """Remember when, for a limit with a window; no more than it takes to tell that the limit is full."""
        times = self.times.setdefault(limit.metric, [])
        insort(times, at)
        del times[: -(limit.maximum + 1)]

    def counters(self) -> Counters:
        return Counters(self.attempts, self.executions, self.successes, self.failures, self.consecutive_failures, self.held)


NOTHING = Tally()  # stands for a scope in which nothing has been counted yet; never changed


@dataclass(slots=True)
class Lease:
    scopes: tuple[str, ...]
    limits: tuple[Limit, ...]
    started: float
    expires: float | None
    expiry_counts: bool
    grant: Grant


@dataclass(slots=True)
class SessionState:
    total: Tally = field(default_factory=Tally)
    tallies: dict[str, Tally] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    ended: OrderedDict[str, str] = field(default_factory=OrderedDict)
    expiring: bool = False  # some lease can run out

    def tally(self, scope: str) -> Tally:
        if scope == WHOLE_SESSION:
            return self.total
        tally = self.tallies.get(scope)
        if tally is None:
            tally = self.tallies[scope] = Tally()
        return tally


class MemoryLedger:
    """Counters in this process, behind one short lock. Leases do not run out unless the caller gives them a length."""

    name = "memory"
    default_lease_s: float | None = None

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[str, SessionState] = {}

    def reserve(self, reservation: Reservation) -> Grant:
        with self._lock:
            state = self._sessions.get(reservation.session_id)
            if state is None:
                state = self._sessions[reservation.session_id] = SessionState()
            if state.expiring:
                self._expire(state)
            lease = state.leases.get(reservation.call_id)
            return lease.grant if lease is not None else self._reserve(state, reservation)

    def _reserve(self, state: SessionState, reservation: Reservation) -> Grant:
        counts_attempt = reservation.count_attempt
        if counts_attempt:
            state.total.attempts += 1
        breaches: list[Breach] = []
        refused = False
        for limit in reservation.limits:
            metric = limit.metric
            tally = state.total if limit.scope == "" else state.tallies.get(limit.scope, NOTHING)
            used: int = getattr(tally, metric) if limit.window_s is None else self._in_window(tally, limit, counts_attempt)
            if metric is Metric.ATTEMPTS:
                # The attempt itself is counted already, and is not judged twice when a call reserves after its approval.
                full, held = counts_attempt and used > limit.maximum, 0
            else:
                held = tally.held if metric in RESERVED else 0
                full = used + held >= limit.maximum
            if full:
                breaches.append(Breach(limit, used, held))
                refused = refused or limit.enforce
        granted = not (refused and reservation.enforce)
        if granted and reservation.hold:
            return self._hold(state, reservation, tuple(breaches))
        return Grant(granted, state.total.counters(), tuple(breaches))

    def _in_window(self, tally: Tally, limit: Limit, counts_attempt: bool) -> int:
        now = self._clock()
        if limit.metric is Metric.ATTEMPTS and counts_attempt and tally is not NOTHING:
            tally.stamp(limit, now)
        times = tally.times.get(limit.metric, [])
        return len(times) - bisect_right(times, now - (limit.window_s or 0))

    def _hold(self, state: SessionState, reservation: Reservation, breaches: tuple[Breach, ...]) -> Grant:
        for scope in reservation.scopes:
            state.tally(scope).held += 1
        grant = Grant(True, state.total.counters(), breaches)
        now = self._clock()
        expires = None if reservation.lease_s is None else now + reservation.lease_s
        state.expiring = state.expiring or expires is not None
        state.leases[reservation.call_id] = Lease(reservation.scopes, reservation.limits, now, expires, reservation.expiry_counts, grant)
        return grant

    def settle(self, settlement: Settlement) -> Counters:
        with self._lock:
            state = self._sessions.get(settlement.session_id)
            if state is None:  # reset while the call ran: it still counts, in the new session
                state = self._sessions[settlement.session_id] = SessionState()
            lease = state.leases.pop(settlement.call_id, None)
            if lease is not None:
                self._end(state, lease, settlement.call_id, settlement.result)
            else:
                self._end_late(state, settlement)
            return state.total.counters()

    def _end(self, state: SessionState, lease: Lease, call_id: str, result: str) -> None:
        for scope in lease.scopes:
            tally = state.tally(scope)
            tally.held -= 1
            if result != "release":
                tally.count(result == "success")
        if result != "release":
            self._stamp(state, lease, result == "success")
        state.ended[call_id] = result
        if len(state.ended) > MAX_ENDED:
            state.ended.popitem(last=False)

    def _stamp(self, state: SessionState, lease: Lease, success: bool) -> None:
        """For limits with a window: an execution counts from its start, a success or failure from its end."""
        ended = Metric.SUCCESSES if success else Metric.FAILURES
        for limit in lease.limits:
            if limit.window_s is not None and limit.metric in (Metric.EXECUTIONS, ended):
                state.tally(limit.scope).stamp(limit, lease.started if limit.metric is Metric.EXECUTIONS else self._clock())

    def _end_late(self, state: SessionState, settlement: Settlement) -> None:
        """A call that holds nothing any more: settled before, expired, or its session was reset while it ran."""
        before = state.ended.get(settlement.call_id)
        if settlement.result == "release" or before in ("success", "failure", "release"):
            return
        if before == "expired:counted":
            if settlement.result == "success":
                for scope in settlement.scopes:
                    state.tally(scope).correct_to_success()
            state.ended[settlement.call_id] = settlement.result
            return
        for scope in settlement.scopes:
            state.tally(scope).held += 1
        now = self._clock()
        late = Lease(settlement.scopes, settlement.limits, now, None, False, Grant(True, state.total.counters()))
        self._end(state, late, settlement.call_id, settlement.result)

    def _expire(self, state: SessionState) -> None:
        now = self._clock()
        for call_id, lease in [(c, le) for c, le in state.leases.items() if le.expires is not None and le.expires <= now]:
            del state.leases[call_id]
            self._end(state, lease, call_id, "failure" if lease.expiry_counts else "release")
            state.ended[call_id] = "expired:counted" if lease.expiry_counts else "expired:released"
        state.expiring = any(lease.expires is not None for lease in state.leases.values())

    def renew(self, session_id: str, call_id: str, lease_s: float) -> bool:
        with self._lock:
            state = self._sessions.get(session_id)
            if state is None:
                return False
            self._expire(state)
            lease = state.leases.get(call_id)
            if lease is None:
                return False
            lease.expires = self._clock() + lease_s
            state.expiring = True
            return True

    def snapshot(self, session_id: str) -> SessionSnapshot:
        with self._lock:
            state = self._sessions.get(session_id)
            if state is None:
                return SessionSnapshot(session_id, Counters(), {})
            self._expire(state)
            return SessionSnapshot(session_id, state.total.counters(), {scope: t.counters() for scope, t in state.tallies.items()})

    def reset(self, session_id: str) -> None:
        with self._lock:
            self._sessions.pop(session_id, None)
