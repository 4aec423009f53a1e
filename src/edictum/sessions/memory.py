"""The in-memory ledger: exact for all threads and event loops of one process, and gone with it.

It is the reference for every other ledger, and the SQLite ledger lets it do the counting.
"""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from operator import attrgetter
from typing import TypeVar

from edictum.core._records import maker
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
    has_mark,
    longest_window,
    make_settlement,
    windows_of,
)
from edictum.execution.forks import protect
from edictum.sessions._accounts import in_account, name_in_account, only_looks

ENDED = {"success": Metric.SUCCESSES, "failure": Metric.FAILURES}
COUNTED = "expired:counted "  # followed by the amounts that were counted
MAX_VALUE = 2**63  # sorts after every amount that was stamped at the same moment
# calls per session and generation that are remembered as ended: a repeated settle changes nothing
MAX_ENDED = 5_000
SESSION_TTL_S = 86_400.0  # how long a session is kept after its last use
SWEPT_PER_SESSION = 4  # sessions that are looked at, whether they are old, for each new one
make_counters = maker(Counters)
_Step = TypeVar("_Step", Reservation, Settlement)
_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class Tally:
    """The counters of one tool.

    ``held`` are calls in flight. ``amounts`` are ``[spent, reserved]`` by name. ``times`` are kept
    only for limits with a window: pairs of a moment and what it counts for, which is 1 or an
    amount.
    """

    attempts: int = 0
    executions: int = 0
    successes: int = 0
    failures: int = 0
    consecutive_failures: int = 0
    held: int = 0
    times: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    amounts: dict[str, list[int]] = field(default_factory=dict)

    def count(self, result: str) -> None:
        """Count how a call ended; a release counts nothing."""
        if result == "success":
            self.executions += 1
            self.successes += 1
            self.consecutive_failures = 0
        elif result == "failure":
            self.executions += 1
            self.failures += 1
            self.consecutive_failures += 1

    def stamp(self, window: Window, at: float, now: float, value: int = 1) -> None:
        """Record a moment, and drop those that no window needs any more."""
        times = self.times.setdefault(window.counter, [])
        insort(times, (at, value))
        if window.counter.startswith("amount:"):
            del times[: bisect_right(times, (now - window.span_s, MAX_VALUE))]
        else:
            del times[: -window.keep]

    def used_within(self, limit: Limit, now: float) -> int:
        """Return what counts against a limit with a window: a number of calls, or an amount."""
        times = self.times.get(limit.moments, [])
        first = bisect_right(times, (now - (limit.window_s or 0), MAX_VALUE))
        if limit.amount is not None:
            return sum(value for _, value in times[first:])
        in_a_row = limit.metric is Metric.CONSECUTIVE_FAILURES
        inside = len(times) - first
        return min(inside, self.consecutive_failures) if in_a_row else inside

    def change(self, amount: str, spent: int, reserved: int) -> None:
        entry = self.amounts.get(amount)
        if entry is None:
            entry = self.amounts[amount] = [0, 0]
        entry[0] += spent
        entry[1] += reserved

    def counters(self) -> Counters:
        # attribute by attribute, which is twice as fast as ``tally_row``
        return make_counters(
            self.attempts,
            self.executions,
            self.successes,
            self.failures,
            self.consecutive_failures,
            self.held,
        )


tally_row = attrgetter(
    "attempts", "executions", "successes", "failures", "consecutive_failures", "held"
)
NOT_USED = (0, 0)
NOTHING = Tally()  # of a tool of which nothing was counted yet; never changed


@dataclass(slots=True)
class Lease:
    """A call in flight: what it holds, since when, until when."""

    held: Reservation | Settlement
    started: float
    expires: float | None
    grant: Grant | None  # None: taken by ``try_reserve``


