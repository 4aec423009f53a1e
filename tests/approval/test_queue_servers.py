"""Approval queues on servers: races, pushes, restarts, poolers, clusters, rights and versions."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
import redis

from edictum import BackendError, Edictum, EdictumConfigError, ToolExecutionResult
from edictum.approval import ApprovalQueue, _waiters, migrate_approvals, open_approvals
from edictum.approval._postgres_queue import PostgresApprovalStore
from edictum.execution.portal import PORTAL
from support.guards import approval_contract
from support.queues import answer_next
from support.servers import NoServer, PgBouncer, Postgres, Valkey, ValkeyCluster, ValkeySentinels

LONG = 60.0
NEVER_S = 3_600.0
_numbers = itertools.count()
Reporter = Callable[[str, object], None]


def empty_valkey(url: str) -> str:
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return f"{url}?wait={LONG}"


def new_schema(url: str) -> str:
    return f"{url}?schema=queue_{next(_numbers)}_{time.time_ns()}&wait={LONG}"


@pytest.fixture
def valkey(valkey_url: str) -> str:
    return empty_valkey(valkey_url)


@pytest.fixture
def postgres(postgres_url: str) -> str:
    return new_schema(postgres_url)


@pytest.fixture(params=["valkey", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty queue on a server."""
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["sqlite", "valkey", "postgres"])
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'approvals.db'}?wait={LONG}"
    found: str = request.getfixturevalue(request.param)
    return found


def start_server(report: Reporter, name: str, make: Callable[[], Any]) -> Any:
    try:
        server = make()
    except (NoServer, OSError) as exc:
        report("session_store", f"{name}: NOT TESTED, {exc}")
        pytest.skip(str(exc))
    report("session_store", f"{name}: {server.origin}")
    return server


async def ask(queue: ApprovalQueue, call_id: str = "c-1", **options: Any) -> str:
    metadata = {"digest": "d-1", "call_id": call_id}
    request = await queue.request_approval(
        "t", {}, "?", **{"timeout": LONG, "session_id": "s", "metadata": metadata, **options}
    )
    return request.approval_id


async def run_sql(url: str, *statements: str) -> None:
    db = await asyncpg.connect(url.partition("?")[0])
    try:
        for statement in statements:
            await db.execute(statement)
    finally:
        await db.close()


async def expect_answered_call(asking: str, answering: str) -> None:
    """Fail if a call is not run that was asked about in one place and answered in the other."""
    guard = Edictum(contracts=[approval_contract(timeout=LONG)], approval_backend=asking)
    queue = open_approvals(answering)
    running = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1))
    await answer_next(queue)
    assert isinstance(await running, ToolExecutionResult)
    await guard.close()
    await queue.close()


# --- Races ----------------------------------------------------------------------------------------


async def test_processes_that_race_ask_once_and_start_once(any_url: str) -> None:
    """The same call, made at once over eight connections: one question, one start."""
    queues = [open_approvals(any_url) for _ in range(8)]
    for number in range(5):
        call_id = f"c-{number}"
        (asked,) = set(await asyncio.gather(*(ask(queue, call_id) for queue in queues)))
        answers = [queue.answer(asked, True, approver="ann") for queue in queues]
        given = await asyncio.gather(*answers, return_exceptions=True)
        assert sum(not isinstance(it, Exception) for it in given) == 1
        waits = [asyncio.ensure_future(queue.wait_for_decision(asked, LONG)) for queue in queues]
        first, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        started = await asyncio.gather(*(queue.use(asked) for queue in queues))
        assert started.count(True) == 1
        assert [it.approved for it in await asyncio.gather(*waits)].count(True) == len(first) == 1
        await asyncio.gather(*(queue.end(asked, True) for queue in queues))
    for queue in queues:
        await queue.close()


# --- Pushes ---------------------------------------------------------------------------------------


