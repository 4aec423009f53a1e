"""Events in a PostgreSQL database, which may be that of the sessions.

A batch of events is one call of ``write_events``: one transaction and one round trip. A ledger in
the same schema passes the answers of its own function through it, and so commits both together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

import asyncpg

from edictum.audit._filters import EventData, EventFilter
from edictum.audit._reading import LogReading, filter_events, parse_body
from edictum.audit._rows import EventRow, list_conditions
from edictum.errors import BackendError
from edictum.execution.portal import Portal
from edictum.sessions._batching import Batch, Operation
from edictum.sessions._postgres import (
    PostgresConnection,
    PostgresStore,
    explain_error,
)
from edictum.sessions._postgres_schema import PostgresSchema, call_in_schema

_PAGE_ROWS = 1_000
_CLOSE_S = 1.0
_COLUMNS = (
    ("key", "text"),
    ("at_us", "bigint"),
    ("session", "text"),
    ("tool", "text"),
    ("action", "text"),
    ("outcome", "text"),
    ("head", "text"),
    ("tail", "text"),
)


class EventSchema(PostgresSchema):
    """The table of events, and the function that writes to it."""

    version = readable_since = 1
    known = (1,)
    version_table = "event_version"
    package = "edictum.audit"
    steps = MappingProxyType({None: ("events",)})
    tables = ("event",)
    rights = "SELECT, INSERT"  # what was recorded is not changed


class PostgresEventStore(PostgresStore):
    """A database with events."""

    schema_type = EventSchema

    def connect(self) -> PostgresConnection:
        return PostgresEvents(self)

    def write_with(self, call: str, ops: Sequence[Operation], first: int) -> tuple[str, list[Any]]:
        """Return a call that passes on what the given one answers, and writes the events that go
        with these operations; and its further arguments.
        """
        rows = [(row, place) for place, op in enumerate(ops) for row in op.events]
        return self.make_call(call, first), list_values(rows)

    def make_call(self, answers: str, first: int) -> str:
        types = [kind for _, kind in _COLUMNS] + ["int"]
        columns = ", ".join(f"${first + place}::{kind}[]" for place, kind in enumerate(types))
        return f'"{self.schema.name}".write_events({answers}, {columns})'


class PostgresEvents(PostgresConnection):
    """A connection that writes events."""

    def __init__(self, store: PostgresEventStore) -> None:
        super().__init__(store)
        self._events = store
        self._is_set_up = False

    async def _run(self, db: Any, batch: Batch) -> list[Any]:
        store = self._events
        if not self._is_set_up:
            await store.set_up(db)
            self._is_set_up = True
        rows = [(op.step, None) for op in batch.ops if op.kind != "ping"]
        if rows:
            query = call_in_schema(store.schema.name, store.make_call("'[]'", 1))
            await self._ask(db, query, *list_values(rows))
        return [None] * len(batch.ops)

    def _forget(self) -> None:
        self._is_set_up = False


def list_values(rows: Sequence[tuple[EventRow, int | None]]) -> list[list[Any]]:
    """Return events, each with the place of its operation in a batch, as columns."""
    columns = [[getattr(row, name) for row, _ in rows] for name, _ in _COLUMNS]
    return [*columns, [place for _, place in rows]]


# --- Reading --------------------------------------------------------------------------------------


class PostgresEventReader:
    """Reads the events of a database, whatever writes to it meanwhile."""

    def __init__(self, store: PostgresEventStore) -> None:
        self._store = store

    def read_events(self, wanted: EventFilter, reading: LogReading) -> Iterator[EventData]:
        """Yield the events that match, in the order in which they were written."""
        with Portal() as portal:  # a connection is used in one event loop only
            try:
                db = portal.run(self._connect())
                try:
                    yield from filter_events(self._read(portal, db, wanted, reading), wanted)
                finally:
                    portal.run(db.close(timeout=_CLOSE_S))
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as exc:
                message = f"The audit in {self._store.name} cannot be read: {explain_error(exc)}"
                raise BackendError(message) from exc
        reading.note_progress()

    async def _connect(self) -> Any:
        return await asyncpg.connect(**await self._store.connection_options())

    def _read(
        self, portal: Portal, db: Any, wanted: EventFilter, reading: LogReading
    ) -> Iterator[EventData]:
        table = f'"{self._store.schema.name}".event'
        reading.bytes_total += portal.run(db.fetchval("SELECT pg_relation_size($1)", table))
        condition, values = _make_condition(wanted)
        select = f"SELECT id, body FROM {table} WHERE id > $1 {condition} ORDER BY id"  # noqa: S608
        newest = 0
        while True:
            page = portal.run(db.fetch(f"{select} LIMIT {_PAGE_ROWS}", newest, *values))
            for newest, body in page:
                event = parse_body(body, f"{self._store.name}, event {newest}", reading)
                if event is not None:
                    yield event
            if len(page) < _PAGE_ROWS:
                return


def _make_condition(wanted: EventFilter) -> tuple[str, list[Any]]:
    condition, values = "", []
    for column, operator, value in list_conditions(wanted):
        values.append(value)
        parameter = f"${len(values) + 1}"
        is_list = operator == "in"
        condition += f" AND {column} " + (
            f"= ANY({parameter}::text[])" if is_list else f"{operator} {parameter}"
        )
    return condition, values
