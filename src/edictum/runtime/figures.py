"""Figures: what a guard counts about its calls, read by ``guard.stats()``.

Every call pays for it, so counting is a few additions to plain slots and list items, each of which
the interpreter does in one step: no other thread can come in between. Everything rarer takes the
lock.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from edictum._audit_event import AuditAction
from edictum.core.call import CONSEQUENTIAL, SideEffect
from edictum.core.effects import Ask, AwaitDecision
from edictum.core.events import CALL_ALLOWED, Entry
from edictum.core.limits import Reservation, Settlement
from edictum.execution.forks import call_in_child, protect
from edictum.stats import CallCount, Histogram

MAX_COUNTED_TOOLS: Final = 1_000  # a model can invent any number of names
OTHER_TOOLS: Final = "(other)"  # what the tools beyond that are counted as
BUCKETS: Final = 48
SAMPLED: Final = 64  # of the calls that the fast path takes, one in so many is timed at the gate
EndKey = tuple[str, str | None, str]  # the decision, what decided, the outcome
EXECUTED: Final[EndKey] = ("allow", None, "executed")
FAILED: Final[EndKey] = ("allow", None, "failed")


class Durations:
    """Counts durations: bucket n holds those of less than 2**n units."""

    __slots__ = ("counts", "total_s", "unit_s")

    def __init__(self, unit_s: float) -> None:
        self.unit_s = unit_s
        self.counts = [0] * BUCKETS
        self.total_s = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a duration. One that is negative, because a clock was set back, counts as 0."""
        units = int(seconds / self.unit_s)
        self.counts[min(units.bit_length(), BUCKETS - 1) if units > 0 else 0] += times
        if units > 0:
            self.total_s += seconds * times

    def clear(self) -> None:
        self.counts[:] = [0] * BUCKETS
        self.total_s = 0.0

    def read(self) -> Histogram:
        return make_histogram(self.unit_s, self.counts, self.total_s)


def make_histogram(unit_s: float, buckets: Sequence[int], total_s: float) -> Histogram:
    """Return the buckets up to the last one that is used."""
    counts = list(buckets)
    while counts and not counts[-1]:
        counts.pop()
    bounds = (unit_s * 2**bucket for bucket in range(len(counts)))
    return Histogram(tuple(bounds), tuple(counts), total_s)


class ToolTally:
    """The calls of one tool: how they ended, and how long they ran.

    ``executed_at_once`` are the usual calls on the fast path: allowed, executed, in less than a
    millisecond.
    """

    __slots__ = ("_lock", "ends", "executed_at_once", "side_effect", "took")

    def __init__(self) -> None:
        self.side_effect = SideEffect.IRREVERSIBLE
        self.took = Durations(1e-3)
        self.ends: dict[EndKey, int] = {}
        self.clear()

    def clear(self) -> None:
        self._lock = threading.Lock()  # in a forked child another thread may have held it
        self.executed_at_once = 0
        self.ends.clear()
        self.took.clear()

    def add(self, end: EndKey, elapsed_ms: int | None = None) -> None:
        """Count a call, and how long it ran if it did."""
        with self._lock:
            self.ends[end] = self.ends.get(end, 0) + 1
            if elapsed_ms is not None:
                self.took.add(elapsed_ms / 1_000)

    def read_ends(self) -> dict[EndKey, int]:
        with self._lock:
            ends = dict(self.ends)
        if self.executed_at_once:
            ends[EXECUTED] = ends.get(EXECUTED, 0) + self.executed_at_once
        return ends

    def read_times(self) -> list[int]:
        first, *rest = self.took.counts
        return [first + self.executed_at_once, *rest]


class Tallies(dict[str, ToolTally]):
    """The tallies by tool, made when they are first asked for."""

    def __missing__(self, tool: str) -> ToolTally:
        if len(self) >= MAX_COUNTED_TOOLS:
            tool = OTHER_TOOLS
        return self.setdefault(tool, ToolTally())


