"""Artifacts in PostgreSQL.

One table keeps them, another how many bytes each session takes, and all of them together. That
row is locked by each process that stores or removes. So quotas hold for all processes, and nothing
has to be listed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import asyncpg

from edictum.errors import EdictumConfigError
from edictum.execution.forks import call_in_child
from edictum.execution.portal import PORTAL
from edictum.harness._artifact_index import NO_QUOTAS, Listed, Quotas
from edictum.harness.artifact_backends import CONNECT_S, SWEEP_BATCH, take_server_options
from edictum.sessions._postgres import PostgresStore

# Errors after which the pool is replaced: the primary or the password may have changed.
_LOST = (
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidTransactionStateError,
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresConnectionError,
    OSError,
    TimeoutError,
)

_ALL = ""  # the session under which the bytes of all sessions are counted
SETUP_LOCK = 7_203_911_064_512  # taken by the process that makes the tables
SCHEMA = """
CREATE TABLE IF NOT EXISTS {0} (key text PRIMARY KEY, data bytea NOT NULL);
ALTER TABLE {0} ADD COLUMN IF NOT EXISTS expires_at double precision NOT NULL DEFAULT 'Infinity';
CREATE INDEX IF NOT EXISTS {0}_by_expiry ON {0} (expires_at);
CREATE INDEX IF NOT EXISTS {0}_by_id ON {0} (split_part(key, '/', 2));
CREATE TABLE IF NOT EXISTS {0}_taken (session text PRIMARY KEY, bytes bigint NOT NULL);
"""
_COUNT = """
DELETE FROM {0}_taken WHERE session <> '';
INSERT INTO {0}_taken (session, bytes)
    SELECT split_part(key, '/', 1), sum(length(data)) FROM {0} GROUP BY 1;
UPDATE {0}_taken SET bytes = (SELECT coalesce(sum(length(data)), 0) FROM {0}) WHERE session = '';
"""
ADD = """
INSERT INTO {0}_taken (session, bytes) VALUES ($1, $2)
    ON CONFLICT (session) DO UPDATE SET bytes = {0}_taken.bytes + $2
"""
PUT = """
INSERT INTO {0} (key, data, expires_at) VALUES ($1, $2, $3)
    ON CONFLICT (key) DO UPDATE SET data = $2, expires_at = $3
"""
SWEEP = """
DELETE FROM {0} WHERE key IN (SELECT key FROM {0} WHERE expires_at <= $1 LIMIT $2)
    RETURNING key, length(data) AS size