async def test_answers_are_pushed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is told even where the store is not looked at any more."""
    monkeypatch.setattr(_waiters, "LOOK_EVERY_S", NEVER_S)
    monkeypatch.setattr(_waiters, "LISTENED_LOOK_EVERY_S", NEVER_S)
    await expect_answered_call(f"{url}&lease={NEVER_S}", url)


USED = ("read", "write", "scripting")
NEEDED = (*(f"+@{it}" for it in USED), "+info", "+time", "+select")
PUSHED = ("+publish", "+subscribe")


@pytest.fixture
def make_user(valkey: str) -> Iterator[Callable[..., str]]:
    """Make a user with these rights; return the URL of the queue as this user."""
    plain = valkey.partition("?")[0]

    def make(commands: tuple[str, ...], channels: list[str]) -> str:
        with redis.Redis.from_url(plain) as admin:
            rights: Any = {"commands": commands, "keys": ["edictum:*"], "channels": channels}
            admin.acl_setuser("few", enabled=True, passwords=["+few"], **rights)
        return valkey.replace("//", "//few:few@")

    yield make
    with redis.Redis.from_url(plain) as admin:
        admin.acl_deluser("few")


async def test_without_the_right_to_publish_the_store_is_looked_at(
    make_user: Callable[..., str],
) -> None:
    """And so it is without the right to listen."""
    url = make_user(NEEDED, [])
    await expect_answered_call(url, url)


async def test_the_rights_that_the_docs_name_are_enough(
    make_user: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To ask, to answer, and to be told of answers."""
    monkeypatch.setattr(_waiters, "LOOK_EVERY_S", NEVER_S)
    monkeypatch.setattr(_waiters, "LISTENED_LOOK_EVERY_S", NEVER_S)
    url = make_user((*NEEDED, *PUSHED), ["edictum:*"])
    await expect_answered_call(f"{url}&lease={NEVER_S}", url)
    page = Path(__file__).parents[2] / "docs" / "guides" / "approvals.md"
    rights = " ".join([*NEEDED, *PUSHED])
    assert f"~edictum:* &edictum:* {rights}" in page.read_text()


def test_a_pooler_is_not_listened_to() -> None:
    """Its connections are other programs' between two transactions."""
    assert PostgresApprovalStore("postgresql://h/db").can_push
    assert not PostgresApprovalStore("postgresql://h/db?pooler=transaction").can_push


async def test_behind_a_pooler(postgres: str, record_property: Reporter) -> None:
    """One side behind PgBouncer, the other not."""
    pooler = start_server(
        record_property, "pgbouncer", lambda: PgBouncer(urlsplit(postgres).port or 0)
    )
    try:
        parts = urlsplit(postgres)
        pooled = pooler.url.removesuffix("/postgres")
        pooled += f"{parts.path}?{parts.query}&pooler=transaction"
        await expect_answered_call(pooled, postgres)
        await expect_answered_call(postgres, pooled)
    finally:
        pooler.stop()


# --- Servers that go away -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("make", [Valkey, Postgres])
async def test_a_call_waits_while_its_server_restarts(
    record_property: Reporter, make: Callable[[], Any]
) -> None:
    """It is told of the answer that comes afterwards, and so is a worker that waits for others."""
    server = start_server(record_property, f"restarted {make.__name__.lower()}", make)
    try:
        queue, other, worker = (open_approvals(f"{server.url}?wait={LONG}") for _ in range(3))
        asked = await ask(queue)
        waiting = asyncio.ensure_future(queue.wait_for_decision(asked, LONG))
        hearing = asyncio.ensure_future(worker.wait_for_answers([asked], LONG))
        for _ in range(3):
            await asyncio.sleep(0)
        await worker.get(asked)  # after its own first look, so it waits by now
        server.kill()
        server.start()
        await other.answer(asked, True, approver="ann")
        assert (await waiting).approved
        assert await hearing == [asked]
        assert await queue.use(asked)
        for it in (queue, other, worker):
            await it.close()
    finally:
        server.stop()


@pytest.mark.slow
async def test_a_cluster(record_property: Reporter) -> None:
    """All keys of a queue are in one slot."""
    cluster = start_server(record_property, "valkey cluster", ValkeyCluster)
    try:
        await expect_answered_call(*(f"{it.url}?wait={LONG}" for it in cluster.nodes[:2]))
    finally:
        cluster.stop()


@pytest.mark.slow
async def test_a_server_that_sentinels_name(record_property: Reporter) -> None:
    """Both sides ask the sentinels for it."""
    servers = start_server(record_property, "valkey sentinel", ValkeySentinels)
    try:
        await expect_answered_call(*[f"{servers.url}?wait={LONG}"] * 2)
    finally:
        servers.stop()


# --- What is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sessions_first", [True, False])
async def test_sessions_and_approvals_share_a_database(url: str, sessions_first: bool) -> None:
    """Whichever comes first."""
    if not sessions_first:
        await open_approvals(url).close()
    guard = Edictum(contracts=[approval_contract(timeout=LONG)], backend=url, approval_backend=url)
    running = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1))
    await answer_next(guard.approvals)
    assert isinstance(await running, ToolExecutionResult)
    assert guard.session().snapshot().totals.executions == 1
    await guard.close()


async def test_requests_on_servers_are_forgotten(url: str) -> None:
    """After their time to live, and with them what pages are made of."""
    queue = open_approvals(f"{url}&ttl=1ms")
    asked = await ask(queue, timeout=0.001)
    await queue.close()
    async with asyncio.timeout(LONG):
        while True:  # the time is the server's
            queue = open_approvals(f"{url}&ttl=1ms")
            found, listed = await queue.get(asked), await queue.pending(after=asked)
            await queue.close()
            if found is None:
                break
    assert listed == []


