"""The in-memory ledger: exact for any number of threads and event loops of one process, and gone
with it.

It is also the reference: what it does is what every ledger does, and the SQLite ledger lets it do
the counting.
"""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from edictum.core.limits import (
    ATTEMPTS,
    MILLION,
    NO_AMOUNTS,
    WHOLE_SESSION,
    Amount,
    Breach,
    Counters,
    Grant,
    Limit,
    Metric,
    Reservation,
    SessionSnapshot,
    Settlement,
    Window,
    windows_of,
)
from edictum.execution.forks import protect

ENDED = {"success": Metric.SUCCESSES, "failure": Metric.FAILURES}
COUNTED = "expired:counted "  # followed by the amounts that were counted
MAX_VALUE = 2**63  # sorts after every amount that was stamped at the same moment
# with the slots filled in one by one this takes two thirds of the time that a class's own __init__
# takes
new = object.__new__
# calls per session and generation that are remembered as ended, so that a repeated settle changes
# nothing
MAX_ENDED = 5_000


@dataclass(slots=True)
class Tally:
    """The counters of one scope. ``held`` are calls in flight; ``times`` are kept only for limits
    with a window.

    ``amounts`` are ``[spent, reserved]`` by name; a moment in ``times`` carries what it counts for:
    1, or an amount.
    """

    attempts: int = 0
    executions: int = 0
    successes: int = 0
    failures: int = 0
    consecutive_failures: int = 0
    held: int = 0
    times: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    amounts: dict[str, list[int]] = field(default_factory=dict)

    def correct_to_success(self) -> None:
        """A call that was counted as failed when its lease ran out has ended well after all."""
        self.failures -= 1
        self.successes += 1
        self.consecutive_failures = 0

    def stamp(self, window: Window, at: float, now: float, value: int = 1) -> None:
        """Remember when, for limits with a window; no more than it takes to tell whether they are
        full.
        """
        times = self.times.setdefault(window.counter, [])
        insort(times, (at, value))
        if window.counter.startswith("amount:"):
            del times[: bisect_right(times, (now - window.span_s, MAX_VALUE))]
        else:
            del times[: -window.keep]

    def within(self, limit: Limit, now: float) -> int:
        """What a limit with a window has used: how often, or how much."""
        times = self.times.get(limit.moments, [])
        first = bisect_right(times, (now - (limit.window_s or 0), MAX_VALUE))
        if limit.amount is not None:
            return sum(value for _, value in times[first:])
        row = limit.metric is Metric.CONSECUTIVE_FAILURES
        return min(len(times) - first, self.consecutive_failures) if row else len(times) - first

    def change(self, amount: str, spent: int, reserved: int) -> None:
        entry = self.amounts.setdefault(amount, [0, 0])
        entry[0] += spent
        entry[1] += reserved

    def counters(self) -> Counters:
        counters: Any = new(Counters)
        counters.attempts = self.attempts
        counters.executions = self.executions
        counters.successes = self.successes
        counters.failures = self.failures
        counters.consecutive_failures = self.consecutive_failures
        counters.in_flight = self.held
        return counters  # type: ignore[no-any-return]


def parent_key(session_id: str, call_id: str) -> str:
    """What a call of ``session_id`` is called in the sessions above it."""
    return f"{session_id}\x1f{call_id}"


def only_looks(step: Reservation | Settlement) -> bool:
    """Whether it asks what would be, and must leave no trace: not even of a session that nobody has
    used.
    """
    return isinstance(step, Reservation) and not step.count_attempt and not step.hold


NOTHING = Tally()  # stands for a scope in which nothing has been counted yet; never changed


@dataclass(slots=True)
class Lease:
    """A call in flight: what it holds, since when, until when."""

    held: Reservation | Settlement
    started: float
    expires: float | None
    grant: Grant | None  # None: taken by ``try_reserve``
    text: str | None = None  # how it was read from a file, to be written back as it is


class ReservationTemplate:
    """What every call of one tool reserves in its session, worked out once.

    Only for limits on plain counters, so that ``try_reserve`` is quick. ``bounds`` are the limits
    as (scope, counter, whether calls in flight count, maximum).
    """

    __slots__ = ("bounds", "lease", "scopes", "tools")

    def __init__(self, scopes: tuple[str, ...], limits: tuple[Limit, ...]) -> None:
        self.scopes = scopes
        self.tools = tuple(scope for scope in scopes if scope != WHOLE_SESSION)
        self.bounds = tuple(
            (limit.scope, limit.counter, limit.reserved, limit.maximum) for limit in limits
        )
        # shared by all calls: it says what they hold, which is the same for each
        self.lease = Lease(Settlement("", "", scopes, limits, "success"), 0.0, None, None)


