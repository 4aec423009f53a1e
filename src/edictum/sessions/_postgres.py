"""The PostgreSQL ledger: exact for all machines that share a database, and as durable as that
database.

The counting is done by the server, in the SQL file beside this one: a batch is one call of
``run_batch``, which is one transaction and one round trip. Time is the server's.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from contextlib import suppress
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg

from edictum.core.decide import describe
from edictum.errors import EdictumConfigError
from edictum.sessions._batching import Batch, Unavailable, check_schema_version
from edictum.sessions._wire import compact_json, microseconds, operation_as_json, read_answer
from edictum.sessions.memory import SESSION_TTL_S

_SWEEP_EVERY_S = 30.0
_CLOSE_S = 1.0
SET_UP_LOCK = 0x45_44_49_43
_SCHEMA_VERSION = 9  # 1 to 8 were never released
RUN_BATCH = "SELECT run_batch($1, $2, $3::jsonb, $4)"
# What the server says about a batch that is at fault itself.
_FAULTY = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
)
# Whatever else went wrong, or made no sense, may pass when the batch is sent again.
_LOST = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    OSError,
    TimeoutError,
    ValueError,
    KeyError,
    TypeError,
)


class PostgresStore:
    """A database. Tables and functions live in a schema of their own, ``edictum`` unless the URL
    says ``?schema=``.
    """

    serves_loops = True

    def __init__(self, url: str, *, ttl_s: float | None = SESSION_TTL_S) -> None:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        self.schema = query.pop("schema", "edictum")
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", self.schema):
            raise EdictumConfigError(
                f"{self.schema!r} is not a schema name.",
                hint="Use lower-case letters, digits and underscores.",
            )
        self.dsn = url.partition("?")[0] + (f"?{urlencode(query)}" if query else "")
        self.name = f"postgresql://{parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}"
        self.ttl_us = microseconds(ttl_s)

    def connect(self) -> PostgresConnection:
        return PostgresConnection(self)

    async def set_up(self, db: Any) -> None:
        """Create tables and functions in a new schema; refuse one that is not this version's."""
        exists = await db.fetchval("SELECT to_regclass($1)", f"{self.schema}.schema_version")
        if exists and await self._is_set_up(db):
            return
        async with db.transaction():
            await db.execute("SELECT pg_advisory_xact_lock($1)", SET_UP_LOCK)
            await db.execute(f'CREATE SCHEMA IF NOT EXISTS "{self.schema}"')
            await db.execute("CREATE TABLE IF NOT EXISTS schema_version (version int NOT NULL)")
            if not await self._is_set_up(db):  # another process may have come first
                sql = files("edictum.sessions") / "sql" / "postgres" / "sessions.sql"
                await db.execute(sql.read_text())
                await db.execute("INSERT INTO schema_version VALUES ($1)", _SCHEMA_VERSION)

    async def _is_set_up(self, db: Any) -> bool:
        version = await db.fetchval("SELECT version FROM schema_version")
        if version is not None:
            remedy = f'Drop the schema "{self.schema}", or name another one with ?schema=.'
            check_schema_version(self.name, version, _SCHEMA_VERSION, remedy)
        return version is not None


async def _keep_session(_: Any) -> None:
    """Leave a connection as it is between batches: nothing here changes its settings."""


class PostgresConnection:
    """A pool of one connection for one event loop. The server knows repeated batches by ``_id``."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._id = uuid.uuid4().hex[:16]
        self._pool: Any = None
        self._swept = -_SWEEP_EVERY_S

    async def execute(self, batch: Batch) -> list[Any]:
        ops = compact_json([{"op": op.kind, **operation_as_json(op)} for op in batch.ops])
        try:
            raw = await self._run_batch(batch.number, ops)
            answers = zip(batch.ops, json.loads(raw), strict=True)
            return [read_answer(op, answer) for op, answer in answers]
        except _FAULTY:
            raise
        except _LOST as exc:
            self._drop()
            raise Unavailable(describe(exc)) from exc

    async def _run_batch(self, number: int, ops: str) -> Any:
        if self._pool is None:
            self._pool = await self._new_pool()
        db = await self._pool.acquire()
        try:
            if time.monotonic() - self._swept > _SWEEP_EVERY_S:
                self._swept = time.monotonic()
                await self._store.set_up(db)
                await db.execute("SELECT sweep($1)", self._store.ttl_us)
            return await db.fetchval(RUN_BATCH, self._id, number, ops, self._store.ttl_us)
        except _FAULTY:
            raise
        except BaseException:
            db.terminate()  # the pool would wait for a server that may not answer
            raise
        finally:
            await self._pool.release(db)

    async def _new_pool(self) -> Any:
        return await asyncpg.create_pool(
            self._store.dsn,
            min_size=0,
            max_size=1,
            max_inactive_connection_lifetime=0,
            reset=_keep_session,
            server_settings={"search_path": self._store.schema},
        )

    def _drop(self) -> None:
        pool, self._pool = self._pool, None
        self._swept = -_SWEEP_EVERY_S
        if pool is not None:
            pool.terminate()

    async def close(self) -> None:
        if self._pool is not None:
            with suppress(*_LOST):
                async with asyncio.timeout(_CLOSE_S):
                    await self._pool.close()
        self._drop()

    def abandon(self) -> None:
        """Nothing is to do: the sender's pool keeps this one, and does not use it."""
