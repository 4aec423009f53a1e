"""Gaps between a ledger and an audit: calls that only one of the two knows, or whose end only one
knows; and what sessions spent, which only the ledger knows.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any

from edictum.audit._filters import EventData
from edictum.core.limits import Counters
from edictum.errors import EdictumConfigError
from edictum.execution.portal import PORTAL
from edictum.sessions import open as open_ledger
from edictum.sessions._urls import check_store_exists

MAX_COMPARED = 100_000  # sessions
MAX_OPEN_CALLS = 10_000  # calls of a session that have begun and not ended
OPENING_ACTIONS = ("call_allowed", "call_approval_granted", "call_grant_used")
ENDING_ACTIONS = ("call_executed", "call_failed")


@dataclass(frozen=True, slots=True)
class LedgerDifference:
    """Where a ledger and a log differ. ``in_doubt`` calls explain a difference: their process ended
    while their bodies ran, so the log has only their beginning, and the ledger counts them as
    failed.
    """

    text: str
    in_doubt: int = 0


@dataclass(slots=True)
class SessionTally:
    """What a log says about a session, since its latest beginning."""

    counted: Counters  # by the ledger, when the comparison began
    attempts: int = 0  # the highest number that an event has
    executions: int = 0  # the highest number that the end of a call has
    all_ends: int = 0  # events that close a call
    ends: int = 0  # events that close a call, up to what the ledger has counted
    failed_ends: int = 0  # of those, how many report a failure
    open_calls: set[Any] = field(default_factory=set)
    first: tuple[Any, ...] = ()  # the call that made the first attempt

    def add(self, event: EventData) -> None:
        attempts = event.get("session_attempt_count") or 0
        executions = event.get("session_execution_count") or 0
        is_end = event["action"] in ENDING_ACTIONS
        if attempts == 1 and not is_end:
            self._begin(event)
        self.attempts = max(self.attempts, attempts)
        if is_end:
            self.executions, self.all_ends = max(self.executions, executions), self.all_ends + 1
            is_counted = executions <= self.counted.executions
            self.ends += is_counted
            self.failed_ends += is_counted and event["action"] == "call_failed"
        if event.get("outcome"):
            self.open_calls.discard(_identify_call(event))
        elif event["action"] in OPENING_ACTIONS and len(self.open_calls) < MAX_OPEN_CALLS:
            self.open_calls.add(_identify_call(event))

    def count_in_doubt(self) -> int:
        """Return how many calls began in the log, have no end there, and failed in the ledger."""
        missing = self.counted.executions - self.ends
        unknown = self.counted.failures - self.failed_ends
        return max(min(missing, unknown, len(self.open_calls)), 0)

    def _begin(self, event: EventData) -> None:
        """Start anew with the first attempt of a session that was reset or forgotten meanwhile.

        The call that made the first attempt has more than one event if a person was asked about it,
        and others may have ended before the first of them. The numbers of the ended calls show
        whether the session began before the log.
        """
        call = _identify_call(event)
        is_cut = self.executions > self.all_ends
        if call != self.first and self.ends and (self.first or is_cut):
            self.attempts = self.executions = self.ends = self.failed_ends = self.all_ends = 0
            self.open_calls.clear()
        self.first = call


def _identify_call(event: EventData) -> tuple[Any, ...]:
    """Return what the events of one call share: another process may use its id again."""
    return event.get("instance_id"), event.get("call_index"), event.get("call_id")


def compare_with_ledger(events: Iterable[EventData], ledger: Any) -> Iterator[LedgerDifference]:
    """Yield where a log and a ledger differ, by session.

    ``ledger`` is one, or its URL. Sessions that it has forgotten are not compared. Calls of child
    sessions count in those above as well, but their events name the child only.
    """
    snapshots = read_sessions(ledger)
    tallies = {it.session_id: SessionTally(it.totals) for it in snapshots}
    for event in events:
        tally = tallies.get(event.get("session_id") or "")
        if tally is not None:
            tally.add(event)
    counted_now = {it.session_id: it.totals for it in read_sessions(ledger)}
    for session, tally in tallies.items():
        counted, in_doubt = tally.counted, tally.count_in_doubt()
        known = counted_now.get(session, counted).executions
        if in_doubt:
            yield _describe_doubt(session, in_doubt)
        if (text := _explain_difference(tally, counted, known, in_doubt)) is not None:
            yield LedgerDifference(f"session {session!r}: {text}")


def _explain_difference(
    tally: SessionTally, counted: Counters, known: int, in_doubt: int
) -> str | None:
    """Return how a session differs. ``counted`` are the ledger's counters when the log was read,
    ``known`` the calls that it counts now.
    """
    if tally.executions > known:
        return (
            f"the log has the end of call {tally.executions:,}, and the ledger has counted"
            f" {known:,} calls that ran"
        )
    if tally.ends + in_doubt != counted.executions:
        return (
            f"the ledger has counted {counted.executions:,} calls that ran, and the log has the"
            f" end of {tally.ends:,}"
        )
    if tally.attempts < counted.attempts:
        return (
            f"the ledger has counted {counted.attempts:,} attempts, and the newest in the log is"
            f" {tally.attempts:,}"
        )
    return None


def _describe_doubt(session: str, count: int) -> LedgerDifference:
    calls = "1 call is" if count == 1 else f"{count:,} calls are"
    why = "the process ended while the body ran, so how it ended is not known; it counts as failed"
    return LedgerDifference(f"session {session!r}: {calls} in doubt: {why}", count)


def read_amounts(ledger: Any, sessions: Container[str]) -> dict[str, dict[str, float]]:
    """Return what some sessions have spent, by the name of the amount, as their ledger has it."""
    found = {}
    for snapshot in read_sessions(ledger):
        amounts = snapshot.amounts.get("")  # of all tools
        if amounts and snapshot.session_id in sessions:
            found[snapshot.session_id] = {name: each.spent for name, each in amounts.items()}
    return found


def read_sessions(ledger: Any) -> Any:
    """Return what a ledger, or the one that a URL names, has counted of each session."""
    if isinstance(ledger, str):
        check_store_exists(ledger)
    opened = open_ledger(ledger) if isinstance(ledger, str) else ledger
    read = getattr(opened, "sessions", None)
    if read is None:
        raise EdictumConfigError(
            f"{type(opened).__name__} cannot list its sessions.", hint="Pass another ledger."
        )
    try:
        found = read(MAX_COMPARED)
        return PORTAL.run(found) if isawaitable(found) else found
    finally:
        if opened is not ledger and hasattr(opened, "close"):
            PORTAL.run(opened.close())
