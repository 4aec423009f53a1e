"""What limits mean, and which counters a call touches.

A session keeps counters per *scope*: ``""`` is the whole session, any other scope is a tool's name
or a glob that a limit names. Each scope counts attempts, executions, successes, failures and
consecutive failures, and how many calls are in flight.

A limit is never read and then acted on: one atomic ``reserve`` checks all limits of a call and
takes its slots. A call in flight may turn out a success or a failure, so it holds a slot of
executions, of successes and of failures; ``commit`` gives back the ones it did not use.
``max_consecutive_failures`` alone is a circuit breaker: it looks at finished calls only. With a
window it counts those failures of the row that are inside it, so that it closes by itself when they
are old. The row is made of the latest failures there are: how many of them are inside is the
smaller one of the row's length and of the failures inside.

Budgets use the same step: a call reserves the amount it expects to use, commits what it used, and
the rest is given back. Amounts are kept as whole millionths, so that ten times 0.1 is exactly 1 in
every ledger.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from edictum.core._records import record, replace
from edictum.core.freeze import EMPTY
from edictum.core.wait_policy import RESERVE, SETTLE
from edictum.errors import EdictumConfigError

WHOLE_SESSION = ""


class Metric(StrEnum):
    ATTEMPTS = "attempts"
    EXECUTIONS = "executions"
    SUCCESSES = "successes"
    FAILURES = "failures"
    CONSECUTIVE_FAILURES = "consecutive_failures"
    AMOUNT = "amount"


RESERVED = frozenset(
    {Metric.EXECUTIONS, Metric.SUCCESSES, Metric.FAILURES}
)  # a call in flight counts towards these
SINGULAR = {
    Metric.EXECUTIONS: "execution",
    Metric.SUCCESSES: "success",
    Metric.FAILURES: "failure",
    Metric.CONSECUTIVE_FAILURES: "consecutive failure",
}
# Looking a member up on its enum, or hashing one, costs as much as the rest of a comparison;
# ledgers ask thousands of times.
ATTEMPTS = Metric.ATTEMPTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """At most ``maximum`` of ``metric`` in ``scope``, ever or within the last ``window_s``
    seconds.
    """

    name: str
    metric: Metric
    maximum: int
    scope: str = WHOLE_SESSION
    window_s: float | None = None
    enforce: bool = True
    source: str = "operation_limit"
    message: str | None = None
    contract_id: str | None = None
    amount: str | None = (
        None  # what is budgeted, for Metric.AMOUNT; ``maximum`` is then in millionths
    )
    counter: str = field(init=False, repr=False, default="")  # the metric as a plain attribute name
    moments: str = field(
        init=False, repr=False, default=""
    )  # the counter whose moments its window looks at
    reserved: bool = field(init=False, repr=False, default=False)
    plain: bool = field(
        init=False, repr=False, default=True
    )  # judged by a counter alone: neither a window nor an amount

    def __post_init__(self) -> None:
        if (self.metric is Metric.AMOUNT) is not (self.amount is not None):
            raise EdictumConfigError(
                f"Limit {self.name!r}: a budget names its amount.",
                hint="Use metric=Metric.AMOUNT with amount='cost'.",
            )
        if self.metric is Metric.ATTEMPTS and self.scope != WHOLE_SESSION:
            raise EdictumConfigError(
                f"Limit {self.name!r}: attempts are counted per session.",
                hint="Leave out its scope.",
            )
        if self.window_s is not None and not self.window_s > 0:
            raise EdictumConfigError(
                f"Limit {self.name!r}: no window of {self.window_s!r} s.",
                hint="Use more than 0 seconds.",
            )
        object.__setattr__(
            self, "counter", self.metric.value if self.amount is None else f"amount:{self.amount}"
        )
        row = self.metric is Metric.CONSECUTIVE_FAILURES
        object.__setattr__(self, "moments", Metric.FAILURES.value if row else self.counter)
        object.__setattr__(self, "reserved", self.metric in RESERVED)
        object.__setattr__(self, "plain", self.window_s is None and self.amount is None)

    def reason(self, used: int, in_flight: int, asked: int | None = None) -> str:
        """Why a call was refused, for the model and the audit. ``asked`` is the amount that the
        call stated, if it did.
        """
        if self.message:
            return self.message
        if self.metric is Metric.ATTEMPTS:
            return (
                f"Attempt limit reached ({self.maximum}). Agent may be stuck in a retry loop. Stop"
                " and reassess."
            )
        busy = f"; {in_flight} still running" if in_flight and self.metric in RESERVED else ""
        within = f" within {self.window_s:g} s" if self.window_s else ""
        if self.amount is not None:
            held = f"; {in_flight / MILLION:g} reserved by running calls" if in_flight else ""
            what, spent, most = (
                f"{self.amount} of {self.scope}" if self.scope else self.amount,
                used / MILLION,
                self.maximum / MILLION,
            )
            if asked is None:
                return f"Budget reached: {what} is {spent:g}{within} (limit: {most:g}{held})."
            return (
                f"Budget reached: the call asks for {asked / MILLION:g} of {what}, {spent:g} is"
                f" used{within} (limit: {most:g}{held})."
            )
        if self.scope:
            return (
                f"Per-tool limit: {self.scope} has {self._counted(used)}{within} (limit:"
                f" {self.maximum}{busy})."
            )
        if self.metric is Metric.EXECUTIONS:
            return (
                f"Execution limit reached ({self.maximum} calls{within}{busy}). Summarize progress"
                " and stop."
            )
        return (
            f"Limit reached: {self._counted(used)}{within} (limit: {self.maximum}{busy}). Summarize"
            " progress and stop."
        )

    def _counted(self, used: int) -> str:
        return f"{used} {SINGULAR[self.metric] if used == 1 else self.metric.replace('_', ' ')}"


MILLION = 1_000_000
MAX_AMOUNT = 10**12  # sums of a million of these still fit the 64-bit integers of every store
NO_AMOUNTS: Mapping[str, int] = EMPTY


def millionths(name: str, value: Any, down: bool = False) -> int:
    """An amount as the ledgers keep it. Whatever is less than a millionth is rounded up, so that it
    counts; of a bound, ``down``.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 <= value <= MAX_AMOUNT
    ):
        raise EdictumConfigError(
            f"{name} is {value!r}.", hint=f"Use a number from 0 to {MAX_AMOUNT}."
        )
    exact = value * MILLION
    nearest = round(exact)
    if math.isclose(exact, nearest, rel_tol=1e-12):  # 0.1 + 0.2 is not meant to be more than 0.3
        return nearest
    return math.floor(exact) if down else math.ceil(exact)


