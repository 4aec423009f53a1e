"""Gaps between a ledger and an audit: calls that only one of the two knows of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from typing import Any

from edictum.audit._filters import EventData
from edictum.core.limits import Counters
from edictum.errors import EdictumConfigError
from edictum.execution.portal import PORTAL
from edictum.sessions import open as open_ledger
from edictum.sessions._urls import read_scheme, read_sqlite_path

MAX_COMPARED = 100_000  # sessions
ENDING_ACTIONS = ("call_executed", "call_failed")


@dataclass(slots=True)
class SessionTally:
    """What a log tells of a session, since it was last begun."""

    counted: Counters  # by the ledger, when the comparison began
    attempts: int = 0  # the highest number that an event has
    executions: int = 0  # the highest number that the end of a call has
    ends: int = 0  # events that close a call, up to what the ledger has counted
    first: tuple[Any, ...] = ()  # the call that made the first attempt

    def add(self, event: EventData) -> None:
        attempts = event.get("session_attempt_count") or 0
        executions = event.get("session_execution_count") or 0
        is_end = event["action"] in ENDING_ACTIONS
        if attempts == 1 and not is_end:
            self._begin(event)
        self.attempts = max(self.attempts, attempts)
        if is_end:
            self.executions = max(self.executions, executions)
        self.ends += is_end and executions <= self.counted.executions

    def _begin(self, event: EventData) -> None:
        """Start anew with the first attempt of a session that was reset or forgotten meanwhile.

        The call that made the first attempt has more than one event if a person was asked about it.
        """
        call = (event.get("instance_id"), event.get("call_index"), event.get("call_id"))
        if call != self.first and self.ends:
            self.attempts = self.executions = self.ends = 0
        self.first = call


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
    counted_now = {it.session_id: it.totals for it in _read_sessions(ledger)}
    for session, tally in tallies.items():
        counted = tally.counted
        known = counted_now.get(session, counted).executions
        if tally.executions > known:
            yield (
                f"session {session!r}: the log has the end of call {tally.executions:,}, and the"
                f" ledger has counted {known:,} calls that ran"
            )
        elif tally.ends != counted.executions:
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
    if isinstance(ledger, str):
        _check_ledger_url(ledger)
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


def _check_ledger_url(url: str) -> None:
    """Refuse a ledger that would be made anew by opening it."""
    scheme = read_scheme(url)
    if scheme == "memory":
        hint = "Pass the ledger itself, or the URL of a store that is kept."
        raise EdictumConfigError("A ledger in memory has nothing to compare with.", hint=hint)
    if scheme == "sqlite" and not Path(path := read_sqlite_path(url.partition("?")[0])).exists():
        hint = "Pass the URL that the guard was given as its session store."
        raise EdictumConfigError(f"The ledger {path!r} does not exist.", hint=hint)
