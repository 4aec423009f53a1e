"""Events in a SQLite file, which may be that of the sessions.

A batch of events is one transaction, and on disk when it is answered (``synchronous=FULL``).
Writers of all processes queue on the lock beside the file, as the SQLite ledger does. A ledger in
the same file writes events in its own transactions: ``SqliteEventTable`` is given to it.
"""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

from edictum.audit._committed_chain import CommittedChain
from edictum.audit._filters import EventData, EventFilter
from edictum.audit._heads import Chain, ChainFiles, NumberedLine
from edictum.audit._reading import LogReading, filter_events, parse_body
from edictum.audit._rows import EventRow, find_counters, fits_columns, list_conditions
from edictum.core.limits import MILLION
from edictum.errors import EdictumConfigError
from edictum.sessions._batching import Operation, StoredVersion, check_stored_version
from edictum.sessions._sqlite import APPLICATION_ID, SqliteFile, SqliteStore, check_owner

_SCHEMA_VERSION = 1
_READABLE_SINCE = 1
_PAGE_ROWS = 1_000
_FORGET_WRITERS_US = 86_400 * MILLION
_INSERT = "INSERT INTO event (at, session, tool, action, outcome, body) VALUES (?, ?, ?, ?, ?, ?)"
_SELECT = "SELECT id, body, at, session, tool, action, outcome FROM event"
_NOTE_WRITER = (
    "INSERT INTO event_writer VALUES (?, ?, ?)"
    " ON CONFLICT (id) DO UPDATE SET number = excluded.number, at = excluded.at"
)


class SqliteEventStore(SqliteStore):
    """A file with events, chained if that is asked for."""

    def __init__(self, path: str | Path, chain: Chain | None = None) -> None:
        super().__init__(path)
        self._chain = chain

    def connect(self) -> SqliteFile:
        return SqliteEvents(self)

    def make_table(self) -> SqliteEventTable:
        """Return the events as one more connection to the file writes them."""
        chain = None if self._chain is None else CommittedChain(self._chain, Path(self.path))
        return SqliteEventTable(self.name, chain)


