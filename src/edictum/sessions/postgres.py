"""The PostgreSQL ledger: exact for all machines that share a database, and as durable as that
database.

The counting is done by the server, in the SQL files beside this one: a batch is one call of
``run_batch``, which is one transaction and one round trip. Time is the server's.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import Callable
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg

from edictum.core.decide import describe
from edictum.errors import EdictumConfigError
from edictum.sessions.store import DEFAULT_WAIT_S, Batch, Op, Refused, Renewal, Unavailable
from edictum.sessions.wire import (
    counters_from_json,
    dumps,
    grant_from_json,
    microseconds,
    reservation_as_json,
    settlement_as_json,
    snapshot_from_json,
)

SWEEP_EVERY_S = 30.0
MIGRATION_LOCK = 0x45_44_49_43
# What the server says about a batch that is at fault itself. Everything else may pass when it is
# sent again.
FAULTY = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
)


class PostgresStore:
    """A database. Tables and functions live in a schema of their own, ``edictum`` unless the URL
    says ``?schema=``.
    """

    def __init__(
        self, url: str, *, ttl_s: float | None = None, wait_s: float | None = None
    ) -> None:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        self._schema = query.pop("schema", "edictum")
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", self._schema):
            raise EdictumConfigError(
                f"{self._schema!r} is no schema name.",
                hint="Use lower-case letters, digits and underscores.",
            )
        self._dsn = url.partition("?")[0] + (f"?{urlencode(query)}" if query else "")
        self.name = f"postgresql://{parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}"
        self._ttl_us = microseconds(ttl_s)
        self._wait_s = wait_s or DEFAULT_WAIT_S
        self._inherited: list[Any] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._db: Any = None
        self.forget()

    def forget(self) -> None:
        self._inherited.append(
            (self._loop, self._db)
        )  # kept, so that nothing closes what belongs to the parent process
        self._loop = None
        self._db = None
        self._id = uuid.uuid4().hex[:16]
        self._swept = 0.0

    def close(self) -> None:
        db, self._db = self._db, None
        loop, self._loop = self._loop, None
        if loop is None:
            return
        if db is not None:
            loop.run_until_complete(_close(db))
        loop.close()

    def execute(self, batch: Batch) -> list[Any]:
        ops = dumps([_as_json(op) for op in batch.ops])
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        try:
            return self._loop.run_until_complete(self._execute(batch, ops))
        except FAULTY:
            raise
        except (
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            OSError,
            TimeoutError,
            ValueError,
            KeyError,
            TypeError,
        ) as exc:
            self._drop()
            raise Unavailable(describe(exc)) from exc

    def _drop(self) -> None:
        db, self._db = self._db, None
        if db is not None and self._loop is not None:
            self._loop.run_until_complete(_terminate(db))

    async def _execute(self, batch: Batch, ops: str) -> list[Any]:
        async with asyncio.timeout(self._wait_s):
            db = self._db or await self._connect()
            if time.monotonic() - self._swept > SWEEP_EVERY_S:
                self._swept = time.monotonic()
                await db.execute("SELECT sweep($1)", self._ttl_us)
            raw = await db.fetchval(
                "SELECT run_batch($1, $2, $3::jsonb, $4)", self._id, batch.number, ops, self._ttl_us
            )
        answers = json.loads(raw)
        return [
            READERS[op.kind](op.step, answer) for op, answer in zip(batch.ops, answers, strict=True)
        ]

    async def _connect(self) -> Any:
        db = await asyncpg.connect(
            self._dsn, timeout=self._wait_s, server_settings={"search_path": self._schema}
        )
        try:
            await self._migrate(db)
        except BaseException:
            await _terminate(db)
            raise
        self._db = db
        return db

    async def _migrate(self, db: Any) -> None:
        """Bring the schema to this version: each numbered file once, in order, whoever comes
        first.
        """
        steps = sorted(
            (files("edictum.sessions") / "sql" / "postgres").iterdir(), key=lambda file: file.name
        )
        exists = await db.fetchval("SELECT to_regclass($1)", f"{self._schema}.schema_version")
        if exists and await self._check_version(db, len(steps)) == len(steps):
            return
        async with db.transaction():
            await db.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
            await db.execute(f'CREATE SCHEMA IF NOT EXISTS "{self._schema}"')
            await db.execute("CREATE TABLE IF NOT EXISTS schema_version (version int NOT NULL)")
            version = await self._check_version(db, len(steps))
            for step in steps[version:]:
                await db.execute(step.read_text())
            await db.execute("DELETE FROM schema_version")
            await db.execute("INSERT INTO schema_version VALUES ($1)", len(steps))

    async def _check_version(self, db: Any, known: int) -> int:
        version = await db.fetchval("SELECT version FROM schema_version") or 0
        if version > known:
            raise Refused(
                f"{self.name} was set up by a newer version of edictum (schema {version}). Upgrade"
                " this one."
            )
        return int(version)


async def _terminate(db: Any) -> None:
    db.terminate()
    await asyncio.sleep(0)  # the loop must turn once for the socket to be closed


async def _close(db: Any) -> None:
    try:
        await db.close(timeout=1.0)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
        await _terminate(db)


def _renewal(step: Renewal) -> dict[str, Any]:
    return {
        "sid": step.session_id,
        "call": step.call_id,
        "lease": microseconds(step.lease_s),
        "parents": [],
    }


WRITERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "reserve": reservation_as_json,
    "settle": settlement_as_json,
    "renew": _renewal,
    "snapshot": lambda sid: {"sid": sid, "parents": []},
    "reset": lambda sid: {"sid": sid, "parents": []},
    "sessions": lambda limit: {"limit": limit, "parents": []},
    "ping": lambda _: {"parents": []},
}


def _as_json(op: Op) -> dict[str, Any]:
    return {"op": op.kind, **WRITERS[op.kind](op.step)}


READERS: dict[str, Callable[[Any, Any], Any]] = {
    "reserve": lambda step, answer: grant_from_json(answer, step.limits),
    "settle": lambda _, answer: counters_from_json(answer["counters"]),
    "renew": lambda _, answer: answer["renewed"] is True,
    "snapshot": snapshot_from_json,
    "reset": lambda _step, _answer: None,
    "sessions": lambda _, answer: [snapshot_from_json(it["sid"], it) for it in answer or ()],
    "ping": lambda _step, _answer: None,
}