def reservation_template(
    scopes: tuple[str, ...], limits: tuple[Limit, ...]
) -> ReservationTemplate | None:
    """Return the template, or None when a limit has a window or is a budget."""
    return ReservationTemplate(scopes, limits) if all(it.plain for it in limits) else None


@dataclass(slots=True)
class SessionState:
    total: Tally = field(default_factory=Tally)
    tallies: dict[str, Tally] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    ended_before: dict[str, str] = field(default_factory=dict)
    expiring: bool = False  # some lease can run out
    touched: float = 0.0  # kept only when sessions are forgotten after a while

    def tally(self, scope: str) -> Tally:
        if scope == WHOLE_SESSION:
            return self.total
        return self.tallies.get(scope) or self.new_tally(scope)

    def new_tally(self, scope: str) -> Tally:
        tally = self.tallies[scope] = Tally()
        return tally

    def per_tool(self) -> dict[str, Counters]:
        return {scope: tally.counters() for scope, tally in self.tallies.items()}

    def grant(
        self, reservation: Reservation, granted: bool, breaches: tuple[Breach, ...] = ()
    ) -> Grant:
        """An answer with the counters as they are now."""
        return Grant(
            granted,
            self.total.counters(),
            breaches,
            self.per_tool() if reservation.per_tool else None,
        )

    def recount(self) -> None:
        """Find out anew what is held, from the calls that hold it: somebody was interrupted while
        it was counted.
        """
        for tally in (self.total, *self.tallies.values()):
            tally.held = 0
            for amount in tally.amounts.values():
                amount[1] = 0
        for lease in self.leases.values():
            for scope in lease.held.scopes:
                tally = self.tally(scope)
                tally.held += 1
                for name, reserved in lease.held.amounts.items():
                    tally.change(name, 0, reserved)

    def remember(self, call_id: str, how: str) -> None:
        """How a call ended, for as long as it may be asked again: two generations, the older one
        forgotten whole.
        """
        self.ended[call_id] = how
        if len(self.ended) >= MAX_ENDED:
            self.next_generation()

    def next_generation(self) -> None:
        self.ended, self.ended_before = {}, self.ended

    def recall(self, call_id: str) -> str | None:
        return self.ended.get(call_id) or self.ended_before.get(call_id)


