"""The SQLite ledger: exact for all processes of one machine, and on disk when it has answered.

The counting is done by the memory ledger. A batch is one write transaction: load the sessions it
touches, let a MemoryLedger work on them, write what changed. Writers of all processes queue on an
operating system lock beside the file, which the kernel drops when its holder dies; SQLite's own
lock would make them sleep and retry. ``synchronous=FULL``: a call that was granted is still counted
after a power cut.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from edictum.core.decide import describe
from edictum.core.limits import WHOLE_SESSION
from edictum.execution.forks import protect
from edictum.sessions.memory import Lease, MemoryLedger, SessionState, Tally, only_looks, parent_key
from edictum.sessions.store import Batch, Op, Refused, Unavailable
from edictum.sessions.wire import dumps, lease_as_text, lease_from_text

APPLICATION_ID = 0x45_44_49_43  # "EDIC"
REMEMBER_ENDED_S = 3_600.0  # how long a repeated settlement is known again
SWEEP_EVERY_S = 30.0

Rows = dict[tuple[Any, ...], tuple[Any, ...]]

# Per table: its key and value columns. A key starts with the session.
TABLES = {
    "tally": (
        ("sid", "scope"),
        ("attempts", "executions", "successes", "failures", "consecutive_failures", "held"),
    ),
    "amount": (("sid", "scope", "name"), ("spent", "reserved")),
    "lease": (("sid", "call"), ("started", "expires", "terms")),
    "ended": (("sid", "call"), ("how", "at")),
}
ALL_TABLES = ("session", "moment", *TABLES)


def _upsert(table: str) -> str:
    key, value = TABLES[table]
    names = ", ".join(key + value)
    return f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({', '.join('?' * len(key + value))})"  # noqa: S608


def _delete(table: str) -> str:
    return f"DELETE FROM {table} WHERE {' AND '.join(f'{name} = ?' for name in TABLES[table][0])}"  # noqa: S608


def _select(table: str) -> str:
    key, value = TABLES[table]
    return f"SELECT {', '.join(key + value)} FROM {table} WHERE sid = ?"  # noqa: S608


UPSERT, DELETE, SELECT = (
    {table: make(table) for table in TABLES} for make in (_upsert, _delete, _select)
)


class SqliteStore:
    """A file. ``clock`` gives seconds since the epoch, for all processes that share the file."""

    def __init__(
        self,
        path: str | Path,
        *,
        ttl_s: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = os.fspath(path)
        self.name = f"sqlite:///{self.path}"
        self._ttl_s = ttl_s
        self._clock = clock
        self._db: sqlite3.Connection | None = None
        self._lock_fd: int | None = None
        self._swept = 0.0
        self._inherited: list[sqlite3.Connection] = []
        self._lock = (
            threading.Lock()
        )  # for forks: SQLite is of no use in a child that was made in the midst of a transaction
        protect(self)

    def execute(self, batch: Batch) -> list[Any]:
        with self._lock:
            return self._execute(batch)

    def _execute(self, batch: Batch) -> list[Any]:
        try:
            with self._transaction() as db:
                now = self._clock()
                if now - self._swept > SWEEP_EVERY_S:
                    self._sweep(db, now)
                return Desk(db, now, self._ttl_s).work(batch.ops)
        except (sqlite3.OperationalError, sqlite3.DatabaseError, OSError) as exc:
            if isinstance(
                exc, (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError)
            ):
                raise
            self._disconnect()
            raise Unavailable(describe(exc)) from exc

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        db = self._db or self._connect()
        assert self._lock_fd is not None
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        try:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        finally:
            if self._lock_fd is not None:
                fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def _connect(self) -> sqlite3.Connection:
        self._lock_fd = os.open(self.path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        db = self._db = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=1.0
        )
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX)  # two processes must not both make the file
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            migrate(db, self.name)
        finally:
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)
        return db

    def _sweep(self, db: sqlite3.Connection, now: float) -> None:
        """Forget ends nobody will ask about, and sessions that were not used for their time to
        live.
        """
        self._swept = now
        db.execute("DELETE FROM ended WHERE at < ?", (now - REMEMBER_ENDED_S,))
        if self._ttl_s is not None:
            old = db.execute(
                "SELECT sid FROM session WHERE touched < ? AND NOT EXISTS (SELECT 1 FROM lease"
                " WHERE lease.sid = session.sid AND (expires IS NULL OR expires > ?))",
                (now - self._ttl_s, now),
            )
            for (sid,) in old.fetchall():
                forget_session(db, sid)

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        fd, self._lock_fd = self._lock_fd, None
        if db is not None:
            db.close()
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def forget(self) -> None:
        # SQLite forbids even closing a connection that came through a fork, so it is kept and never
        # touched.
        if self._db is not None:
            self._inherited.append(self._db)
        if self._lock_fd is not None:
            os.close(
                self._lock_fd
            )  # else this process would keep the lock when the parent dies with it
        self._db = self._lock_fd = None


def migrate(db: sqlite3.Connection, name: str) -> None:
    """Bring the file to this version's tables: each numbered file once, in order."""
    owner, version = (
        db.execute(f"PRAGMA {pragma}").fetchone()[0]
        for pragma in ("application_id", "user_version")
    )
    steps = sorted(
        (files("edictum.sessions") / "sql" / "sqlite").iterdir(), key=lambda file: file.name
    )
    if owner not in (0, APPLICATION_ID) or (
        owner == 0 and db.execute("SELECT 1 FROM sqlite_master").fetchone()
    ):
        raise Refused(f"{name} belongs to another program. Give sessions a file of their own.")
    if version > len(steps):
        raise Refused(
            f"{name} was written by a newer version of edictum (schema {version}). Upgrade this"
            " one."
        )
    for number, step in enumerate(steps[version:], version + 1):
        db.executescript(
            f"BEGIN; {step.read_text()} PRAGMA application_id = {APPLICATION_ID}; PRAGMA"
            f" user_version = {number}; COMMIT"
        )


