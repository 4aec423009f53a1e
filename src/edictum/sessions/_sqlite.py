"""The SQLite ledger: exact for all processes of one machine, and on disk when it has answered.

A batch is one write transaction. The memory ledger does the counting, on sessions that are loaded
when first used and kept for as long as no other process writes to the file. Writers of all
processes queue on an operating system lock beside the file, which the kernel drops when its holder
dies; SQLite's own lock would make them sleep and retry. ``synchronous=FULL``: a call that was
granted is still counted after a power cut.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from edictum.core.decide import describe
from edictum.core.limits import (
    MARK,
    WHOLE_SESSION,
    Account,
    Limit,
    Reservation,
    Settlement,
    longest_window,
)
from edictum.execution.forks import protect
from edictum.sessions._accounts import name_in_account, only_looks
from edictum.sessions._batching import (
    Batch,
    Operation,
    Refused,
    Renewal,
    StoredVersion,
    Unavailable,
    check_stored_version,
)
from edictum.sessions._wire import answer_as_text, lease_from_text, terms_as_text
from edictum.sessions.memory import (
    SESSION_TTL_S,
    Lease,
    MemoryLedger,
    SessionState,
    Tally,
    tally_row,
)

APPLICATION_ID = 0x45_44_49_43  # "EDIC"
_SCHEMA_VERSION = 4  # 1 to 3 were never released
_READABLE_SINCE = 4  # programs of an older version cannot use a file of this one
REMEMBER_ENDED_S = 3_600.0  # how long a repeated settlement is recognised
SWEEP_EVERY_S = 30.0
MAX_CACHED_SESSIONS = 1_000

TABLES = ("session", "tally", "amount", "lease", "ended", "moment")
# How changes are written, in this order.
STATEMENTS = {
    "session": "INSERT OR REPLACE INTO session VALUES (?, ?, ?)",
    "tally": "INSERT OR REPLACE INTO tally VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    "amount": "INSERT OR REPLACE INTO amount VALUES (?, ?, ?, ?, ?)",
    "freed lease": "DELETE FROM lease WHERE sid = ? AND call = ?",
    "lease": "INSERT OR REPLACE INTO lease VALUES (?, ?, ?, ?, ?, ?)",
    "ended": "INSERT OR REPLACE INTO ended VALUES (?, ?, ?, ?)",
    "moment": "INSERT INTO moment VALUES (?, ?, ?, ?, ?)",
    "old moment": "DELETE FROM moment WHERE sid = ? AND tool = ? AND counter = ? AND at < ?",
}
Moments = dict[tuple[str, str], list[tuple[float, int]]]
# Connections that came through a fork: SQLite forbids even closing them.
_inherited: list[sqlite3.Connection] = []


class EventTable(Protocol):
    """The audit events as a counting connection writes them."""

    def open(self, db: sqlite3.Connection) -> None:
        """Create its tables if they are missing, within a transaction."""
        ...

    def write_with(
        self, db: sqlite3.Connection, ops: Sequence[Operation], answers: Sequence[Any]
    ) -> None:
        """Write the events of operations with these answers, within a transaction."""
        ...

    def note_commit(self) -> None:
        """Note that the transaction was committed: later events follow those written in it."""
        ...

    def forget(self) -> None:
        """Forget what was written in a transaction that was rolled back."""
        ...

    def close(self) -> None:
        """Note that nothing more is written for now."""
        ...


class JoinedFile(Protocol):
    """The store of an audit in the same file."""

    def make_table(self) -> EventTable: ...


class SqliteStore:
    """A file. ``clock`` gives seconds since the epoch, for all processes that share the file."""

    serves_loops = False

    def __init__(
        self,
        path: str | Path,
        *,
        ttl_s: float | None = SESSION_TTL_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = os.fspath(path)
        self.name = f"sqlite:///{self.path}"
        self.ttl_s = ttl_s
        self.clock = clock
        self.joined: JoinedFile | None = None
        self._file: tuple[int, int] | None = None  # device and inode of what was opened first

    def note_file(self) -> None:
        """Remember which file this process counts in."""
        if self._file is None:
            self._file = _identify(self.path)

    def check_file(self) -> None:
        """Raise Unavailable if the path no longer leads to the file that was opened first.

        Counting on in the old file would reset limits for processes that start now; counting from
        zero in a new one would reset them for this process.
        """
        if self._file is not None and _identify(self.path) != self._file:
            raise Unavailable(
                f"the file {self.path} was deleted or replaced while it was in use. Stop all"
                " processes that use it, put the database in place, and start them again"
            )

    def is_same_database(self, other: Any) -> bool:
        """Return whether another store is the same file."""
        return isinstance(other, SqliteStore) and os.path.realpath(other.path) == os.path.realpath(
            self.path
        )

    def connect(self) -> SqliteFile:
        return SqliteConnection(self)


class SqliteFile:
    """A connection for one thread to a file, in which a batch is one transaction."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._db: sqlite3.Connection | None = None
        self._lock_fd: int | None = None
        # A fork waits for it: a child that is made during a transaction cannot use SQLite.
        self._lock = threading.Lock()
        protect(self)

    async def execute(self, batch: Batch) -> list[Any]:
        with self._lock:
            try:
                return self._execute(batch.ops)
            except (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError):
                raise
            except (sqlite3.DatabaseError, OSError) as exc:
                self._disconnect()
                raise Unavailable(describe(exc)) from exc

    def _execute(self, ops: Sequence[Operation]) -> list[Any]:
        with self._transaction() as db:
            return self._run(db, ops, self._store.clock())

    def _run(self, db: sqlite3.Connection, ops: Sequence[Operation], now: float) -> list[Any]:
        """Answer a batch within a transaction that is under way."""
        raise NotImplementedError

    def _set_up(self, db: sqlite3.Connection) -> None:
        """Prepare a newly opened file; refuse one that is not this version's."""
        raise NotImplementedError

    def _note_commit(self) -> None:
        """Note that the transaction was committed."""

    def _forget(self) -> None:
        """Forget what was read or changed in a transaction that was rolled back."""

    def _end(self) -> None:
        """Note that nothing more is written for now."""

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self._lock_fd is None:
            path = self._store.path + ".lock"
            self._lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        try:
            self._store.check_file()
            db = self._db or self._connect()
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
                self._note_commit()
            except BaseException:
                self._forget()
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        finally:
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def _connect(self) -> sqlite3.Connection:
        """Open the file under its lock, so that two processes do not both create it.

        It is readable by its owner alone, and so are the files that SQLite creates beside it. An
        existing file is opened by SQLite only: closing a descriptor of it drops the locks that
        other connections of this process have on it, and another process would then delete the log
        that they write to.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with suppress(FileExistsError):
            os.close(os.open(self._store.path, flags, 0o600))
        db = sqlite3.connect(
            self._store.path, isolation_level=None, check_same_thread=False, timeout=1.0
        )
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            self._set_up(db)
        except BaseException:  # the next batch must not use what is refused
            db.close()
            raise
        self._store.note_file()
        self._db = db
        return db

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        fd, self._lock_fd = self._lock_fd, None
        if db is not None:
            db.close()
        if fd is not None:
            os.close(fd)

    async def close(self) -> None:
        with self._lock:
            self._disconnect()
            self._end()

    def abandon(self) -> None:
        if self._db is not None:
            _inherited.append(self._db)
            self._db = None
        self._disconnect()  # or the child would keep the lock when the parent dies


class SqliteConnection(SqliteFile):
    """A connection that counts."""

    def __init__(self, store: SqliteStore) -> None:
        super().__init__(store)
        self._swept = 0.0
        self._table: EventTable | None = None
        self._is_table_open = False

    def _set_up(self, db: sqlite3.Connection) -> None:
        set_up(db, self._store.name)
        self._sessions = CachedSessions(db, self._store.ttl_s)
        self._is_table_open = False

    def _run(self, db: sqlite3.Connection, ops: Sequence[Operation], now: float) -> list[Any]:
        if now - self._swept > SWEEP_EVERY_S:
            self._swept = now
            sweep(db, now, self._store.ttl_s)
        answers = self._sessions.run(ops, now)
        if self._store.joined is not None:
            self._write_events(db, self._store.joined, ops, answers)
        return answers

    def _write_events(
        self,
        db: sqlite3.Connection,
        joined: JoinedFile,
        ops: Sequence[Operation],
        answers: Sequence[Any],
    ) -> None:
        if self._table is None:
            self._table = joined.make_table()
        if not self._is_table_open:
            self._table.open(db)
            self._is_table_open = True
        self._table.write_with(db, ops, answers)

    def _note_commit(self) -> None:
        if self._table is not None:
            self._table.note_commit()

    def _forget(self) -> None:
        self._sessions.clear()
        if self._table is not None:
            self._table.forget()
            self._is_table_open = False

    def _end(self) -> None:
        if self._table is not None:
            self._table.close()


def _identify(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def set_up(db: sqlite3.Connection, name: str) -> None:
    """Create the tables in a new file; refuse a file that is not this version's."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    check_owner(db, name)
    if version != 0:
        remedy = "Delete the file, or give sessions another one."
        found = StoredVersion(version, _read_readable_since(db, version))
        check_stored_version(name, found, _SCHEMA_VERSION, (), remedy)
    else:
        tables = (files("edictum.sessions") / "sql" / "sqlite" / "sessions.sql").read_text()
        db.executescript(
            f"BEGIN; {tables} INSERT INTO readable VALUES ({_READABLE_SINCE});"  # noqa: S608 - ours
            f" PRAGMA application_id = {APPLICATION_ID};"
            f" PRAGMA user_version = {_SCHEMA_VERSION}; COMMIT"
        )