class SqliteEvents(SqliteFile):
    """A connection that writes events."""

    def __init__(self, store: SqliteEventStore) -> None:
        super().__init__(store)
        self._table = store.make_table()

    def _set_up(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        self._table.open(db)
        db.execute("COMMIT")

    def _run(self, db: sqlite3.Connection, ops: Sequence[Operation], now: float) -> list[Any]:
        events = [(op.number, op.step, None) for op in ops if op.kind != "ping"]
        self._table.write(db, events)
        return [None] * len(ops)

    def _note_commit(self) -> None:
        self._table.note_commit()

    def _forget(self) -> None:
        self._table.forget()

    def _end(self) -> None:
        self._table.close()


class SqliteEventTable:
    """The events of a file, as one connection writes them within its transactions.

    ``_id`` identifies the connection, and increasing numbers its operations, so that one that was
    committed, and is sent again because that was not known, is not written twice.
    """

    def __init__(self, name: str, chain: CommittedChain | None) -> None:
        self._name = name
        self._chain = chain
        self._id = uuid.uuid4().hex
        self._number = -1  # of the newest operation that was written; -1: to be looked up

    def open(self, db: sqlite3.Connection) -> None:
        """Create missing tables, and read what this connection has written."""
        _set_up_events(db, self._name)
        now_us = round(time.time() * MILLION)
        db.execute("DELETE FROM event_writer WHERE at < ?", (now_us - _FORGET_WRITERS_US,))
        self._look_up(db)

    def _look_up(self, db: sqlite3.Connection) -> None:
        found = db.execute("SELECT number FROM event_writer WHERE id = ?", (self._id,)).fetchone()
        self._number = 0 if found is None else found[0]

    def note_commit(self) -> None:
        """Continue behind what was written in a transaction."""
        if self._chain is not None:
            self._chain.note_commit()

    def forget(self) -> None:
        """Forget what was written in a transaction that failed."""
        self._number = -1
        if self._chain is not None:
            self._chain.forget()

    def close(self) -> None:
        """Note that nothing more is written for now."""
        if self._chain is not None:
            self._chain.close()

    def write_with(
        self, db: sqlite3.Connection, ops: Sequence[Operation], answers: Sequence[Any]
    ) -> None:
        """Write the events that go with the operations of a ledger, as these were answered."""
        events = []
        for op, answer in zip(ops, answers, strict=True):
            counters = find_counters(answer) if op.events else None
            if counters is not None:
                events += [(op.number, row, counters) for row in op.events]
        if events:
            self.write(db, events)

    def write(self, db: sqlite3.Connection, events: Sequence[tuple[int, EventRow, Any]]) -> None:
        """Write events, each with the number of its operation and the counters, if it has any."""
        if self._number < 0:
            self._look_up(db)
        new = [event for event in events if event[0] > self._number]
        if not new:
            return
        db.executemany(
            _INSERT,
            [(*row.list_columns(), self._write_body(row, counters)) for _, row, counters in new],
        )
        self._number = new[-1][0]
        db.execute(_NOTE_WRITER, (self._id, self._number, round(time.time() * MILLION)))

    def _write_body(self, row: EventRow, counters: Any) -> str:
        if self._chain is None:
            return row.write_line(counters)
        return self._chain.append(row.write_canonical_line(counters))


def _set_up_events(db: sqlite3.Connection, name: str) -> None:
    """Create the tables where they are missing, in a transaction that is under way; refuse those
    that are not this version's.
    """
    check_owner(db, name)
    exists = "SELECT 1 FROM sqlite_master WHERE name = 'event_version'"
    if db.execute(exists).fetchone() is not None:
        found = db.execute("SELECT written_by, readable_since FROM event_version").fetchone()
        remedy = "Delete the file, or give the audit another one."
        check_stored_version(name, StoredVersion(*found), _SCHEMA_VERSION, (), remedy)
        return
    tables = (files("edictum.audit") / "sql" / "sqlite" / "events.sql").read_text()
    for statement in tables.split(";"):
        db.execute(statement)
    db.execute("INSERT INTO event_version VALUES (?, ?)", (_SCHEMA_VERSION, _READABLE_SINCE))
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


# --- Reading --------------------------------------------------------------------------------------


class SqliteEventReader:
    """Reads the events of a file, whatever writes to it meanwhile."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def read_events(self, wanted: EventFilter, reading: LogReading) -> Iterator[EventData]:
        """Yield the events that match, in the order in which they were committed."""
        with closing(self._open()) as db:
            try:
                yield from filter_events(self._read(db, wanted, reading), wanted)
            except sqlite3.Error as exc:
                raise self._unreadable(str(exc)) from exc
        reading.note_progress()

    def read_heads(self, reading: LogReading) -> Iterator[NumberedLine]:
        """Yield the lines of the file of heads beside the database, if there is one."""
        return ChainFiles(self.path).read_heads(reading)

    def read_records(self, reading: LogReading) -> Iterator[NumberedLine]:
        """Yield the lines of all events, with their numbers.

        The chain does not cover the columns beside an event, and a changed one would hide the event
        from queries. Where they differ, the line gets an extra blank, so that it does not verify.
        """
        with closing(self._open()) as db:
            try:
                for number, body, *columns in self._read_rows(db, EventFilter(), reading):
                    event = parse_body(body, f"{self.path}, event {number}", reading)
                    is_true = event is None or fits_columns(event, columns)
                    line = f"{body}" if is_true else f"{body} "
                    yield (str(self.path), number), line.encode(errors="replace")
            except sqlite3.Error as exc:
                raise self._unreadable(str(exc)) from exc
        reading.note_progress()

    def _open(self) -> sqlite3.Connection:
        if not self.path.exists():
            raise self._unreadable("it does not exist")
        try:
            return sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)
        except sqlite3.Error as exc:
            raise self._unreadable(str(exc)) from exc

    def _read(
        self, db: sqlite3.Connection, wanted: EventFilter, reading: LogReading
    ) -> Iterator[EventData]:
        for number, body, *_ in self._read_rows(db, wanted, reading):
            event = parse_body(body, f"{self.path}, event {number}", reading)
            if event is not None:
                yield event

    def _read_rows(
        self, db: sqlite3.Connection, wanted: EventFilter, reading: LogReading
    ) -> Iterator[tuple[Any, ...]]:
        """Read page by page: a long transaction would keep SQLite from checkpointing."""
        condition, values = _make_condition(wanted)
        first, last = _find_range(db, wanted)
        reading.bytes_total += os.stat(self.path).st_size
        select = f"{_SELECT} WHERE id > ? AND id <= ? {condition} ORDER BY id"
        while True:
            page = db.execute(f"{select} LIMIT {_PAGE_ROWS}", (first, last, *values)).fetchall()
            yield from page
            if len(page) < _PAGE_ROWS:
                return
            first = page[-1][0]

    def _unreadable(self, why: str) -> EdictumConfigError:
        hint = "Check the path and its rights."
        return EdictumConfigError(f"The audit file {self.path} cannot be read: {why}.", hint=hint)


def _find_range(db: sqlite3.Connection, wanted: EventFilter) -> tuple[int, int]:
    """Return the range of ids of the events in the requested time, from an index."""
    times = [it for it in list_conditions(wanted) if it[0] == "at"]
    if not times:
        return 0, int(db.execute("SELECT coalesce(max(id), 0) FROM event").fetchone()[0])
    condition = " AND ".join(f"at {operator} ?" for _, operator, _ in times)
    select = f"SELECT min(id), max(id) FROM event WHERE {condition}"  # noqa: S608 - ours
    first, last = db.execute(select, [value for *_, value in times]).fetchone()
    return (0, 0) if first is None else (first - 1, last)


def _make_condition(wanted: EventFilter) -> tuple[str, list[Any]]:
    condition, values = "", []
    for column, operator, value in list_conditions(wanted):
        if operator == "in":
            condition += f" AND {column} IN ({', '.join('?' * len(value))})"
            values += value
        else:
            condition += f" AND {column} {operator} ?"
            values.append(value)
    return condition, values
