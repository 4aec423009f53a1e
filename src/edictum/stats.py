"""Stats: what ``guard.stats()`` returns, as frozen values that are ready for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class CallCount:
    """How many calls of a tool ended in one way.

    ``decision`` is "allow", "deny" or "approve" (a person was asked, and did not approve);
    ``source`` is what decided, None where nothing objected; ``outcome`` is "executed", "failed",
    "timeout", "artifact", "denied" or "paused".
    """

    tool: str
    decision: str
    source: str | None
    outcome: str
    count: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """How long something took: ``counts[n]`` took less than ``bounds_s[n]``, and at least as long
    as the bound before; ``total_s`` all together. What took less than the first bound (a
    millisecond for tools, a microsecond elsewhere) adds nothing to the total.
    """

    bounds_s: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    total_s: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def percentile(self, percent: float) -> float | None:
        """Return the bound below which this many percent lie; None when nothing was timed."""
        wanted, seen = self.count * percent / 100, 0
        for bound, count in zip(self.bounds_s, self.counts, strict=True):
            seen += count
            if count and seen >= wanted:
                return bound
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The figures of one guard in one process, since the guard was made or the process forked.

    ``latency`` has "gate" (from asking until the decision is recorded; in memory one call in 64 is
    timed and counted as 64), "ledger" (each answer of a store outside this process), "tool" (the
    body; ``tool_latency`` has it by tool), "audit" (each event given to the guard's sinks) and
    "approval" (the wait for a person).

    ``circuit`` is "closed" or "open", None for a ledger without one, and ``circuit_reason`` why it
    is open. ``uncounted_calls`` have ended and wait for the store to count them.
    ``threads_left_behind`` are calls by tool that ran out of time and are still running,
    ``functions_left_behind`` user-supplied functions of all guards of the process. ``processes``
    are the workers of ``run_in: process``, busy and idle. ``audit_failures`` are events that a sink
    did not take, ``audit_dropped`` those that found no room in a sink that drops them, of all
    guards that share it. ``prompts`` is how often a person was asked, ``consequential_calls`` how
    many calls of tools that write or are irreversible have ended. ``sessions`` are those held in
    the memory of this process, None where a store holds them.
    """

    policy_version: str | None
    calls: tuple[CallCount, ...] = ()
    latency: dict[str, Histogram] = field(default_factory=dict)
    tool_latency: dict[str, Histogram] = field(default_factory=dict)
    circuit: str | None = None
    circuit_reason: str | None = None
    uncounted_calls: int = 0
    threads_left_behind: dict[str, int] = field(default_factory=dict)
    functions_left_behind: int = 0
    processes: int = 0
    audit_failures: int = 0
    audit_dropped: int = 0
    prompts: int = 0
    consequential_calls: int = 0
    sessions: int | None = None

    @property
    def prompts_per_100(self) -> float | None:
        """How often a person was asked per 100 consequential calls; None without such calls."""
        calls = self.consequential_calls
        return 100 * self.prompts / calls if calls else None

    def count(self, **wanted: str | None) -> int:
        """Return how many calls have these fields: ``count(tool="search", outcome="denied")``."""
        return sum(
            call.count
            for call in self.calls
            if all(getattr(call, name) == value for name, value in wanted.items())
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-ready data."""
        return {**asdict(self), "prompts_per_100": self.prompts_per_100}