class Figures:
    """The counters of one guard. A forked child starts anew."""

    def __init__(self) -> None:
        self.tallies = Tallies()
        self.gate, self.ledger = Durations(1e-6), Durations(1e-6)
        self.audit, self.approval = Durations(1e-6), Durations(1e-3)
        self.audit_failures = self.prompts = 0
        self._awaited: dict[type[Any], Durations] = {
            Reservation: self.ledger,
            Settlement: self.ledger,
            Entry: self.audit,
            Ask: self.approval,
            AwaitDecision: self.approval,
        }
        self._lock = threading.Lock()
        protect(self)
        call_in_child(self._clear)

    def _clear(self) -> None:
        """Reset everything in place: the fast path holds references to the parts."""
        for tally in self.tallies.values():
            tally.clear()
        for durations in (self.gate, self.ledger, self.audit, self.approval):
            durations.clear()
        self.audit_failures = self.prompts = 0

    def add_sample(self, seconds: float) -> None:
        """Count how long a call spent at the gate. It stands for ``SAMPLED`` such calls."""
        self.gate.add(seconds, SAMPLED)

    def count_entry(self, entry: Entry) -> None:
        """Count a decision or the end of a call, if the event is about one."""
        closing, action = entry.closing, entry.action
        if action is CALL_ALLOWED or action is AuditAction.CALL_DENIED:
            self.gate.add(entry.at - entry.call.started_at)
        if action is AuditAction.CALL_PAUSED:
            self._count_end(entry, "paused")
        elif action is AuditAction.CALL_APPROVAL_REQUESTED:
            with self._lock:
                self.prompts += 1
        elif closing is not None and closing.outcome is not None:
            ran = closing.verdict is not None
            self._count_end(entry, closing.outcome, closing.duration_ms if ran else None)

    def _count_end(self, entry: Entry, outcome: str, elapsed_ms: int | None = None) -> None:
        end = (entry.decision.effect, entry.decision.source, outcome)
        tally = self.tallies[entry.call.tool_name]
        tally.side_effect = entry.call.side_effect
        tally.add(end, elapsed_ms)

    def count_wait(self, effect: object, seconds: float) -> None:
        """Count how long the answer of a port took."""
        durations = self._awaited.get(type(effect))
        if durations is not None:
            durations.add(seconds)

    def count_audit_failure(self) -> None:
        with self._lock:
            self.audit_failures += 1

    def read_calls(self) -> tuple[CallCount, ...]:
        """Return the calls that have ended, by tool and by how they ended."""
        return tuple(
            CallCount(tool, *end, count)
            for tool, tally in self._sort_tallies()
            for end, count in tally.read_ends().items()
        )

    def count_consequential(self) -> int:
        """Return how many calls have ended of tools that write or are irreversible."""
        return sum(
            sum(tally.read_ends().values())
            for tally in list(self.tallies.values())
            if tally.side_effect in CONSEQUENTIAL
        )

    def read_tools(self) -> dict[str, Histogram]:
        """Return how long the bodies of each tool took."""
        return {
            tool: make_histogram(1e-3, tally.read_times(), tally.took.total_s)
            for tool, tally in self._sort_tallies()
        }

    def _sort_tallies(self) -> list[tuple[str, ToolTally]]:
        return sorted(self.tallies.copy().items(), key=itemgetter(0))

    def read_latency(self) -> dict[str, Histogram]:
        """Return how long the parts of a call took; "tool" combines all tools."""
        tallies = list(self.tallies.values())
        times = [tally.read_times() for tally in tallies]
        tool = [sum(column) for column in zip(*times, strict=True)]
        total_s = sum(tally.took.total_s for tally in tallies)
        names = ("gate", "ledger", "audit", "approval")
        read = {name: getattr(self, name).read() for name in names}
        return {**read, "tool": make_histogram(1e-3, tool, total_s)}