async def test_a_request_lives_as_long_as_it_may_be_answered(url: str) -> None:
    """Longer than the time to live."""
    queue = open_approvals(f"{url}&ttl=1ms")
    asked = await ask(queue)
    await queue.close()
    other = open_approvals(url)
    assert [it.approval_id for it in await other.pending()] == [asked]
    await other.close()


def count_listed(url: str) -> int:
    """Return how many ids the lists of a queue have."""
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        lists = [*client.scan_iter("*:list:*"), "edictum:{approvals}:changes"]
        return sum(client.zcard(name) for name in lists)


async def test_lists_of_a_server_lose_what_has_expired(valkey: str) -> None:
    """Or they would grow for good."""
    queue = open_approvals(valkey)
    asked = [await ask(queue, f"c-{number}") for number in range(150)]
    for approval_id in asked[:50]:
        await queue.answer(approval_id, False, approver="ann")
    assert count_listed(valkey) == 200
    with redis.Redis.from_url(valkey.partition("?")[0]) as client:
        for approval_id in asked[1:]:
            client.delete(f"edictum:{{approvals}}:row:{approval_id}")
    await queue.close()
    async with asyncio.timeout(LONG):
        while count_listed(valkey) > 2:  # each time samples are looked at
            await open_approvals(valkey).close()


async def test_an_id_may_be_any_text(url: str) -> None:
    """A person may have typed it; the store goes on."""
    queue = open_approvals(url)
    for text in ("", "x" * 100_000, "a\ud800b", "a\x00b", "{}*"):
        with suppress(BackendError):  # PostgreSQL has no such text
            assert await queue.get(text) is None
    asked = await ask(queue)
    assert (await queue.pending())[0].approval_id == asked
    await queue.close()


# --- Rights and versions --------------------------------------------------------------------------


@pytest.fixture
def role(postgres_url: str) -> Iterator[str]:
    """A role that may connect and nothing else."""
    name = f"few_rights_{time.time_ns()}"
    PORTAL.run(run_sql(postgres_url, f"CREATE ROLE {name} LOGIN"))
    yield name
    PORTAL.run(run_sql(postgres_url, f"DROP OWNED BY {name}; DROP ROLE {name}"))


async def test_a_role_that_was_given_the_rights(postgres: str, role: str) -> None:
    """And not one that was given none."""
    as_role = postgres.replace("//pg@", f"//{role}@")
    with pytest.raises(BackendError, match="migrate"):
        await open_approvals(as_role.replace(f"wait={LONG}", "wait=5")).check()
    planned = await asyncio.to_thread(migrate_approvals, postgres, dry_run=True, grant_to=role)
    assert (planned.found, planned.is_applied) == (None, False)
    done = await asyncio.to_thread(migrate_approvals, postgres, grant_to=role)
    assert (done.ddl, done.is_applied) == (planned.ddl, True)
    await expect_answered_call(as_role, as_role)
    again = await asyncio.to_thread(migrate_approvals, postgres)
    assert (again.found, again.ddl) == (done.version, "")


def test_only_postgres_is_migrated() -> None:
    """Other stores set themselves up."""
    with pytest.raises(EdictumConfigError, match="Only a PostgreSQL approval store"):
        migrate_approvals("sqlite:///a.db")


def test_a_newer_version_in_redis_is_refused(valkey: str) -> None:
    """When the queue is opened."""
    with redis.Redis.from_url(valkey.partition("?")[0]) as admin:
        admin.hset("edictum:{approvals}:store", mapping={"written_by": 9, "readable_since": 9})
    with pytest.raises(EdictumConfigError, match="newer version"):
        open_approvals(valkey)


async def test_a_newer_version_in_postgres_is_refused(postgres: str) -> None:
    """When the queue is opened."""
    await open_approvals(postgres).close()
    schema = postgres.partition("schema=")[2].partition("&")[0]
    newer = f"UPDATE {schema}.approval_version SET version = 9, readable_since = 9"
    await run_sql(postgres, newer)
    with pytest.raises(EdictumConfigError, match="newer version"):
        await asyncio.to_thread(open_approvals, postgres)


def test_a_server_that_forgets_is_refused(record_property: Reporter) -> None:
    """One that evicts keys when its memory is full."""
    server = start_server(
        record_property, "valkey", lambda: Valkey("--maxmemory-policy", "allkeys-lru")
    )
    try:
        with pytest.raises(EdictumConfigError, match="approvals would be forgotten"):
            open_approvals(server.url)
        PORTAL.run(open_approvals(f"{server.url}?allow_eviction=1").close())
    finally:
        server.stop()