class ReservationTemplate:
    """What every call of one tool reserves in its session, computed once. Only for limits without a
    window.

    ``bounds`` are those on counters as (tool, counter, whether calls in flight count, maximum),
    ``budgets`` the others as (tool, amount, maximum). ``lease`` is shared: it says what calls hold
    that state no amounts, and ``priced`` what the last call held that stated some. ``enforced``:
    all limits are enforced.
    """

    __slots__ = ("bounds", "budgets", "enforced", "lease", "named", "priced", "tools")

    def __init__(self, tools: tuple[str, ...], limits: tuple[Limit, ...]) -> None:
        self.tools = tools
        self.named = tuple(tool for tool in tools if tool != WHOLE_SESSION)
        self.bounds = tuple(
            (it.tally, it.counter, it.reserved, it.maximum) for it in limits if it.amount is None
        )
        self.budgets = tuple(
            (it.tally, it.amount, it.maximum) for it in limits if it.amount is not None
        )
        self.lease = self.priced = self._make_lease(limits, NO_AMOUNTS)
        self.enforced = all(it.enforce for it in limits)

    def price(self, amounts: Mapping[str, int]) -> Lease:
        """Return what a call holds that states amounts. Calls of a tool often state the same ones,
        so the last result is reused.
        """
        lease = self.priced
        if lease.held.amounts != amounts:
            lease = self.priced = self._make_lease(lease.held.limits, amounts)
        return lease

    def _make_lease(self, limits: tuple[Limit, ...], amounts: Mapping[str, int]) -> Lease:
        held = make_settlement("", "", self.tools, limits, "success", amounts)
        return Lease(held, 0.0, None, None)


def reservation_template(
    tools: tuple[str, ...], limits: tuple[Limit, ...]
) -> ReservationTemplate | None:
    """Return the template, or None when a limit has a window."""
    windows = any(it.window_s is not None for it in limits)
    return None if windows else ReservationTemplate(tools, limits)


def _is_spent(used: int, held: int, asked: int | None, maximum: int) -> bool:
    """Return whether a budget has no room for the call.

    A call that does not state its amount may run while anything is left.
    """
    return used + held + (asked or 0) >= maximum + (asked is not None)


@dataclass(slots=True)
class SessionState:
    """The counters of an account, its calls in flight, and how the last calls ended. It was last
    used at ``touched``, and is kept for ``lives_s`` from then on.
    """

    total: Tally = field(default_factory=Tally)
    tallies: dict[str, Tally] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    ended_before: dict[str, str] = field(default_factory=dict)
    expiring: bool = False  # some lease can expire
    touched: float = 0.0
    lives_s: float = 0.0

    def tally(self, tool: str) -> Tally:
        if tool == WHOLE_SESSION:
            return self.total
        return self.tallies.get(tool) or self.new_tally(tool)

    def new_tally(self, tool: str) -> Tally:
        tally = self.tallies[tool] = Tally()
        return tally

    def per_tool(self) -> dict[str, Counters]:
        tallies = self.tallies.items()
        return {tool: tally.counters() for tool, tally in tallies if not has_mark(tool)}

    def make_grant(
        self, reservation: Reservation, granted: bool, breaches: tuple[Breach, ...] = ()
    ) -> Grant:
        per_tool = self.per_tool() if reservation.per_tool else None
        return Grant(granted, self.total.counters(), breaches, per_tool)

    def hold(self, tools: tuple[str, ...], amounts: Mapping[str, int]) -> None:
        for tool in tools:
            tally = self.tally(tool)
            tally.held += 1
            for name, reserved in amounts.items():
                tally.change(name, 0, reserved)

    def recount(self) -> None:
        """Compute what is held from the leases, after an interruption while it was counted."""
        for tally in (self.total, *self.tallies.values()):
            tally.held = 0
            for amount in tally.amounts.values():
                amount[1] = 0
        for lease in self.leases.values():
            self.hold(lease.held.tools, lease.held.amounts)

    def remember(self, call_id: str, how: str) -> None:
        """Remember how a call ended, for two generations of calls."""
        self.ended[call_id] = how
        if len(self.ended) >= MAX_ENDED:
            self.next_generation()

    def next_generation(self) -> None:
        self.ended, self.ended_before = {}, self.ended

    def recall(self, call_id: str) -> str | None:
        return self.ended.get(call_id) or self.ended_before.get(call_id)


