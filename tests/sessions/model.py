"""A sequential model of a ledger, written to be read: one limit of each kind, and one of each kind
with a window.

It is not the memory ledger, so that the two can disagree. Its time stands still unless it is told
to ``advance``; then every lease that has run out ends at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from edictum.core.limits import Limit, Metric

# How much there may be of each, without a window and within one. A budget is in millionths.
TOTALS = {
    Metric.ATTEMPTS: 8,
    Metric.EXECUTIONS: 5,
    Metric.SUCCESSES: 4,
    Metric.FAILURES: 3,
    Metric.AMOUNT: 1_000_000,
}
IN_WINDOW = {
    Metric.ATTEMPTS: 6,
    Metric.EXECUTIONS: 3,
    Metric.SUCCESSES: 3,
    Metric.FAILURES: 2,
    Metric.AMOUNT: 500_000,
}
IN_A_ROW = 2
WINDOW_S = LEASE_S = 200


def _limits(most: dict[Metric, int], window_s: float | None) -> tuple[Limit, ...]:
    return tuple(
        Limit(
            name=metric.value,
            metric=metric,
            maximum=maximum,
            window_s=window_s,
            amount="cost" if metric is Metric.AMOUNT else None,
        )
        for metric, maximum in most.items()
    )


LIMITS = (
    *_limits(TOTALS, None),
    Limit(name="in a row", metric=Metric.CONSECUTIVE_FAILURES, maximum=IN_A_ROW),
)
WINDOWED = _limits(IN_WINDOW, WINDOW_S)


@dataclass(frozen=True)
class Held:
    """A call in flight. ``counts``: whether it counts as a failure when its lease runs out."""

    cost: int
    started: int
    expires: int | None = None
    counts: bool = False


@dataclass(frozen=True)
class Count:
    """One session. ``held`` and ``ended`` are calls, under the name they have in this session; an
    ended call that was counted when its lease ran out is kept with the cost it was counted with.
    ``moments`` are (metric, when, how much).
    """

    attempts: int = 0
    executions: int = 0
    successes: int = 0
    failures: int = 0
    consecutive: int = 0
    spent: int = 0
    held: tuple[tuple[str, Held], ...] = ()
    ended: tuple[tuple[str, str | int], ...] = ()
    moments: tuple[tuple[Metric, int, int], ...] = ()

    def counters(self) -> tuple[int, ...]:
        return (
            self.attempts,
            self.executions,
            self.successes,
            self.failures,
            self.consecutive,
            len(self.held),
        )

    @property
    def reserved(self) -> int:
        return sum(held.cost for _, held in self.held)

    # --- Whether there is room --------------------------------------------------------------------

    def is_full(
        self, limits: tuple[Limit, ...], cost: int | None, attempt: bool, hold: bool, now: int
    ) -> bool:
        if limits is LIMITS:
            used = dict(
                zip(
                    TOTALS,
                    (self.attempts, self.executions, self.successes, self.failures, self.spent),
                    strict=True,
                )
            )
            return self.consecutive >= IN_A_ROW or self._is_full(used, TOTALS, cost, attempt, hold)
        recent = [(metric, value) for metric, at, value in self.moments if at > now - WINDOW_S]
        used = {metric: sum(value for it, value in recent if it is metric) for metric in IN_WINDOW}
        return self._is_full(used, IN_WINDOW, cost, attempt, hold)

    def _is_full(
        self,
        used: dict[Metric, int],
        most: dict[Metric, int],
        cost: int | None,
        attempt: bool,
        hold: bool,
    ) -> bool:
        running, taken = len(self.held), used[Metric.AMOUNT] + self.reserved
        # Who has counted its attempt is judged by it; who takes a slot without one was judged
        # before; who only looks, as the next.
        attempts = (
            used[Metric.ATTEMPTS] > most[Metric.ATTEMPTS]
            if attempt
            else not hold and used[Metric.ATTEMPTS] >= most[Metric.ATTEMPTS]
        )
        calls = any(
            used[metric] + running >= most[metric]
            for metric in (Metric.EXECUTIONS, Metric.SUCCESSES, Metric.FAILURES)
        )
        budget = (
            taken >= most[Metric.AMOUNT] if cost is None else taken + cost > most[Metric.AMOUNT]
        )
        return attempts or calls or budget

    # --- What changes it --------------------------------------------------------------------------

    def stamped(self, *moments: tuple[Metric, int, int]) -> Count:
        return replace(self, moments=tuple(sorted([*self.moments, *moments])))

    def attempted(self, now: int) -> Count:
        return replace(self, attempts=self.attempts + 1).stamped((Metric.ATTEMPTS, now, 1))

    def holding(self, call: str, held: Held) -> Count:
        return replace(self, held=tuple(sorted({**dict(self.held), call: held}.items())))

    def remembering(self, call: str, how: str | int) -> Count:
        held = tuple(it for it in self.held if it[0] != call)
        return replace(
            self, held=held, ended=tuple(sorted({**dict(self.ended), call: how}.items()))
        )

    def end(self, call: str, result: str, cost: int | None, now: int) -> Count:
        """The session after a call ended in it."""
        held, before = dict(self.held).get(call), dict(self.ended).get(call, "unknown")
        if held is not None:
            state = self.remembering(call, result)
            return (
                state
                if result == "release"
                else state.ran(result, held.cost if cost is None else cost, held.started, now)
            )
        if result == "release" or before in ("success", "failure", "release"):
            return self
        state = self.remembering(call, result)
        return (
            state.ran(result, cost or 0, now, now)
            if isinstance(before, str)
            else state.corrected(result, cost, before, now)
        )

    def ran(self, result: str, cost: int, started: int, now: int) -> Count:
        good = result == "success"
        ended = (Metric.SUCCESSES if good else Metric.FAILURES, now, 1)
        return replace(
            self,
            executions=self.executions + 1,
            successes=self.successes + good,
            failures=self.failures + (not good),
            consecutive=0 if good else self.consecutive + 1,
            spent=self.spent + cost,
        ).stamped((Metric.EXECUTIONS, started, 1), (Metric.AMOUNT, started, cost), ended)

    def corrected(self, result: str, cost: int | None, counted: int, now: int) -> Count:
        """A call that was counted as failed, with the cost it had reserved, ends after all. What it
        cost more counts from now.
        """
        state = self if cost is None else replace(self, spent=self.spent - counted + cost)
        if cost is not None and cost > counted:
            state = state.stamped((Metric.AMOUNT, now, cost - counted))
        if result == "failure":
            return state
        better = replace(
            state, failures=state.failures - 1, successes=state.successes + 1, consecutive=0
        )
        return better.stamped((Metric.SUCCESSES, now, 1))

    def expired(self, now: int) -> Count:
        state = self
        for call, held in self.held:
            if held.expires is not None and held.expires <= now:
                how = held.cost if held.counts else "released"
                state = state.end(
                    call, "failure" if held.counts else "release", None, now
                ).remembering(call, how)
        return state


@dataclass(frozen=True)
class Model:
    sessions: dict[str, Count] = field(default_factory=dict)
    now: int = 0

    def key(self) -> Any:
        return frozenset(self.sessions.items())

    def count(self, sid: str) -> Count:
        return self.sessions.get(sid, Count())

    def with_counts(self, changed: dict[str, Count]) -> Model:
        return replace(self, sessions={**self.sessions, **changed})

    def reserve(
        self,
        sid: str,
        call: str,
        parents: tuple[str, ...],
        *,
        attempt: bool = True,
        hold: bool = True,
        enforce: bool = True,
        cost: int | None = None,
        limits: tuple[Limit, ...] = LIMITS,
        lease_s: int | None = None,
        counts: bool = False,
        scopes: tuple[str, ...] = (),
        scope_limits: tuple[Limit, ...] = (),
    ) -> tuple[Model, bool]:
        """``scopes`` are accounts with limits of their own; parents have the session's."""
        if call in dict(self.count(sid).held):
            return self, True
        # a session above that holds it still, because only its own was reset, has counted it
        name = f"{sid}/{call}"
        others = [it for it in (*parents, *scopes) if name not in dict(self.count(it).held)]
        names = {sid: call, **dict.fromkeys(others, name)}
        tried = {
            it: self.count(it).attempted(self.now) if attempt else self.count(it) for it in names
        }
        granted = not enforce or not any(
            count.is_full(scope_limits if it in scopes else limits, cost, attempt, hold, self.now)
            for it, count in tried.items()
        )
        if granted and hold:
            held = Held(
                cost or 0, self.now, None if lease_s is None else self.now + lease_s, counts
            )
            tried = {it: count.holding(names[it], held) for it, count in tried.items()}
        return self.with_counts(tried), granted

    def settle(
        self, sid: str, call: str, parents: tuple[str, ...], result: str, cost: int | None
    ) -> Model:
        changed = {sid: self.count(sid).end(call, result, cost, self.now)}
        changed |= {
            parent: self.count(parent).end(f"{sid}/{call}", result, cost, self.now)
            for parent in parents
        }
        return self.with_counts(changed)

    def renew(
        self, sid: str, call: str, parents: tuple[str, ...], lease_s: int
    ) -> tuple[Model, bool]:
        if call not in dict(self.count(sid).held):
            return self, False
        changed = {}
        for it, name in {sid: call, **dict.fromkeys(parents, f"{sid}/{call}")}.items():
            if held := dict(self.count(it).held).get(name):
                changed[it] = self.count(it).holding(
                    name, replace(held, expires=self.now + lease_s)
                )
        return self.with_counts(changed), True

    def advance(self, seconds: int) -> Model:
        now = self.now + seconds
        return Model({sid: count.expired(now) for sid, count in self.sessions.items()}, now)

    def reset(self, sid: str) -> Model:
        return replace(
            self, sessions={it: count for it, count in self.sessions.items() if it != sid}
        )