def forget_session(db: sqlite3.Connection, sid: str) -> None:
    for table in ALL_TABLES:
        db.execute(f"DELETE FROM {table} WHERE sid = ?", (sid,))  # noqa: S608


class Engine(MemoryLedger):
    """Counts for one batch, in one thread."""

    _shared = False


class Desk:
    """One batch inside one transaction: sessions are loaded when first touched, and written back at
    the end.
    """

    def __init__(self, db: sqlite3.Connection, now: float, ttl_s: float | None) -> None:
        self._db = db
        self._now = now
        self._engine = Engine(clock=lambda: now, ttl_s=ttl_s)
        self._loaded: dict[
            str, tuple[dict[str, Rows], dict[tuple[str, str], list[tuple[float, int]]]]
        ] = {}
        self._used: set[str] = set()

    def work(self, ops: Iterable[Op]) -> list[Any]:
        answers = [getattr(self, f"_{op.kind}")(op.step) for op in ops]
        self._save()
        return answers

    def _reserve(self, step: Any) -> Any:
        dumps(
            [step.session_id, step.call_id, step.scopes, step.parents]
        )  # text that cannot be stored is refused before it counts
        self._open(step)
        return self._engine.reserve(step)

    def _settle(self, step: Any) -> Any:
        dumps([step.session_id, step.call_id, step.scopes, step.parents])
        self._open(step)
        return self._engine.settle(step)

    def _open(self, step: Any) -> None:
        self._load(step.session_id, step.call_id)
        for parent in step.parents:
            self._load(parent, parent_key(step.session_id, step.call_id))
        if not only_looks(step):
            self._used.update((step.session_id, *step.parents))

    def _renew(self, step: Any) -> bool:
        state = self._load(step.session_id)
        if state is not None and (lease := state.leases.get(step.call_id)) is not None:
            for parent in lease.held.parents:
                self._load(parent)
        return self._engine.renew(step.session_id, step.call_id, step.lease_s)

    def _snapshot(self, session_id: str) -> Any:
        self._load(session_id)
        return self._engine.snapshot(session_id)

    def _reset(self, session_id: str) -> None:
        self._engine.reset(session_id)
        self._loaded.pop(session_id, None)
        self._used.discard(session_id)
        forget_session(self._db, session_id)

    def _sessions(self, limit: int) -> list[Any]:
        self._save()
        newest = self._db.execute(
            "SELECT sid FROM session ORDER BY touched DESC LIMIT ?", (limit,)
        ).fetchall()
        return [self._snapshot(sid) for (sid,) in newest]

    def _ping(self, _: None) -> None:
        return None

    # --- From rows to a SessionState and back -----------------------------------------------------

    def _load(self, sid: str, call: str | None = None) -> SessionState | None:
        if sid not in self._loaded:
            self._load_rows(sid)
        state = self._engine._sessions.get(sid)
        rows, _ = self._loaded[sid]
        if (
            state is not None
            and call is not None
            and call not in state.leases
            and (sid, call) not in rows["ended"]
        ):
            found = self._db.execute(
                "SELECT how, at FROM ended WHERE sid = ? AND call = ?", (sid, call)
            ).fetchone()
            if found is not None:
                rows["ended"][(sid, call)] = found
                state.ended.setdefault(call, found[0])
        return state

    def _load_rows(self, sid: str) -> None:
        db = self._db
        rows: dict[str, Rows] = {"ended": {}}
        for table in ("tally", "amount", "lease"):
            width = len(TABLES[table][0])
            rows[table] = {row[:width]: row[width:] for row in db.execute(SELECT[table], (sid,))}
        moments: dict[tuple[str, str], list[tuple[float, int]]] = {}
        found = db.execute(
            "SELECT scope, counter, at, value FROM moment WHERE sid = ? ORDER BY at, value", (sid,)
        )
        for scope, counter, at, value in found:
            moments.setdefault((scope, counter), []).append((at, value))
        self._loaded[sid] = (rows, moments)
        touched = db.execute("SELECT touched FROM session WHERE sid = ?", (sid,)).fetchone()
        if touched is not None:
            self._engine._sessions[sid] = _state(rows, moments, touched[0])

    def _save(self) -> None:
        for sid in list(self._loaded):
            state = self._engine._sessions.get(sid)
            if state is not None:
                self._save_rows(sid, state)
        db = self._db
        db.executemany(
            "INSERT OR REPLACE INTO session VALUES (?, ?)", [(sid, self._now) for sid in self._used]
        )
        self._loaded.clear()
        self._engine._sessions.clear()
        self._used.clear()

    def _save_rows(self, sid: str, state: SessionState) -> None:
        db, (before, moments) = self._db, self._loaded[sid]
        after = _rows(sid, state, self._now)
        for table, rows in after.items():
            old = before[table]
            if changed := [
                key + row for key, row in rows.items() if not _same(table, old.get(key), row)
            ]:
                db.executemany(UPSERT[table], changed)
            if table != "ended" and (gone := [key for key in old if key not in rows]):
                db.executemany(DELETE[table], gone)
        times = {
            (scope, counter): found
            for scope, tally in _tallies(state)
            for counter, found in tally.times.items()
        }
        for scope, counter in {**moments, **times}:
            self._save_moments(
                sid,
                scope,
                counter,
                moments.get((scope, counter), []),
                times.get((scope, counter), []),
            )

    def _save_moments(
        self,
        sid: str,
        scope: str,
        counter: str,
        before: list[tuple[float, int]],
        after: list[tuple[float, int]],
    ) -> None:
        if before == after:
            return
        new = (Counter(after) - Counter(before)).elements()
        self._db.executemany(
            "INSERT INTO moment VALUES (?, ?, ?, ?, ?)",
            [(sid, scope, counter, at, value) for at, value in new],
        )
        oldest = after[0][0] if after else float("inf")
        self._db.execute(
            "DELETE FROM moment WHERE sid = ? AND scope = ? AND counter = ? AND at < ?",
            (sid, scope, counter, oldest),
        )


