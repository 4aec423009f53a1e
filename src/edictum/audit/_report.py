"""Summarize events in one pass, in memory that does not grow with the log."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Any, Generic, TypeVar

from edictum.audit._filters import (
    OUTCOMES,
    EventData,
    EventFilter,
    list_contracts,
    list_objections,
    name_principal,
    read_timestamp,
)
from edictum.audit._reading import LogReading
from edictum.core.call import CONSEQUENTIAL
from edictum.core.values import dumps
from edictum.stats import Histogram

MAX_ROWS = 10_000  # of a table while it is added up
MAX_BUCKETS = 96  # of the time line
MAX_SHOWN_REASON_CHARS = 300
# Of the time line, in milliseconds: each a multiple of the one before, up to 7, 28 and 364 days.
BUCKET_WIDTHS_MS = (
    *(10, 50, 100, 500, 1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 21_600_000),
    *(86_400_000, 604_800_000, 2_419_200_000, 31_449_600_000),
)
DURATION_BOUNDS_MS = tuple(round(2 ** (power / 2), 1) for power in range(52))  # to 13 hours
RAN_OUTCOMES = ("executed", "artifact", "failed", "timeout")
FAILED_OUTCOMES = ("failed", "timeout")
CONTRACT_SOURCES = (
    *("precondition", "session_contract", "sandbox"),
    *("yaml_precondition", "yaml_session", "yaml_sandbox"),
)
APPROVALS = {
    "call_approval_requested": "requested",
    "call_approval_granted": "granted",
    "call_approval_denied": "denied",
    "call_approval_timeout": "timed out",
    "call_approval_withdrawn": "withdrawn",
    "call_approval_void": "void",
    "call_grant_used": "by a grant",
}


class Counts(dict[Any, int]):
    """Counts by key; 0 for a missing one. A Counter, or a defaultdict with its factory, takes
    longer to create, and each session has two.
    """

    def __missing__(self, key: Any) -> int:
        return 0


@dataclass(slots=True)
class CallTally:
    """Calls that were added up: how they ended, and how long their tools ran."""

    outcomes: Counts = field(default_factory=Counts)
    total_ms: int = 0
    max_ms: int = 0
    counts: Counts = field(default_factory=Counts)  # by bound
    consequential: int = 0  # calls of tools that write or are irreversible
    prompts: int = 0

    @property
    def calls(self) -> int:
        return sum(self.outcomes.values())

    @property
    def ran(self) -> int:
        return sum(self.outcomes[name] for name in RAN_OUTCOMES)

    @property
    def failed(self) -> int:
        return sum(self.outcomes[name] for name in FAILED_OUTCOMES)

    @property
    def failure_rate(self) -> float | None:
        """The share of the calls that ran and failed; None if none ran."""
        return self.failed / self.ran if self.ran else None

    @property
    def prompts_per_100(self) -> float | None:
        """How often a person was asked in 100 consequential calls; None without such."""
        return 100 * self.prompts / self.consequential if self.consequential else None

    def add(self, outcome: str, duration_ms: int, is_consequential: bool) -> None:
        self.outcomes[outcome] += 1
        self.consequential += is_consequential
        if outcome in RAN_OUTCOMES:
            self.total_ms += duration_ms
            if duration_ms > self.max_ms:
                self.max_ms = duration_ms
            self.counts[bisect_right(DURATION_BOUNDS_MS, duration_ms)] += 1

    def merge(self, other: CallTally) -> None:
        for outcome, count in other.outcomes.items():
            self.outcomes[outcome] += count
        self.consequential += other.consequential
        self.prompts += other.prompts
        self.total_ms += other.total_ms
        self.max_ms = max(self.max_ms, other.max_ms)
        for bound, count in other.counts.items():
            self.counts[bound] += count

    def find_percentile(self, percent: float) -> float | None:
        """Return the milliseconds within which this percentage of the calls ended."""
        bounds = (*DURATION_BOUNDS_MS, float(self.max_ms))
        counts = tuple(self.counts[index] for index in range(len(bounds)))
        found = Histogram(bounds, counts).percentile(percent)
        return None if found is None else min(found, float(self.max_ms))

    def describe(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            **{name: self.outcomes[name] for name in OUTCOMES},
            "failure_rate": self.failure_rate,
            "p50_ms": self.find_percentile(50),
            "p95_ms": self.find_percentile(95),
            "max_ms": self.max_ms if self.ran else None,
            "total_ms": self.total_ms,
            "consequential": self.consequential,
            "prompts": self.prompts,
            "prompts_per_100": self.prompts_per_100,
        }


@dataclass(slots=True)
class Denial:
    """Why calls were denied: what decided, and one of the reasons in words."""

    count: int = 0
    reason: str = ""

    @property
    def calls(self) -> int:
        return self.count

    def merge(self, other: Denial) -> None:
        self.count += other.count


@dataclass(slots=True)
class ContractUse:
    """How often a contract was asked, how often it objected, and how often it only observed."""

    asked: int = 0
    fired: int = 0
    observed: int = 0

    @property
    def calls(self) -> int:
        return self.asked

    def merge(self, other: ContractUse) -> None:
        self.asked += other.asked
        self.fired += other.fired
        self.observed += other.observed


TableRow = TypeVar("TableRow", CallTally, Denial, ContractUse)


class BoundedTable(Generic[TableRow]):
    """Rows by key. When there are too many, the half with the fewest calls is added up in
    ``others``: the sum of all rows is always exact, a row that comes back later starts anew.
    """

    def __init__(self, make: type[TableRow]) -> None:
        self._make: type[TableRow] = make
        self.rows: dict[Any, TableRow] = {}
        self.others: TableRow = make()
        self.dropped = 0

    def __getitem__(self, key: Any) -> TableRow:
        row = self.rows.get(key)
        if row is None:
            if len(self.rows) >= MAX_ROWS:
                self._shrink()
            row = self.rows[key] = self._make()
        return row

    def _shrink(self) -> None:
        ordered = self.sort()
        self.rows = dict(ordered[: MAX_ROWS // 2])
        for _, row in ordered[MAX_ROWS // 2 :]:
            self.others.merge(row)
            self.dropped += 1

    def sum_up(self) -> TableRow:
        """Return the sum of all rows."""
        total = self._make()
        for row in self.rows.values():
            total.merge(row)
        total.merge(self.others)
        return total

    def sort(self) -> list[tuple[Any, TableRow]]:
        """Return keys and rows, those with the most calls first."""
        return sorted(self.rows.items(), key=lambda item: (-item[1].calls, item[0]))


class Timeline:
    """Outcomes by time, in at most ``MAX_BUCKETS`` buckets, which become wider as needed."""

    def __init__(self) -> None:
        self._widths = list(BUCKET_WIDTHS_MS)
        self.buckets: dict[int, Counter[str]] = {}

    @property
    def width_ms(self) -> int:
        return self._widths[0]

    def add(self, at_ms: int, outcome: str) -> None:
        key = at_ms // self.width_ms
        bucket = self.buckets.get(key)
        if bucket is None:
            bucket = self.buckets[key] = Counter()
            self._widen()
            bucket = self.buckets[at_ms // self.width_ms]
        bucket[outcome] += 1

    def _widen(self) -> None:
        while max(self.buckets) - min(self.buckets) >= MAX_BUCKETS:
            before = self._widths.pop(0)
            self._widths = self._widths or [before * 10]
            wider: dict[int, Counter[str]] = {}
            for key, counts in self.buckets.items():
                wider.setdefault(key * before // self.width_ms, Counter()).update(counts)
            self.buckets = wider

    def list_buckets(self) -> list[tuple[int, dict[str, int]]]:
        """Return each bucket's start in milliseconds since 1970 and its outcomes, without gaps."""
        if not self.buckets:
            return []
        keys = range(min(self.buckets), max(self.buckets) + 1)
        empty: Counter[str] = Counter()
        return [(key * self.width_ms, dict(self.buckets.get(key, empty))) for key in keys]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The summary of a log's events.

    ``calls`` are those whose end is in the log, by ``outcomes``; ``tools``, ``sessions`` and
    ``principals`` have a ``CallTally`` each. ``denials`` are by source and name of what decided.
    ``never_fired`` are those of the given contracts that never objected. ``prompts_per_100`` is how
    often a person was asked in 100 consequential calls (write, irreversible), None without such.
    ``spent`` are the amounts of sessions by name, if a ledger was given.
    """

    wanted: EventFilter
    reading: LogReading
    events: int
    first: datetime | None
    last: datetime | None
    actions: dict[str, int]
    total: CallTally
    tools: BoundedTable[CallTally]
    sessions: BoundedTable[CallTally]
    principals: BoundedTable[CallTally]
    denials: BoundedTable[Denial]
    contracts: BoundedTable[ContractUse]
    never_fired: list[str]
    has_contracts: bool
    approvals: dict[str, int]
    policy_errors: int
    policies: dict[str, int]
    timeline: Timeline
    spent: dict[str, dict[str, float]] | None = None

    @property
    def calls(self) -> int:
        return self.total.calls

    @property
    def outcomes(self) -> dict[str, int]:
        return {name: self.total.outcomes[name] for name in OUTCOMES}

    @property
    def consequential_calls(self) -> int:
        return self.total.consequential

    @property
    def prompts_per_100(self) -> float | None:
        return self.total.prompts_per_100

    @property
    def problems(self) -> dict[str, int]:
        """Lines that could not be read, by what is wrong with them."""
        return dict(self.reading.problems)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready data."""
        return {
            "wanted": self.wanted.describe(),
            "events": self.events,
            "first": self.first.isoformat() if self.first else None,
            "last": self.last.isoformat() if self.last else None,
            "total": self.total.describe(),
            "actions": self.actions,
            "tools": _describe_tallies("tool", self.tools),
            "sessions": _describe_tallies("session", self.sessions),
            "spent": self.spent,
            "principals": _describe_tallies("principal", self.principals),
            "denials": [
                {"source": source, "name": name, **asdict(row)}
                for (source, name), row in self.denials.sort()
            ],
            "contracts": [{"contract": name, **asdict(row)} for name, row in self.contracts.sort()],
            "never_fired": self.never_fired if self.has_contracts else None,
            "approvals": self.approvals,
            "consequential_calls": self.consequential_calls,
            "prompts_per_100": self.prompts_per_100,
            "policy_errors": self.policy_errors,
            "policies": self.policies,
            "timeline": {
                "width_ms": self.timeline.width_ms,
                "buckets": self.timeline.list_buckets(),
            },
            "problems": self.problems,
            "problem_examples": self.reading.examples,
        }

    def to_json(self) -> str:
        return dumps(self.to_dict())

    def to_csv(self) -> str:
        """Return all tables as CSV of four columns: table, number of the row, column, value."""
        from edictum.audit._report_tables import write_report_csv

        return write_report_csv(self)

    def to_text(self) -> str:
        """Return all tables as plain text."""
        from edictum.audit._report_tables import write_report_text

        return write_report_text(self)

    def to_html(self, title: str = "Audit report") -> str:
        """Return one page that needs nothing else: no script, no font, no request."""
        from edictum.audit._report_html import write_report_page

        return write_report_page(self, title)


