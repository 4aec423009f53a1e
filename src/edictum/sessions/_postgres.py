"""The PostgreSQL ledger: exact for all machines that share a database, and as durable as that
database.

The counting is done by the server, in the SQL files beside this one: a batch is one call of
``run_batch``, which is one transaction and one round trip. Time is the server's.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode

import asyncpg

from edictum.core.decide import describe
from edictum.errors import BackendError, EdictumConfigError
from edictum.sessions._addresses import Credentials, get_credentials, read_address
from edictum.sessions._batching import (
    Batch,
    DataIdentity,
    Operation,
    Refused,
    StoredVersion,
    Unavailable,
)
from edictum.sessions._migration import Migration
from edictum.sessions._postgres_schema import (
    Dialect,
    PostgresSchema,
    SessionSchema,
    call_in_schema,
    choose_dialect,
    sweep_query,
    transaction,
)
from edictum.sessions._wire import compact_json, microseconds, read_answer
from edictum.sessions.memory import SESSION_TTL_S

SCHEMA_CHECK_EVERY_S = 30.0
_CLOSE_S = 1.0
# The batch is at fault itself: it cannot be written for this schema, or the server refuses it.
_FAULTY = (
    BackendError,
    UnicodeError,
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
)
# Any other error, or an invalid answer, may pass when the batch is sent again.
POSTGRES_LOST = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that the server ended while it was idle
    OSError,
    TimeoutError,
    ValueError,
    KeyError,
    TypeError,
)
# What to do about errors that do not pass by themselves.
_ADVICE: dict[type[BaseException], str] = {
    asyncpg.DuplicatePreparedStatementError: "Behind a pooler, add ?pooler=transaction to the URL.",
    asyncpg.InvalidSQLStatementNameError: "Behind a pooler, add ?pooler=transaction to the URL.",
    asyncpg.InsufficientPrivilegeError: (
        "edictum.sessions.migrate(url, dry_run=True), for approvals"
        " edictum.approval.migrate_approvals, for the audit edictum.audit.migrate_audit, tells what"
        " its owner must create and grant."
    ),
}


class JoinedSchema(Protocol):
    """The store of an audit in the same schema."""

    async def set_up(self, db: Any) -> StoredVersion: ...

    def write_with(self, call: str, ops: Sequence[Operation], first: int) -> tuple[str, list[Any]]:
        """Return a call of a function that writes the events of these operations and returns its
        answers, with its arguments, numbered from ``first`` on.
        """
        ...


class PostgresStore:
    """A database. Tables and functions live in a schema of their own, ``edictum`` unless the URL
    says ``?schema=``.

    ``credentials`` are asked for with every connection. ``migrates`` takes the steps from an older
    version of the schema.
    """

    serves_loops = True
    joined: JoinedSchema | None = None  # the store of an audit in the same schema
    schema_type: type[PostgresSchema] = SessionSchema

    def __init__(
        self,
        url: str,
        *,
        ttl_s: float | None = SESSION_TTL_S,
        credentials: Credentials | None = None,
        migrates: bool = False,
    ) -> None:
        address = read_address(url, 5432)
        query = dict(parse_qsl(address.parts.query))
        hosts = query.get("host") or address.shown
        self.name = f"postgresql://{hosts}{address.parts.path}"
        self.schema = self.schema_type(query.pop("schema", "edictum"), self.name)
        self.pooled = _read_pooler(query.pop("pooler", ""))
        _check_files(query)
        if "," in hosts:
            query.setdefault("target_session_attrs", "read-write")
        self._dsn = url.partition("?")[0] + (f"?{urlencode(query)}" if query else "")
        self._user = address.user
        self._credentials = credentials
        self._migrates = migrates
        self._identity = DataIdentity(self.name)
        self.ttl_us = microseconds(ttl_s)

    def is_same_database(self, other: Any) -> bool:
        """Return whether another store is in the same schema, used by the same role."""
        return isinstance(other, PostgresStore) and (
            (other.name, other.schema.name, other._user, other.pooled)
            == (self.name, self.schema.name, self._user, self.pooled)
        )

    def connect(self) -> PostgresConnection:
        return PostgresSessions(self)

    async def connection_options(self) -> dict[str, Any]:
        """Return what asyncpg connects with, with the credentials of this moment."""
        options: dict[str, Any] = {"dsn": self._dsn}
        if self._credentials is not None:
            user, options["password"] = await get_credentials(self._credentials, self._user)
            if user is not None:
                options["user"] = user
        if self.pooled:  # the next statement may reach another server process
            options["statement_cache_size"] = 0
        return options

    async def set_up(self, db: Any) -> StoredVersion:
        found = await self.schema.set_up(db, migrates=self._migrates)
        table = f'"{self.schema.name}".{self.schema.version_table}'
        async with transaction(db):
            self._identity.compare(await db.fetchval("SELECT to_regclass($1)::oid", table))
        return found

    async def migrate(self, *, dry_run: bool, grant_to: str | None) -> Migration:
        """Bring the schema to this version; return what was done, or would be done in a dry run."""
        try:
            db = await asyncpg.connect(**await self.connection_options())
            try:
                return await self.schema.migrate(db, dry_run=dry_run, grant_to=grant_to)
            finally:
                await db.close(timeout=_CLOSE_S)
        except Refused as exc:
            raise EdictumConfigError(str(exc)) from exc
        except (*POSTGRES_LOST, Unavailable) as exc:
            raise BackendError(f"{self.name} could not be migrated: {explain_error(exc)}") from exc


def _read_pooler(mode: str) -> bool:
    if mode not in ("", "transaction", "session"):
        raise EdictumConfigError(
            f"pooler is {mode!r}.",
            hint="Write pooler=transaction behind PgBouncer in transaction mode, else nothing.",
        )
    return mode == "transaction"


def _check_files(query: dict[str, str]) -> None:
    """Refuse files that are not there: asyncpg's error would not name them."""
    for name in ("sslrootcert", "sslcert", "sslkey", "sslcrl"):
        if name in query and not Path(query[name]).exists():
            raise EdictumConfigError(
                f"{name} in the URL of the store is {query[name]!r}, which is not there."
            )


