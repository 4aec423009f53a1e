"""The index of a directory of artifacts: its entries, their sizes, and when they expire.

A small SQLite file in the directory, so that storing one artifact does not list the others, and a
quota holds for all processes. An artifact is entered before its file is written and removed after
its file is gone: a process that is killed in between leaves an entry without a file, which counts
until it expires. A missing or damaged index is rebuilt from the files.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

from edictum.execution.forks import protect

PRIVATE_FILE = 0o600
ABANDONED_S = 3_600.0  # a file that was not written by then never will be
WAIT_S = 30.0  # how long to wait for other processes
_ENTER = "INSERT INTO artifact VALUES (?, ?, ?, ?, ?, ?)"
_SCHEMA = """
CREATE TABLE artifact (
    key TEXT PRIMARY KEY, id TEXT NOT NULL, session TEXT NOT NULL,
    size INTEGER NOT NULL, expires_at REAL NOT NULL, entered_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX artifact_by_id ON artifact (id);
CREATE INDEX artifact_by_expiry ON artifact (expires_at);
CREATE TABLE taken (session TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER entered AFTER INSERT ON artifact BEGIN
    INSERT INTO taken VALUES (NEW.session, NEW.size), ('', NEW.size)
        ON CONFLICT (session) DO UPDATE SET bytes = bytes + NEW.size;
END;
CREATE TRIGGER removed AFTER DELETE ON artifact BEGIN
    UPDATE taken SET bytes = bytes - OLD.size WHERE session IN (OLD.session, '');
    DELETE FROM taken WHERE session = OLD.session AND bytes = 0;
END;
PRAGMA user_version = 1;
"""


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry of the index."""

    key: str  # <session>/<artifact>
    size: int
    expires_at: float
    ttl_s: float = inf  # for servers that let values expire by their own clock

    def as_row(self) -> tuple[str, str, str, int, float, float]:
        session, _, artifact_id = self.key.partition("/")
        return (self.key, artifact_id, session, self.size, self.expires_at, time.time())


@dataclass(frozen=True, slots=True)
class Quotas:
    """How many bytes artifacts may take."""

    session: int
    total: int

    def find_full(self, of_session: int, of_all: int) -> str:
        """Say which quota so many bytes would exceed; an empty text if none."""
        if of_session > self.session:
            return f"the session's artifacts would take {of_session} of {self.session} bytes"
        if of_all > self.total:
            return f"all artifacts would take {of_all} of {self.total} bytes"
        return ""


NO_QUOTAS = Quotas(1 << 62, 1 << 62)


class ArtifactIndex:
    """``list_all`` reads the directory itself, for an index that has to be made."""

    def __init__(self, path: Path, list_all: Callable[[], Iterable[Listed]]) -> None:
        self._path = path
        self._list_all = list_all

    def enter(self, artifact: Listed, quotas: Quotas) -> str:
        """Enter an artifact if it fits, in one step for all processes; else say what is full."""
        session = artifact.key.partition("/")[0]
        with self._transaction() as db:
            query = "SELECT session, bytes FROM taken WHERE session IN (?, '')"
            taken = dict(db.execute(query, (session,)))
            of_session, of_all = taken.get(session, 0), taken.get("", 0)
            full = quotas.find_full(of_session + artifact.size, of_all + artifact.size)
            if not full:
                db.execute(_ENTER, artifact.as_row())
            return full

    def remove(self, key: str) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM artifact WHERE key = ?", (key,))

    def find(self, artifact_id: str) -> str | None:
        """Return the key of an artifact whose session is not known."""
        with self._transaction() as db:
            found = db.execute("SELECT key FROM artifact WHERE id = ?", (artifact_id,)).fetchone()
        return None if found is None else str(found[0])

    def list_stale(self, now: float, limit: int) -> list[str]:
        """Return the keys of some artifacts that have expired, the oldest first."""
        query = "SELECT key FROM artifact WHERE expires_at <= ? ORDER BY expires_at LIMIT ?"
        with self._transaction() as db:
            return [str(key) for (key,) in db.execute(query, (now, limit))]

    def rebuild(self) -> None:
        """Enter the files of the directory and remove entries without a file, except new ones,
        whose files may be about to be written.
        """
        with self._transaction() as db:
            self._fill(db)

    def _fill(self, db: sqlite3.Connection) -> None:
        there = {artifact.key: artifact for artifact in self._list_all()}
        known = dict(db.execute("SELECT key, entered_at FROM artifact"))
        too_old = time.time() - ABANDONED_S
        gone = [(key,) for key, at in known.items() if key not in there and at < too_old]
        db.executemany("DELETE FROM artifact WHERE key = ?", gone)
        rows = [artifact.as_row() for key, artifact in there.items() if key not in known]
        db.executemany(_ENTER, rows)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Open the index for one transaction: a connection that is kept would not survive a fork,
        nor notice that the directory was removed.
        """
        with contextlib.closing(self._begin()) as db:
            try:
                if db.execute("PRAGMA user_version").fetchone() == (0,):
                    for statement in _iterate_statements(_SCHEMA):
                        db.execute(statement)
                    self._fill(db)
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def _begin(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.DatabaseError as exc:
            if exc.sqlite_errorcode not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise
            self._path.unlink(missing_ok=True)  # it is rebuilt from the files
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        """Open the index, which is made for its owner alone.

        One that is there is opened by SQLite only: closing a descriptor of it drops the locks that
        other connections of this process have on it.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            os.close(os.open(self._path, flags, PRIVATE_FILE))
        except FileExistsError:
            if not stat.S_ISREG(os.lstat(self._path).st_mode):
                raise PermissionError(f"{self._path} is not a regular file.") from None
        db = sqlite3.connect(self._path, timeout=WAIT_S, isolation_level=None)
        try:
            db.execute("BEGIN IMMEDIATE")
        except BaseException:
            db.close()
            raise
        return db


class ProcessIndex(ArtifactIndex):
    """An index in memory of the artifacts that this process stored, and of those that a session
    held when it first stored something there (``list_session``).
    """

    def __init__(
        self,
        list_all: Callable[[], Iterable[Listed]],
        list_session: Callable[[str], Iterable[Listed]],
    ) -> None:
        super().__init__(Path(), list_all)
        self._list_session = list_session
        self._seen: set[str] = set()
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._db.executescript(_SCHEMA)
        self._lock = threading.Lock()
        protect(self)

    def enter(self, artifact: Listed, quotas: Quotas) -> str:
        session = artifact.key.partition("/")[0]
        if session not in self._seen:
            rows = [each.as_row() for each in self._list_session(session)]
            with self._transaction() as db:
                db.executemany(_ENTER.replace("INSERT", "INSERT OR IGNORE"), rows)
            self._seen.add(session)
        return super().enter(artifact, quotas)

    def find(self, artifact_id: str) -> str | None:
        """Return the key of an artifact whose session is not known; all are listed if need be."""
        if (known := super().find(artifact_id)) is not None:
            return known
        keys = (each.key for each in self._list_all())
        return next((key for key in keys if key.endswith(f"/{artifact_id}")), None)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")


def _iterate_statements(script: str) -> Iterator[str]:
    """Yield the statements of a script; ``executescript`` would end the transaction."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