def _describe_tallies(name: str, table: BoundedTable[CallTally]) -> list[dict[str, Any]]:
    rows = [{name: key, **row.describe()} for key, row in table.sort()]
    if table.dropped:
        rows.append({name: None, "others": table.dropped, **table.others.describe()})
    return rows


class ReportBuilder:
    """Adds events up, one after the other."""

    def __init__(self) -> None:
        self.events = self.policy_errors = 0
        self.first: datetime | None = None
        self.last: datetime | None = None
        self.actions: Counter[str] = Counter()
        self.tools = BoundedTable(CallTally)
        self.sessions = BoundedTable(CallTally)
        self.principals = BoundedTable(CallTally)
        self.denials = BoundedTable(Denial)
        self.contracts = BoundedTable(ContractUse)
        self.policies: Counter[str] = Counter()
        self.timeline = Timeline()
        self.spent: dict[str, dict[str, float]] | None = None
        self._asked: dict[str, None] = {}  # ids of questions, the newest ones
        self._asked_again = 0  # events of questions that a restarted process has found

    def add(self, event: EventData) -> None:
        """Add one event; the one that ends a call counts the call."""
        self.events += 1
        self.actions[event["action"]] += 1
        at = read_timestamp(event)
        if self.first is None or at < self.first:
            self.first = at
        if self.last is None or at > self.last:
            self.last = at
        if event.get("policy_error"):
            self.policy_errors += 1
        outcome = event.get("outcome")
        if isinstance(outcome, str):
            self._add_call(event, outcome, at)
        elif event["action"] == "call_approval_requested":
            self._add_question(event)

    def _add_question(self, event: EventData) -> None:
        """Count a question, once: a process that waits for it anew writes its event anew."""
        asked = event.get("approval_id")
        if isinstance(asked, str):
            if asked in self._asked:
                self._asked_again += 1
                return
            self._asked[asked] = None
            if len(self._asked) > MAX_ROWS:
                del self._asked[next(iter(self._asked))]
        for tally in self._find_tallies(event):
            tally.prompts += 1

    def _count_approvals(self) -> dict[str, int]:
        counts = {short: self.actions[name] for name, short in APPROVALS.items()}
        counts["requested"] -= self._asked_again
        return {short: count for short, count in counts.items() if count}

    def _find_tallies(self, event: EventData) -> tuple[CallTally, ...]:
        """Return the rows in which a call counts."""
        tool, session = str(event.get("tool_name")), str(event.get("session_id"))
        return self.tools[tool], self.sessions[session], self.principals[name_principal(event)]

    def _add_call(self, event: EventData, outcome: str, at: datetime) -> None:
        taken = _read_duration(event)
        is_consequential = str(event.get("side_effect")) in CONSEQUENTIAL
        for tally in self._find_tallies(event):
            tally.add(outcome, taken, is_consequential)
        self.timeline.add(int(at.timestamp() * 1000), outcome)
        if len(self.policies) < MAX_ROWS or event.get("policy_version") in self.policies:
            self.policies[str(event.get("policy_version"))] += 1
        if outcome == "denied":
            self._add_denial(event)
        self._add_contracts(event, outcome)

    def _add_denial(self, event: EventData) -> None:
        source, name = event.get("decision_source"), event.get("decision_name")
        said = APPROVALS.get(event["action"])
        denial = self.denials[f"approval {said}" if said else str(source or ""), str(name or "")]
        denial.count += 1
        denial.reason = denial.reason or str(event.get("reason") or "")[:MAX_SHOWN_REASON_CHARS]

    def _add_contracts(self, event: EventData, outcome: str) -> None:
        if not event.get("contracts_evaluated") and outcome != "denied":
            return
        for record in list_contracts(event):
            self.contracts[str(record.get("name"))].asked += 1
        fired = {str(record.get("name")): record for record in list_objections(event)}
        for name, record in fired.items():
            use = self.contracts[name]
            use.fired += 1
            use.observed += bool(record.get("observed"))
        name = str(event.get("decision_name"))
        decided = outcome == "denied" and event.get("decision_source") in CONTRACT_SOURCES
        if decided and name not in fired:  # a limit: it is counted, not asked
            self.contracts[name].asked += 1
            self.contracts[name].fired += 1

    def build(self, contracts: Iterable[str], wanted: EventFilter, reading: LogReading) -> Report:
        """Return the report of what was added."""
        known = list(dict.fromkeys(contracts))
        rows = self.contracts.rows
        never = [name for name in known if name not in rows or not rows[name].fired]
        return Report(
            wanted=wanted,
            reading=reading,
            events=self.events,
            first=self.first,
            last=self.last,
            actions=dict(self.actions.most_common()),
            total=self.tools.sum_up(),
            tools=self.tools,
            sessions=self.sessions,
            principals=self.principals,
            denials=self.denials,
            contracts=self.contracts,
            never_fired=never,
            has_contracts=bool(known),
            approvals=self._count_approvals(),
            policy_errors=self.policy_errors,
            policies=dict(self.policies.most_common()),
            timeline=self.timeline,
            spent=self.spent,
        )


def _read_duration(event: EventData) -> int:
    duration = event.get("duration_ms")
    return int(duration) if isinstance(duration, int | float) and 0 <= duration < inf else 0


def format_time(at: datetime | None) -> str:
    """Return a moment for a person to read, in UTC."""
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
