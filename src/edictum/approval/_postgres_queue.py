"""The queue on PostgreSQL, in a schema of its own or in that of the sessions.

A batch is one transaction under a lock, so that writers take turns and changes are seen in their
order. Changes are announced by NOTIFY when the transaction is committed. Time is the server's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import asyncpg

from edictum.approval._fetched_rows import FetchedRows, collect_ids, collect_keys, list_steps
from edictum.approval._rows import RequestRow, StoredRow, read_row
from edictum.approval._steps import Listing, Polling
from edictum.approval.port import ApprovalStatus
from edictum.sessions._batching import Batch, Operation, Unavailable
from edictum.sessions._postgres import (
    POSTGRES_LOST,
    SCHEMA_CHECK_EVERY_S,
    PostgresConnection,
    PostgresStore,
    explain_error,
)
from edictum.sessions._postgres_schema import PostgresSchema, transaction

_CHANNEL = "edictum_approvals"
_LOCK = 0x45_44_41_50
_STALLED = "5s"  # how long a process stopped within a batch can block others
_NOW = "extract(epoch FROM clock_timestamp())::float8"
_COLUMNS = "id, kind, key, status, session, tool, asked, expires, leased, changed, seq, body"
_PLACES = ", ".join(f"${number}" for number in range(1, 13))
_UPDATES = ", ".join(f"{it} = excluded.{it}" for it in _COLUMNS.split(", ")[1:])
_FILES: dict[int | None, tuple[str, ...]] = {None: ("approvals",)}


class ApprovalSchema(PostgresSchema):
    """The tables of requests and grants."""

    version, readable_since = 1, 1
    known = (1,)
    version_table = "approval_version"
    package = "edictum.approval"
    steps = _FILES
    tables = ("approval", "approval_counter")


class PostgresApprovalStore(PostgresStore):
    """A database with requests for approval."""

    schema_type = ApprovalSchema

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.can_push = not self.pooled  # a pooler gives a connection to other programs

    def connect(self) -> PostgresApprovals:
        return PostgresApprovals(self)

    async def listen(self) -> AsyncGenerator[list[str], None]:
        """Yield the ids of rows that change; first an empty list, as soon as no change can be
        missed.
        """
        pushed: asyncio.Queue[str | None] = asyncio.Queue()
        db: Any = None
        try:
            db = await asyncpg.connect(**await self.connection_options())
            db.add_termination_listener(lambda _: pushed.put_nowait(None))
            await db.add_listener(_CHANNEL, lambda *told: pushed.put_nowait(told[-1]))
            yield []
            while (changed := await pushed.get()) is not None:
                yield [changed]
        except POSTGRES_LOST as exc:
            raise Unavailable(explain_error(exc)) from exc
        finally:
            if db is not None:
                db.terminate()


class PostgresApprovals(PostgresConnection):
    """A connection to the requests in a database."""

    def __init__(self, store: PostgresApprovalStore) -> None:
        super().__init__(store)
        self._table = f'"{store.schema.name}".approval'
        self._counter = f'"{store.schema.name}".approval_counter'
        self._swept: float | None = None

    def _forget(self) -> None:
        self._swept = None

    async def _run(self, db: Any, batch: Batch) -> list[Any]:
        is_due = self._swept is None or time.monotonic() - self._swept > SCHEMA_CHECK_EVERY_S
        if is_due:
            await self._store.set_up(db)
        async with transaction(db, isolation="read_committed"):  # to see what is committed by now
            if is_due or any(_is_writer(op) for op in batch.ops):
                await self._lock(db)
            now = await db.fetchval(f"SELECT {_NOW}")
            if is_due:
                await self._sweep(db, now)
            answers = await self._answer_all(db, batch.ops, now)
        self._swept = time.monotonic() if is_due else self._swept
        return answers

    async def _lock(self, db: Any) -> None:
        await db.execute(
            "SELECT set_config('idle_in_transaction_session_timeout', $1, true),"
            " pg_advisory_xact_lock($2, hashtext($3))",
            *(_STALLED, _LOCK, self._store.schema.name),
        )

    async def _sweep(self, db: Any, now: float) -> None:
        """Delete requests that have not changed for their time to live."""
        if ttl_us := self._store.ttl_us:
            old = "changed < $1 AND expires < $2"
            query = f"DELETE FROM {self._table} WHERE {old}"  # noqa: S608 - names of ours
            await db.execute(query, now - ttl_us / 1e6, now)

    async def _answer_all(self, db: Any, ops: Sequence[Operation], now: float) -> list[Any]:
        steps = list_steps(ops)
        rows = FetchedRows(await self._fetch(db, collect_ids(steps), collect_keys(steps)), now)
        taken = iter([rows.take(step) for step in steps])
        await self._save(db, rows)
        answers: list[Any] = []
        for op in ops:
            match op.step:
                case None:
                    answers.append(None)
                case Listing():
                    answers.append(await self._list(db, op.step, now))
                case Polling():
                    answers.append(await self._poll(db, op.step, now))
                case _:
                    answers.append(next(taken))
        return answers

    async def _fetch(self, db: Any, ids: list[str], keys: list[str]) -> list[StoredRow]:
        if not ids and not keys:
            return []
        where = "id = ANY($1) OR key = ANY($2)"
        return await self._read(db, where, ids, keys)

    async def _read(self, db: Any, rest: str, *values: Any) -> list[StoredRow]:
        query = f"SELECT body, leased FROM {self._table} WHERE {rest}"  # noqa: S608 - ours
        return [read_row(*found) for found in await db.fetch(query, *values)]

    async def _save(self, db: Any, rows: FetchedRows) -> None:
        if not rows.changed:
            return
        known = [row_id for row_id in rows.changed if row_id in rows.known]
        count = f"UPDATE {self._counter} SET seq = seq + $1 RETURNING seq - $1"  # noqa: S608 - ours
        before = await db.fetchval(count, len(known))
        numbers = {row_id: before + number for number, row_id in enumerate(known, 1)}
        values = [_make_values(row, numbers.get(row.row_id, 0)) for row in rows.changed.values()]
        insert = f"INSERT INTO {self._table} ({_COLUMNS}) VALUES ({_PLACES})"  # noqa: S608 - ours
        await db.executemany(f"{insert} ON CONFLICT (id) DO UPDATE SET {_UPDATES}", values)
        if known:  # a new row is not waited for yet
            notify = "SELECT pg_notify($1, id) FROM unnest($2::text[]) AS id"
            await db.execute(notify, _CHANNEL, known)

    async def _list(self, db: Any, wanted: Listing, now: float) -> list[StoredRow]:
        conditions, values = ["kind = $1", "status = $2", "expires > $3"], list[Any]()
        values += [wanted.kind, wanted.status, now]
        place = f"SELECT asked, id FROM {self._table}"  # noqa: S608 - names of ours
        later = f"(asked, id) > ({place} WHERE id = ${{}})"
        for condition, value in (
            ("session = ${}", wanted.session_id),
            ("tool = ${}", wanted.tool_name),
            (later, wanted.after),
        ):
            if value is not None:
                values.append(value)
                conditions.append(condition.format(len(values)))
        found = " AND ".join(conditions)
        return await self._read(db, f"{found} ORDER BY asked, id LIMIT {wanted.limit:d}", *values)

    async def _poll(self, db: Any, step: Polling, now: float) -> tuple[int, list[str]]:
        if step.renewed:
            where = "kind = $2 AND status = $3 AND id = ANY($4)"
            await db.execute(
                f"UPDATE {self._table} SET leased = $1 WHERE {where}",  # noqa: S608 - ours
                *(now + step.lease_s, RequestRow.kind, ApprovalStatus.PENDING, step.renewed),
            )
        newer = f"SELECT id FROM {self._table} WHERE $1 >= 0 AND seq > $1"  # noqa: S608 - ours
        query = f"SELECT seq, ARRAY({newer}) FROM {self._counter}"  # noqa: S608 - names of ours
        found = await db.fetchrow(query, step.since)
        return found[0], found[1]


def _is_writer(op: Operation) -> bool:
    """Return whether an operation may change rows: writers take turns."""
    return bool(list_steps([op])) or (isinstance(op.step, Polling) and bool(op.step.renewed))


def _make_values(row: StoredRow, seq: int) -> tuple[Any, ...]:
    named = (row.row_id, row.kind, row.key, str(row.status), row.session_id, row.tool_name)
    times = (row.asked_at, row.expires_at, row.leased_until, row.changed_at)
    return (*named, *times, seq, row.to_text())