def amounts_in_millionths(what: str, amounts: Any) -> dict[str, int]:
    """A user's ``{"cost": 0.12}`` as the ledgers keep it."""
    if not isinstance(amounts, Mapping) or not all(
        isinstance(name, str) and name for name in amounts
    ):
        raise EdictumConfigError(
            f"{what} is {amounts!r}.",
            hint='Use a dict of names and numbers, such as {"cost": 0.12}.',
        )
    return {name: millionths(f"{what}[{name!r}]", value) for name, value in amounts.items()}


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise EdictumConfigError(
            f"OperationLimits: {name} is {value!r}.",
            hint="Use a whole number of 0 or more, or None for no limit.",
        )
    return value


@dataclass(frozen=True, slots=True)
class OperationLimits:
    """Limits of one session. ``None`` means no limit; per-tool keys are names or globs (a glob's
    tools share one count).
    """

    max_attempts: int | None = 500
    max_tool_calls: int | None = 200
    max_calls_per_tool: Mapping[str, int] = field(default_factory=dict)
    max_successes: int | None = None
    max_failures: int | None = None
    max_consecutive_failures: int | None = None
    max_successes_per_tool: Mapping[str, int] = field(default_factory=dict)
    max_cost: float | None = None
    max_amounts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        amounts_in_millionths("OperationLimits: max_amounts", self.max_amounts)
        object.__setattr__(self, "max_amounts", dict(self.max_amounts))
        if self.max_cost is not None:
            millionths("OperationLimits: max_cost", self.max_cost)
        for name in SESSION_FIELDS:
            if (value := getattr(self, name)) is not None:
                _whole(name, value)
        for name in TOOL_FIELDS:
            table = getattr(self, name)
            if not isinstance(table, Mapping):
                raise EdictumConfigError(
                    f"OperationLimits: {name} is {table!r}.",
                    hint="Use a dict of tool name to whole number.",
                )
            for tool, value in table.items():
                if not isinstance(tool, str) or not tool:
                    raise EdictumConfigError(
                        f"OperationLimits: {name} has the key {tool!r}.",
                        hint="Use tool names or globs.",
                    )
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
            merged[name] = {
                tool: min(t[tool] for t in (mine, theirs) if tool in t)
                for tool in {**mine, **theirs}
            }
        budgets = (self.budgets(), other.budgets())
        merged["max_amounts"] = {
            name: min(b[name] for b in budgets if name in b)
            for name in {**budgets[0], **budgets[1]}
        }
        return OperationLimits(**merged)

    def budgets(self) -> dict[str, float]:
        """``max_amounts``, with ``max_cost`` as its ``cost``; the smaller one when both name it."""
        budgets = dict(self.max_amounts)
        if self.max_cost is not None:
            budgets["cost"] = min(self.max_cost, budgets.get("cost", self.max_cost))
        return budgets

    def compiled(self) -> tuple[Limit, ...]:
        """One Limit per bound that is set, attempts first."""
        limits = [
            Limit(name=name, metric=metric, maximum=getattr(self, name), source=_source(metric))
            for name, metric in SESSION_FIELDS.items()
            if getattr(self, name) is not None
        ]
        for name, metric in TOOL_FIELDS.items():
            limits += [
                Limit(name=f"{name}:{tool}", metric=metric, maximum=bound, scope=tool)
                for tool, bound in getattr(self, name).items()
            ]
        limits += [
            Limit(
                name="max_cost" if amount == "cost" else f"max_amounts:{amount}",
                metric=Metric.AMOUNT,
                maximum=millionths(amount, bound, down=True),
                amount=amount,
            )
            for amount, bound in self.budgets().items()
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


def tighten_by_bundle(
    limits: OperationLimits | None, session_limits: Iterable[Limit]
) -> OperationLimits:
    """Return ``limits`` tightened by a bundle's lasting, enforced limits. With no ``limits``, what
    the bundle bounds replaces the default.
    """
    session_names = {metric: name for name, metric in SESSION_FIELDS.items()}
    tool_names = {metric: name for name, metric in TOOL_FIELDS.items()}
    bounds: dict[str, Any] = {}
    for limit in session_limits:
        if not limit.enforce or limit.window_s is not None or limit.metric is Metric.AMOUNT:
            continue
        table, key = bounds, session_names[limit.metric]
        if limit.scope:
            table, key = bounds.setdefault(tool_names[limit.metric], {}), limit.scope
        table[key] = min(limit.maximum, table.get(key, limit.maximum))
    if limits is None:
        unset: dict[str, Any] = {name: None for name in SESSION_FIELDS if name in bounds}
        limits = OperationLimits(**unset)
    bundle = OperationLimits(**{"max_attempts": None, "max_tool_calls": None, **bounds})
    return replace(limits.tighter(bundle), max_cost=limits.max_cost, max_amounts=limits.max_amounts)


def compiled_together(
    limits: OperationLimits, session_limits: tuple[Limit, ...], *, enforce: bool
) -> tuple[Limit, ...]:
    """All limits of a policy. A session contract that is at least as strict as a plain limit speaks
    in its place, in its own words.
    """
    own = (
        limits.compiled()
        if enforce
        else tuple(replace(limit, enforce=False) for limit in limits.compiled())
    )
    lasting = [limit for limit in session_limits if limit.window_s is None and limit.enforce]
    strictest: dict[tuple[str, str], int] = {}
    for limit in lasting:
        strictest[_about(limit)] = min(limit.maximum, strictest.get(_about(limit), limit.maximum))
    return (
        tuple(
            limit
            for limit in own
            if strictest.get(_about(limit), limit.maximum + 1) > limit.maximum
        )
        + session_limits
    )


def _about(limit: Limit) -> tuple[str, str]:
    return limit.counter, limit.scope


def _source(metric: Metric) -> str:
    return "attempt_limit" if metric is Metric.ATTEMPTS else "operation_limit"


def limits_for(tool: str, limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """The limits that a call of ``tool`` must respect."""
    return tuple(
        limit
        for limit in limits
        if limit.scope in (WHOLE_SESSION, tool) or fnmatch.fnmatchcase(tool, limit.scope)
    )


def scopes_for(tool: str, limits: tuple[Limit, ...]) -> tuple[str, ...]:
    """The scopes in which a call of ``tool`` is counted: the session, the tool, and each glob that
    limits it.
    """
    return tuple(dict.fromkeys((WHOLE_SESSION, tool, *(limit.scope for limit in limits))))


@record
class Window:
    """When things happened, kept for the limits with a window on one counter of one scope."""

    scope: str
    counter: str
    # how many moments tell whether the largest of these limits is full; for amounts all are kept
    keep: int
    span_s: float


def windows_of(limits: tuple[Limit, ...]) -> tuple[Window, ...]:
    """What must be remembered for these limits: each counter once, however many limits look at
    it.
    """
    found: dict[tuple[str, str], Window] = {}
    for limit in limits:
        if limit.window_s is not None:
            key = (limit.scope, limit.moments)
            known = found.get(key, Window(*key, 0, 0.0))
            found[key] = Window(
                *key, max(known.keep, limit.maximum + 1), max(known.span_s, limit.window_s)
            )
    return tuple(found.values())


@record
class Reservation:
    """What a call asks of the ledger before it runs, in one atomic step.

    ``hold=False`` counts the attempt and looks, but takes no slot; with ``count_attempt=False`` as
    well it changes nothing, and is answered as a call would be now, its attempt included.
    ``enforce=False`` (a guard that observes) reports full limits and grants all the same. A lease
    that ends before the call does returns its slots, or, with ``expiry_counts``, counts the call as
    a failed execution: for tools whose effect cannot be taken back. ``amounts`` are what the call
    expects to use, in millionths. ``parents`` are the sessions above this one, nearest first: the
    call is judged and counted in each. ``per_tool`` asks for the counters of each tool as well, of
    the same moment: session contracts will look at them.
    """

    wait = RESERVE
    session_id: str
    call_id: str
    scopes: tuple[str, ...]
    limits: tuple[Limit, ...]
    count_attempt: bool = True
    hold: bool = True
    enforce: bool = True
    lease_s: float | None = None
    expiry_counts: bool = False
    amounts: Mapping[str, int] = NO_AMOUNTS
    parents: tuple[str, ...] = ()
    per_tool: bool = False


@record
class Settlement:
    """How a held reservation ends: the call succeeded, it failed, or it never ran and everything is
    given back.

    ``amounts`` are what it used; a name that is missing was used as reserved.
    """

    wait = SETTLE
    session_id: str
    call_id: str
    scopes: tuple[str, ...]
    limits: tuple[Limit, ...]
    result: Literal["success", "failure", "release"]
    amounts: Mapping[str, int] = NO_AMOUNTS
    parents: tuple[str, ...] = ()


@record
class Counters:
    """A session's counters at one moment. ``executions`` are finished calls; ``in_flight`` are
    running ones.
    """

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
    asked: int | None = None  # the amount that the call stated, for a budget

    @property
    def reason(self) -> str:
        return self.limit.reason(self.used, self.in_flight, self.asked)


@record
class Grant:
    """The ledger's answer: granted unless an enforced limit is full; all full limits are named.

    ``counters`` are those of the session, with this call; ``per_tool`` those of each tool, if the
    reservation asks for them.
    """

    granted: bool
    counters: Counters
    breaches: tuple[Breach, ...] = ()
    per_tool: Mapping[str, Counters] | None = None


def with_amounts(grant: Grant, amounts: Mapping[str, int]) -> Grant:
    """A ledger's answer that also tells what the call asked for, where that is why it was
    refused.
    """
    if not grant.breaches or not amounts:
        return grant
    return replace(
        grant,
        breaches=tuple(
            replace(it, asked=amounts.get(it.limit.amount or "")) for it in grant.breaches
        ),
    )


@record
class Amount:
    """What of a budget is used, and what running calls have reserved."""

    spent: float = 0.0
    reserved: float = 0.0


@record
class SessionSnapshot:
    """All counters of a session: the whole, per tool, how many calls are in flight, and amounts by
    scope and name.
    """

    session_id: str
    totals: Counters
    per_tool: Mapping[str, Counters]
    amounts: Mapping[str, Mapping[str, Amount]] = EMPTY
