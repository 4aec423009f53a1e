"""An older version beside this one on a database, the step to the new schema, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import redis
from store_helpers import READ, unique

from edictum import Edictum, EdictumConfigError, OperationLimits, ScopedLimits, ToolDenied
from edictum.core.limits import Metric
from edictum.execution.portal import PORTAL
from edictum.sessions import migrate
from edictum.sessions import open as open_ledger
from edictum.sessions._redis import RedisStore
from edictum.sessions._remote_ledger import RemoteLedger
from edictum.testing.ledger import Book, limit_rate, limits
from support.old_program import OldProgram, unpack_old_source
from support.waiting import wait_until


@pytest.fixture(scope="module")
def old_source(tmp_path_factory: pytest.TempPathFactory) -> Path | str:
    return unpack_old_source(tmp_path_factory.mktemp("old"))


@pytest.fixture
def start_old(
    old_source: Path | str, record_property: Callable[[str, object], None]
) -> Iterator[Callable[[str, int], OldProgram]]:
    if isinstance(old_source, str):
        record_property("session_store", old_source)
        pytest.skip(old_source)
    source, started = old_source, list[OldProgram]()

    def start(url: str, maximum: int) -> OldProgram:
        started.append(OldProgram(source, url, maximum))
        return started[-1]

    yield start
    for program in started:
        program.end()


@pytest.fixture
def schema_url(postgres_url: str) -> str:
    return f"{postgres_url}?schema=upgraded_{time.time_ns()}&wait=10"


def disconnect_all(url: str) -> None:
    """End every connection to the database, as a restart of the server would."""

    async def end() -> None:
        db = await asyncpg.connect(url.partition("?")[0])
        await db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await db.close()

    PORTAL.run(end())


def make_guard(url: str, maximum: int, **more: Any) -> Edictum:
    return Edictum(limits=OperationLimits(max_tool_calls=maximum), backend=url, tools=READ, **more)


def call(guard: Edictum, session: str, **more: Any) -> Any:
    return guard.dispatch_sync("work", {}, lambda: "done", session_id=session, **more)


def test_two_versions_count_together_through_reconnects_and_the_old_one_can_come_back(
    schema_url: str, start_old: Callable[[str, int], OldProgram]
) -> None:
    old = start_old(schema_url, 9)
    assert old.start[0] == "ready"
    new = make_guard(schema_url, 9)
    for _ in range(3):
        wait_until(lambda: old.call("s")[0] == "ToolExecutionResult")
        assert not isinstance(call(new, "s"), ToolDenied)
        disconnect_all(schema_url)
    assert new.session("s").snapshot().totals.executions == 6
    PORTAL.run(new.close())
    old.end()
    again = start_old(schema_url, 9)  # rolled back
    assert [again.call("s")[0] for _ in range(4)] == ["ToolExecutionResult"] * 3 + ["ToolDenied"]


def test_what_needs_the_new_schema_is_refused_until_it_is_there(
    schema_url: str, start_old: Callable[[str, int], OldProgram]
) -> None:
    start_old(schema_url, 9).call("s")
    people = ScopedLimits(id="people", max_tool_calls=5, scope="args.person")
    scoped = Edictum(limits=[people], backend=schema_url, tools=READ)
    plain = make_guard(schema_url, 9)

    def ask() -> Any:
        return scoped.dispatch_sync("work", {"person": "a"}, lambda person: person, session_id="t")

    denied = ask()
    assert isinstance(denied, ToolDenied)
    assert "need version 10" in denied.details
    assert "edictum.sessions.migrate" in denied.details
    assert not isinstance(call(plain, "s"), ToolDenied)
    assert migrate(schema_url).is_applied
    assert not isinstance(ask(), ToolDenied)
    assert not isinstance(call(plain, "s"), ToolDenied)
    assert plain.session("s").snapshot().totals.executions == 3
    for guard in (scoped, plain):
        PORTAL.run(guard.close())


def test_an_old_program_counts_nothing_in_the_new_schema(
    schema_url: str, start_old: Callable[[str, int], OldProgram]
) -> None:
    """One that is connected already, too: it has not looked at the version again."""
    old = start_old(schema_url, 9)
    assert old.call("s")[0] == "ToolExecutionResult"
    planned = migrate(schema_url, dry_run=True)
    assert (planned.found, planned.version, planned.is_applied) == (7, 10, False)
    assert "RENAME COLUMN scope TO tool" in str(planned)
    assert "GRANT USAGE ON SCHEMA" in str(planned)
    assert old.call("s")[0] == "ToolExecutionResult"
    assert migrate(schema_url).found == 7
    kind, details = old.call("s")
    assert kind == "ToolDenied"
    assert "newer version" in details or "run_batch" in details
    assert start_old(schema_url, 9).start[0] == "refused"
    book = Book(open_ledger(schema_url))
    assert book.totals("s") == (2, 2, 2, 0, 0, 0)
    assert migrate(schema_url).ddl == ""


def test_calls_that_run_during_the_migration_are_counted(
    schema_url: str, start_old: Callable[[str, int], OldProgram]
) -> None:
    start_old(schema_url, 9)
    book = Book(open_ledger(schema_url))
    bounds = (limit_rate(Metric.EXECUTIONS, 2, 600.0), *limits(max_cost=9))
    of_call: Any = {"bounds": bounds, "amounts": {"cost": 3}, "parents": ("above",)}
    assert book.reserve("running", **of_call).granted
    migrate(schema_url)
    book.settle("running", "success", **of_call)
    for session in ("s", "above"):
        assert book.totals(session) == (1, 1, 1, 0, 0, 0)
        assert book.amount(sid=session) == (3 / 1_000_000, 0)
    assert book.run("second", **of_call)
    assert not book.run("third", **of_call)
    PORTAL.run(book.ledger.close())  # type: ignore[attr-defined]


def test_the_url_can_ask_for_the_migration(
    schema_url: str, start_old: Callable[[str, int], OldProgram]
) -> None:
    start_old(schema_url, 9).call("s")
    book = Book(open_ledger(f"{schema_url}&migrate=1"))
    assert book.totals("s")[1] == 1
    assert migrate(schema_url, dry_run=True).found == 10


async def set_version(url: str, schema: str, version: int, since: int) -> None:
    db = await asyncpg.connect(url)
    await db.execute(
        f"UPDATE {schema}.schema_version SET version=$1, readable_since=$2", version, since
    )
    await db.close()


def test_a_newer_schema_is_used_as_long_as_it_is_readable(postgres_url: str, opened: Any) -> None:
    schema = f"newer_{time.time_ns()}"
    url = f"{postgres_url}?schema={schema}"
    assert Book(opened(url)).run("a", sid="s")
    PORTAL.run(set_version(postgres_url, schema, 11, 10))
    book = Book(opened(url))
    assert book.run("b", sid="s")
    PORTAL.run(set_version(postgres_url, schema, 11, 11))
    said = r"newer version .* readable since 11"
    with pytest.raises(EdictumConfigError, match=said):  # connected already
        book.run("c", sid="s")
    with pytest.raises(EdictumConfigError, match=said):
        open_ledger(url)


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ({"written_by": 2, "readable_since": 2}, "newer version .* readable since 2"),
        ({"written_by": 2, "readable_since": 1}, None),
    ],
)
def test_data_of_a_newer_version_in_redis(
    own_valkey_url: str, opened: Any, mark: dict[str, int], said: str | None
) -> None:
    """Refused unless it says that it is readable, even by a program that is connected."""
    ledger: Any = RemoteLedger(RedisStore(own_valkey_url, check_every_s=0))
    assert Book(ledger).run("a", sid="s")
    with redis.Redis.from_url(own_valkey_url) as admin:
        admin.hset("edictum:store", mapping=mark)
    if said is None:
        assert Book(ledger).run("b", sid="s")
    else:
        with pytest.raises(EdictumConfigError, match=said):
            Book(ledger).run("b", sid="s")
        with pytest.raises(EdictumConfigError, match=said):
            open_ledger(own_valkey_url)
    PORTAL.run(ledger.close())


def test_data_of_an_unreleased_version_in_redis_is_refused(
    own_valkey_url: str, opened: Any
) -> None:
    with redis.Redis.from_url(own_valkey_url) as admin:
        admin.set("something of another program", 1)
        assert Book(opened(own_valkey_url)).run("a", sid=unique("s"))
        admin.delete("edictum:store", "edictum:sessions")
        with pytest.raises(EdictumConfigError, match=r"unreleased version .* Delete its keys"):
            open_ledger(own_valkey_url)


def test_only_postgresql_has_other_versions() -> None:
    with pytest.raises(EdictumConfigError, match="Only a PostgreSQL"):
        migrate("sqlite:///sessions.db")
