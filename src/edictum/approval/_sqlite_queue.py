"""The queue on SQLite, in a file of its own or in that of the sessions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from edictum.approval._rows import RequestRow, StoredRow, read_row
from edictum.approval._steps import Listing, Polling, QueueStep, take_step
from edictum.approval.port import ApprovalStatus
from edictum.sessions._batching import Operation, StoredVersion, check_stored_version
from edictum.sessions._sqlite import (
    APPLICATION_ID,
    SWEEP_EVERY_S,
    SqliteFile,
    SqliteStore,
    check_owner,
)

_SCHEMA_VERSION = 2  # 1 was never released
_READABLE_SINCE = 2
_ROWS = "SELECT body, leased FROM approval WHERE "
_WANTED = "id IN (SELECT value FROM json_each(?)) OR key IN (SELECT value FROM json_each(?))"
_PLACES = ", ".join("?" * 12)


class SqliteApprovalStore(SqliteStore):
    """A file with requests for approval."""

    def connect(self) -> SqliteFile:
        return SqliteApprovals(self)


class SqliteApprovals(SqliteFile):
    """A connection to the requests in a file."""

    def __init__(self, store: SqliteStore) -> None:
        super().__init__(store)
        self._swept = 0.0

    def _set_up(self, db: sqlite3.Connection) -> None:
        set_up_approvals(db, self._store.name)

    def _run(self, db: sqlite3.Connection, ops: Sequence[Operation], now: float) -> list[Any]:
        if now - self._swept > SWEEP_EVERY_S:
            self._swept = now
            _sweep(db, now, self._store.ttl_s)
        return [_run_one(db, op.step, now) for op in ops]


def set_up_approvals(db: sqlite3.Connection, name: str) -> None:
    """Create the tables where they are missing; refuse those that are not this version's."""
    check_owner(db, name)
    exists = "SELECT 1 FROM sqlite_master WHERE name = 'approval_version'"
    if db.execute(exists).fetchone() is not None:
        found = db.execute("SELECT written_by, readable_since FROM approval_version").fetchone()
        remedy = "Delete the file, or give approvals another one."
        check_stored_version(name, StoredVersion(*found), _SCHEMA_VERSION, (), remedy)
        return
    tables = (files("edictum.approval") / "sql" / "sqlite" / "approvals.sql").read_text()
    versions = f"({_SCHEMA_VERSION}, {_READABLE_SINCE})"
    db.executescript(
        f"BEGIN; {tables} INSERT INTO approval_version VALUES {versions};"  # noqa: S608 - ours
        f" PRAGMA application_id = {APPLICATION_ID}; COMMIT"
    )


def _sweep(db: sqlite3.Connection, now: float, ttl_s: float | None) -> None:
    """Delete requests that have not changed for their time to live."""
    if ttl_s is not None:
        old = (now - ttl_s, now)
        db.execute("DELETE FROM approval WHERE changed < ? AND expires < ?", old)


def _run_one(db: sqlite3.Connection, step: Any, now: float) -> Any:
    if step is None:  # a ping
        return None
    if isinstance(step, Listing):
        return _list(db, step, now)
    if isinstance(step, Polling):
        return _poll(db, step, now)
    rows, answer = take_step(step, _fetch(db, step), now)
    for row in rows:
        _save(db, row)
    return answer


def _fetch(db: sqlite3.Connection, step: QueueStep) -> list[StoredRow]:
    wanted = (json.dumps(step.ids), json.dumps(step.keys))
    found = db.execute(f"{_ROWS} {_WANTED} ORDER BY asked, id", wanted)
    return [read_row(*values) for values in found]


def _save(db: sqlite3.Connection, row: StoredRow) -> None:
    seq = _read_newest(db) + 1
    named = (row.row_id, row.kind, row.key, row.status, row.session_id, row.tool_name)
    times = (row.asked_at, row.expires_at, row.leased_until, row.changed_at)
    values = (*named, *times, seq, row.to_text())
    db.execute(f"INSERT OR REPLACE INTO approval VALUES ({_PLACES})", values)  # noqa: S608 - ours


def _read_newest(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT coalesce(max(seq), 0) FROM approval").fetchone()[0])


def _list(db: sqlite3.Connection, wanted: Listing, now: float) -> list[StoredRow]:
    conditions, values = (
        ["kind = ? AND status = ? AND expires > ?"],
        [wanted.kind, wanted.status, now],
    )
    for column, value in (("session", wanted.session_id), ("tool", wanted.tool_name)):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    if wanted.after is not None:
        conditions.append("(asked, id) > (SELECT asked, id FROM approval WHERE id = ?)")
        values.append(wanted.after)
    found = " AND ".join(conditions)
    listed = db.execute(f"{_ROWS} {found} ORDER BY asked, id LIMIT ?", (*values, wanted.limit))
    return [read_row(*values) for values in listed]


def _poll(db: sqlite3.Connection, step: Polling, now: float) -> tuple[int, list[str]]:
    if step.renewed:
        db.execute(
            "UPDATE approval SET leased = ? WHERE kind = ? AND status = ? AND id IN"
            " (SELECT value FROM json_each(?))",
            (now + step.lease_s, RequestRow.kind, ApprovalStatus.PENDING, json.dumps(step.renewed)),
        )
    newest = _read_newest(db)
    if step.since < 0:  # the first look
        return newest, []
    changed = db.execute("SELECT id FROM approval WHERE seq > ?", (step.since,)).fetchall()
    return newest, [key for (key,) in changed]
