"""Stores that are down, slow, lying, full or not ours; URLs; lifetimes of sessions; forks."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
import redis
from proxy import Proxy

from edictum import (
    Edictum,
    EdictumConfigError,
    EdictumDenied,
    OperationLimits,
    SessionView,
    ToolDenied,
    ToolExecutionResult,
    Verdict,
    session_contract,
)
from edictum.core.limits import Reservation, Settlement
from edictum.errors import BackendError
from edictum.execution.portal import PORTAL
from edictum.sessions import MemoryLedger
from edictum.sessions import open as open_ledger
from edictum.sessions._remote_ledger import RemoteLedger
from edictum.sessions._sqlite import SqliteStore
from edictum.testing.ledger import Book, limits

READ = {"work": {"side_effect": "read"}}
SCOPES = ("", "work")


@pytest.fixture(params=["memory", "sqlite", "valkey", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory:"
    return (
        f"sqlite:///{tmp_path}/s.db"
        if request.param == "sqlite"
        else request.getfixturevalue(f"{request.param}_url")
    )


@pytest.fixture(params=["sqlite", "valkey", "postgres"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (
        f"sqlite:///{tmp_path}/s.db"
        if request.param == "sqlite"
        else request.getfixturevalue(f"{request.param}_url")
    )


@pytest.fixture(params=["valkey", "postgres"])
def proxied(request: pytest.FixtureRequest) -> Iterator[tuple[Proxy, str]]:
    url = request.getfixturevalue(f"{request.param}_url")
    port = urlsplit(url).port
    proxy = Proxy(port or 0)
    yield proxy, url.replace(f":{port}", f":{proxy.port}")
    proxy.close()


@pytest.fixture
def opened() -> Iterator[Callable[[str], Any]]:
    made: list[Any] = []

    def make(url: str, **options: Any) -> Any:
        made.append(open_ledger(url, **options))
        return made[-1]

    yield make
    for ledger in made:
        if hasattr(ledger, "close"):
            PORTAL.run(ledger.close())


def unique(name: str) -> str:
    return f"{name} {time.time_ns()}"


async def call(guard: Edictum, session: str, body: Any = lambda: "done") -> Any:
    return await guard.dispatch("work", {}, body, session_id=session)


async def until_served(guard: Edictum, session: str) -> Any:
    for _ in range(100):
        outcome = await call(guard, session)
        if isinstance(outcome, ToolExecutionResult):
            return outcome
        assert outcome.policy_error
        await asyncio.sleep(0.1)
    raise AssertionError("the store did not come back")


# --- Session contracts ----------------------------------------------------------------------------


@pytest.mark.parametrize("read", ["executions", "per_tool"])
async def test_calls_that_start_together_are_judged_in_one_order(url: str, read: str) -> None:
    """Of fifty, three run: each is judged by the counters of the moment when it took its slot."""

    def used(session: SessionView) -> int:
        return session.executions if read == "executions" else session.per_tool.get("work", 0)

    three = session_contract(
        lambda session: Verdict.fail("three are enough") if used(session) >= 3 else Verdict.pass_()
    )
    guard, session, ran = Edictum(contracts=[three], tools=READ, backend=url), unique("order"), []

    async def body() -> None:
        ran.append(1)
        await asyncio.sleep(0.01)

    await asyncio.gather(*(call(guard, session, body) for _ in range(50)))
    assert len(ran) == 3
    await guard.close()


# --- Opening --------------------------------------------------------------------------------------


def test_importing_edictum_loads_no_store() -> None:
    code = (
        "import edictum, edictum.sessions, sys; print([m for m in ('redis', 'asyncpg', 'sqlite3')"
        " if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


@pytest.mark.parametrize(
    "bad",
    [
        "nothing",
        "mysql://here",
        "sqlite://",
        "sqlite:",
        "memory:?lease=x",
        "memory:?ttl=0",
        "memory:?wait=-1",
    ],
)
def test_a_wrong_url_is_refused_at_once(bad: str) -> None:
    with pytest.raises(EdictumConfigError):
        open_ledger(bad)


def test_options_stand_in_the_url_or_beside_it(tmp_path: Path, opened: Any) -> None:
    ledger = opened(f"sqlite:///{tmp_path}/s.db?lease=7&wait=3")
    assert (ledger.default_lease_s, ledger.wait_s) == (7.0, 3.0)
    assert opened(f"sqlite:///{tmp_path}/s.db?lease=7", lease_s=9).default_lease_s == 9.0
    assert opened("memory:", lease_s=5).default_lease_s == 5.0


def test_a_package_can_register_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "mystore-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mystore\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[edictum.ledgers]\nmystore = mystore_plugin:make\n")
    (tmp_path / "mystore_plugin.py").write_text(
        "from edictum.sessions import MemoryLedger\ndef make(url, **options):\n    ledger ="
        " MemoryLedger(lease_s=options['lease_s'])\n    ledger.name = url\n    return ledger\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    ledger = open_ledger("mystore://somewhere", lease_s=4)
    assert (ledger.name, ledger.default_lease_s) == ("mystore://somewhere", 4.0)  # type: ignore[attr-defined]


def test_credentials_stay_out_of_names(opened: Any, caplog: pytest.LogCaptureFixture) -> None:
    for url in ("redis://user:secret@127.0.0.1:1/0", "postgresql://user:secret@127.0.0.1:1/db"):
        ledger = opened(f"{url}?wait=0.5")
        with pytest.raises(BackendError) as raised:
            PORTAL.run(ledger.snapshot("s"))
        assert "secret" not in f"{raised.value} {ledger.name} {caplog.text}"


async def test_one_guard_serves_coroutines_threads_and_other_loops(shared_url: str) -> None:
    session = unique("both")
    guard = Edictum(limits=OperationLimits(max_tool_calls=6), backend=shared_url)
    await guard.run("work", {}, lambda: 1, session_id=session)
    guard.run_sync("work", {}, lambda: 1, session_id=session)
    await asyncio.to_thread(lambda: guard.run_sync("work", {}, lambda: 1, session_id=session))
    for _ in range(2):
        await asyncio.to_thread(
            lambda: asyncio.run(guard.run("work", {}, lambda: 1, session_id=session))
        )
    assert (await guard.run("work", {}, lambda: 1, session_id=session)) == 1
    with pytest.raises(EdictumDenied, match="limit reached"):
        await guard.run("work", {}, lambda: 1, session_id=session)
    assert guard.session(session).executions == 6
    await guard.close()


# --- Down, slow, lying ----------------------------------------------------------------------------


async def test_a_store_that_is_down_denies_and_recovers_by_itself(
    proxied: tuple[Proxy, str],
) -> None:
    proxy, url = proxied
    session, ran = unique("down"), []
    guard = Edictum(limits=OperationLimits(max_tool_calls=3), tools=READ, backend=f"{url}?wait=1")
    assert isinstance(await call(guard, session), ToolExecutionResult)
    proxy.cut()
    for _ in range(5):
        outcome = await call(guard, session, lambda: ran.append(1))
        assert isinstance(outcome, ToolDenied)
        assert (outcome.reason, outcome.policy_error, ran) == ("policy_error", True, [])
        assert f"127.0.0.1:{proxy.port}" in outcome.details
    proxy.mode = "clean"
    await until_served(guard, session)
    assert (await guard.backend.snapshot(session)).totals.in_flight == 0  # type: ignore[misc]
    await guard.close()


@pytest.mark.parametrize("mode", ["silent", "garbage"])
async def test_a_store_that_does_not_answer_properly_denies(
    proxied: tuple[Proxy, str], mode: Any
) -> None:
    """The wait is bounded, the circuit opens, and a slot that was taken for nobody is given
    back.
    """
    proxy, url = proxied
    session = unique(mode)
    guard = Edictum(
        limits=OperationLimits(max_tool_calls=2), tools=READ, backend=f"{url}?wait=0.5&lease=30"
    )
    proxy.mode = mode
    outcome = await call(guard, session)
    assert isinstance(outcome, ToolDenied)
    assert (outcome.policy_error, outcome.reason) == (True, "policy_error")
    assert f"127.0.0.1:{proxy.port}" in outcome.details
    before = proxy.faults[mode]
    many = await asyncio.gather(*(call(guard, session) for _ in range(50)))
    assert all(isinstance(it, ToolDenied) and it.policy_error for it in many)
    assert proxy.faults[mode] - before < 50  # refused at once: they were not sent
    proxy.mode = "clean"
    await until_served(guard, session)
    for _ in range(100):
        totals = (await guard.backend.snapshot(session)).totals  # type: ignore[misc]
        if totals.in_flight == 0:
            break
        await asyncio.sleep(0.05)
    assert (totals.executions, totals.in_flight) == (1, 0)
    await guard.close()


async def test_a_call_that_ran_while_the_store_was_down_is_counted_later(
    proxied: tuple[Proxy, str],
) -> None:
    proxy, url = proxied
    session = unique("later")
    guard = Edictum(tools=READ, backend=f"{url}?wait=0.5&lease=30")

    def body() -> str:
        proxy.cut()
        return "done"

    outcome = await call(guard, session, body)
    assert isinstance(outcome, ToolExecutionResult)
    assert "could not be counted" in outcome.notes[0]
    proxy.mode = "clean"
    await until_served(guard, session)
    totals = (await guard.backend.snapshot(session)).totals  # type: ignore[misc]
    assert (totals.executions, totals.in_flight) == (2, 0)
    await guard.close()


def test_a_server_that_evicts_is_refused(valkey_url: str, opened: Any) -> None:
    with redis.Redis.from_url(valkey_url) as admin:
        admin.config_set("maxmemory-policy", "allkeys-lru")
        try:
            with pytest.raises(EdictumConfigError, match="noeviction"):
                open_ledger(valkey_url)
            PORTAL.run(opened(f"{valkey_url}?allow_eviction=1").snapshot("s"))
        finally:
            admin.config_set("maxmemory-policy", "noeviction")


def test_a_password_in_the_url_is_used(opened: Any, valkey_url: str) -> None:
    with redis.Redis.from_url(valkey_url) as admin:
        admin.acl_setuser(
            "tester", enabled=True, passwords=["+sesame"], categories=["+@all"], keys=["*"]
        )
        try:
            with_password = valkey_url.replace("redis://", "redis://tester:sesame@")
            assert Book(opened(with_password)).run("a", sid=unique("password"))
            wrong = opened(valkey_url.replace("redis://", "redis://tester:wrong@") + "?wait=1")
            with pytest.raises(BackendError):
                PORTAL.run(wrong.snapshot("s"))
        finally:
            admin.acl_deluser("tester")


def test_flushed_scripts_are_loaded_again(valkey_url: str, opened: Any) -> None:
    book = Book(opened(valkey_url))
    session = unique("flushed")
    assert book.run("a", sid=session)
    with redis.Redis.from_url(valkey_url) as admin:
        admin.script_flush()
    assert book.run("b", sid=session)
    assert book.totals(session)[1] == 2


def test_a_session_with_counters_cannot_become_a_child(valkey_url: str, opened: Any) -> None:
    """Its keys are in another slot of a cluster than its parent's, and its counters would be left
    behind.
    """
    book, session = Book(opened(valkey_url)), unique("grown up")
    book.run("a", sid=session)
    with pytest.raises(BackendError, match="without a parent"):
        book.reserve("b", sid=session, parents=("root",))
    assert book.totals(session) == (1, 1, 1, 0, 0, 0)


async def test_one_bad_operation_does_not_fail_its_neighbours(shared_url: str, opened: Any) -> None:
    ledger, session = opened(shared_url), unique("bad")
    steps = [
        Reservation(session, call, SCOPES, ()) for call in ("a", "lone \ud800", "nul \x00", "b")
    ]
    said = await asyncio.gather(*(ledger.reserve(step) for step in steps), return_exceptions=True)
    assert [getattr(it, "granted", None) for it in (said[0], said[3])] == [True, True]
    assert isinstance(said[1], Exception)
    assert (await ledger.snapshot(session)).totals.in_flight == 2 + (
        not isinstance(said[2], Exception)
    )


# --- SQLite and its file --------------------------------------------------------------------------


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "other.db")
    db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(EdictumConfigError, match="another program"):
        open_ledger(f"sqlite:///{tmp_path}/other.db")


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    PORTAL.run(open_ledger(f"sqlite:///{tmp_path}/s.db").close())  # type: ignore[attr-defined]
    db = sqlite3.connect(tmp_path / "s.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(EdictumConfigError, match="newer version"):
        open_ledger(f"sqlite:///{tmp_path}/s.db")


def test_a_file_of_an_unreleased_version_is_refused(tmp_path: Path) -> None:
    PORTAL.run(open_ledger(f"sqlite:///{tmp_path}/s.db").close())  # type: ignore[attr-defined]
    db = sqlite3.connect(tmp_path / "s.db")
    db.execute("PRAGMA user_version = 1")
    db.close()
    with pytest.raises(EdictumConfigError, match=r"unreleased version .* Delete the file"):
        open_ledger(f"sqlite:///{tmp_path}/s.db")


@pytest.mark.parametrize(
    ("version", "said"),
    [(6, 'unreleased version .* Drop the schema "{schema}"'), (99, "newer version")],
)
async def test_a_schema_of_another_version_is_refused(
    postgres_url: str, version: int, said: str
) -> None:
    schema = f"other_version_{time.time_ns()}"
    db = await asyncpg.connect(postgres_url)
    await db.execute(
        f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.schema_version (version int NOT NULL);"
        f" INSERT INTO {schema}.schema_version VALUES ({version})"
    )
    await db.close()
    with pytest.raises(EdictumConfigError, match=said.format(schema=schema)):
        open_ledger(f"{postgres_url}?schema={schema}")


def run_python(code: str, *arguments: str) -> Any:
    """Run code in a process of its own; what it prints last, as JSON."""
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_a_directory_that_cannot_be_written_denies_with_a_clear_reason(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    said = run_python(
        """
        import importlib.metadata, json, os, sys, urllib.parse
        import edictum.sessions._sqlite
        from edictum import Edictum
        if os.getuid() == 0:  # who may write everywhere
            os.setgid(65534); os.setuid(65534)
        outcome = Edictum(backend=f"sqlite:///{sys.argv[1]}/s.db").dispatch_sync("work", {}, lambda: 1)
        print(json.dumps([outcome.reason, outcome.details]))
        """,
        str(tmp_path),
    )
    tmp_path.chmod(0o755)
    assert said[0] == "policy_error"
    assert "s.db" in said[1]


def test_a_full_disk_denies_and_loses_nothing(tmp_path: Path) -> None:
    """The file may not grow: calls are denied; then there is room again, and what ran meanwhile is
    counted.
    """
    said = run_python(
        """
        import json, resource, signal, sys, time
        from edictum import Edictum, OperationLimits, ToolExecutionResult
        guard = Edictum(limits=OperationLimits(max_attempts=None, max_tool_calls=None), backend=f"sqlite:///{sys.argv[1]}/s.db")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        ran, denied = 0, None
        def body():
            global ran
            ran += 1
            if ran == 5:
                resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
            return 1
        for number in range(10):
            outcome = guard.dispatch_sync("work", {}, body, session_id="s")
            if not isinstance(outcome, ToolExecutionResult):
                denied = [outcome.reason, outcome.details]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        while not isinstance(guard.dispatch_sync("work", {}, body, session_id="s"), ToolExecutionResult):
            time.sleep(0.1)
        totals = guard.session("s").snapshot().totals
        print(json.dumps([denied, ran, totals.executions, totals.in_flight]))
        """,
        str(tmp_path),
    )
    (reason, details), ran, executions, in_flight = said
    assert reason == "policy_error"
    assert "s.db" in details
    assert (ran, executions, in_flight) == (6, 6, 0)


def test_a_fork_may_use_the_guard_of_its_parent(shared_url: str) -> None:
    said = run_python(
        """
        import json, os, sys
        from edictum import Edictum, OperationLimits
        guard = Edictum(limits=OperationLimits(max_tool_calls=20), backend=sys.argv[1])
        guard.run_sync("work", {}, lambda: 1, session_id=sys.argv[2])
        children = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                for _ in range(4):
                    guard.run_sync("work", {}, lambda: 1, session_id=sys.argv[2])
                os._exit(0)
            children.append(pid)
        guard.run_sync("work", {}, lambda: 1, session_id=sys.argv[2])
        codes = [os.waitpid(pid, 0)[1] for pid in children]
        guard.run_sync("work", {}, lambda: 1, session_id=sys.argv[2])
        totals = guard.session(sys.argv[2]).snapshot().totals
        print(json.dumps([codes, totals.executions, totals.in_flight]))
        """,
        shared_url,
        unique("fork"),
    )
    assert said == [[0, 0, 0], 15, 0]


# --- The life of a session ------------------------------------------------------------------------


def test_a_session_is_forgotten_after_its_time_to_live(url: str, opened: Any) -> None:
    book, bounds = Book(opened(url, ttl_s=0.4)), limits(max_tool_calls=1)
    used = unique("used")
    assert book.run("a", "success", bounds, sid=used)
    time.sleep(0.6)
    assert book.run("b", "success", bounds, sid=used)


def test_being_used_keeps_a_session(url: str, opened: Any) -> None:
    """Refused attempts are use, too: an agent that keeps trying must not be let off after a
    while.
    """
    book, bounds = Book(opened(url, ttl_s=3.0)), limits(max_tool_calls=1)
    used = unique("kept")
    assert book.run("a", "success", bounds, sid=used)
    for _ in range(2):
        time.sleep(1.6)
        assert not book.run("b", "success", bounds, sid=used)


def test_a_call_in_flight_keeps_its_session(tmp_path: Path) -> None:
    now = [1_000.0]
    for ledger in (
        MemoryLedger(clock=lambda: now[0], ttl_s=10),
        RemoteLedger(SqliteStore(tmp_path / "s.db", ttl_s=10, clock=lambda: now[0])),
    ):
        book = Book(ledger)
        book.reserve("a", lease_s=100)
        now[0] += 50
        book.run("b", sid="another")
        assert book.totals() == (1, 0, 0, 0, 0, 1)
        now[0] += 200
        book.run("c", sid="another")
        book.run("d")
        assert book.totals() == (1, 1, 1, 0, 0, 0)
        if isinstance(ledger, RemoteLedger):
            PORTAL.run(ledger.close())


@pytest.mark.parametrize("lease_s", [100.0, None])
def test_a_call_in_flight_keeps_its_session_everywhere(
    url: str, opened: Any, lease_s: float | None
) -> None:
    book, bounds = Book(opened(url, ttl_s=0.4)), limits(max_tool_calls=1)
    used = unique("in flight")
    assert book.reserve("a", bounds, sid=used, lease_s=lease_s).granted
    time.sleep(0.6)
    assert not book.reserve("b", bounds, sid=used, lease_s=lease_s).granted
    book.settle("a", "success", bounds, sid=used)
    assert not book.reserve("c", bounds, sid=used).granted
    time.sleep(0.6)  # nothing is in flight any more
    assert book.reserve("d", bounds, sid=used).granted


def test_a_renewed_lease_keeps_its_session(url: str, opened: Any) -> None:
    book, bounds = Book(opened(url, ttl_s=0.4)), limits(max_tool_calls=1)
    used = unique("renewed")
    assert book.reserve("a", bounds, sid=used, lease_s=60, parents=(f"{used} above",)).granted
    assert book.renew("a", 100, sid=used)
    time.sleep(0.6)
    assert not book.reserve("b", bounds, sid=f"{used} above").granted
    assert not book.reserve("b", bounds, sid=used, parents=(f"{used} above",)).granted


def test_a_look_does_not_keep_a_session(tmp_path: Path) -> None:
    now = [1_000.0]
    for ledger in (
        MemoryLedger(clock=lambda: now[0], ttl_s=10),
        RemoteLedger(SqliteStore(tmp_path / "s.db", ttl_s=10, clock=lambda: now[0])),
    ):
        book, bounds = Book(ledger), limits(max_tool_calls=1)
        assert book.run("a", "success", bounds)
        now[0] += 8
        assert not book.reserve("look", bounds, count_attempt=False, hold=False).granted
        now[0] += 8
        assert book.reserve(
            "look", bounds, count_attempt=False, hold=False
        ).granted  # as a call would be: it is forgotten by now
        assert book.run("b", "success", bounds)
        if isinstance(ledger, RemoteLedger):
            PORTAL.run(ledger.close())


def test_sessions_are_listed_with_their_counters(url: str, opened: Any) -> None:
    ledger = opened(url)
    book, names = Book(ledger), [unique(f"listed {number}") for number in range(3)]
    for name in names:
        book.run("a", sid=name)
        time.sleep(0.002)
    listed = PORTAL.run(ledger.sessions(limit=3)) if url != "memory:" else ledger.sessions(limit=3)
    assert [snapshot.session_id for snapshot in listed] == names[::-1]
    assert [snapshot.totals.executions for snapshot in listed] == [1, 1, 1]


async def test_closing_sees_settlements_through(shared_url: str, opened: Any) -> None:
    session = unique("closing")
    ledger = open_ledger(shared_url)
    await ledger.reserve(Reservation(session, "a", SCOPES, ()))  # type: ignore[misc]
    ledger.settle(Settlement(session, "a", SCOPES, (), "success"))  # sent, not awaited
    await ledger.close()  # type: ignore[attr-defined]
    await ledger.close()  # type: ignore[attr-defined]
    with pytest.raises(BackendError, match="closed"):
        await ledger.snapshot(session)  # type: ignore[misc]
    assert (await opened(shared_url).snapshot(session)).totals.executions == 1


def test_a_ledger_that_is_forgotten_ends_its_thread(tmp_path: Path) -> None:
    ledger = open_ledger(f"sqlite:///{tmp_path}/s.db")
    thread = ledger._pool._thread.thread  # type: ignore[attr-defined]
    assert thread.is_alive()
    del ledger
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


async def test_a_call_whose_loop_goes_away_is_counted(shared_url: str, opened: Any) -> None:
    """The coroutine is thrown away while the tool runs: nobody can wait any more, and the call
    counts all the same.
    """
    session, guard = unique("gone"), Edictum(tools=READ, backend=shared_url)

    reached: list[bool] = []

    async def body() -> None:
        reached.append(True)
        await asyncio.Future()

    walk = guard.dispatch("work", {}, body, session_id=session)
    task = asyncio.get_running_loop().create_task(_steps(walk, reached))
    await task
    await guard.close()
    totals = (await opened(shared_url).snapshot(session)).totals
    assert (totals.executions, totals.in_flight) == (1, 0)


async def _steps(walk: Any, reached: list[bool]) -> None:
    """Drive a coroutine by hand to where its tool waits, then drop it."""
    running = walk.__await__()
    waiting_for = running.send(None)
    while not reached:
        if waiting_for is not None:
            waiting_for._asyncio_future_blocking = False
            await asyncio.wait({waiting_for}, timeout=60)
        waiting_for = running.send(None)
    running.close()


# --- Budgets and parents through the guard --------------------------------------------------------


async def test_a_budget_reserves_the_estimate_and_keeps_the_actual(url: str) -> None:
    session, guard = unique("budget"), Edictum(limits=OperationLimits(max_cost=1.0), backend=url)
    options: dict[str, Any] = {
        "session_id": session,
        "amounts": {"cost": 0.6},
        "actual_amounts": lambda result: {"cost": result},
    }
    running = asyncio.Event()
    go_on = asyncio.Event()

    async def body() -> float:
        running.set()
        await go_on.wait()
        return 0.3

    first = asyncio.create_task(guard.run("work", {}, body, **options))
    await running.wait()
    with pytest.raises(EdictumDenied, match=r"Budget reached: the call asks for .* of cost, 0"):
        await guard.run("work", {}, body, **options)
    go_on.set()
    assert await first == 0.3
    assert await guard.run("work", {}, body, **options) == 0.3
    with pytest.raises(EdictumDenied, match=r"0\.6 is used"):
        await guard.run("work", {}, body, **options)
    assert guard.session(session).snapshot().amounts[""]["cost"].spent == 0.6
    await guard.close()


async def test_an_estimate_may_be_computed_and_a_wrong_actual_is_noted() -> None:
    guard = Edictum(limits=OperationLimits(max_amounts={"tokens": 10}))
    outcome = await guard.dispatch(
        "work",
        {"text": "1234"},
        lambda text: 1,
        amounts=lambda call: {"tokens": len(call.args["text"])},
        actual_amounts=lambda result: {"tokens": -1},
    )
    assert "the estimate was counted" in outcome.notes[0]
    assert guard.session().snapshot().amounts[""]["tokens"].spent == 4
    with pytest.raises(EdictumConfigError):
        await guard.dispatch("work", {}, lambda: 1, amounts={"tokens": "many"})


async def test_a_failed_call_costs_its_estimate(url: str) -> None:
    session, guard = unique("failed"), Edictum(backend=url)
    for body in (lambda: 1 / 0, lambda: {"error": "no"}):
        await guard.dispatch(
            "work",
            {},
            body,
            session_id=session,
            amounts={"cost": 1},
            actual_amounts=lambda result: {"cost": 0.25},
        )
    assert guard.session(session).snapshot().amounts[""]["cost"].spent == 1.25
    await guard.close()


async def test_spawning_does_not_reset_a_limit(url: str) -> None:
    root, guard = unique("root"), Edictum(limits=OperationLimits(max_tool_calls=3), backend=url)
    ran = 0

    def body() -> None:
        nonlocal ran
        ran += 1

    for number in range(6):
        await guard.dispatch(
            "work", {}, body, session_id=f"{root} child {number}", parent_session_id=root
        )
    assert ran == 3
    assert guard.session(root).executions == 3
    ticket = await guard.begin(
        "work", {}, session_id=f"{root} other", parent_session_id=[f"{root} child 1", root]
    )
    assert ticket.denied is not None
    assert ticket.denied.reason == "limit"
    with pytest.raises(ValueError, match="twice"):
        await guard.dispatch("work", {}, body, session_id=root, parent_session_id=root)
    await guard.close()