def explain_error(exc: BaseException) -> str:
    """Return what went wrong and, where that is known, how to fix it."""
    text = describe(exc)
    advice = next((it for kind, it in _ADVICE.items() if isinstance(exc, kind)), "")
    stop = "" if text.endswith((".", "!", "?")) else "."
    return f"{text}{stop} {advice}".strip() if advice else text


async def _keep_session(_: Any) -> None:
    """Keep a connection as it is between batches: nothing here changes its settings."""


class PostgresConnection:
    """A pool of one connection for one event loop."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._pool: Any = None

    async def execute(self, batch: Batch) -> list[Any]:
        try:
            return await self._with_connection(batch)
        except _FAULTY:
            raise
        except asyncpg.ClientConfigurationError as exc:
            self._drop()
            raise Refused(describe(exc)) from exc
        except POSTGRES_LOST as exc:
            self._drop()
            raise Unavailable(explain_error(exc)) from exc

    async def _with_connection(self, batch: Batch) -> list[Any]:
        if self._pool is None:
            self._pool = await self._new_pool()
        db = await self._pool.acquire()
        try:
            return await self._run(db, batch)
        except _FAULTY:
            raise
        except BaseException:
            with suppress(asyncpg.InterfaceError):  # the server has ended the connection
                db.terminate()  # the pool would wait for a server that may not answer
            raise
        finally:
            await self._pool.release(db)

    async def _run(self, db: Any, batch: Batch) -> list[Any]:
        """Answer a batch over a connection."""
        raise NotImplementedError

    async def _ask(self, db: Any, query: str, *arguments: Any) -> Any:
        if not self._store.pooled:
            return await db.fetchval(query, *arguments)
        async with transaction(db):  # within one, a pooler keeps to one server process
            return await db.fetchval(query, *arguments)

    def _forget(self) -> None:
        """Forget what was known of the schema: it is looked at again."""
        raise NotImplementedError

    async def _new_pool(self) -> Any:
        return await asyncpg.create_pool(
            **await self._store.connection_options(),
            min_size=0,
            max_size=1,
            max_inactive_connection_lifetime=0,
            reset=_keep_session,
        )

    def _drop(self) -> None:
        pool, self._pool = self._pool, None
        self._forget()
        if pool is not None:
            pool.terminate()

    async def close(self) -> None:
        if self._pool is not None:
            with suppress(*POSTGRES_LOST):
                async with asyncio.timeout(_CLOSE_S):
                    await self._pool.close()
        self._drop()

    def abandon(self) -> None:
        """Do nothing: the sender pool keeps the parent's connection alive and never uses it."""


class PostgresSessions(PostgresConnection):
    """A connection that counts. The server recognises repeated batches by ``_id``."""

    def __init__(self, store: PostgresStore) -> None:
        super().__init__(store)
        self._id = uuid.uuid4().hex[:16]
        self._swept = 0.0
        self._dialect: Dialect | None = None
        self._has_events = False

    async def _run(self, db: Any, batch: Batch) -> list[Any]:
        try:
            raw = await self._run_batch(db, batch)
        except BackendError:  # it needs another version of the schema, which may be there by now
            self._forget()
            raise
        answers = zip(batch.ops, json.loads(raw), strict=True)
        return [read_answer(op, answer) for op, answer in answers]

    async def _run_batch(self, db: Any, batch: Batch) -> Any:
        store = self._store
        if self._dialect is None or time.monotonic() - self._swept > SCHEMA_CHECK_EVERY_S:
            self._swept = time.monotonic()
            self._dialect = choose_dialect(await store.set_up(db))
            await self._ask(db, sweep_query(store.schema.name), store.ttl_us)
        dialect = self._dialect
        ops = [{"op": op.kind, **dialect.write(op, store.ttl_us)} for op in batch.ops]
        arguments = [self._id, batch.number, compact_json(ops), store.ttl_us]
        call = f'"{store.schema.name}".{dialect.call}'
        if store.joined is not None and any(op.events for op in batch.ops):
            if not self._has_events:
                await store.joined.set_up(db)
                self._has_events = True
            call, more = store.joined.write_with(call, batch.ops, len(arguments) + 1)
            arguments += more
        return await self._ask(db, call_in_schema(store.schema.name, call), *arguments)

    def _forget(self) -> None:
        self._dialect = None
        self._has_events = False
