"""Events as rows of a database: what is stored, and how a query becomes SQL conditions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from edictum._audit_event import AuditEvent
from edictum.audit._filters import EventData, EventFilter, read_timestamp
from edictum.audit.chain import canonicalize
from edictum.core._records import record
from edictum.core.events import Entry, write_counters
from edictum.core.limits import MILLION, Counters, Grant

# The fields of a filter that have a column.
FILTERED_COLUMNS = ("session", "tool", "action", "outcome")
_GLOB = re.compile(r"[*?\[]")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


@record
class EventRow:
    """An event, ready to be stored. ``key`` is unique across processes.

    ``head`` is its line of JSON. With a ``tail`` the counters of its session stand between the two:
    the store fills them in, in the transaction that counts the call. ``is_exact`` is that of
    ``canonicalize``.
    """

    key: str
    at_us: int
    session: str
    tool: str
    action: str
    outcome: str | None
    head: str
    tail: str | None = None
    is_exact: bool = False

    def list_columns(self) -> tuple[Any, ...]:
        """Return what is stored beside the line."""
        return self.at_us, self.session, self.tool, self.action, self.outcome

    def write_line(self, counters: Counters | None) -> str:
        """Return the line with these counters."""
        if self.tail is None:
            return self.head
        assert counters is not None  # returned by the statement that counts a call
        return f"{self.head}{write_counters(counters.attempts, counters.executions)}{self.tail}"

    def write_canonical_line(self, counters: Counters | None) -> str:
        """Return the same line as canonical JSON, for a chain."""
        return canonicalize(self.write_line(counters), is_exact=self.is_exact)


def make_event_row(key: str, event: AuditEvent | Entry) -> EventRow:
    """Return the row of an event whose counters are known."""
    if isinstance(event, Entry):
        return _make_entry_row(key, event, event.to_json(), None, event.has_exact_numbers())
    at = event.timestamp if event.timestamp.tzinfo else event.timestamp.replace(tzinfo=UTC)
    names = (clean_text(event.session_id), clean_text(event.tool_name))
    return EventRow(key, _as_us(at), *names, event.action.value, event.outcome, event.to_json())


def make_open_event_row(key: str, entry: Entry) -> EventRow:
    """Return the row of an event whose counters the store fills in."""
    return _make_entry_row(key, entry, *entry.write_around_counters())


def _make_entry_row(
    key: str, entry: Entry, head: str, tail: str | None, is_exact: bool
) -> EventRow:
    call, closing = entry.call, entry.closing
    return EventRow(
        key,
        round(entry.at * MILLION),
        clean_text(call.run_id),
        clean_text(call.tool_name),
        entry.action.value,
        None if closing is None else closing.outcome,
        head,
        tail,
        is_exact,
    )


def clean_text(text: str) -> str:
    """Return text without what a database cannot store: NUL, and halves of surrogate pairs."""
    return _UNSTORABLE.sub("\ufffd", text)


def find_counters(answer: Any) -> Counters | None:
    """Return the counters by which an event is committed with the answer of a ledger; None if it
    is not: a reservation that was refused, or that a limit objects to, needs another event.
    """
    if isinstance(answer, Grant):
        return answer.counters if answer.granted and not answer.breaches else None
    return answer if isinstance(answer, Counters) else None


def fits_columns(event: EventData, columns: Sequence[Any]) -> bool:
    """Return whether the columns stored beside an event agree with it."""
    at_us, *names = columns
    said = [clean_text(str(event.get(name) or "")) for name in ("session_id", "tool_name")]
    expected = [*said, event["action"], event.get("outcome")]
    is_rounded = isinstance(at_us, int) and abs(at_us - _as_us(read_timestamp(event))) <= 1
    return is_rounded and names == expected


def list_conditions(wanted: EventFilter) -> Iterator[tuple[str, str, Any]]:
    """Yield column, operator and value of each condition that a database can test.

    The reader tests every event again: times here are rounded, and globs are left to it.
    """
    if wanted.since is not None:
        yield "at", ">=", _as_us(wanted.since) - 1
    if wanted.until is not None:
        yield "at", "<=", _as_us(wanted.until)
    for column in FILTERED_COLUMNS:
        names = getattr(wanted, column)
        if names and not any(_GLOB.search(name) for name in names):
            yield column, "in", [clean_text(name) for name in names]


def _as_us(moment: datetime) -> int:
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * MILLION)
