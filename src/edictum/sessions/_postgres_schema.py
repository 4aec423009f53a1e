"""Versions of the PostgreSQL schema: which one a database has, how to call it, and how to migrate
it.

A new database is set up on first use. A later migration is made only on request: a database of an
older version is used as it is, and what needs a newer one is refused, so that programs of both
versions can run side by side.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Any

import asyncpg

from edictum.core._records import record
from edictum.core.limits import has_mark
from edictum.errors import BackendError, EdictumConfigError
from edictum.sessions._batching import Operation, StoredVersion, check_stored_version
from edictum.sessions._migration import Migration
from edictum.sessions._wire import operation_as_json

_VERSION = 10
_READABLE_SINCE = 10  # programs that speak an older version cannot use a database of this one
_SET_UP_LOCK = 0x45_44_49_43


@asynccontextmanager
async def transaction(db: Any, isolation: str | None = None) -> AsyncIterator[None]:
    """Run statements in a transaction or, within one, behind a savepoint.

    One that is cancelled is not rolled back, which would wait for a server that does not answer:
    its caller closes the connection.
    """
    begun = db.transaction(isolation=isolation)
    await begun.start()
    try:
        yield
    except Exception:
        with suppress(asyncpg.InterfaceError):  # the server has ended the connection
            await begun.rollback()
        raise
    await begun.commit()


def choose_dialect(found: StoredVersion) -> Dialect:
    """Return the dialect for a database of this version."""
    return _DIALECTS[min(found.written_by, _VERSION)]


@record
class Dialect:
    """How to call a version of the schema: the query of its function, and its JSON."""

    version: int
    arguments: str
    write: Callable[[Operation, int], dict[str, Any]]

    @property
    def call(self) -> str:
        return f"run_batch({self.arguments})"


def sweep_query(schema: str) -> str:
    return call_in_schema(schema, f'"{schema}".sweep($1)')


def call_in_schema(schema: str, call: str) -> str:
    """Return a query that calls a function, with the names in its body found in the schema.

    The setting ends with the transaction: a pooler may give the connection to another program.
    """
    path = f"""set_config('search_path', '"{schema}", pg_temp', true)"""
    return f"SELECT {call} FROM {path}"  # noqa: S608 - the name was checked


def _write(op: Operation, ttl_us: int) -> dict[str, Any]:
    return operation_as_json(op)


def _write_7(op: Operation, ttl_us: int) -> dict[str, Any]:
    """Write an operation for schema 7, which has sessions and their parents but no scopes.

    Raises for a call that this schema would not count as its limits need it.
    """
    made = operation_as_json(op)
    accounts = made.pop("accounts")
    made["parents"] = [account["sid"] for account in accounts]
    if op.kind not in ("reserve", "settle"):
        return made
    windows, tools = made["windows"], made["tools"]
    needs_more = (
        any(has_mark(it["sid"]) or it["tools"] != tools for it in accounts)
        or any(it["windows"] != windows for it in accounts)
        or any(it["limits"] != made.get("limits", it["limits"]) for it in accounts)
        or any(tool and counter == "attempts" for tool, counter, *_ in made.get("limits", ()))
        or any(0 < ttl_us < span for *_, span in windows)
    )
    if needs_more:
        raise BackendError(
            f"The limits of this call need version {_VERSION} of its schema, and it has version 7:"
            " scopes, limits on the attempts of one tool, and windows longer than ttl are newer."
            " Run edictum.sessions.migrate(url) once no program of the older version is left."
        )
    made["scopes"] = made.pop("tools")
    del made["name"]
    return made


_FOUR, _FIVE = "$1, $2, $3::jsonb, $4", f"$1, $2, $3::jsonb, $4, {_VERSION}"
_DIALECTS = {
    7: Dialect(7, _FOUR, _write_7),
    9: Dialect(9, _FOUR, _write),
    _VERSION: Dialect(_VERSION, _FIVE, _write),
}
# The files that lead from nothing, or an older version, to this one; others were never released.
_STEPS: dict[int | None, tuple[str, ...]] = {
    None: ("tables", "functions"),
    7: ("drop_functions", "from_7", "functions"),
    9: ("drop_functions", "functions"),
}


class PostgresSchema:
    """Tables and functions in one schema of a database; a table holds the version.

    ``steps`` are the files below ``package`` that lead from nothing, or from an older version, to
    this one; others were never released. ``tables`` are those that a program uses, with the
    ``rights`` that it needs.
    """

    version: int
    readable_since: int
    known: Collection[int]
    version_table: str
    package: str
    steps: Mapping[int | None, tuple[str, ...]]
    tables: tuple[str, ...]
    rights = "SELECT, INSERT, UPDATE, DELETE"

    def __init__(self, name: str, store: str) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name):
            raise EdictumConfigError(
                f"{name!r} is not a schema name.",
                hint="Use lower-case letters, digits and underscores.",
            )
        self.name = name
        self._store = store

    async def set_up(self, db: Any, *, migrates: bool) -> StoredVersion:
        """Create tables and functions in an empty schema; return the version of the schema."""
        found = await self._read(db)
        if found is None or (migrates and found.written_by < self.version):
            found = await self._change(db, grants="", to_new_only=not migrates)
        return found

    async def migrate(self, db: Any, *, dry_run: bool, grant_to: str | None) -> Migration:
        """Execute the steps to this version, or only return them; ``grant_to`` is a role."""
        found = await self._read(db)
        ddl, grants = self.ddl_from(found), self.grants(grant_to)
        if not dry_run:
            await self._change(db, grants="" if grant_to is None else grants, to_new_only=False)
        version = None if found is None else found.written_by
        is_granted = grant_to is not None and not dry_run
        return Migration(version, self.version, ddl, grants, not dry_run, is_granted)

    async def _read(self, db: Any) -> StoredVersion | None:
        """Return the version row of the schema; None if there is none."""
        table = f'"{self.name}".{self.version_table}'
        async with transaction(db):
            if not await db.fetchval("SELECT to_regclass($1)", table):
                return None
            select = f"SELECT to_jsonb(it) FROM {table} AS it"  # noqa: S608 - the name was checked
            row = json.loads(await db.fetchval(select))
        found = StoredVersion(row["version"], row.get("readable_since", row["version"]))
        remedy = f'Drop the schema "{self.name}", or name another one with ?schema=.'
        check_stored_version(self._store, found, self.version, self.known, remedy)
        return found

    async def _change(self, db: Any, *, grants: str, to_new_only: bool) -> StoredVersion:
        """Create or migrate the schema, unless another process has done so meanwhile."""
        async with transaction(db):
            await db.execute("SELECT pg_advisory_xact_lock($1)", _SET_UP_LOCK)
            found = await self._read(db)
            if found is not None and to_new_only:
                return found
            await db.execute(self.ddl_from(found) + grants or "SELECT 1")
        return StoredVersion(self.version, self.readable_since)

    def ddl_from(self, found: StoredVersion | None) -> str:
        """Return the statements that lead to this version, for one transaction."""
        if found is not None and found.written_by >= self.version:
            return ""
        table, versions = self.version_table, f"({self.version}, {self.readable_since})"
        marks = f"DELETE FROM {table};\n"  # noqa: S608 - names of ours
        marks += f"INSERT INTO {table} VALUES {versions};\n"  # noqa: S608 - names of ours
        steps = self.steps[None if found is None else found.written_by]
        begin = [f'CREATE SCHEMA IF NOT EXISTS "{self.name}";'] if found is None else []
        path = f'SET LOCAL search_path = "{self.name}";'
        return "\n".join([*begin, path, *(self._read_sql(step) for step in steps), marks])

    def grants(self, role: str | None) -> str:
        """Return the statements by which a role may use the schema, but not change it."""
        if role is not None and (not role or '"' in role):
            hint = "Use the name of a role, without quotes."
            raise EdictumConfigError(f"grant_to is {role!r:.80}.", hint=hint)
        to = "TO the_role;" if role is None else f'TO "{role}";'
        tables = ", ".join(f'"{self.name}".{table}' for table in self.tables)
        return (
            f'GRANT USAGE ON SCHEMA "{self.name}" {to}\n'
            f"GRANT {self.rights} ON {tables} {to}\n"
            f'GRANT SELECT ON "{self.name}".{self.version_table} {to}\n'
            f'GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA "{self.name}" {to}\n'
        )

    def _read_sql(self, name: str) -> str:
        return (files(self.package) / "sql" / "postgres" / f"{name}.sql").read_text()


class SessionSchema(PostgresSchema):
    """The tables and functions by which sessions are counted."""

    version, readable_since = _VERSION, _READABLE_SINCE
    known = _DIALECTS.keys()
    version_table = "schema_version"
    package = "edictum.sessions"
    steps = _STEPS
    tables = ("session", "tally", "amount", "lease", "ended", "moment", "client")