def check_owner(db: sqlite3.Connection, name: str) -> None:
    """Refuse a file of another program."""
    owner = db.execute("PRAGMA application_id").fetchone()[0]
    is_empty = not db.execute("SELECT 1 FROM sqlite_master").fetchone()
    if owner not in (0, APPLICATION_ID) or (owner == 0 and not is_empty):
        raise Refused(f"{name} belongs to another program. Give it a file of its own.")


def _read_readable_since(db: sqlite3.Connection, version: int) -> int:
    """Return the oldest program version that can use a file; the file's own version if it does not
    say.
    """
    try:
        return int(db.execute("SELECT since FROM readable").fetchone()[0])
    except sqlite3.OperationalError:
        return version


def sweep(db: sqlite3.Connection, now: float, ttl_s: float | None) -> None:
    """Forget calls that ended long ago, and sessions unused for their time to live."""
    db.execute("DELETE FROM ended WHERE at < ?", (now - REMEMBER_ENDED_S,))
    if ttl_s is not None:
        old = db.execute(
            "SELECT sid FROM session WHERE touched < ? AND touched + longest < ? AND NOT EXISTS"
            " (SELECT 1 FROM lease WHERE lease.sid = session.sid"
            " AND (expires IS NULL OR expires > ?))",
            (now - ttl_s, now, now),
        )
        for (sid,) in old.fetchall():
            delete_session(db, sid)