class MemoryLedger:
    """Counters in this process, behind one short lock. Leases do not run out unless the caller
    gives them a length.
    """

    name = "memory"
    default_lease_s: float | None = None
    _shared = True  # between threads

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        lease_s: float | None = None,
        ttl_s: float | None = None,
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        if self._shared:
            protect(self)
        self._sessions: dict[str, SessionState] = {}
        self._ttl_s = ttl_s
        self._swept = clock() if ttl_s is not None else 0.0
        self.default_lease_s = lease_s

    def try_reserve(
        self, session_id: str, call_id: str, template: ReservationTemplate
    ) -> tuple[int, int] | None:
        """Reserve and count the attempt; return attempts and executions.

        None: nothing was changed, and the call must ask by ``reserve``. Written without helpers:
        calling them would cost as much as the counting.
        """
        with self._lock:
            state = self._sessions.get(session_id)
            if state is None or state.expiring or call_id in state.leases:
                return None
            ttl_s = self._ttl_s
            if ttl_s is not None:
                now = self._clock()
                if now - state.touched > ttl_s or now - self._swept > ttl_s:
                    return None
            total, tallies = state.total, state.tallies
            for scope, counter, reserved, maximum in template.bounds:
                tally = tallies.get(scope, NOTHING) if scope else total
                used: int = getattr(tally, counter)  # its own attempt is not counted yet
                if reserved:
                    used += tally.held
                if used >= maximum:
                    return None
            if ttl_s is not None:
                state.touched = now
            try:
                total.attempts += 1
                total.held += 1
                for scope in template.tools:
                    tally = tallies.get(scope) or state.new_tally(scope)
                    tally.held += 1
                state.leases[call_id] = template.lease
            except BaseException:  # KeyboardInterrupt between two of these lines
                state.recount()
                raise
            return total.attempts, total.executions

    def try_commit(
        self, session_id: str, call_id: str, template: ReservationTemplate
    ) -> tuple[int, int] | None:
        """Settle what ``try_reserve`` took as a success; return attempts and executions.

        None: nothing was changed, and the call must be settled by ``settle``.
        """
        with self._lock:
            state = self._sessions.get(session_id)
            if state is None or state.leases.get(call_id) is not template.lease:
                return None
            total, tallies, ended = state.total, state.tallies, state.ended
            del state.leases[call_id]
            ended[call_id] = "success"
            try:
                for scope in template.scopes:
                    tally = tallies[scope] if scope else total
                    tally.held -= 1
                    tally.executions += 1
                    tally.successes += 1
                    tally.consecutive_failures = 0
            except BaseException:
                state.recount()
                raise
            if len(ended) >= MAX_ENDED:
                state.next_generation()
            return total.attempts, total.executions

    def reserve(self, reservation: Reservation) -> Grant:
        with self._lock:
            try:
                return self._reserve(reservation)
            except BaseException:
                self._recount(reservation)
                raise

    def _reserve(self, reservation: Reservation) -> Grant:
        looks = only_looks(reservation)
        if self._ttl_s is not None:
            self._touch(reservation.session_id, reservation.parents, looks)
        state = self._state(reservation.session_id, looks)
        if state.expiring:
            self._expire(state)
        lease = state.leases.get(reservation.call_id)
        if lease is not None:
            return lease.grant or state.grant(reservation, True)
        above = self._new_above(reservation, looks) if reservation.parents else ()
        breaches = self._judge(state, reservation)
        for _, parent in above:
            breaches += self._judge(parent, reservation)
        if breaches and reservation.enforce and any(breach.limit.enforce for breach in breaches):
            return state.grant(reservation, False, breaches)
        if not reservation.hold:
            return state.grant(reservation, True, breaches)
        for key, parent in above:
            self._hold(parent, reservation, key, breaches)
        return self._hold(state, reservation, reservation.call_id, breaches)

    def _state(self, session_id: str, looks: bool = False) -> SessionState:
        """A session. One that is not there yet is made, but not for who only looks."""
        return self._sessions.get(session_id) or (
            SessionState() if looks else self._new_session(session_id)
        )

    def _parents(
        self, step: Reservation | Settlement, looks: bool = False
    ) -> Iterator[tuple[str, SessionState]]:
        """The sessions above a call's own, and the name the call has there: ids of calls are unique
        within one session only.
        """
        for session_id in step.parents:
            yield parent_key(step.session_id, step.call_id), self._state(session_id, looks)

    def _new_above(
        self, reservation: Reservation, looks: bool
    ) -> tuple[tuple[str, SessionState], ...]:
        """All but those that hold the call still, because only its own session was reset: there it
        is judged and counted already.
        """
        parents = tuple(self._parents(reservation, looks))
        for _, parent in parents:
            self._expire(parent)
        return tuple((key, parent) for key, parent in parents if key not in parent.leases)

    def _touch(self, session_id: str, parents: tuple[str, ...], looks: bool) -> None:
        """Forget sessions that nobody has used for their time to live; calls in flight keep
        theirs.
        """
        now, ttl_s = self._clock(), self._ttl_s or 0.0
        for used in (session_id, *parents):
            state = self._sessions.get(used)
            if (
                state is not None
                and state.touched
                and now - state.touched > ttl_s
                and self._idle(state)
            ):
                del self._sessions[used]
            if not looks:
                self._state(used).touched = now
        if now - self._swept > ttl_s:
            self._swept = now
            for old in [
                sid
                for sid, state in self._sessions.items()
                if now - state.touched > ttl_s and self._idle(state)
            ]:
                del self._sessions[old]

    def _idle(self, state: SessionState) -> bool:
        self._expire(state)
        return not state.leases

    def _new_session(self, session_id: str) -> SessionState:
        state = self._sessions[session_id] = SessionState()
        return state

    def _judge(self, state: SessionState, reservation: Reservation) -> tuple[Breach, ...]:
        """Count the attempt, and name the limits that leave no room for this call."""
        total, counts_attempt = state.total, reservation.count_attempt
        if counts_attempt:
            total.attempts += 1
        breaches: tuple[Breach, ...] = ()
        for limit in reservation.limits:
            tally = total if limit.scope == "" else state.tallies.get(limit.scope, NOTHING)
            if not limit.plain:
                breaches += self._judge_special(tally, limit, reservation)
                continue
            used: int = getattr(tally, limit.counter)
            if limit.reserved:
                used += tally.held
            elif limit.metric is ATTEMPTS:
                # The attempt itself is counted already, and is not judged twice when a call
                # reserves after its approval.
                used = used - 1 if counts_attempt else -1 if reservation.hold else used
            if used >= limit.maximum:
                held = tally.held if limit.reserved else 0
                breaches += (Breach(limit, used - held, held),)
        return breaches

    def _judge_special(
        self, tally: Tally, limit: Limit, reservation: Reservation
    ) -> tuple[Breach, ...]:
        """A limit with a window, a budget, or both."""
        now = self._clock()
        if limit.amount is not None:
            spent, held = tally.amounts.get(limit.amount, (0, 0))
            used = spent if limit.window_s is None else tally.within(limit, now)
            asked = reservation.amounts.get(limit.amount)
            # Who does not say what it will use may go on while anything is left.
            full = (
                used + held >= limit.maximum
                if asked is None
                else used + held + asked > limit.maximum
            )
        elif limit.metric is ATTEMPTS:
            self._stamp_attempt(tally, limit, reservation, now)
            used, held = tally.within(limit, now), 0
            full = (
                used > limit.maximum
                if reservation.count_attempt
                else not reservation.hold and used >= limit.maximum
            )
        else:
            used, held = tally.within(limit, now), tally.held if limit.reserved else 0
            full = used + held >= limit.maximum
        return (Breach(limit, used, held),) if full else ()

    @staticmethod
    def _stamp_attempt(tally: Tally, limit: Limit, reservation: Reservation, now: float) -> None:
        """Once for all limits with a window on attempts: by the first of them."""
        if reservation.count_attempt and limit is next(
            it for it in reservation.limits if it.metric is ATTEMPTS and not it.plain
        ):
            window = next(
                it for it in windows_of(reservation.limits) if it.counter == limit.counter
            )
            tally.stamp(window, now, now)

    def _hold(
        self, state: SessionState, reservation: Reservation, key: str, breaches: tuple[Breach, ...]
    ) -> Grant:
        tallies = state.tallies
        state.total.held += 1
        for scope in reservation.scopes:
            if scope:
                tally = tallies.get(scope) or state.new_tally(scope)
                tally.held += 1
        now = self._clock()
        expires = None
        if reservation.lease_s is not None:
            expires = now + reservation.lease_s
            state.expiring = True
        if reservation.amounts:
            self._change_amounts(state, reservation.scopes, {}, reservation.amounts, 1)
        grant = state.grant(reservation, True, breaches)
        state.leases[key] = Lease(reservation, now, expires, grant)
        return grant

    @staticmethod
    def _change_amounts(
        state: SessionState,
        scopes: tuple[str, ...],
        spent: Mapping[str, int],
        reserved: Mapping[str, int],
        sign: int,
    ) -> None:
        for scope in scopes:
            for amount in {**spent, **reserved}:
                state.tally(scope).change(
                    amount, spent.get(amount, 0), sign * reserved.get(amount, 0)
                )

    def settle(self, settlement: Settlement) -> Counters:
        with self._lock:
            try:
                return self._settle(settlement)
            except BaseException:
                self._recount(settlement)
                raise

    def _recount(self, step: Reservation | Settlement) -> None:
        for session_id in (step.session_id, *step.parents):
            if session_id in self._sessions:
                self._sessions[session_id].recount()

    def _settle(self, settlement: Settlement) -> Counters:
        # A session that was reset while the call ran is new now; the call still counts in it.
        state = self._state(settlement.session_id)
        self._settle_in(state, settlement.call_id, settlement)
        for key, parent in self._parents(settlement):
            self._settle_in(parent, key, settlement)
        return state.total.counters()

    def _settle_in(self, state: SessionState, key: str, settlement: Settlement) -> None:
        lease = state.leases.pop(key, None)
        if lease is not None:
            self._end(state, lease, key, settlement.result, settlement.amounts)
        else:
            self._end_late(state, key, settlement)

    def _end(
        self,
        state: SessionState,
        lease: Lease,
        key: str,
        result: str,
        used: Mapping[str, int] = NO_AMOUNTS,
    ) -> None:
        for scope in lease.held.scopes:
            tally = state.tallies[scope] if scope else state.total
            tally.held -= 1
            if result == "success":
                tally.executions += 1
                tally.successes += 1
                tally.consecutive_failures = 0
            elif result == "failure":
                tally.executions += 1
                tally.failures += 1
                tally.consecutive_failures += 1
        if used or lease.held.amounts:
            used = {} if result == "release" else {**lease.held.amounts, **used}
            self._change_amounts(state, lease.held.scopes, used, lease.held.amounts, -1)
        if result != "release":
            for limit in lease.held.limits:
                if limit.window_s is not None:
                    self._stamp(state, lease, result, used)
                    break
        state.remember(key, result)

    def _stamp(
        self, state: SessionState, lease: Lease, result: str, used: Mapping[str, int]
    ) -> None:
        """For limits with a window: an execution and its amounts count from its start, a success or
        failure from its end.
        """
        now = self._clock()
        for window in windows_of(lease.held.limits):
            if window.counter == Metric.EXECUTIONS:
                state.tally(window.scope).stamp(window, lease.started, now)
            elif window.counter == ENDED[result]:
                state.tally(window.scope).stamp(window, now, now)
            elif amount := used.get(window.counter.removeprefix("amount:")):
                state.tally(window.scope).stamp(window, lease.started, now, amount)

    def _end_late(self, state: SessionState, key: str, settlement: Settlement) -> None:
        """A call that holds nothing any more: settled before, expired, or its session was reset
        while it ran.
        """
        before = state.recall(key) or ""
        if settlement.result == "release" or before in ("success", "failure", "release"):
            return
        if before.startswith(COUNTED):
            self._correct(state, settlement, json.loads(before.removeprefix(COUNTED)))
            state.remember(key, settlement.result)
            return
        for scope in settlement.scopes:
            state.tally(scope).held += 1
        self._change_amounts(state, settlement.scopes, {}, settlement.amounts, 1)
        late = Lease(settlement, self._clock(), None, Grant(True, state.total.counters()))
        self._end(state, late, key, settlement.result)

    def _correct(
        self, state: SessionState, settlement: Settlement, counted: Mapping[str, int]
    ) -> None:
        """The call was counted as failed, with the amounts it had reserved, when its lease ran out.
        Now it is known better.
        """
        more = {
            amount: used - counted.get(amount, 0) for amount, used in settlement.amounts.items()
        }
        self._change_amounts(state, settlement.scopes, more, {}, 0)
        success, now = settlement.result == "success", self._clock()
        if success:
            for scope in settlement.scopes:
                state.tally(scope).correct_to_success()
        for window in windows_of(settlement.limits):
            if window.counter == Metric.SUCCESSES and success:
                state.tally(window.scope).stamp(window, now, now)
            elif (
                amount := more.get(window.counter.removeprefix("amount:"), 0)
            ) > 0:  # what it used less leaves with its start
                state.tally(window.scope).stamp(window, now, now, amount)

    def _expire(self, state: SessionState) -> None:
        now = self._clock()
        for call_id, lease in [
            (c, le)
            for c, le in state.leases.items()
            if le.expires is not None and le.expires <= now
        ]:
            del state.leases[call_id]
            counts = isinstance(lease.held, Reservation) and lease.held.expiry_counts
            self._end(state, lease, call_id, "failure" if counts else "release")
            state.remember(
                call_id,
                COUNTED + json.dumps(dict(lease.held.amounts)) if counts else "expired:released",
            )
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
            expires = self._clock() + lease_s
            self._extend(state, lease, expires)
            for key, parent in self._parents(lease.held):
                if key in parent.leases:
                    self._extend(parent, parent.leases[key], expires)
            return True

    @staticmethod
    def _extend(state: SessionState, lease: Lease, expires: float) -> None:
        lease.expires = expires
        state.expiring = True

    def snapshot(self, session_id: str) -> SessionSnapshot:
        with self._lock:
            return self._snapshot(session_id)

    def _snapshot(self, session_id: str) -> SessionSnapshot:
        state = self._sessions.get(session_id)
        if state is None:
            return SessionSnapshot(session_id, Counters(), {})
        self._expire(state)
        tallies = {WHOLE_SESSION: state.total, **state.tallies}
        amounts = {
            scope: {
                name: Amount(spent / MILLION, held / MILLION)
                for name, (spent, held) in tally.amounts.items()
            }
            for scope, tally in tallies.items()
            if tally.amounts
        }
        return SessionSnapshot(session_id, state.total.counters(), state.per_tool(), amounts)

    def sessions(self, limit: int = 100) -> list[SessionSnapshot]:
        """The newest sessions, with their counters."""
        with self._lock:
            return [
                self._snapshot(session_id) for session_id in list(reversed(self._sessions))[:limit]
            ]

    def reset(self, session_id: str) -> None:
        with self._lock:
            self._sessions.pop(session_id, None)
