"""PostgreSQL as it is run: behind a pooler, on several hosts, over sockets and TLS, with few rights,
and with passwords that change.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from loops import OnLoop
from store_helpers import PATIENT_S, call, unique, until_served
from timed import OLDER_LEASE_S, empty_postgres, older_in_postgres
from tls import Authority

from edictum import Edictum, EdictumConfigError, OperationLimits, ToolDenied
from edictum.errors import BackendError
from edictum.execution.portal import PORTAL
from edictum.sessions import migrate
from edictum.sessions import open as open_ledger
from edictum.sessions._postgres import PostgresStore
from edictum.sessions._remote_ledger import RemoteLedger
from edictum.testing import LedgerConformance
from edictum.testing.ledger import Book
from support.processes import run_python
from support.proxy import Proxy
from support.servers import NoServer, PgBouncer, Postgres, free_port
from support.waiting import wait_until


def run_sql(url: str, *statements: str) -> None:
    async def run() -> None:
        db = await asyncpg.connect(url)
        try:
            for statement in statements:
                await db.execute(statement)
        finally:
            await db.close()

    PORTAL.run(run())


# --- Behind a pooler ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running_pooler(postgres_server: tuple[str, str]) -> Iterator[PgBouncer | str]:
    url, origin = postgres_server
    if not url:
        yield origin
        return
    try:
        pooler = PgBouncer(urlsplit(url).port or 0)
    except (NoServer, OSError) as exc:
        yield f"pgbouncer: NOT TESTED, {exc}"
        return
    yield pooler
    pooler.stop()


@pytest.fixture
def pooler(
    running_pooler: PgBouncer | str, record_property: Callable[[str, object], None]
) -> PgBouncer:
    if isinstance(running_pooler, str):
        record_property("session_store", running_pooler)
        pytest.skip(running_pooler)
    record_property("session_store", f"pgbouncer: {running_pooler.origin}")
    return running_pooler


class TestBehindPgBouncer(LedgerConformance):
    """The whole suite, by statements that may reach another server process each."""

    lease_s = OLDER_LEASE_S
    schema = "pooled"

    @pytest.fixture(autouse=True)
    def _pooler(self, pooler: PgBouncer, postgres_url: str) -> None:
        self.direct = postgres_url
        self.url = pooler.url.removesuffix("/postgres") + urlsplit(postgres_url).path

    def make_ledger(self) -> Any:
        empty_postgres(self.direct, self.schema)
        store = PostgresStore(f"{self.url}?pooler=transaction&schema={self.schema}")
        return RemoteLedger(store, wait_s=PATIENT_S)

    def advance(self, seconds: float) -> None:
        with older_in_postgres(self.direct, self.schema) as advance:
            advance("", seconds)


async def test_many_clients_share_two_connections_of_a_pooler(pooler: PgBouncer) -> None:
    """Eight guards, each with connections of its own; then the pooler is restarted under them."""
    url, session = f"{pooler.url}?pooler=transaction&wait={PATIENT_S}", unique("pooled")
    guards = [Edictum(limits=OperationLimits(max_tool_calls=40), backend=url) for _ in range(8)]
    ran: list[int] = []
    for _ in range(10):
        await asyncio.gather(*(call(it, session, lambda: ran.append(1)) for it in guards))
    assert len(ran) == 40
    pooler.kill()
    pooler.start()
    other = unique("pooled")
    for guard in guards:
        await until_served(guard, other)
    assert (await guards[0].backend.snapshot(other)).totals.executions == 8
    for guard in guards:
        await guard.close()


async def test_a_pooler_that_falls_silent_in_a_transaction_is_left(postgres_url: str) -> None:
    """Even when what it did not answer is never answered."""
    port = urlsplit(postgres_url).port or 0
    proxy, session = Proxy(port), unique("silent")
    url = postgres_url.replace(f":{port}", f":{proxy.port}")
    guard = Edictum(backend=f"{url}?pooler=transaction&wait=1")
    await until_served(guard, session)
    db = await asyncpg.connect(postgres_url)
    async with db.transaction():
        await db.execute("LOCK TABLE edictum.session")  # so that it waits behind its BEGIN
        asked = asyncio.create_task(call(guard, session))
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        while not await db.fetchval(waiting):  # noqa: ASYNC110 - the server tells nothing by itself
            await asyncio.sleep(0.01)
        proxy.mode = "silent"
        assert isinstance(await asked, ToolDenied)
    await db.close()
    proxy.mode = "clean"
    await until_served(guard, session)
    assert (await guard.backend.snapshot(session)).totals.executions == 2
    await guard.close()
    proxy.close()


@pytest.mark.slow
def test_processes_that_do_not_announce_a_pooler_are_told_what_to_write(pooler: PgBouncer) -> None:
    """Statements that one of them prepared are found by another: calls are denied."""
    code = """
        import json, sys
        from edictum import Edictum, ToolDenied
        guard = Edictum(backend=sys.argv[1])
        said = [guard.dispatch_sync("work", {}, lambda: 1, session_id=f"s{n}") for n in range(100)]
        print(json.dumps([it.details for it in said if isinstance(it, ToolDenied)]))
        """
    with ThreadPoolExecutor() as threads:
        said = threads.map(lambda _: run_python(code, f"{pooler.url}?wait=5"), range(4))
    assert any("add ?pooler=transaction" in it for each in said for it in each)


# --- Tables that are dropped ----------------------------------------------------------------------


def test_tables_that_are_dropped_under_a_program_are_noticed(
    postgres_url: str, opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    schema = f"dropped_{time.time_ns()}"
    book = Book(opened(f"{postgres_url}?schema={schema}", wait_s=PATIENT_S))
    assert book.run("a", sid="s")
    run_sql(postgres_url, f"DROP SCHEMA {schema} CASCADE")
    assert book.run("b", sid="s")
    said = [it for it in caplog.records if vars(it).get("edictum_event") == "ledger.replaced"]
    assert len(said) == 1


# --- Hosts, sockets and TLS -----------------------------------------------------------------------


def test_the_host_that_takes_writes_is_found(postgres_url: str, opened: Any) -> None:
    """The first host is not there; of several, one that takes writes is the default."""
    parts = urlsplit(postgres_url)
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{parts.port}"
    url = postgres_url.replace(f"127.0.0.1:{parts.port}", hosts)
    for more in ("", "?target_session_attrs=read-write"):
        ledger = opened(f"{url}{more}")
        assert hosts in ledger.name
        assert Book(ledger).run("a", sid=unique("hosts"))


@pytest.fixture
def own_postgres(record_property: Callable[[str, object], None]) -> Iterator[Postgres]:
    try:
        server = Postgres(durable=False)
    except (NoServer, OSError) as exc:
        record_property("session_store", f"postgres: NOT TESTED, {exc}")
        pytest.skip(str(exc))
    yield server
    server.stop()


@pytest.mark.slow
def test_a_server_that_only_reads_is_left_for_the_one_that_writes(
    own_postgres: Postgres, postgres_url: str, opened: Any
) -> None:
    run_sql(own_postgres.url, "ALTER SYSTEM SET default_transaction_read_only = on")
    run_sql(own_postgres.url, "SELECT pg_reload_conf()")
    time.sleep(0.5)
    port = urlsplit(postgres_url).port
    url = f"postgresql://pg@127.0.0.1:{own_postgres.port},127.0.0.1:{port}/postgres"
    assert Book(opened(url)).run("a", sid=unique("writes"))


@pytest.mark.slow
async def test_a_server_that_is_killed_behind_a_pooler_is_named_as_the_reason(
    own_postgres: Postgres, pooler: PgBouncer
) -> None:
    """Not what cannot be done any more with a connection that has ended."""
    front = PgBouncer(own_postgres.port)
    guard = Edictum(backend=f"{front.url}?pooler=transaction&wait=1")
    await until_served(guard, "killed")
    own_postgres.kill()
    said = set()
    while not any("server_login_retry" in it for it in said):
        outcome = await call(guard, "killed")
        assert isinstance(outcome, ToolDenied)
        said.add(outcome.details)
        await asyncio.sleep(0.02)
    for details in said:
        assert "released back" not in details
        assert "the underlying connection" not in details
    own_postgres.start()
    await until_served(guard, "killed")
    await guard.close()
    front.stop()


@pytest.mark.slow
def test_a_unix_socket(own_postgres: Postgres, opened: Any) -> None:
    where = f"host={own_postgres.directory}&port={own_postgres.port}"
    ledger = opened(f"postgresql://pg@/postgres?{where}")
    assert own_postgres.directory in ledger.name
    assert Book(ledger).run("a", sid="socket")


@pytest.mark.slow
def test_tls_and_whom_it_trusts(
    tmp_path: Path, opened: Any, record_property: Callable[[str, object], None]
) -> None:
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not system:
        record_property("session_store", "postgres with TLS: NOT TESTED, the wheel has none")
        pytest.skip("no PostgreSQL with TLS")
    authority = Authority(tmp_path, "authority")
    server = _with_tls(system[-1], authority)
    try:
        record_property("session_store", f"postgres with TLS: {system[-1]}")
        url = f"{server.url}?sslmode=verify-full&sslrootcert="
        assert Book(opened(f"{url}{authority.file}")).run("a", sid="tls")
        other = Authority(tmp_path, "other")
        with pytest.raises(BackendError, match="CERTIFICATE_VERIFY_FAILED"):
            PORTAL.run(opened(f"{url}{other.file}&wait=5").snapshot("s"))
    finally:
        server.stop()
    with pytest.raises(EdictumConfigError, match=r"not-there\.pem"):
        open_ledger(f"{server.url}?sslmode=verify-full&sslrootcert={tmp_path}/not-there.pem")


def _with_tls(bin: Path, authority: Authority) -> Postgres:
    class WithTls(Postgres):
        @staticmethod
        def _find() -> tuple[Path, str]:
            return bin, str(bin)

    server = WithTls(durable=False)
    server.kill()
    certificate, key = authority.client_files("127.0.0.1")
    for source, name in ((certificate, "server.crt"), (key, "server.key")):
        target = Path(server.directory, "data", name)
        shutil.copy(source, target)
        target.chmod(0o600)
        owner = Path(server.directory, "data").stat()
        shutil.chown(target, owner.st_uid, owner.st_gid)
    with Path(server.directory, "data", "postgresql.auto.conf").open("a") as config:
        config.write("ssl = on\n")
    with Path(server.directory, "data", "pg_hba.conf").open("w") as rules:
        rules.write("hostssl all all 127.0.0.1/32 trust\nlocal all all trust\n")
    subprocess.run(["rm", "-f", f"{server.directory}/data/postmaster.pid"], check=True)
    server.start()
    return server


# --- Rights and passwords -------------------------------------------------------------------------


@pytest.fixture
def role(postgres_url: str) -> Iterator[tuple[str, str]]:
    """A role that may connect and nothing else, and the URL of the database as this role."""
    name = f"few_rights_{time.time_ns()}"
    run_sql(postgres_url, f"CREATE ROLE {name} LOGIN")
    yield name, postgres_url.replace("//pg@", f"//{name}@")
    run_sql(postgres_url, f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_role_with_the_printed_grants_and_nothing_else(
    postgres_url: str, role: tuple[str, str], opened: Any
) -> None:
    name, url = role
    schema = f"owned_{time.time_ns()}"
    with pytest.raises(BackendError, match="migrate"):
        PORTAL.run(opened(f"{url}?schema={schema}&wait=5").snapshot("s"))
    planned = migrate(f"{postgres_url}?schema={schema}", dry_run=True, grant_to=name)
    assert not planned.is_applied
    run_sql(
        postgres_url,
        f"BEGIN; {planned.ddl} COMMIT",
        f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC",
        planned.grants,
    )
    book = Book(opened(f"{url}?schema={schema}"))
    assert book.run("a", sid="s")
    assert [it.session_id for it in book.sessions()] == ["s"]
    book.reset("s")
    for forbidden in (
        f"DROP TABLE {schema}.tally",
        f"UPDATE {schema}.schema_version SET version=1",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            run_sql(url, forbidden)


def test_the_guide_names_these_grants(postgres_url: str) -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "session-stores.md"
    assert migrate(postgres_url, dry_run=True, grant_to="app").grants in guide.read_text()


def test_grants_are_given_by_the_migration(
    postgres_url: str, role: tuple[str, str], opened: Any
) -> None:
    name, url = role
    schema = f"granted_{time.time_ns()}"
    planned = migrate(f"{postgres_url}?schema={schema}", grant_to=name, dry_run=True)
    assert (planned.is_granted, "-- To be granted to a program" in str(planned)) == (False, True)
    done = migrate(f"{postgres_url}?schema={schema}", grant_to=name)
    assert (done.is_applied, done.is_granted) == (True, True)
    assert "-- Granted to a program that does not own the store:" in str(done)
    assert not migrate(f"{postgres_url}?schema={schema}").is_granted
    with pytest.raises(EdictumConfigError, match="grant_to is"):
        migrate(f"{postgres_url}?schema={schema}", grant_to='a"b')
    assert Book(opened(f"{url}?schema={schema}")).run("a", sid="s")


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [lambda ledger: ledger, OnLoop], ids=["thread", "loop"])
def test_a_password_that_changes_while_it_runs(
    own_postgres: Postgres, tmp_path: Path, wrap: Any
) -> None:
    run_sql(own_postgres.url, "CREATE ROLE app LOGIN SUPERUSER PASSWORD 'first'")
    rules = Path(own_postgres.directory, "data", "pg_hba.conf")
    rules.write_text("host all app 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n")
    run_sql(own_postgres.url, "SELECT pg_reload_conf()")
    file = tmp_path / "password"
    file.write_text("first\n")
    asked: list[str] = []

    async def ask() -> tuple[str, str]:
        asked.append("")
        return "app", file.read_text().strip()

    bare = own_postgres.url.replace("//pg@", "//app@")
    by_file: Any = wrap(open_ledger(f"{bare}?password_file={file}&wait=5"))
    by_function: Any = wrap(open_ledger(f"{own_postgres.url}?wait=5", credentials=ask))
    books = [Book(by_file), Book(by_function)]
    assert all(book.run("a", sid=f"s{number}") for number, book in enumerate(books))
    run_sql(
        own_postgres.url,
        "ALTER ROLE app PASSWORD 'second'",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'",
    )
    for book in books:
        wait_until(lambda book=book: is_denied(book))
    file.write_text("second")
    for number, book in enumerate(books):
        wait_until(lambda book=book: not is_denied(book))
        assert book.run("b", sid=f"s{number}")
        assert book.totals(f"s{number}")[1] == 2
    assert len(asked) > 1
    for ledger in (by_file, by_function):
        closing = ledger.close()
        if wrap is not OnLoop:
            PORTAL.run(closing)


def is_denied(book: Book) -> bool:
    try:
        book.totals("s")
    except BackendError:
        return True
    return False
