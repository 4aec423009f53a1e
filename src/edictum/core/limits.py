"""What limits mean, and which counters a call touches.

An account is a set of counters under one key: a session, or a scope such as one principal. It keeps
a tally per *tool*: ``""`` is the whole account, any other key is a tool's name, a glob that a limit
names, or the calls for which the condition of one limit holds. Each tally counts attempts,
executions, successes, failures and consecutive failures, and how many calls are in flight.

A limit is never read and then acted on: one atomic ``reserve`` checks all limits of a call and
takes its slots. A call in flight may end either way, so it holds a slot of executions, of successes
and of failures; ``settle`` releases those it did not use. ``max_consecutive_failures`` alone is a
circuit breaker: it looks at finished calls only. With a window it counts the failures in a row that
are inside it, so that it closes by itself when they are old.

Budgets use the same step: a call reserves the amount it expects to use and settles what it used.
Amounts are kept as whole millionths, so that ten times 0.1 is exactly 1 in every ledger.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

from edictum.core._records import maker, record, replace
from edictum.core.freeze import EMPTY
from edictum.core.wait_policy import RESERVE, SETTLE
from edictum.errors import EdictumConfigError

if TYPE_CHECKING:
    from edictum.core.approvers import Approvers
    from edictum.core.call import ToolCall

WHOLE_SESSION = ""
SESSION_SCOPE, PRINCIPAL, ORG, GLOBAL = "session", "principal", "org", "global"
NAMED_SCOPES = (SESSION_SCOPE, PRINCIPAL, ORG, GLOBAL)  # from the narrowest to the widest
MARK = "\x1f"  # begins keys that no user can choose: ids and names have no control characters


class Metric(StrEnum):
    ATTEMPTS = "attempts"
    EXECUTIONS = "executions"
    SUCCESSES = "successes"
    FAILURES = "failures"
    CONSECUTIVE_FAILURES = "consecutive_failures"
    AMOUNT = "amount"


# a call in flight counts towards these
RESERVED = frozenset({Metric.EXECUTIONS, Metric.SUCCESSES, Metric.FAILURES})
SINGULAR = {
    Metric.EXECUTIONS: "execution",
    Metric.SUCCESSES: "success",
    Metric.FAILURES: "failure",
    Metric.CONSECUTIVE_FAILURES: "consecutive failure",
}
ATTEMPTS = Metric.ATTEMPTS  # looking a member up on its enum costs more than comparing it


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """At most ``maximum`` of ``metric`` by calls of ``tool``, ever or within ``window_s`` seconds.

    A budget names its ``amount``, and ``maximum`` is in millionths. ``scope`` says whose calls
    count together, and ``key`` finds the scope's value in a call. With ``when`` only calls for
    which it holds are judged and counted, in a ``tally`` of their own. With the effect "approve" a
    person may waive the limit for a call. Computed: ``counter`` is the metric as an attribute name,
    ``moments`` the counter whose times a window needs, and ``plain`` whether a counter alone
    decides.
    """

    name: str
    metric: Metric
    maximum: int
    tool: str = WHOLE_SESSION
    window_s: float | None = None
    enforce: bool = True
    source: str = "operation_limit"
    message: str | None = None
    contract_id: str | None = None
    amount: str | None = None
    scope: str = SESSION_SCOPE
    tally: str = ""
    effect: Literal["deny", "approve"] = "deny"
    timeout: float = 300
    timeout_effect: Literal["deny", "allow"] = "deny"
    approvers: Approvers | None = None
    key: Callable[[ToolCall], Any] | None = field(repr=False, default=None)
    when: Callable[[ToolCall], Any] | None = field(repr=False, default=None)
    counter: str = field(init=False, repr=False, default="")
    moments: str = field(init=False, repr=False, default="")
    reserved: bool = field(init=False, repr=False, default=False)
    plain: bool = field(init=False, repr=False, default=True)

    def __post_init__(self) -> None:
        self._check()
        counter = self.metric.value if self.amount is None else f"amount:{self.amount}"
        in_a_row = self.metric is Metric.CONSECUTIVE_FAILURES
        set_field = object.__setattr__
        set_field(self, "counter", counter)
        set_field(self, "moments", Metric.FAILURES.value if in_a_row else counter)
        set_field(self, "reserved", self.metric in RESERVED)
        set_field(self, "plain", self.window_s is None and self.amount is None)
        if not self.tally:
            conditional = f"{MARK}{self.name}{MARK}{self.tool}"
            set_field(self, "tally", self.tool if self.when is None else conditional)

    @property
    def depends_on_call(self) -> bool:
        """Whether it takes a call to know if this limit judges it, or in which account."""
        return self.scope != SESSION_SCOPE or self.when is not None

    @property
    def is_replaceable(self) -> bool:
        """Whether it bounds every call of a session without a window, as ``OperationLimits`` do."""
        lasts = self.window_s is None and self.enforce
        return lasts and self.effect == "deny" and not self.depends_on_call

    @property
    def refuses_all(self) -> bool:
        """Whether no call can be within it."""
        counts_calls = self.metric in (Metric.ATTEMPTS, Metric.EXECUTIONS)
        return counts_calls and self.maximum == 0 and self.enforce and self.effect == "deny"

    def _check(self) -> None:
        where = f"Limit {self.name!r}"
        if (self.metric is Metric.AMOUNT) is not (self.amount is not None):
            hint = "Use metric=Metric.AMOUNT with amount='cost'."
            raise EdictumConfigError(f"{where}: a budget names its amount.", hint=hint)
        if self.window_s is not None and not self.window_s > 0:
            hint = "Use more than 0 seconds."
            raise EdictumConfigError(f"{where}: the window is {self.window_s!r} s.", hint=hint)

    def reason(self, used: int, in_flight: int, asked: int | None = None) -> str:
        """Say why a call was refused; ``asked`` is the amount that the call stated."""
        if self.message:
            return self.message
        if self.metric is Metric.ATTEMPTS:
            return self._attempts_reason()
        within = f" within {self.window_s:g} s" if self.window_s else ""
        if self.amount is not None:
            return self._budget_reason(used, in_flight, asked, within)
        busy = f"; {in_flight} still running" if in_flight and self.metric in RESERVED else ""
        count = f"{used} {SINGULAR[self.metric] if used == 1 else self.metric.replace('_', ' ')}"
        if self.tool:
            limit = f"limit: {self.maximum}{self._whose()}{busy}"
            return f"Per-tool limit: {self.tool} has {count}{within} ({limit})."
        if self.metric is Metric.EXECUTIONS:
            text = f"Execution limit reached ({self.maximum} calls{within}{self._whose()}{busy})."
        else:
            text = f"Limit reached: {count}{within} (limit: {self.maximum}{self._whose()}{busy})."
        return f"{text} Summarize progress and stop."

    def _whose(self) -> str:
        return "" if self.scope == SESSION_SCOPE else f", scope: {self.scope}"

    def _attempts_reason(self) -> str:
        tool = f" for {self.tool}" if self.tool else ""
        return (
            f"Attempt limit reached{tool} ({self.maximum}{self._whose()}). Agent may be stuck"
            " in a retry loop. Stop and reassess."
        )

    def _budget_reason(self, used: int, in_flight: int, asked: int | None, within: str) -> str:
        what = f"{self.amount} of {self.tool}" if self.tool else self.amount
        held = f"; {in_flight / MILLION:g} reserved by running calls" if in_flight else ""
        limit = f"limit: {self.maximum / MILLION:g}{self._whose()}{held}"
        if asked is None:
            return f"Budget reached: {what} is {used / MILLION:g}{within} ({limit})."
        return (
            f"Budget reached: the call asks for {asked / MILLION:g} of {what},"
            f" {used / MILLION:g} is used{within} ({limit})."
        )


MILLION = 1_000_000
MAX_AMOUNT = 10**12  # sums of a million of these still fit the 64-bit integers of every store
NO_AMOUNTS: Mapping[str, int] = EMPTY


def millionths(name: str, value: Any, down: bool = False) -> int:
    """Return an amount as the ledgers keep it, rounded up so that it counts; a bound ``down``."""
    counted = _count_millionths(value, down)
    if counted is None:
        hint = f"Use a number from 0 to {MAX_AMOUNT}."
        raise EdictumConfigError(f"{name} is {value!r}.", hint=hint)
    return counted


def _count_millionths(value: Any, down: bool) -> int | None:
    """Return a number in millionths; None of what is not an amount."""
    is_number = type(value) is float or (
        isinstance(value, (int, float)) and not isinstance(value, bool)
    )
    if not is_number or not 0 <= value <= MAX_AMOUNT:
        return None
    exact: float = value * MILLION
    nearest = round(exact)
    if exact == nearest or math.isclose(
        exact, nearest, rel_tol=1e-12
    ):  # 0.1 + 0.2 is not meant to be more than 0.3
        return nearest
    return math.floor(exact) if down else math.ceil(exact)


def amounts_in_millionths(what: str, amounts: Any) -> dict[str, int]:
    """Return user-supplied amounts such as ``{"cost": 0.12}`` as the ledgers keep them."""
    made: dict[str, int] = {}
    is_named = type(amounts) is dict or isinstance(amounts, Mapping)
    for name, value in amounts.items() if is_named else (("", None),):
        if not isinstance(name, str) or not name:
            hint = 'Use a dict of names and numbers, such as {"cost": 0.12}.'
            raise EdictumConfigError(f"{what} is {amounts!r}.", hint=hint)
        counted = _count_millionths(value, down=False)
        made[name] = millionths(f"{what}[{name!r}]", value) if counted is None else counted
    return made


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise EdictumConfigError(
            f"OperationLimits: {name} is {value!r}.",
            hint="Use a whole number of 0 or more, or None for no limit.",
        )


def _check_table(name: str, table: Any) -> None:
    if not isinstance(table, Mapping):
        hint = "Use a dict of tool name to whole number."
        raise EdictumConfigError(f"OperationLimits: {name} is {table!r}.", hint=hint)
    for tool, value in table.items():
        if not isinstance(tool, str) or not tool:
            hint = "Use tool names or globs."
            raise EdictumConfigError(f"OperationLimits: {name} has the key {tool!r}.", hint=hint)
        _check_count(f"{name}[{tool!r}]", value)


@dataclass(frozen=True, slots=True)
class OperationLimits:
    """Limits of one session; None means no limit.

    Keys of per-tool limits are names or globs; the tools of a glob share one count.
    """

    max_attempts: int | None = 500
    max_tool_calls: int | None = 200
    max_calls_per_tool: Mapping[str, int] = field(default_factory=dict)
    max_successes: int | None = None
    max_failures: int | None = None
    max_consecutive_failures: int | None = None
    max_successes_per_tool: Mapping[str, int] = field(default_factory=dict)
    max_attempts_per_tool: Mapping[str, int] = field(default_factory=dict)
    max_failures_per_tool: Mapping[str, int] = field(default_factory=dict)
    max_consecutive_failures_per_tool: Mapping[str, int] = field(default_factory=dict)
    max_cost: float | None = None
    max_amounts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        amounts_in_millionths("OperationLimits: max_amounts", self.max_amounts)
        object.__setattr__(self, "max_amounts", dict(self.max_amounts))
        if self.max_cost is not None:
            millionths("OperationLimits: max_cost", self.max_cost)
        for name in SESSION_FIELDS:
            if (value := getattr(self, name)) is not None:
                _check_count(name, value)
        for name in TOOL_FIELDS:
            table = getattr(self, name)
            _check_table(name, table)
            object.__setattr__(self, name, dict(table))

    def tighter(self, other: OperationLimits) -> OperationLimits:
        """Return the stricter of the two in every respect."""
        merged: dict[str, Any] = {}
        for name in SESSION_FIELDS:
            values = [v for v in (getattr(self, name), getattr(other, name)) if v is not None]
            merged[name] = min(values, default=None)
        for name in TOOL_FIELDS:
            merged[name] = _smaller_of_each(getattr(self, name), getattr(other, name))
        merged["max_amounts"] = _smaller_of_each(self.budgets(), other.budgets())
        return OperationLimits(**merged)

    def budgets(self) -> dict[str, float]:
        """Return ``max_amounts`` with ``max_cost`` as its ``cost``, the smaller one of the two."""
        budgets = dict(self.max_amounts)
        if self.max_cost is not None:
            budgets["cost"] = min(self.max_cost, budgets.get("cost", self.max_cost))
        return budgets

    def compile(self) -> tuple[Limit, ...]:
        """Return one Limit per bound that is set, attempts first."""
        limits = [
            Limit(name=name, metric=metric, maximum=getattr(self, name), source=_source(metric))
            for name, metric in SESSION_FIELDS.items()
            if getattr(self, name) is not None
        ]
        for name, metric in TOOL_FIELDS.items():
            limits += [
                Limit(
                    name=f"{name}:{tool}",
                    metric=metric,
                    maximum=bound,
                    tool=tool,
                    source=_source(metric),
                )
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


def tightest(limits: Iterable[OperationLimits | None]) -> OperationLimits | None:
    """Return limits that allow only what all of these allow; None when there are none."""
    given = [each for each in limits if each is not None]
    return reduce(OperationLimits.tighter, given) if given else None


def _smaller_of_each(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: min(table[name] for table in (first, second) if name in table)
        for name in {**first, **second}
    }


SESSION_FIELDS = {
    "max_attempts": Metric.ATTEMPTS,
    "max_tool_calls": Metric.EXECUTIONS,
    "max_successes": Metric.SUCCESSES,
    "max_failures": Metric.FAILURES,
    "max_consecutive_failures": Metric.CONSECUTIVE_FAILURES,
}
TOOL_FIELDS = {
    "max_calls_per_tool": Metric.EXECUTIONS,
    "max_successes_per_tool": Metric.SUCCESSES,
    "max_attempts_per_tool": Metric.ATTEMPTS,
    "max_failures_per_tool": Metric.FAILURES,
    "max_consecutive_failures_per_tool": Metric.CONSECUTIVE_FAILURES,
}
NO_LIMITS = OperationLimits(max_attempts=None, max_tool_calls=None)


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
        if not limit.is_replaceable or limit.metric is Metric.AMOUNT:
            continue
        table, key = bounds, session_names[limit.metric]
        if limit.tool:
            table, key = bounds.setdefault(tool_names[limit.metric], {}), limit.tool
        table[key] = min(limit.maximum, table.get(key, limit.maximum))
    if limits is None:
        unset: dict[str, Any] = {name: None for name in SESSION_FIELDS if name in bounds}
        limits = OperationLimits(**unset)
    bundle = OperationLimits(**{"max_attempts": None, "max_tool_calls": None, **bounds})
    return replace(limits.tighter(bundle), max_cost=limits.max_cost, max_amounts=limits.max_amounts)


def compile_together(
    limits: OperationLimits, session_limits: tuple[Limit, ...], *, enforce: bool
) -> tuple[Limit, ...]:
    """Return all limits of a policy.

    A session contract that is at least as strict as a plain limit replaces it.
    """
    strictest: dict[tuple[str, str], int] = {}
    for limit in session_limits:
        if limit.is_replaceable:
            known = strictest.get(_about(limit), limit.maximum)
            strictest[_about(limit)] = min(limit.maximum, known)
    own = [
        limit if enforce else replace(limit, enforce=False)
        for limit in limits.compile()
        if strictest.get(_about(limit), limit.maximum + 1) > limit.maximum
    ]
    return (*own, *session_limits)


def _about(limit: Limit) -> tuple[str, str]:
    return limit.counter, limit.tool


def _source(metric: Metric) -> str:
    return "attempt_limit" if metric is Metric.ATTEMPTS else "operation_limit"


def limits_for(tool: str, limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """Return the limits that a call of ``tool`` must respect."""
    return tuple(
        limit
        for limit in limits
        if limit.tool in (WHOLE_SESSION, tool) or fnmatch.fnmatchcase(tool, limit.tool)
    )


def width_of(limit: Limit) -> int:
    """Return a number that is larger for a wider scope. The scope of a selector is narrower than
    any named one.
    """
    order = (SESSION_SCOPE, "", *NAMED_SCOPES[1:])
    return order.index(limit.scope if limit.scope in order else "")


def tools_for(tool: str, limits: tuple[Limit, ...]) -> tuple[str, ...]:
    """Return the tallies in which a call of ``tool`` counts: that of the whole account, that of the
    tool, and those that these limits read.
    """
    return tuple(dict.fromkeys((WHOLE_SESSION, tool, *(limit.tally for limit in limits))))


@record
class Window:
    """Which times must be kept for the limits with a window on one counter of one tool. The last
    ``keep`` of them show whether the largest of these limits is full; for amounts all are kept.
    """

    tool: str
    counter: str
    keep: int
    span_s: float


def windows_of(limits: tuple[Limit, ...]) -> tuple[Window, ...]:
    """Return the windows of these limits, each counter once."""
    found: dict[tuple[str, str], Window] = {}
    for limit in limits:
        if limit.window_s is not None:
            key = (limit.tally, limit.moments)
            known = found.get(key, Window(*key, 0, 0.0))
            keep, span_s = max(known.keep, limit.maximum + 1), max(known.span_s, limit.window_s)
            found[key] = Window(*key, keep, span_s)
    return tuple(found.values())


def longest_window(limits: Iterable[Limit]) -> float:
    """Return for how many seconds these limits look back; 0 without a window."""
    longest = 0.0
    for limit in limits:  # of each call: a generator would cost more than the comparisons
        if limit.window_s is not None and limit.window_s > longest:
            longest = limit.window_s
    return longest


@record
class Account:
    """Where a call counts besides its own session: in a session above it, or in a scope."""

    key: str
    tools: tuple[str, ...]
    limits: tuple[Limit, ...]


def has_mark(key: str) -> bool:
    """Return whether a key was made by this library, for a scope's account or for the tally of a
    conditional limit.
    """
    return key.startswith(MARK)


@record
class Reservation:
    """What a call asks of the ledger before it runs, in one atomic step.

    ``hold=False`` counts the attempt and takes no slot. With ``count_attempt=False`` as well it is
    a look: it changes nothing, and is answered as a call would be now, its attempt included.
    ``enforce=False`` reports full limits and grants anyway. When a lease expires, its slots are
    released; with ``expiry_counts`` the call counts as failed instead, for tools whose effect
    cannot be undone. ``amounts`` are what the call expects to use, in millionths. ``accounts`` are
    those in which the call counts too: the sessions above, nearest first, then scopes, the widest
    last. ``per_tool`` asks for the counters of each tool at the same moment, for session contracts.
    ``events`` describe the reservation if it is granted and no limit objects: a ledger whose
    database keeps the audit too commits them with it.
    """

    wait = RESERVE
    session_id: str
    call_id: str
    tools: tuple[str, ...]
    limits: tuple[Limit, ...]
    count_attempt: bool = True
    hold: bool = True
    enforce: bool = True
    lease_s: float | None = None
    expiry_counts: bool = False
    amounts: Mapping[str, int] = NO_AMOUNTS
    accounts: tuple[Account, ...] = ()
    per_tool: bool = False
    events: tuple[Any, ...] = ()


@record
class Settlement:
    """How a reservation ends: the call succeeded, failed, or never ran and is released.

    ``amounts`` are what it used; a missing name was used as reserved. It ends in all accounts that
    its reservation named; ``accounts`` are for a call that the session has forgotten. ``events``
    describe it, as those of a reservation do.
    """

    wait = SETTLE
    session_id: str
    call_id: str
    tools: tuple[str, ...]
    limits: tuple[Limit, ...]
    result: Literal["success", "failure", "release"]
    amounts: Mapping[str, int] = NO_AMOUNTS
    accounts: tuple[Account, ...] = ()
    events: tuple[Any, ...] = ()


def release_of(held: Reservation) -> Settlement:
    """Return the settlement that gives back the slots of a call that does not run."""
    own = (held.session_id, held.call_id, held.tools, held.limits)
    return Settlement(*own, "release", accounts=held.accounts)


@record
class Counters:
    """An account's counters at one moment: ``executions`` have ended, ``in_flight`` are running."""

    attempts: int = 0
    executions: int = 0
    successes: int = 0
    failures: int = 0
    consecutive_failures: int = 0
    in_flight: int = 0


NO_COUNTERS = Counters()
make_reservation, make_settlement = maker(Reservation), maker(Settlement)


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
    reservation asks for them. A driver sets ``is_late`` when the answer came after the lease that
    it grants has ended: by then the slots may be another call's.
    """

    granted: bool
    counters: Counters
    breaches: tuple[Breach, ...] = ()
    per_tool: Mapping[str, Counters] | None = None
    is_late: bool = False


def with_amounts(grant: Grant, amounts: Mapping[str, int]) -> Grant:
    """Add the amounts that the call stated to the breaches of a grant."""
    if not grant.breaches or not amounts:
        return grant
    breaches = [replace(it, asked=amounts.get(it.limit.amount or "")) for it in grant.breaches]
    return replace(grant, breaches=tuple(breaches))


@record
class Amount:
    """What of a budget is used, and what running calls have reserved."""

    spent: float = 0.0
    reserved: float = 0.0


@record
class SessionSnapshot:
    """All counters of a session, in total and per tool, and amounts by tool and name."""

    session_id: str
    totals: Counters
    per_tool: Mapping[str, Counters]
    amounts: Mapping[str, Mapping[str, Amount]] = EMPTY
