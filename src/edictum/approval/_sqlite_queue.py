"""The queue on SQLite, in a file of its own or in that of the sessions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from edictum.approval._steps import Asking, QueueRow, QueueStep, take_step
from edictum.approval.port import ApprovalStatus
from edictum.approval.queue import Finding, Listing, Polling
from edictum.sessions._batching import Operation, StoredVersion, check_stored_version
from edictum.sessions._sqlite import (
    APPLICATION_ID,
    SWEEP_EVERY_S,
    SqliteFile,
    SqliteStore,
    check_owner,
)

_SCHEMA_VERSION = 1
_READABLE_SINCE = 1
_ROWS = "SELECT body, leased FROM approval WHERE "


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
    """Forget requests in which nothing has changed for their time to live."""
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
    if isinstance(step, Finding):
        return _find(db, step)
    row, answer = take_step(step, _fetch(db, step), now)
    if row is not None:
        _save(db, row)
    return answer


def _fetch(db: sqlite3.Connection, step: QueueStep) -> list[QueueRow]:
    if isinstance(step, Asking):
        asked = (step.row.session_id, step.row.digest)
        found = db.execute(f"{_ROWS} session IS ? AND digest = ? ORDER BY asked, id", asked)
    else:
        found = db.execute(f"{_ROWS} id = ?", (step.approval_id,))
    return [QueueRow.from_text(*values) for values in found]


def _save(db: sqlite3.Connection, row: QueueRow) -> None:
    seq = _read_newest(db) + 1
    key = (row.approval_id, row.session_id, row.digest, row.tool_name, row.status)
    times = (row.asked_at, row.expires_at, row.leased_until, row.changed_at)
    values = (*key, *times, seq, row.to_text())
    db.execute("INSERT OR REPLACE INTO approval VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)


def _read_newest(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT coalesce(max(seq), 0) FROM approval").fetchone()[0])


def _list(db: sqlite3.Connection, wanted: Listing, now: float) -> list[QueueRow]:
    conditions, values = ["status = ? AND expires > ?"], [ApprovalStatus.PENDING, now]
    for column, value in (("session", wanted.session_id), ("tool", wanted.tool_name)):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    if wanted.after is not None:
        conditions.append("(asked, id) > (SELECT asked, id FROM approval WHERE id = ?)")
        values.append(wanted.after)
    found = " AND ".join(conditions)
    listed = db.execute(f"{_ROWS} {found} ORDER BY asked, id LIMIT ?", (*values, wanted.limit))
    return [QueueRow.from_text(*values) for values in listed]


def _find(db: sqlite3.Connection, wanted: Finding) -> QueueRow | None:
    same = (
        "session = ? AND json_extract(body, '$.call_id') = ?"
        " AND json_extract(body, '$.call_digest') = ?"
    )
    values = (wanted.session_id, wanted.call_id, wanted.call_digest)
    found = db.execute(f"{_ROWS} {same} ORDER BY asked DESC LIMIT 1", values).fetchone()
    return None if found is None else QueueRow.from_text(*found)


def _poll(db: sqlite3.Connection, step: Polling, now: float) -> tuple[int, list[str]]:
    if step.renewed:
        db.execute(
            "UPDATE approval SET leased = ? WHERE status = ? AND id IN"
            " (SELECT value FROM json_each(?))",
            (now + step.lease_s, ApprovalStatus.PENDING, json.dumps(step.renewed)),
        )
    newest = _read_newest(db)
    if step.since < 0:  # the first look
        return newest, []
    changed = db.execute("SELECT id FROM approval WHERE seq > ?", (step.since,)).fetchall()
    return newest, [key for (key,) in changed]
