"""Audit sinks on databases: SQLite and PostgreSQL.

Events that wait at the same time go to the database together, as one transaction; a call waits
until its own is committed. With the ledger on the same database the counters of a call and its
event are committed together.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import uuid
import weakref
from collections.abc import Awaitable, Callable, Iterator
from importlib import import_module
from typing import Any

from edictum._audit_event import AuditEvent
from edictum._optional import import_optional
from edictum.audit._filters import EventData, EventFilter
from edictum.audit._heads import Chain, NumberedLine, read_chain
from edictum.audit._ports import MAX_WAITING, check_waiting
from edictum.audit._reading import EventReader, LogReading
from edictum.audit._rows import EventRow, make_event_row, make_open_event_row
from edictum.audit.sinks import takes_entries
from edictum.core.events import Entry
from edictum.errors import BackendError, EdictumConfigError
from edictum.execution.forks import call_in_child
from edictum.execution.portal import PORTAL
from edictum.sessions._addresses import Credentials
from edictum.sessions._batching import DEFAULT_WAIT_S, MAX_BATCH, Operation, SenderPool, Store
from edictum.sessions._migration import Migration
from edictum.sessions._urls import (
    Options,
    migrate_store,
    read_scheme,
    read_sqlite_path,
    take_options,
)


class StoreAuditSink:
    """Writes events to a database. ``wait_s`` is how long a call waits for it: then the call is
    denied, or, if its tool has run, the outcome's notes say that the event is not written yet.

    ``max_waiting`` events may wait; then calls wait for room. With ``when_full="drop"`` calls never
    wait, and an event that finds no room is dropped and counted.
    """

    blocking = False  # it is awaited without a thread

    def __init__(
        self, store: Store, reader: EventReader, wait_s: float, when_full: str, max_waiting: int
    ) -> None:
        self.when_full, self.max_waiting = when_full, max_waiting
        check_waiting(self)
        self.name = store.name
        self._store = store
        self._reader = reader
        self._pool = SenderPool(store, wait_s, MAX_BATCH, "audit store", "events not written")
        self._finalizer = weakref.finalize(self, self._pool.stop)
        self._renew_keys()
        call_in_child(self._renew_keys)

    def _renew_keys(self) -> None:
        """Start anew: a forked child writes events of its own."""
        self._prefix, self._numbers = uuid.uuid4().hex, itertools.count()

    def _make_key(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"

    @takes_entries
    def emit(self, event: AuditEvent | Entry) -> Awaitable[None]:
        """Return an awaitable of the write. An event that ends a call is sent now, and again until
        it is written, even when the caller is gone.
        """
        row = make_event_row(self._make_key(), event)
        op = Operation(self._pool, "event" if row.outcome is None else "closing event", row)
        if op.is_kept:
            self._pool.send(op)
        return op

    def join_ledger(self, ledger: Any) -> bool:
        """Let a ledger on the same database commit events together with the steps that they report;
        return whether it does.
        """
        join = getattr(ledger, "join_audit", None)
        return join is not None and not self.drops_events and bool(join(self._store))

    @property
    def drops_events(self) -> bool:
        return self.when_full == "drop"

    def prepare(self, entry: Entry) -> EventRow:
        """Return an event for a ledger that has joined: its counters are filled in there."""
        return make_open_event_row(self._make_key(), entry)

    def read_events(self, wanted: EventFilter, reading: LogReading) -> Iterator[EventData]:
        """Yield the events that match, in the order in which they were committed."""
        return self._reader.read_events(wanted, reading)

    def check(self) -> Awaitable[None]:
        """Raise the reason if the database cannot be used."""
        return Operation(self._pool, "ping", None)

    async def close(self) -> None:
        """Wait for what was sent, for a bounded time, and disconnect."""
        await self._pool.leave()
        await asyncio.get_running_loop().run_in_executor(None, self._finalizer)


class SqliteAuditSink(StoreAuditSink):
    """Writes events to a SQLite file, which several processes of one machine may share, and which
    may be that of the sessions. An event is on disk before its call goes on. ``chain`` makes
    changed, removed and added events detectable; heads are written to ``<path>.heads``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        chain: Chain | bool = False,
        wait_s: float = DEFAULT_WAIT_S,
        when_full: str = "block",
        max_waiting: int = MAX_WAITING,
    ) -> None:
        read_sqlite_path(f"sqlite:///{os.fspath(path)}")
        from edictum.audit import _sqlite  # sqlite3 is slow to import

        self.path = os.fspath(path)
        settings = read_chain("SqliteAuditSink", chain)
        reader = self._file = _sqlite.SqliteEventReader(self.path)
        store = _sqlite.SqliteEventStore(self.path, settings)
        store.make_table()  # an unreadable key is reported here
        super().__init__(store, reader, wait_s, when_full, max_waiting)

    def read_heads(self, reading: LogReading) -> Iterator[NumberedLine]:
        """Yield the lines of heads, oldest first."""
        return self._file.read_heads(reading)

    def read_records(self, reading: LogReading) -> Iterator[NumberedLine]:
        """Yield the lines of events, in the order in which they were committed."""
        return self._file.read_records(reading)