def delete_session(db: sqlite3.Connection, sid: str) -> None:
    for table in TABLES:
        db.execute(f"DELETE FROM {table} WHERE sid = ?", (sid,))  # noqa: S608 - names of ours


class LoadedSession(SessionState):
    """A session's counters in memory. ``ended`` are the calls that ended in this batch."""

    __slots__ = ("saved_amounts", "saved_moments", "saved_tallies")

    def __init__(self, touched: float = 0.0, lives_s: float = 0.0) -> None:
        super().__init__(touched=touched, lives_s=lives_s)
        self.saved_tallies: dict[str, tuple[int, ...]] = {}
        self.saved_amounts: dict[tuple[str, str], tuple[int, ...]] = {}
        self.saved_moments: Moments = {}

    def remember(self, call_id: str, how: str) -> None:
        self.ended[call_id] = how


class BatchCounter(MemoryLedger):
    """Counts for one batch at a time, in one thread."""

    _shared = False
    _session_type = LoadedSession
    now = 0.0

    def __init__(self) -> None:
        super().__init__(clock=lambda: self.now, ttl_s=None)  # the sessions of a file have theirs


class CachedSessions:
    """The sessions of a file: loaded on first use, saved at the end of each batch, and kept until
    another connection has written to the file.
    """

    def __init__(self, db: sqlite3.Connection, ttl_s: float | None) -> None:
        self._db = db
        self._ttl_s = ttl_s
        self._counter = BatchCounter()
        self._loaded: dict[str, Any] = self._counter._sessions
        self._version = -1
        self._touched: set[str] = set()  # sessions that this batch may have changed
        self._used: dict[str, float] = {}  # those that it keeps alive, with their longest window
        self._leased: dict[tuple[str, str], None] = {}  # leases that it took or renewed
        self._run_one: dict[str, Callable[[Any], Any]] = {
            "reserve": self._reserve,
            "settle": self._settle,
            "renew": self._renew,
            "snapshot": self._snapshot,
            "reset": self._reset,
            "sessions": self._list,
            "ping": lambda _: None,
        }

    def clear(self) -> None:
        """Forget everything that is in memory, so that it is read from disk again."""
        for held in (self._loaded, self._touched, self._used, self._leased):
            held.clear()

    def run(self, ops: Sequence[Operation], now: float) -> list[Any]:
        """Count a batch within a transaction that is under way; return the answers."""
        version = self._db.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version or len(self._loaded) > MAX_CACHED_SESSIONS:
            self._version = version
            self.clear()
        self._counter.now = now
        answers = [self._run_one[op.kind](op.step) for op in ops]
        self._save(now)
        return answers

    def _reserve(self, step: Reservation) -> Any:
        self._load_all(step)
        grant = self._counter._reserve(step)
        if grant.granted and step.hold:
            self._note_leases(step.session_id, step.call_id, step.accounts)
        return grant

    def _note_leases(self, sid: str, call: str, accounts: tuple[Account, ...]) -> None:
        self._leased[sid, call] = None
        for account in accounts:
            self._leased[account.key, name_in_account(sid, call)] = None

    def _settle(self, step: Settlement) -> Any:
        self._load_all(step)
        self._recall(step.session_id, step.call_id)
        state = self._loaded.get(step.session_id)
        lease = state.leases.get(step.call_id) if state is not None else None
        for account in step.accounts if lease is None else lease.held.accounts:
            self._use(account.key, account.limits)
            self._recall(account.key, name_in_account(step.session_id, step.call_id))
        return self._counter._settle(step)

    def _load_all(self, step: Reservation | Settlement) -> None:
        looks = only_looks(step)
        self._use(step.session_id, step.limits, looks)
        for account in step.accounts:
            self._use(account.key, account.limits, looks)

    def _use(self, sid: str, limits: tuple[Limit, ...], looks: bool = False) -> None:
        """Load a session, and extend its life unless this is a look."""
        self._load(sid)
        if not looks:
            self._used[sid] = max(longest_window(limits), self._used.get(sid, 0.0))

    def _recall(self, sid: str, call: str) -> None:
        """Return how a call ended that is no longer in memory."""
        state = self._loaded.get(sid)
        if state is not None and call not in state.leases and call not in state.ended:
            found = self._db.execute(
                "SELECT how FROM ended WHERE sid = ? AND call = ?", (sid, call)
            ).fetchone()
            if found is not None:
                state.ended_before[call] = found[0]

    def _renew(self, step: Renewal) -> bool:
        state = self._load(step.session_id)
        lease = state.leases.get(step.call_id) if state is not None else None
        if lease is not None:
            for account in lease.held.accounts:
                self._load(account.key)
            self._note_leases(step.session_id, step.call_id, lease.held.accounts)
        return self._counter.renew(step.session_id, step.call_id, step.lease_s)

    def _snapshot(self, sid: str) -> Any:
        self._load(sid)
        return self._counter.snapshot(sid)

    def _reset(self, sid: str) -> None:
        self._loaded.pop(sid, None)
        self._used.pop(sid, None)
        delete_session(self._db, sid)

    def _list(self, limit: int) -> list[Any]:
        self._save(self._counter.now)
        newest = self._db.execute(
            "SELECT sid FROM session WHERE substr(sid, 1, 1) <> ? ORDER BY touched DESC LIMIT ?",
            (MARK, limit),
        ).fetchall()
        return [self._snapshot(sid) for (sid,) in newest]

    # --- From rows to a session and back ----------------------------------------------------------

    def _load(self, sid: str) -> Any:
        """Return a session from disk; None if it does not exist or has expired."""
        self._touched.add(sid)
        state = self._loaded.get(sid)
        if state is None:
            select = "SELECT touched, longest FROM session WHERE sid = ?"
            found = self._db.execute(select, (sid,)).fetchone()
            if found is None:
                return None
            state = self._loaded[sid] = self._read(sid, *found)
        if (
            self._ttl_s is not None
            and self._counter.now - state.touched > max(self._ttl_s, state.lives_s)
            and self._counter._is_idle(state)
        ):
            self._reset(sid)
            return None
        return state

    def _read(self, sid: str, touched: float, longest: float) -> LoadedSession:
        state, select = LoadedSession(touched, longest), self._db.execute
        for tool, *row in select(
            "SELECT tool, attempts, executions, successes, failures, consecutive_failures, held"
            " FROM tally WHERE sid = ?",
            (sid,),
        ):
            state.saved_tallies[tool] = tuple(row)
            if tool == WHOLE_SESSION:
                state.total = Tally(*row)
            else:
                state.tallies[tool] = Tally(*row)
        for tool, name, spent, reserved in select(
            "SELECT tool, name, spent, reserved FROM amount WHERE sid = ?", (sid,)
        ):
            state.saved_amounts[tool, name] = (spent, reserved)
            state.tally(tool).amounts[name] = [spent, reserved]
        for tool, counter, at, value in select(
            "SELECT tool, counter, at, value FROM moment WHERE sid = ? ORDER BY at, value", (sid,)
        ):
            state.saved_moments.setdefault((tool, counter), []).append((at, value))
            state.tally(tool).times.setdefault(counter, []).append((at, value))
        for call, started, expires, terms, answer in select(
            "SELECT call, started, expires, terms, answer FROM lease WHERE sid = ?", (sid,)
        ):
            held, grant = lease_from_text(sid, call, terms, answer)
            state.leases[call] = Lease(held, started, expires, grant)
            state.expiring = state.expiring or expires is not None
        return state

    def _save(self, now: float) -> None:
        changes = ChangedRows()
        rows = changes.rows
        for sid in self._touched:
            state = self._loaded.get(sid)
            if state is not None:
                changes.collect(sid, state, now)
        for sid, call in self._leased:
            state = self._loaded.get(sid)
            lease = state.leases.get(call) if state is not None else None
            if lease is not None:
                terms, answer = terms_as_text(lease.held), answer_as_text(lease.grant)
                rows["lease"].append((sid, call, lease.started, lease.expires, terms, answer))
        for sid, longest in self._used.items():
            if (state := self._loaded.get(sid)) is not None:
                state.touched, state.lives_s = now, max(state.lives_s, longest)
                rows["session"].append((sid, now, state.lives_s))
        changes.write(self._db)
        for changed in (self._touched, self._used, self._leased):
            changed.clear()


