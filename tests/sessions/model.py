"""A sequential model of a ledger, written to be read: no leases that run out, no windows, one limit of each kind.

It is not the memory ledger, so that the two can disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from edictum.core.limits import OperationLimits

BOUNDS = {"max_attempts": 14, "max_tool_calls": 5, "max_successes": 4, "max_failures": 3, "max_consecutive_failures": 2, "max_cost": 1.0}
LIMITS = OperationLimits(**BOUNDS).compiled()  # type: ignore[arg-type]


@dataclass(frozen=True)
class Count:
    """One session. ``held`` and ``ended`` are calls, under the name they have in this session."""

    attempts: int = 0
    executions: int = 0
    successes: int = 0
    failures: int = 0
    consecutive: int = 0
    spent: int = 0
    held: tuple[tuple[str, int], ...] = ()
    ended: frozenset[str] = frozenset()

    def counters(self) -> tuple[int, ...]:
        return (self.attempts, self.executions, self.successes, self.failures, self.consecutive, len(self.held))

    def is_full(self, cost: int | None, counts_attempt: bool) -> bool:
        running, reserved = len(self.held), sum(amount for _, amount in self.held)
        budget = self.spent + reserved >= 1_000_000 if cost is None else self.spent + reserved + cost > 1_000_000
        return (
            (counts_attempt and self.attempts > BOUNDS["max_attempts"])
            or self.executions + running >= BOUNDS["max_tool_calls"]
            or self.successes + running >= BOUNDS["max_successes"]
            or self.failures + running >= BOUNDS["max_failures"]
            or self.consecutive >= BOUNDS["max_consecutive_failures"]
            or budget
        )

    def end(self, call: str, result: str, cost: int | None) -> Count:
        """The session after a call ended in it."""
        held = dict(self.held)
        if call in held:
            reserved = held.pop(call)
            state = replace(self, held=tuple(sorted(held.items())), ended=self.ended | {call})
            return state if result == "release" else state.ran(result, reserved if cost is None else cost)
        if result == "release" or call in self.ended:
            return self
        return replace(self, ended=self.ended | {call}).ran(result, cost or 0)

    def ran(self, result: str, cost: int) -> Count:
        good = result == "success"
        return replace(
            self,
            executions=self.executions + 1,
            successes=self.successes + good,
            failures=self.failures + (not good),
            consecutive=0 if good else self.consecutive + 1,
            spent=self.spent + cost,
        )


@dataclass(frozen=True)
class Model:
    sessions: dict[str, Count] = field(default_factory=dict)

    def key(self) -> Any:
        return frozenset(self.sessions.items())

    def count(self, sid: str) -> Count:
        return self.sessions.get(sid, Count())

    def with_counts(self, changed: dict[str, Count]) -> Model:
        return Model({**self.sessions, **changed})

    def reserve(
        self, sid: str, call: str, parents: tuple[str, ...], *, attempt: bool, hold: bool, enforce: bool, cost: int | None
    ) -> tuple[Model, bool]:
        if call in dict(self.count(sid).held):
            return self, True
        names = {sid: call, **dict.fromkeys(parents, f"{sid}/{call}")}
        counts = {it: replace(self.count(it), attempts=self.count(it).attempts + attempt) for it in names}
        granted = not enforce or not any(count.is_full(cost, attempt) for count in counts.values())
        if granted and hold:
            counts = {
                it: replace(count, held=tuple(sorted({**dict(count.held), names[it]: cost or 0}.items()))) for it, count in counts.items()
            }
        return self.with_counts(counts), granted

    def settle(self, sid: str, call: str, parents: tuple[str, ...], result: str, cost: int | None) -> Model:
        changed = {sid: self.count(sid).end(call, result, cost)}
        changed |= {parent: self.count(parent).end(f"{sid}/{call}", result, cost) for parent in parents}
        return self.with_counts(changed)

    def reset(self, sid: str) -> Model:
        return Model({it: count for it, count in self.sessions.items() if it != sid})
