"""Sinks on databases: what they keep, what they can be asked, and what a failing database means."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from edictum import (
    AuditEvent,
    Edictum,
    EdictumConfigError,
    FileAuditSink,
    Principal,
    ToolDenied,
    ToolExecutionResult,
)
from edictum.audit import SqliteAuditSink, migrate_audit, query, report
from edictum.errors import BackendError
from edictum.execution.portal import PORTAL
from edictum.sessions import migrate
from edictum.testing import AuditConformance
from support.databases import open_sqlite

Opened = Callable[[str], Any]


class TestDatabaseSink(AuditConformance):
    @pytest.fixture(autouse=True)
    def _with_database(self, database_url: str, opened: Opened) -> None:
        self.url, self.opened = database_url, opened

    def make_sink(self) -> Any:
        return self.opened(self.url)

    def read(self, sink: Any) -> list[Mapping[str, Any]]:
        return list(query(self.url))


# --- Questions ------------------------------------------------------------------------------------


def emit(sink: Any, event: AuditEvent) -> None:
    PORTAL.run(sink.emit(event))


async def wait(emitted: Awaitable[None]) -> None:
    await emitted


def make_calls(*sinks: Any) -> None:
    guard = Edictum(audit_sink=list(sinks))
    for number in range(12):
        session, tool = f"s-{number % 3}", f"tool_{number % 2}"
        principal = Principal(user_id=f"user-{number % 4}")
        body = (lambda number=number: number) if number % 5 else (lambda: 1 / 0)
        guard.dispatch_sync(tool, {}, body, session_id=session, principal=principal)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"session": "s-1"},
        {"session": ["s-1", "s-2"], "tool": "tool_0"},
        {"tool": "tool_*"},
        {"session": "s-[02]"},
        {"outcome": "failed"},
        {"action": ["call_allowed"], "principal": "user-2"},
        {"text": "division"},
        {"session": "it's; DROP TABLE event"},
    ],
)
def test_a_database_answers_as_a_file_does(
    asked: dict[str, Any], database_url: str, opened: Opened, tmp_path: Path
) -> None:
    """The same events, in the same order, for every kind of filter."""
    path = tmp_path / "audit.jsonl"
    with closing(FileAuditSink(path)) as file:
        make_calls(opened(database_url), file)
    expected = list(query(path, **asked))
    assert list(query(database_url, **asked)) == expected
    assert bool(expected) == (asked.get("session") != "it's; DROP TABLE event")
    of_file, of_database = (report(it, **asked).to_dict() for it in (path, database_url))
    assert of_database["total"] == of_file["total"]


def test_times_are_compared_exactly(database_url: str, opened: Opened) -> None:
    """Since is included, until is not, to the microsecond."""
    sink, start = opened(database_url), datetime(2026, 7, 1, 9, 30, 0, 123_456, tzinfo=UTC)
    times = [start + timedelta(microseconds=number) for number in range(5)]
    for at in times:
        emit(sink, AuditEvent(timestamp=at, tool_name="t"))
    found = query(database_url, since=times[1], until=times[3])
    assert [event["timestamp"] for event in found] == [at.isoformat() for at in times[1:3]]


def test_many_pages_are_read_in_order(database_url: str, opened: Opened) -> None:
    """More events than are fetched at a time."""
    sink = opened(database_url)

    async def write() -> None:
        for batch in range(10):
            events = [AuditEvent(tool_name=f"t-{batch}", call_index=n) for n in range(210)]
            await asyncio.gather(*(wait(sink.emit(event)) for event in events))

    PORTAL.run(write())
    events = query(database_url)
    found = [(event["tool_name"], event["call_index"]) for event in events]
    assert found == [(f"t-{batch}", n) for batch in range(10) for n in range(210)]
    assert events.reading.lines == 2_100


def test_text_that_a_database_cannot_store_is_found(database_url: str, opened: Opened) -> None:
    """NUL and half a surrogate pair in the names of a session and a tool."""
    sink = opened(database_url)
    emit(sink, AuditEvent(tool_name="a\x00b", session_id="\ud800", tool_args={"x": "\x00"}))
    (event,) = query(database_url, tool="a\x00b")
    assert event["tool_name"] == "a\x00b"
    assert event["tool_args"] == {"x": "\x00"}


def test_a_guard_is_asked_through_its_database(database_url: str) -> None:
    """It is opened by its URL, and is well."""
    guard = Edictum(audit_sink=database_url, local_events=0)
    guard.dispatch_sync("refund", {}, lambda: 1)
    assert [event["action"] for event in guard.audit.query(tool="refund")] == [
        "call_allowed",
        "call_executed",
    ]
    health = guard.check_sync()
    assert health.ok, health
    PORTAL.run(guard.close())


# --- What is wrong --------------------------------------------------------------------------------


def test_a_row_that_was_damaged_is_told(tmp_path: Path, opened: Opened) -> None:
    """The others are read."""
    url = f"sqlite:///{tmp_path}/audit.db"
    make_calls(opened(url))
    with open_sqlite(tmp_path / "audit.db") as db:
        db.execute("UPDATE event SET body = substr(body, 1, 40) WHERE id = 3")
    events = query(url)
    assert len(list(events)) == 23
    assert dict(events.reading.problems) == {"torn, or not JSON": 1}
    assert "event 3" in events.reading.examples[0]


def test_a_call_is_not_started_when_its_event_cannot_be_written(tmp_path: Path) -> None:
    """The directory of the file is not there."""
    sink, ran = SqliteAuditSink(tmp_path / "none" / "audit.db", wait_s=0.5), []
    outcome = Edictum(audit_sink=sink).dispatch_sync("t", {}, lambda: ran.append(1))
    assert isinstance(outcome, ToolDenied)
    assert outcome.decision_source == "audit"
    assert ran == []
    PORTAL.run(sink.close())


def test_the_file_of_another_program_is_refused(tmp_path: Path) -> None:
    """Nothing is written to it."""
    with open_sqlite(tmp_path / "theirs.db") as db:
        db.execute("CREATE TABLE event (id)")
    with pytest.raises(EdictumConfigError, match="belongs to another program"):
        Edictum(audit_sink=f"sqlite:///{tmp_path}/theirs.db")


@pytest.mark.parametrize("newer", [(2, 2), (2, 1)])
def test_a_file_of_a_newer_version(tmp_path: Path, opened: Opened, newer: tuple[int, int]) -> None:
    """It is refused unless it says that this version can use it."""
    url = f"sqlite:///{tmp_path}/audit.db"
    make_calls(opened(url))
    with open_sqlite(tmp_path / "audit.db") as db:
        db.execute("UPDATE event_version SET written_by = ?, readable_since = ?", newer)
    if newer[1] == 1:
        assert isinstance(
            Edictum(audit_sink=url).dispatch_sync("t", {}, lambda: 1), ToolExecutionResult
        )
    else:
        with pytest.raises(EdictumConfigError, match="newer version"):
            opened(url)


@pytest.mark.parametrize("url", ["mysql://host/db", "sqlite:///", "sqlite:///a.db?lock=1", "audit"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    """When the guard is made."""
    with pytest.raises(EdictumConfigError):
        Edictum(audit_sink=url)


# --- Rights ---------------------------------------------------------------------------------------


def run_sql(url: str, *statements: str) -> None:
    async def run() -> None:
        db = await asyncpg.connect(url.partition("?")[0])
        try:
            for statement in statements:
                await db.execute(statement)
        finally:
            await db.close()

    PORTAL.run(run())


@pytest.fixture
def role(postgres_url: str) -> Iterator[tuple[str, str]]:
    """A role that may connect and nothing else, and the URL of the audit as this role."""
    name = f"few_rights_{uuid.uuid4().hex[:12]}"
    run_sql(postgres_url, f"CREATE ROLE {name} LOGIN")
    yield name, postgres_url.replace("//pg@", f"//{name}@")
    run_sql(postgres_url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def test_a_role_that_may_only_add_events(
    postgres_url: str, role: tuple[str, str], opened: Opened
) -> None:
    """What a program that was broken into cannot change is worth more; with the ledger in the same
    schema, too.
    """
    name, url = role
    with pytest.raises(BackendError, match="migrate_audit"):
        PORTAL.run(opened(url).check())
    planned = migrate_audit(postgres_url, dry_run=True, grant_to=name)
    assert (planned.found, planned.is_applied) == (None, False)
    assert migrate_audit(postgres_url, grant_to=name).ddl == planned.ddl
    migrate(postgres_url, grant_to=name)
    guard = Edictum(backend=url, audit_sink=url)
    guard.run_sync("t", {}, lambda: 1, session_id="s")
    asyncio.run(guard.close())
    assert [event["action"] for event in query(url)] == ["call_allowed", "call_executed"]
    schema = postgres_url.partition("schema=")[2]
    for forbidden in (
        "DELETE FROM {}.event",
        "UPDATE {}.event SET body = ''",
        "DROP TABLE {}.event",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            run_sql(url, forbidden.format(schema))


def test_only_postgres_is_migrated() -> None:
    """Other stores set themselves up."""
    with pytest.raises(EdictumConfigError, match="Only a PostgreSQL audit store"):
        migrate_audit("sqlite:///a.db")