class ChangedRows:
    """The rows that a batch has changed, by table."""

    def __init__(self) -> None:
        self.rows: dict[str, list[tuple[Any, ...]]] = {what: [] for what in STATEMENTS}

    def collect(self, sid: str, state: LoadedSession, now: float) -> None:
        """Add what differs from what was saved last, and remember it as saved."""
        for tool, t in ((WHOLE_SESSION, state.total), *state.tallies.items()):
            row = tally_row(t)
            if state.saved_tallies.get(tool) != row:
                state.saved_tallies[tool] = row
                self.rows["tally"].append((sid, tool, *row))
            if t.amounts:
                self._collect_amounts(sid, tool, t, state)
            if t.times:
                self._collect_moments(sid, tool, t, state)
        for call, how in state.ended.items():
            self.rows["freed lease"].append((sid, call))
            self.rows["ended"].append((sid, call, how, now))
        state.ended.clear()
        state.ended_before.clear()

    def _collect_amounts(self, sid: str, tool: str, tally: Tally, state: LoadedSession) -> None:
        for name, entry in tally.amounts.items():
            row = tuple(entry)
            if state.saved_amounts.get((tool, name)) != row:
                state.saved_amounts[tool, name] = row
                self.rows["amount"].append((sid, tool, name, *row))

    def _collect_moments(self, sid: str, tool: str, tally: Tally, state: LoadedSession) -> None:
        for counter, after in tally.times.items():
            before = state.saved_moments.get((tool, counter), [])
            if before == after:
                continue
            new = (Counter(after) - Counter(before)).elements()
            self.rows["moment"] += [(sid, tool, counter, at, value) for at, value in new]
            oldest = after[0][0] if after else float("inf")
            self.rows["old moment"].append((sid, tool, counter, oldest))
            state.saved_moments[tool, counter] = list(after)

    def write(self, db: sqlite3.Connection) -> None:
        for what, rows in self.rows.items():
            if rows:
                db.executemany(STATEMENTS[what], rows)