class PostgresAuditSink(StoreAuditSink):
    """Writes events to a PostgreSQL database, in the schema ``edictum`` unless the URL says
    ``?schema=``. ``credentials`` is called for each connection, as for a session store.
    """

    def __init__(
        self,
        url: str,
        *,
        wait_s: float = DEFAULT_WAIT_S,
        credentials: Credentials | None = None,
        when_full: str = "block",
        max_waiting: int = MAX_WAITING,
    ) -> None:
        store = _make_postgres_store(url, Options(credentials=credentials))
        reader = _import_postgres().PostgresEventReader(store)
        super().__init__(store, reader, wait_s, when_full, max_waiting)


def open_audit(
    url: str, *, chain: Chain | bool = False, when_full: str = "block"
) -> StoreAuditSink:
    """Return the audit sink that a URL names: ``sqlite:///file.db`` or ``postgresql://``.

    ``wait`` in its query is how long a call waits for the database (default 2 s). Only SQLite takes
    a ``chain``. A database that does not answer now is tried again by the first call; one that must
    not be used as it is set up is refused here.
    """
    make = AUDIT_SCHEMES.get(read_scheme(url))
    if make is None:
        hint = f"Known: {', '.join(AUDIT_SCHEMES)}. For a file of JSON lines use FileAuditSink."
        raise EdictumConfigError(f"No audit store for {(read_scheme(url) or url)!r}.", hint=hint)
    sink = make(*take_options(url), chain=chain, when_full=when_full)
    try:
        PORTAL.run(sink.check())
    except BackendError:  # it may come up later; until then calls are denied
        pass
    except EdictumConfigError:
        PORTAL.run(sink.close())
        raise
    return sink


def migrate_audit(
    url: str,
    *,
    dry_run: bool = False,
    grant_to: str | None = None,
    credentials: Credentials | None = None,
) -> Migration:
    """Set up the table of events on PostgreSQL, for programs without the right to do so. Returns
    the Migration.

    ``dry_run`` changes nothing: print the answer for the statements and the rights that a program
    needs which does not own the schema. ``grant_to`` is a role that is given these rights: to read
    and to add, not to change or to remove.
    """
    return migrate_store(
        url, "audit store", _make_postgres_store, credentials, dry_run=dry_run, grant_to=grant_to
    )


def open_reader(url: str) -> EventReader:
    """Return the reader of a database that a URL names."""
    make = READER_SCHEMES.get(read_scheme(url))
    if make is None:
        hint = f"Known: {', '.join(READER_SCHEMES)}."
        raise EdictumConfigError(f"No audit store for {read_scheme(url)!r}.", hint=hint)
    return make(*take_options(url))


def _open_sqlite_sink(
    url: str, options: Options, *, chain: Chain | bool, when_full: str
) -> StoreAuditSink:
    wait_s = options.wait_s or DEFAULT_WAIT_S
    path = read_sqlite_path(url)
    return SqliteAuditSink(path, chain=chain, wait_s=wait_s, when_full=when_full)


def _open_postgres_sink(
    url: str, options: Options, *, chain: Chain | bool, when_full: str
) -> StoreAuditSink:
    if chain:
        hint = "Chain an audit in SQLite or in files; or let the database keep its own log."
        raise EdictumConfigError("An audit in PostgreSQL cannot be chained.", hint=hint)
    wait_s, credentials = options.wait_s or DEFAULT_WAIT_S, options.credentials
    return PostgresAuditSink(url, wait_s=wait_s, credentials=credentials, when_full=when_full)


def _open_sqlite_reader(url: str, options: Options) -> EventReader:
    path = read_sqlite_path(url)
    from edictum.audit._sqlite import SqliteEventReader

    return SqliteEventReader(path)


def _open_postgres_reader(url: str, options: Options) -> EventReader:
    made = _import_postgres()
    reader: EventReader = made.PostgresEventReader(_make_postgres_store(url, options))
    return reader


def _make_postgres_store(url: str, options: Options) -> Any:
    return _import_postgres().PostgresEventStore(url, credentials=options.credentials)


def _import_postgres() -> Any:
    import_optional("asyncpg", "postgres", "The PostgreSQL audit store is not installed.")
    return import_module("edictum.audit._postgres")


AUDIT_SCHEMES: dict[str, Callable[..., StoreAuditSink]] = {
    "sqlite": _open_sqlite_sink,
    "postgresql": _open_postgres_sink,
    "postgres": _open_postgres_sink,
}
READER_SCHEMES: dict[str, Callable[[str, Options], EventReader]] = {
    "sqlite": _open_sqlite_reader,
    "postgresql": _open_postgres_reader,
    "postgres": _open_postgres_reader,
}
