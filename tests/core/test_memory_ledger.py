"""The in-memory ledger against a simple sequential model, in any order of operations."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edictum.core.limits import Limit, Metric, Reservation, Settlement, limits_for, tools_for
from edictum.sessions import MemoryLedger
from support.effort import effort

TOOLS = ("read", "send_a", "send_b")
LIMITS = (
    Limit(name="attempts", metric=Metric.ATTEMPTS, maximum=25),
    Limit(name="calls", metric=Metric.EXECUTIONS, maximum=12),
    Limit(name="successes", metric=Metric.SUCCESSES, maximum=7),
    Limit(name="failures", metric=Metric.FAILURES, maximum=6),
    Limit(name="streak", metric=Metric.CONSECUTIVE_FAILURES, maximum=3),
    Limit(name="read", metric=Metric.EXECUTIONS, maximum=4, tool="read"),
    Limit(name="send", metric=Metric.SUCCESSES, maximum=3, tool="send_*"),
    Limit(name="watched", metric=Metric.EXECUTIONS, maximum=2, tool="send_b", enforce=False),
)


@dataclass
class Model:
    """What a person with pencil and paper would keep: each call, and how it ended."""

    attempts: int = 0
    running: dict[str, str] = field(default_factory=dict)
    ended: list[tuple[str, bool]] = field(default_factory=list)

    def count(self, limit: Limit) -> int:
        def concerns(tool: str) -> bool:
            return limit in limits_for(tool, (limit,))

        ended = [success for tool, success in self.ended if concerns(tool)]
        running = sum(concerns(tool) for tool in self.running.values())
        if limit.metric is Metric.EXECUTIONS:
            return len(ended) + running
        if limit.metric is Metric.SUCCESSES:
            return sum(ended) + running
        if limit.metric is Metric.FAILURES:
            return len(ended) - sum(ended) + running
        streak = 0
        for success in reversed(ended):
            if success:
                break
            streak += 1
        return streak

    def full(self, tool: str, counts_attempt: bool, hold: bool) -> list[str]:
        """What is full for a call; one that neither counts nor holds only looks whether the next
        attempt would be one too many.
        """
        names = []
        for limit in limits_for(tool, LIMITS):
            if limit.metric is Metric.ATTEMPTS:
                if (
                    self.attempts > limit.maximum
                    if counts_attempt
                    else not hold and self.attempts >= limit.maximum
                ):
                    names.append(limit.name)
            elif self.count(limit) >= limit.maximum:
                names.append(limit.name)
        return names


class LedgerAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = MemoryLedger()
        self.model = Model()
        self.ids = 0

    def reservation(self, tool: str, **options: bool) -> Reservation:
        limits = limits_for(tool, LIMITS)
        return Reservation("s", f"c-{self.ids}", tools_for(tool, limits), limits, **options)

    @rule(
        tool=st.sampled_from(TOOLS), counts=st.booleans(), hold=st.booleans(), enforce=st.booleans()
    )
    def reserve(self, tool: str, counts: bool, hold: bool, enforce: bool) -> None:
        self.ids += 1
        grant = self.ledger.reserve(
            self.reservation(tool, count_attempt=counts, hold=hold, enforce=enforce)
        )
        self.model.attempts += counts
        full = self.model.full(tool, counts, hold)
        refused = any(limit.name in full for limit in LIMITS if limit.enforce)
        assert [breach.limit.name for breach in grant.breaches] == full
        assert grant.granted is (not refused or not enforce)
        if grant.granted and hold:
            self.model.running[f"c-{self.ids}"] = tool

    @precondition(lambda self: self.model.running)
    @rule(data=st.data())
    def reserve_again(self, data: st.DataObject) -> None:
        """A retry after a lost answer."""
        call_id = data.draw(st.sampled_from(sorted(self.model.running)))
        tool = self.model.running[call_id]
        limits = limits_for(tool, LIMITS)
        assert self.ledger.reserve(
            Reservation("s", call_id, tools_for(tool, limits), limits)
        ).granted

    @precondition(lambda self: self.model.running)
    @rule(
        data=st.data(),
        result=st.sampled_from(["success", "failure", "release"]),
        again=st.booleans(),
    )
    def settle(self, data: st.DataObject, result: str, again: bool) -> None:
        call_id = data.draw(st.sampled_from(sorted(self.model.running)))
        tool = self.model.running.pop(call_id)
        limits = limits_for(tool, LIMITS)
        for _ in range(1 + again):
            self.ledger.settle(Settlement("s", call_id, tools_for(tool, limits), limits, result))  # type: ignore[arg-type]
        if result != "release":
            self.model.ended.append((tool, result == "success"))

    @rule()
    def reset_another_session(self) -> None:
        self.ledger.reset("other")

    @invariant()
    def the_counters_agree(self) -> None:
        snapshot = self.ledger.snapshot("s")
        totals, successes = snapshot.totals, sum(success for _, success in self.model.ended)
        assert (totals.attempts, totals.executions, totals.in_flight) == (
            self.model.attempts,
            len(self.model.ended),
            len(self.model.running),
        )
        assert (totals.successes, totals.failures) == (successes, len(self.model.ended) - successes)
        for tool in TOOLS:
            if tool in snapshot.per_tool:
                counted = snapshot.per_tool[tool]
                assert counted.executions == sum(name == tool for name, _ in self.model.ended)
                assert counted.in_flight == sum(
                    name == tool for name in self.model.running.values()
                )


TestLedgerAgainstModel = LedgerAgainstModel.TestCase
TestLedgerAgainstModel.settings = settings(
    deadline=None, max_examples=effort(20), stateful_step_count=60, derandomize=True
)