class MemoryLedger:
    """Counters in this process, behind one short lock. By default leases do not expire, and a
    session is forgotten a day after its last use; ``ttl_s=None`` keeps sessions for good.
    """

    name = "memory"
    default_lease_s: float | None = None
    _shared = True  # between threads
    _session_type: type[SessionState] = SessionState

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        lease_s: float | None = None,
        ttl_s: float | None = SESSION_TTL_S,
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        if self._shared:
            protect(self)
        self._sessions: dict[str, SessionState] = {}
        self._ttl_s = ttl_s
        self._to_sweep: deque[tuple[str, SessionState]] = deque()
        self.default_lease_s = lease_s

    # --- The fast path: without helpers, which would cost as much as the counting -----------------

    def try_reserve(
        self,
        session_id: str,
        call_id: str,
        template: ReservationTemplate,
        amounts: Mapping[str, int] = NO_AMOUNTS,
    ) -> tuple[int, int] | None:
        """Reserve and count the attempt; return attempts and executions.

        Returns None if nothing was changed, and the call must be reserved by ``reserve``.
        """
        with self._lock:
            state = self._sessions.get(session_id)
            if state is None or state.expiring or call_id in state.leases:
                return None
            if self._ttl_s is not None:
                now = self._clock()
                if now - state.touched > state.lives_s:
                    return None
                state.touched = now
            total, tallies = state.total, state.tallies
            for tool, counter, reserved, maximum in template.bounds:
                tally = tallies.get(tool, NOTHING) if tool else total
                used: int = getattr(tally, counter)  # its own attempt is not counted yet
                if (used + tally.held if reserved else used) >= maximum:
                    return None
            for tool, name, maximum in template.budgets:
                tally = tallies.get(tool, NOTHING) if tool else total
                spent, held = tally.amounts.get(name, NOT_USED)
                if _is_spent(spent, held, amounts.get(name), maximum):
                    return None
            lease = template.lease
            try:
                total.attempts += 1
                total.held += 1
                for tool in template.named:
                    tally = tallies.get(tool) or state.new_tally(tool)
                    tally.held += 1
                    tally.attempts += 1
                if amounts:
                    lease = template.price(amounts)
                    for tool in template.tools:
                        tally = tallies[tool] if tool else total
                        for name, asked in amounts.items():
                            tally.change(name, 0, asked)
                state.leases[call_id] = lease
            except BaseException:  # KeyboardInterrupt between two of these lines
                state.recount()
                raise
            return total.attempts, total.executions

    def try_refuse(self, session_id: str, template: ReservationTemplate) -> tuple[int, int] | None:
        """Count the attempt of a call that is denied; return attempts and executions.

        Returns None if nothing was changed, and the attempt must be counted by ``reserve``.
        """
        with self._lock:
            state = self._sessions.get(session_id)
            if state is None or state.expiring or not template.enforced:
                return None
            if self._ttl_s is not None:
                now = self._clock()
                if now - state.touched > state.lives_s:
                    return None
                state.touched = now
            total, tallies = state.total, state.tallies
            for tool in template.named:
                (tallies.get(tool) or state.new_tally(tool)).attempts += 1
            total.attempts += 1
            return total.attempts, total.executions

    def try_commit(
        self, session_id: str, call_id: str, template: ReservationTemplate, success: bool
    ) -> tuple[int, int] | None:
        """Settle a call that ``try_reserve`` reserved; return attempts and executions.

        Returns None if nothing was changed, and the call must be settled by ``settle``.
        """
        with self._lock:
            state = self._sessions.get(session_id)
            lease = None if state is None else state.leases.get(call_id)
            if state is None or lease is None or lease.grant is not None:
                return None
            total, tallies, ended = state.total, state.tallies, state.ended
            del state.leases[call_id]
            amounts = lease.held.amounts
            try:
                ended[call_id] = "success" if success else "failure"
                for tool in template.tools:
                    tally = tallies[tool] if tool else total
                    tally.held -= 1
                    tally.executions += 1
                    if success:
                        tally.successes += 1
                        tally.consecutive_failures = 0
                    else:
                        tally.failures += 1
                        tally.consecutive_failures += 1
                    if amounts:
                        for name, used in amounts.items():
                            tally.change(name, used, -used)
            except BaseException:
                state.recount()
                raise
            if len(ended) >= MAX_ENDED:
                state.next_generation()
            return total.attempts, total.executions

    # --- Reserving --------------------------------------------------------------------------------

    def reserve(self, reservation: Reservation) -> Grant:
        return self._count(self._reserve, reservation)

    def _count(self, act: Callable[[_Step], _Answer], step: _Step) -> _Answer:
        with self._lock:
            try:
                return act(step)
            except BaseException:
                for key in (step.session_id, *(account.key for account in step.accounts)):
                    if key in self._sessions:
                        self._sessions[key].recount()
                raise

    def _reserve(self, reservation: Reservation) -> Grant:
        looks = only_looks(reservation)
        state = self._use(reservation.session_id, reservation.limits, looks)
        if state.expiring:
            self._expire(state)
        lease = state.leases.get(reservation.call_id)
        if lease is not None:
            return lease.grant or state.make_grant(reservation, True)
        accounts = self._unheld_accounts(reservation, looks) if reservation.accounts else []
        breaches = self._find_breaches(state, reservation)
        for account, step in accounts:
            breaches += self._find_breaches(account, step)
        refused = breaches and reservation.enforce and any(it.limit.enforce for it in breaches)
        if refused or not reservation.hold:
            return state.make_grant(reservation, not refused, breaches)
        for account, step in accounts:
            self._hold(account, step, breaches)
        return self._hold(state, reservation, breaches)

    def _state(self, key: str, looks: bool = False) -> SessionState:
        """Return the account, creating it unless this is a look."""
        state = self._sessions.get(key)
        if state is None:
            state = self._session_type()
            if not looks:
                self._sessions[key] = state
                state.touched = self._clock()  # or a store would take it for one of long ago
                if self._ttl_s is not None:
                    state.lives_s = self._ttl_s
                    self._sweep(state.touched)
                    self._to_sweep.append((key, state))
        return state

    def _unheld_accounts(
        self, reservation: Reservation, looks: bool
    ) -> list[tuple[SessionState, Reservation]]:
        """Return the accounts that do not hold the call yet, each with the call's step in it.

        After a reset of the call's session, some may hold it.
        """
        unheld = []
        for account in reservation.accounts:
            state = self._use(account.key, account.limits, looks)
            step = in_account(reservation, account)
            self._expire(state)
            if step.call_id not in state.leases:
                unheld.append((state, step))
        return unheld

    def _use(self, key: str, limits: tuple[Limit, ...], looks: bool) -> SessionState:
        """Return the account of a call, marked as used unless this is a look; a new account if it
        has expired.
        """
        if self._ttl_s is None:
            return self._state(key, looks)
        now, state = self._clock(), self._sessions.get(key)
        if state is not None and self._is_old(state, now):
            del self._sessions[key]
            state = None
        if state is None:
            state = self._state(key, looks)
        if not looks:
            state.touched = now
            state.lives_s = max(state.lives_s, longest_window(limits))
        return state

    def _sweep(self, now: float) -> None:
        """Forget a few expired accounts: more than one for each new account."""
        for _ in range(min(SWEPT_PER_SESSION, len(self._to_sweep))):
            key, state = self._to_sweep.popleft()
            if self._sessions.get(key) is not state:
                continue  # it was reset
            if self._is_old(state, now):
                del self._sessions[key]
            else:
                self._to_sweep.append((key, state))

    def _is_old(self, state: SessionState, now: float) -> bool:
        return now - state.touched > state.lives_s and self._is_idle(state)

    def _is_idle(self, state: SessionState) -> bool:
        """Return whether a session has no call in flight, after its overdue leases have been
        expired.
        """
        self._expire(state)
        return not state.leases

    def _find_breaches(self, state: SessionState, reservation: Reservation) -> tuple[Breach, ...]:
        """Count the attempt, and return the limits that have no room for this call."""
        if reservation.count_attempt:
            self._count_attempt(state, reservation)
        breaches: tuple[Breach, ...] = ()
        for limit in reservation.limits:
            tally = state.tallies.get(limit.tally, NOTHING) if limit.tally else state.total
            if not limit.plain:
                breaches += self._find_special_breach(tally, limit, reservation)
                continue
            used: int = getattr(tally, limit.counter)
            held = tally.held if limit.reserved else 0
            if limit.metric is ATTEMPTS:
                used = attempts_before(used, reservation)
            if used + held >= limit.maximum:
                breaches += (Breach(limit, used, held),)
        return breaches

    def _find_special_breach(
        self, tally: Tally, limit: Limit, reservation: Reservation
    ) -> tuple[Breach, ...]:
        """Return the breach of a limit with a window, a budget, or both."""
        now = self._clock()
        if limit.amount is not None:
            spent, held = tally.amounts.get(limit.amount, NOT_USED)
            used = spent if limit.window_s is None else tally.used_within(limit, now)
            full = _is_spent(used, held, reservation.amounts.get(limit.amount), limit.maximum)
        elif limit.metric is ATTEMPTS:
            used, held = tally.used_within(limit, now), 0
            full = attempts_before(used, reservation) >= limit.maximum
        else:
            used, held = tally.used_within(limit, now), tally.held if limit.reserved else 0
            full = used + held >= limit.maximum
        return (Breach(limit, used, held),) if full else ()

    def _count_attempt(self, state: SessionState, reservation: Reservation) -> None:
        for tool in reservation.tools:
            state.tally(tool).attempts += 1
        if longest_window(reservation.limits):
            now = self._clock()
            for window in windows_of(reservation.limits):
                if window.counter == ATTEMPTS:
                    state.tally(window.tool).stamp(window, now, now)

    def _hold(
        self, state: SessionState, reservation: Reservation, breaches: tuple[Breach, ...]
    ) -> Grant:
        state.hold(reservation.tools, reservation.amounts)
        now = self._clock()
        expires = None
        if reservation.lease_s is not None:
            expires = now + reservation.lease_s
            state.expiring = True
        grant = state.make_grant(reservation, True, breaches)
        state.leases[reservation.call_id] = Lease(reservation, now, expires, grant)
        return grant

    # --- Settling ---------------------------------------------------------------------------------

    def settle(self, settlement: Settlement) -> Counters:
        return self._count(self._settle, settlement)

    def _settle(self, settlement: Settlement) -> Counters:
        # A session that was reset while the call ran is new now; the call still counts in it.
        state = self._state(settlement.session_id)
        lease = state.leases.get(settlement.call_id)
        accounts = settlement.accounts if lease is None else lease.held.accounts
        self._settle_in(state, settlement)
        for account in accounts:
            self._settle_in(self._state(account.key), in_account(settlement, account))
        return state.total.counters()

    def _settle_in(self, state: SessionState, settlement: Settlement) -> None:
        if self._ttl_s is not None:
            state.touched = self._clock()
        key = settlement.call_id
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
        held = lease.held
        if used or held.amounts:
            used = {} if result == "release" else {**held.amounts, **used}
        changes = [
            (name, used.get(name, 0), -held.amounts.get(name, 0))
            for name in {**used, **held.amounts}
        ]
        for tool in held.tools:
            tally = state.tallies[tool] if tool else state.total
            tally.held -= 1
            tally.count(result)
            for change in changes:
                tally.change(*change)
        if result != "release" and longest_window(held.limits):
            self._stamp(state, lease, result, used)
        state.remember(key, result)

    def _stamp(
        self, state: SessionState, lease: Lease, result: str, used: Mapping[str, int]
    ) -> None:
        """Record when a call ran, for limits with a window. An execution and its amounts count from
        its start, a success or failure from its end.
        """
        now = self._clock()
        for window in windows_of(lease.held.limits):
            if window.counter == Metric.EXECUTIONS:
                state.tally(window.tool).stamp(window, lease.started, now)
            elif window.counter == ENDED[result]:
                state.tally(window.tool).stamp(window, now, now)
            elif amount := used.get(window.counter.removeprefix("amount:")):
                state.tally(window.tool).stamp(window, lease.started, now, amount)

    def _end_late(self, state: SessionState, key: str, settlement: Settlement) -> None:
        """End a call that has no lease any more: it was settled before, has expired, or its session
        was reset.
        """
        before = state.recall(key) or ""
        if settlement.result == "release" or before in ("success", "failure", "release"):
            return
        if before.startswith(COUNTED):
            self._correct(state, settlement, json.loads(before.removeprefix(COUNTED)))
            state.remember(key, settlement.result)
            return
        state.hold(settlement.tools, settlement.amounts)
        late = Lease(settlement, self._clock(), None, None)
        self._end(state, late, key, settlement.result)

    def _correct(
        self, state: SessionState, settlement: Settlement, counted: Mapping[str, int]
    ) -> None:
        """Correct the count of a call that ended after its lease had expired and counted it as
        failed.
        """
        more = {name: used - counted.get(name, 0) for name, used in settlement.amounts.items()}
        success, now = settlement.result == "success", self._clock()
        for tool in settlement.tools:
            tally = state.tally(tool)
            for name, amount in more.items():
                tally.change(name, amount, 0)
            if success:
                tally.failures -= 1
                tally.successes += 1
                tally.consecutive_failures = 0
        for window in windows_of(settlement.limits):
            amount = more.get(window.counter.removeprefix("amount:"), 0)
            if window.counter == Metric.SUCCESSES and success:
                state.tally(window.tool).stamp(window, now, now)
            elif amount > 0:  # an amount that it used less leaves the window with its start
                state.tally(window.tool).stamp(window, now, now, amount)

    def _expire(self, state: SessionState) -> None:
        now = self._clock()
        leases = state.leases.items()
        for call_id, lease in [it for it in leases if it[1].expires is not None]:
            if lease.expires is None or lease.expires > now:
                continue
            del state.leases[call_id]
            counts = isinstance(lease.held, Reservation) and lease.held.expiry_counts
            self._end(state, lease, call_id, "failure" if counts else "release")
            amounts = json.dumps(dict(lease.held.amounts))
            state.remember(call_id, COUNTED + amounts if counts else "expired:released")
        state.expiring = any(lease.expires is not None for lease in state.leases.values())

    # --- Leases, and looking ----------------------------------------------------------------------

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
            self._renew_in(state, call_id, expires)
            for account in lease.held.accounts:
                key = name_in_account(session_id, call_id)
                self._renew_in(self._state(account.key, looks=True), key, expires)
            return True

    @staticmethod
    def _renew_in(state: SessionState, key: str, expires: float) -> None:
        if key in state.leases:
            state.leases[key].expires = expires
            state.expiring = True

    def snapshot(self, session_id: str) -> SessionSnapshot:
        with self._lock:
            return self._snapshot(session_id)

    def _snapshot(self, session_id: str) -> SessionSnapshot:
        state = self._sessions.get(session_id)
        if state is None:
            return SessionSnapshot(session_id, Counters(), {})
        self._expire(state)
        amounts = {
            tool: {
                name: Amount(spent / MILLION, held / MILLION)
                for name, (spent, held) in tally.amounts.items()
            }
            for tool, tally in {WHOLE_SESSION: state.total, **state.tallies}.items()
            if tally.amounts and not has_mark(tool)
        }
        return SessionSnapshot(session_id, state.total.counters(), state.per_tool(), amounts)

    def sessions(self, limit: int = 100) -> list[SessionSnapshot]:
        """Return the most recently used sessions, with their counters."""
        with self._lock:
            used = [(it.touched, key) for key, it in self._sessions.items() if not has_mark(key)]
            newest = nlargest(limit, reversed(used), key=lambda it: it[0])
            return [self._snapshot(session_id) for _, session_id in newest]

    def count_sessions(self) -> int:
        """Return how many sessions are held."""
        return len(self._sessions)

    def reset(self, session_id: str) -> None:
        with self._lock:
            self._sessions.pop(session_id, None)


def attempts_before(used: int, reservation: Reservation) -> int:
    """Return the attempts by which a call is judged, without its own.

    A call that reserves after its approval was judged by them before.
    """
    if reservation.count_attempt:
        return used - 1
    return -1 if reservation.hold else used