def _same(table: str, old: tuple[Any, ...] | None, new: tuple[Any, ...]) -> bool:
    return old is not None and (
        old[0] == new[0] if table == "ended" else old == new
    )  # an end is written once


def _tallies(state: SessionState) -> Iterator[tuple[str, Tally]]:
    yield WHOLE_SESSION, state.total
    yield from state.tallies.items()


def _state(
    rows: Mapping[str, Rows],
    moments: Mapping[tuple[str, str], list[tuple[float, int]]],
    touched: float,
) -> SessionState:
    state = SessionState(touched=touched)
    for (_, scope), counters in rows["tally"].items():
        if scope == WHOLE_SESSION:
            state.total = Tally(*counters)
        else:
            state.tallies[scope] = Tally(*counters)
    for (_, scope, name), entry in rows["amount"].items():
        state.tally(scope).amounts[name] = list(entry)
    for (scope, counter), times in moments.items():
        state.tally(scope).times[counter] = list(times)
    for (_, call), (started, expires, terms) in rows["lease"].items():
        held, grant = lease_from_text(terms)
        state.leases[call] = Lease(held, started, expires, grant, terms)
        state.expiring = state.expiring or expires is not None
    return state


def _rows(sid: str, state: SessionState, now: float) -> dict[str, Rows]:
    tallies: Rows = {}
    amounts: Rows = {}
    for scope, t in _tallies(state):
        tallies[(sid, scope)] = (
            t.attempts,
            t.executions,
            t.successes,
            t.failures,
            t.consecutive_failures,
            t.held,
        )
        amounts.update({(sid, scope, name): tuple(entry) for name, entry in t.amounts.items()})
    leases: Rows = {}
    for call, lease in state.leases.items():
        leases[(sid, call)] = (
            lease.started,
            lease.expires,
            lease.text or lease_as_text(lease.held, lease.grant),  # type: ignore[arg-type]
        )
    ended: Rows = {(sid, call): (how, now) for call, how in state.ended.items()}
    return {"tally": tallies, "amount": amounts, "lease": leases, "ended": ended}