"""


class _Full(Exception):
    """A quota has no room; the transaction is undone."""


class PostgresBackend:
    """Two tables. asyncpg is asynchronous, so its pool lives in the portal's loop.

    The URL is that of a session store: several hosts, TLS, ``pooler=``, ``password_file=``.
    """

    def __init__(self, url: str, table: str = "edictum_artifacts") -> None:
        if not table.isidentifier():
            message = f"{table!r} is not the name of a table."
            raise EdictumConfigError(message, hint="Use letters, digits and underscores.")
        plain, options, self._wait_s = take_server_options(url)
        self._server = PostgresStore(plain, credentials=options.credentials)
        self._table = table
        self._pool: Any = None
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Start anew in a forked child: connections are the parent's."""
        self._parents_pool = self._pool  # referenced, so that it is not closed in the child
        self._pool = None

    def _sql(self, text: str) -> str:
        return text.format(self._table)

    def _call(self, verb: str, text: str, *arguments: Any) -> Any:
        """Call one method of a connection with a statement."""

        async def call(connection: Any) -> Any:
            return await getattr(connection, verb)(self._sql(text), *arguments)

        return self._work(call)

    def _change(self, change: Callable[[Any, int], Awaitable[Any]]) -> Any:
        """Run a change in a transaction that has locked the bytes of all artifacts; it gets the
        connection and that number.
        """

        async def work(connection: Any) -> Any:
            async with connection.transaction():
                lock = "SELECT bytes FROM {0}_taken WHERE session = '' FOR UPDATE"
                taken = await connection.fetchval(self._sql(lock))
                return await change(connection, int(taken))

        return self._work(work)

    def _work(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            try:
                if self._pool is None:
                    self._keep(await self._open_pool())
                async with self._connect(self._pool) as connection:
                    return await work(connection)
            except asyncpg.ClientConfigurationError as exc:
                raise EdictumConfigError(f"Artifacts cannot be kept there: {exc}.") from exc
            except _LOST:
                self._drop()
                raise

        return PORTAL.run(run())

    @asynccontextmanager
    async def _connect(self, pool: Any) -> AsyncIterator[Any]:
        """Yield a connection; behind a pooler in a transaction, which keeps to one server."""
        async with pool.acquire(timeout=self._wait_s) as connection:
            if not self._server.pooled:
                yield connection
                return
            async with connection.transaction():
                yield connection

    def _keep(self, pool: Any) -> None:
        if self._pool is None:
            self._pool = pool
        else:  # another thread was first
            pool.terminate()

    def _drop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()

    async def _open_pool(self) -> Any:
        """Connect and make the tables, at the first use: the server may come up later."""
        pool = await asyncpg.create_pool(
            **await self._server.connection_options(),
            min_size=0,
            max_size=2,
            timeout=CONNECT_S,
            command_timeout=self._wait_s,
            reset=_keep_session,
        )
        try:
            async with pool.acquire() as connection, connection.transaction():
                await self._set_up(connection)
        except BaseException:
            pool.terminate()
            raise
        return pool

    async def _set_up(self, connection: Any) -> None:
        """Create missing tables. Existing ones need no right to create tables."""
        taken = f"{self._table}_taken"
        if await connection.fetchval("SELECT to_regclass($1)", taken) is not None:
            return
        await connection.execute("SELECT pg_advisory_xact_lock($1)", SETUP_LOCK)
        await connection.execute(self._sql(SCHEMA))
        await connection.execute(self._sql(ADD + "; ").replace("$1", "''").replace("$2", "0"))
        await connection.execute(self._sql(_COUNT))  # a table of an older version has artifacts

    def put_within(self, data: bytes, artifact: Listed, quotas: Quotas) -> str:
        session = artifact.key.partition("/")[0]

        async def put(connection: Any, taken: int) -> None:
            size = "SELECT length(data) FROM {0} WHERE key = $1"
            more = len(data) - (await connection.fetchval(self._sql(size), artifact.key) or 0)
            of_session = "SELECT bytes FROM {0}_taken WHERE session = $1"
            mine = await connection.fetchval(self._sql(of_session), session) or 0
            if full := quotas.find_full(mine + more, taken + more):
                raise _Full(full)
            await connection.execute(self._sql(PUT), artifact.key, data, artifact.expires_at)
            await self._add(connection, {session: more})

        try:
            self._change(put)
        except _Full as full:
            return str(full)
        return ""

    async def _add(self, connection: Any, more: dict[str, int]) -> None:
        """Add to the bytes that sessions take, and to those of all."""
        for session, size in {**more, _ALL: sum(more.values())}.items():
            await connection.execute(self._sql(ADD), session, size)
        empty = "DELETE FROM {0}_taken WHERE session = ANY($1) AND bytes <= 0 AND session <> ''"
        await connection.execute(self._sql(empty), list(more))

    def put(self, key: str, data: bytes, ttl_s: float) -> None:
        self.put_within(data, Listed(key, len(data), inf), NO_QUOTAS)

    def get(self, key: str, limit: int | None = None) -> bytes | None:
        query = "SELECT substring(data from 1 for $2) FROM {0} WHERE key = $1"
        if limit is None:
            query = "SELECT data FROM {0} WHERE key = $1 AND $2::int IS NULL"
        found: bytes | None = self._call("fetchval", query, key, limit)
        return found

    def find(self, artifact_id: str) -> str | None:
        query = "SELECT key FROM {0} WHERE split_part(key, '/', 2) = $1"
        found: str | None = self._call("fetchval", query, artifact_id)
        return found

    def delete(self, key: str) -> None:
        removal = "DELETE FROM {0} WHERE key = $1 RETURNING key, length(data) AS size"
        self._remove(removal, key)

    def sweep(self, now: float) -> int:
        if not self._call("fetchval", "SELECT 1 FROM {0} WHERE expires_at <= $1 LIMIT 1", now):
            return 0
        return self._remove(SWEEP, now, SWEEP_BATCH)

    def _remove(self, statement: str, *arguments: Any) -> int:
        async def remove(connection: Any, _taken: int) -> int:
            rows = await connection.fetch(self._sql(statement), *arguments)
            freed: dict[str, int] = {}
            for row in rows:
                session = row["key"].partition("/")[0]
                freed[session] = freed.get(session, 0) - row["size"]
            if rows:
                await self._add(connection, freed)
            return len(rows)

        return int(self._change(remove))

    def rebuild(self) -> None:
        async def count(connection: Any, _taken: int) -> None:
            await connection.execute(self._sql(_COUNT))

        self._change(count)

    def list(self, prefix: str = "") -> list[tuple[str, int]]:
        query = "SELECT key, length(data) AS size FROM {0} WHERE starts_with(key, $1)"
        return [(row["key"], row["size"]) for row in self._call("fetch", query, prefix)]

    def close(self) -> None:
        async def close() -> None:
            self._drop()

        PORTAL.run(close())


async def _keep_session(_: Any) -> None:
    """Leave a connection as it is: nothing here changes its settings."""
