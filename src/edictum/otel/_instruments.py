"""The instruments: the duration of calls, and counters for decisions, approvals and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from edictum._audit_event import AuditAction
from edictum.core.events import Entry
from edictum.otel._attributes import Attributes
from edictum.runtime.figures import MAX_COUNTED_TOOLS, OTHER_TOOLS
from edictum.runtime.observation import OBSERVATION
from edictum.stats import Stats

# Those that the conventions advise for durations of operations.
BOUNDS_S: Final = tuple(0.01 * 2**power for power in range(14))
APPROVAL_ACTIONS: Final = {
    AuditAction.CALL_APPROVAL_REQUESTED: "requested",
    AuditAction.CALL_APPROVAL_GRANTED: "granted",
    AuditAction.CALL_APPROVAL_DENIED: "denied",
    AuditAction.CALL_APPROVAL_TIMEOUT: "timeout",
    AuditAction.CALL_APPROVAL_WITHDRAWN: "withdrawn",
    AuditAction.CALL_APPROVAL_VOID: "void",
    AuditAction.CALL_GRANT_USED: "grant_used",
}
COUNTED_KEYS: Final = ("edictum.decision", "edictum.decision.source", "edictum.outcome")
LIMIT_KEYS: Final = ("edictum.decision.source", "edictum.decision.name")
Read = Callable[[Stats], float]
# What is read from ``guard.stats()`` when metrics are collected, summed over the guards.
GAUGES: Final[tuple[tuple[str, str, str, Read], ...]] = (
    ("edictum.ledger.circuits_open", "{guard}", "Guards whose store is not asked: it fails.",
     lambda stats: stats.circuit == "open"),
    ("edictum.calls.uncounted", "{call}", "Calls that wait for the store to count them.",
     lambda stats: stats.uncounted_calls),
    ("edictum.threads.left_behind", "{thread}", "Calls whose time is over and that still run.",
     lambda stats: sum(stats.threads_left_behind.values())),
    ("edictum.sessions", "{session}", "Sessions held in the memory of this process.",
     lambda stats: stats.sessions or 0),
)  # fmt: skip  # a table


class Instruments:
    """What one meter counts."""

    def __init__(self, meter: Meter) -> None:
        self._tools: set[str] = set()
        self._duration = meter.create_histogram(
            "gen_ai.execute_tool.duration",
            "s",
            "How long a tool call took, from asking until its outcome.",
            explicit_bucket_boundaries_advisory=list(BOUNDS_S),
        )
        self._calls = meter.create_counter(
            "edictum.calls", "{call}", "Calls by tool, decision and outcome."
        )
        self._approvals = meter.create_counter(
            "edictum.approvals", "{approval}", "Approvals that were asked for, and their ends."
        )
        self._limits = meter.create_counter(
            "edictum.limits.exceeded", "{call}", "Calls that a limit refused."
        )
        for name, unit, text, read in GAUGES:
            meter.create_observable_gauge(name, [_make_callback(read)], unit, text)

    def name_tool(self, tool: str) -> str:
        """Return the tool's name, or one shared name once there are too many: a model can invent
        any number.
        """
        if tool not in self._tools:
            if len(self._tools) >= MAX_COUNTED_TOOLS:
                return OTHER_TOOLS
            self._tools.add(tool)
        return tool

    def count_call(self, tool: str, seconds: float, said: Attributes) -> None:
        """Count a call that has ended, with the attributes of its span."""
        name = {"gen_ai.tool.name": self.name_tool(tool)}
        self._calls.add(1, {**name, **_pick(said, COUNTED_KEYS)})
        operation = {"gen_ai.operation.name": "execute_tool"}
        self._duration.record(seconds, {**operation, **name, **_pick(said, ("error.type",))})
        if said.get("edictum.outcome") == "denied" and said.get("error.type") == "limit":
            self._limits.add(1, {**name, **_pick(said, LIMIT_KEYS)})

    def count_entry(self, entry: Entry) -> None:
        """Count what happened to an approval, if the event tells of one."""
        result = APPROVAL_ACTIONS.get(entry.action)
        if result is not None:
            tool = self.name_tool(entry.call.tool_name)
            self._approvals.add(1, {"gen_ai.tool.name": tool, "edictum.approval.result": result})


def _pick(said: Attributes, keys: tuple[str, ...]) -> Attributes:
    return {key: said[key] for key in keys if key in said}


def _make_callback(read: Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(options: CallbackOptions) -> Iterator[Observation]:
        yield Observation(sum(read(guard.stats()) for guard in OBSERVATION.list_guards()))

    return observe
