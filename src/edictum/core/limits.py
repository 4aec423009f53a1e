"""What limits mean, and which counters a call touches.

A session keeps counters per *scope*: ``""`` is the whole session, any other scope is a tool's name or a glob that a limit
names. Each scope counts attempts, executions, successes, failures and consecutive failures, and how many calls are in flight.

A limit is never read and then acted on: one atomic ``reserve`` checks all limits of a call and takes its slots. A call in
flight may turn out a success or a failure, so it holds a slot of executions, of successes and of failures; ``commit`` gives
back the ones it did not use. ``max_consecutive_failures`` alone is a circuit breaker: it looks at finished calls only.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from edictum.core._draft import record
from edictum.errors import EdictumConfigError

WHOLE_SESSION = ""


class Metric(StrEnum):
    ATTEMPTS = "attempts"
    EXECUTIONS = "executions"
    SUCCESSES = "successes"
    FAILURES = "failures"
    CONSECUTIVE_FAILURES = "consecutive_failures"


RESERVED = frozenset({Metric.EXECUTIONS, Metric.SUCCESSES, Metric.FAILURES})  # a call in flight counts towards these


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """At most ``maximum`` of ``metric`` in ``scope``, ever or within the last ``window_s`` seconds."""

    name: str
    metric: Metric
    maximum: int
    scope: str = WHOLE_SESSION
    window_s: float | None = None
    enforce: bool = True
    source: str = "operation_limit"
    message: str | None = None
    contract_id: str | None = None

    def reason(self, used: int, in_flight: int) -> str:
        """Why a call was refused, for the model and the audit."""
        if self.message:
            return self.message
        if self.metric is Metric.ATTEMPTS:
            return f"Attempt limit reached ({self.maximum}). Agent may be stuck in a retry loop. Stop and reassess."
        busy = f"; {in_flight} still running" if in_flight and self.metric in RESERVED else ""
        within = f" within {self.window_s:g} s" if self.window_s else ""
        if self.scope:
            return f"Per-tool limit: {self.scope} has {used} {self.metric.replace('_', ' ')}{within} (limit: {self.maximum}{busy})."
        if self.metric is Metric.EXECUTIONS:
            return f"Execution limit reached ({self.maximum} calls{within}{busy}). Summarize progress and stop."
        return f"Limit reached: {used} {self.metric.replace('_', ' ')}{within} (limit: {self.maximum}{busy}). Summarize progress and stop."


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise EdictumConfigError(f"OperationLimits: {name} is {value!r}.", hint="Use a whole number of 0 or more, or None for no limit.")
    return value


@dataclass(frozen=True, slots=True)
class OperationLimits:
    """Limits of one session. ``None`` means no limit; per-tool keys are names or globs (a glob's tools share one count)."""

    max_attempts: int | None = 500
    max_tool_calls: int | None = 200
    max_calls_per_tool: Mapping[str, int] = field(default_factory=dict)
    max_successes: int | None = None
    max_failures: int | None = None
    max_consecutive_failures: int | None = None
    max_successes_per_tool: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in SESSION_FIELDS:
            if (value := getattr(self, name)) is not None:
                _whole(name, value)
        for name in TOOL_FIELDS:
            table = getattr(self, name)
            if not isinstance(table, Mapping):
                raise EdictumConfigError(f"OperationLimits: {name} is {table!r}.", hint="Use a dict of tool name to whole number.")
            for tool, value in table.items():
                if not isinstance(tool, str) or not tool:
                    raise EdictumConfigError(f"OperationLimits: {name} has the key {tool!r}.", hint="Use tool names or globs.")
                _whole(f"{name}[{tool!r}]", value)
            object.__setattr__(self, name, dict(table))

    def tighter(self, other: OperationLimits) -> OperationLimits:
        """The stricter of the two in every respect."""
        merged: dict[str, Any] = {}
        for name in SESSION_FIELDS:
            values = [v for v in (getattr(self, name), getattr(other, name)) if v is not None]
            merged[name] = min(values, default=None)
        for name in TOOL_FIELDS:
            mine, theirs = getattr(self, name), getattr(other, name)
            merged[name] = {tool: min(t[tool] for t in (mine, theirs) if tool in t) for tool in {**mine, **theirs}}
        return OperationLimits(**merged)

    def compiled(self) -> tuple[Limit, ...]:
        """One Limit per bound that is set, attempts first."""
        limits = [Limit(name=name, metric=metric, maximum=getattr(self, name), source=_source(metric))
                  for name, metric in SESSION_FIELDS.items() if getattr(self, name) is not None]  # fmt: skip
        for name, metric in TOOL_FIELDS.items():
            limits += [
                Limit(name=f"{name}:{tool}", metric=metric, maximum=bound, scope=tool) for tool, bound in getattr(self, name).items()
            ]
        return tuple(limits)


SESSION_FIELDS = {
    "max_attempts": Metric.ATTEMPTS,
    "max_tool_calls": Metric.EXECUTIONS,
    "max_successes": Metric.SUCCESSES,
    "max_failures": Metric.FAILURES,
    "max_consecutive_failures": Metric.CONSECUTIVE_FAILURES,
}
TOOL_FIELDS = {"max_calls_per_tool": Metric.EXECUTIONS, "max_successes_per_tool": Metric.SUCCESSES}


def _source(metric: Metric) -> str:
    return "attempt_limit" if metric is Metric.ATTEMPTS else "operation_limit"


def limits_for(tool: str, limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """The limits that a call of ``tool`` must respect."""
    return tuple(limit for limit in limits if limit.scope in (WHOLE_SESSION, tool) or fnmatch.fnmatchcase(tool, limit.scope))


def scopes_for(tool: str, limits: tuple[Limit, ...]) -> tuple[str, ...]:
    """The scopes in which a call of ``tool`` is counted: the session, the tool, and each glob that limits it."""
    return tuple(dict.fromkeys((WHOLE_SESSION, tool, *(limit.scope for limit in limits))))


@record
class Reservation:
    """What a call asks of the ledger before it runs, in one atomic step.

    ``hold=False`` counts the attempt and looks, but takes no slot. ``enforce=False`` (a guard that observes) reports full
    limits and grants all the same. A lease that ends before the call does returns its slots, or, with ``expiry_counts``,
    counts the call as a failed execution: for tools whose effect cannot be taken back.
    """

    session_id: str
    call_id: str
    scopes: tuple[str, ...]
    limits: tuple[Limit, ...]
    count_attempt: bool = True
    hold: bool = True
    enforce: bool = True
    lease_s: float | None = None
    expiry_counts: bool = False


@record
class Settlement:
    """How a held reservation ends: the call succeeded, it failed, or it never ran and everything is given back."""

    session_id: str
    call_id: str
    scopes: tuple[str, ...]
    limits: tuple[Limit, ...]
    result: Literal["success", "failure", "release"]


@record
class Counters:
    """A session's counters at one moment. ``executions`` are finished calls; ``in_flight`` are running ones."""

    attempts: int = 0
    executions: int = 0
    successes: int = 0
    failures: int = 0
    consecutive_failures: int = 0
    in_flight: int = 0


NO_COUNTERS = Counters()


@record
class Breach:
    """A limit that was full, with the numbers it was judged by."""

    limit: Limit
    used: int
    in_flight: int

    @property
    def reason(self) -> str:
        return self.limit.reason(self.used, self.in_flight)


@record
class Grant:
    """The ledger's answer: granted unless an enforced limit is full; all full limits are named."""

    granted: bool
    counters: Counters
    breaches: tuple[Breach, ...] = ()


@record
class SessionSnapshot:
    """All counters of a session: the whole, per tool, and how many calls are in flight."""

    session_id: str
    totals: Counters
    per_tool: Mapping[str, Counters]
