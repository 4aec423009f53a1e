"""Gaps between a ledger and an audit: calls that only one of the two knows of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

from edictum.audit._filters import EventData
from edictum.core.limits import Counters
from edictum.errors import EdictumConfigError
from edictum.execution.portal import PORTAL
from edictum.sessions import open as open_ledger

MAX_COMPARED = 100_000  # sessions
ENDING_ACTIONS = ("call_executed", "call_failed")


@dataclass(slots=True)
class SessionTally:
    """What a log tells of a session, since it was last begun."""

    counted: Counters  # by the ledger, when the comparison began
    attempts: int = 0  # the highest number that an event has
    ends: int = 0  # events that close a call, up to what the ledger has counted

    def add(self, event: EventData) -> None:
        attempts = event.get("session_attempt_count") or 0
        executions = event.get("session_execution_count") or 0
        is_end = event["action"] in ENDING_ACTIONS
        if attempts == 1 and not is_end and self.ends:  # it was reset, or forgotten meanwhile
            self.attempts = self.ends = 0
        self.attempts = max(self.attempts, attempts)
        self.ends += is_end and executions <= self.counted.executions


def find_gaps(events: Iterable[EventData], ledger: Any) -> Iterator[str]:
    """Yield what is missing in a log, or in a ledger, by session.

    ``ledger`` is one, or its URL. Sessions that it has forgotten are not compared. Calls of child
    sessions count in those above as well, but their events name the child only.
    """
    snapshots = _read_sessions(ledger)
    tallies = {it.session_id: SessionTally(it.totals) for it in snapshots}
    for event in events:
        tally = tallies.get(event.get("session_id") or "")
        if tally is not None:
            tally.add(event)
    for session, tally in tallies.items():
        counted = tally.counted
        if tally.ends != counted.executions:
            yield (
                f"session {session!r}: the ledger has counted {counted.executions:,} calls that"
                f" ran, and the log has the end of {tally.ends:,}"
            )
        elif tally.attempts < counted.attempts:
            yield (
                f"session {session!r}: the ledger has counted {counted.attempts:,} attempts, and"
                f" the newest in the log is {tally.attempts:,}"
            )


def _read_sessions(ledger: Any) -> Any:
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
