"""A Redis server that evicts keys, asks for a password, has lost its scripts, holds many keys of
others, has replicas, or is named by Sentinel.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from loops import OnLoop
from store_helpers import PATIENT_S, unique

from edictum import EdictumConfigError
from edictum.errors import BackendError
from edictum.execution.portal import PORTAL
from edictum.sessions import open as open_ledger
from edictum.sessions._redis import RedisStore
from edictum.sessions._remote_ledger import RemoteLedger
from edictum.testing.ledger import Book
from support.effort import SOAK
from support.servers import NoServer, Valkey, ValkeySentinels
from support.waiting import wait_until


def test_a_server_that_evicts_is_refused(own_valkey_url: str, opened: Any) -> None:
    with redis.Redis.from_url(own_valkey_url) as admin:
        admin.config_set("maxmemory-policy", "allkeys-lru")
        try:
            with pytest.raises(EdictumConfigError, match="noeviction"):
                open_ledger(own_valkey_url)
            PORTAL.run(opened(f"{own_valkey_url}?allow_eviction=1").snapshot("s"))
        finally:
            admin.config_set("maxmemory-policy", "noeviction")


def test_eviction_that_is_switched_on_while_it_runs_is_noticed(own_valkey_url: str) -> None:
    ledger: Any = RemoteLedger(RedisStore(own_valkey_url, check_every_s=0.2))
    book, session = Book(ledger), unique("evicting")
    assert book.run("a", sid=session)
    with redis.Redis.from_url(own_valkey_url) as admin:
        admin.config_set("maxmemory-policy", "allkeys-lru")
        wait_until(lambda: is_refused(book, session, EdictumConfigError))
        admin.config_set("maxmemory-policy", "noeviction")
    wait_until(lambda: not is_refused(book, session, BackendError))
    assert book.run("b", sid=session)
    assert book.totals(session)[1] == 2
    PORTAL.run(ledger.close())


def test_data_that_is_deleted_under_a_program_is_noticed(
    own_valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By a program that has used it before, though another one has set it up anew meanwhile."""
    ledger: Any = RemoteLedger(RedisStore(own_valkey_url, check_every_s=0.05))
    book = Book(ledger)
    assert book.run("a", sid="s")
    with redis.Redis.from_url(own_valkey_url) as admin:
        admin.flushall()
    PORTAL.run(open_ledger(own_valkey_url).close())  # type: ignore[attr-defined]  # of stores
    assert caplog.records == []
    wait_until(lambda: book.totals("s") and caplog.records)
    assert [vars(it)["edictum_event"] for it in caplog.records] == ["ledger.replaced"]
    PORTAL.run(ledger.close())


def is_refused(book: Book, session: str, kind: type[Exception]) -> bool:
    """Whether the store cannot be asked; once the circuit is open, every error is the same."""
    try:
        book.totals(session)
    except (kind, BackendError):
        return True
    return False


@pytest.mark.parametrize("wrap", [lambda ledger: ledger, OnLoop], ids=["thread", "loop"])
def test_a_password_that_changes_while_it_runs(
    own_valkey_url: str, tmp_path: Path, wrap: Any
) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    with redis.Redis.from_url(own_valkey_url) as admin:
        admin.execute_command("ACL", "SETUSER", "app", "on", ">first", "~edictum:*", "+@all")
        as_app = own_valkey_url.replace("redis://", "redis://app@")
        by_file: Any = wrap(open_ledger(f"{as_app}?password_file={file}&wait=5"))

        def ask() -> tuple[str, str]:
            return "app", file.read_text().strip()

        by_function: Any = wrap(open_ledger(f"{own_valkey_url}?wait=5", credentials=ask))
        books = [Book(by_file), Book(by_function)]
        assert all(book.run("a", sid=f"s{number}") for number, book in enumerate(books))
        admin.execute_command("ACL", "SETUSER", "app", "resetpass", ">second")
        admin.execute_command("CLIENT", "KILL", "USER", "app")
        for book in books:
            wait_until(lambda book=book: is_refused(book, "s", BackendError))
        file.write_text("second")
        for number, book in enumerate(books):
            wait_until(lambda book=book: not is_refused(book, "s", BackendError))
            assert book.run("b", sid=f"s{number}")
            assert book.totals(f"s{number}")[1] == 2
    for ledger in (by_file, by_function):
        closing = ledger.close()
        if wrap is not OnLoop:
            PORTAL.run(closing)


def test_credentials_that_cannot_be_read_deny(own_valkey_url: str, opened: Any) -> None:
    def fail() -> str:
        raise RuntimeError("the vault is sealed")

    for credentials, said in ((fail, "the vault is sealed"), (lambda: 5, "are a int")):
        with pytest.raises(BackendError, match=said):
            PORTAL.run(opened(f"{own_valkey_url}?wait=5", credentials=credentials).snapshot("s"))


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


# --- Listing --------------------------------------------------------------------------------------


def commands(admin: Any) -> set[str]:
    return {name.removeprefix("cmdstat_") for name in admin.info("commandstats")}


def test_sessions_are_listed_without_a_look_at_all_keys(own_valkey_url: str, opened: Any) -> None:
    book = Book(opened(own_valkey_url))
    with redis.Redis.from_url(own_valkey_url) as admin:
        admin.mset({f"other {number}": 1 for number in range(20_000)})
        for number in range(5):
            assert book.run("a", sid=f"s{number}")
        assert book.run("b", sid="child", parents=("s1",))
        book.run("c", sid="s3")
        book.reset("s2")
        admin.config_resetstat()
        listed = [it.session_id for it in book.sessions(limit=3)]
        assert not {"scan", "keys"} & commands(admin)
        assert listed[0] == "s3"
        assert set(listed[1:]) == {"child", "s1"}
        assert len(book.sessions()) == 5
        assert admin.zcard("edictum:sessions") == 5


def test_sessions_that_have_expired_leave_the_list(own_valkey_url: str) -> None:
    ledger: Any = RemoteLedger(RedisStore(own_valkey_url, ttl_s=0.2, check_every_s=0.1))
    book = Book(ledger)
    for number in range(300):
        book.run("a", sid=f"s{number}")
    with redis.Redis.from_url(own_valkey_url) as admin:
        assert admin.zcard("edictum:sessions") >= 1

        def is_small() -> bool:
            book.totals("another")
            return bool(admin.zcard("edictum:sessions") < 50)

        wait_until(is_small)
    PORTAL.run(ledger.close())


# --- Sentinel -------------------------------------------------------------------------------------


@pytest.fixture
def sentinels(record_property: Callable[[str, object], None]) -> Iterator[ValkeySentinels]:
    try:
        servers = ValkeySentinels()
    except (NoServer, OSError) as exc:
        record_property("session_store", f"valkey sentinel: NOT TESTED, {exc}")
        pytest.skip(str(exc))
    record_property("session_store", f"valkey sentinel: {servers.origin}")
    yield servers
    servers.stop()


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [lambda ledger: ledger, OnLoop], ids=["thread", "loop"])
def test_the_server_that_sentinel_promotes_is_found(sentinels: ValkeySentinels, wrap: Any) -> None:
    """The primary dies, and so does the sentinel that is named first."""
    wait_until(sentinels.have_met)
    ledger: Any = wrap(open_ledger(f"{sentinels.url}?wait=1"))
    book = Book(ledger)
    assert book.run("a", sid="s")
    with redis.Redis(port=sentinels.primary.port) as primary:
        primary.set("written after the call", 1)  # a connection waits for its own writes only
        assert primary.wait(1, 5_000) == 1
    sentinels.sentinels[0].kill()
    sentinels.primary.kill()
    wait_until(lambda: not is_refused(book, "s", BackendError))
    wait_until(lambda: can_run(book, "b"))
    assert book.totals("s")[1] == 2
    closing = ledger.close()
    if wrap is not OnLoop:
        PORTAL.run(closing)


@pytest.mark.slow
def test_a_switch_that_the_servers_agree_on_loses_nothing(sentinels: ValkeySentinels) -> None:
    """Calls go on, and none that ran is forgotten, though no replica is waited for."""
    wait_until(sentinels.have_met)
    ledger: Any = open_ledger(sentinels.url)
    book, ran, stopped = Book(ledger), list[str](), threading.Event()

    def call_often(caller: int) -> None:
        for number in itertools.takewhile(lambda _: not stopped.is_set(), itertools.count()):
            with contextlib.suppress(BackendError):
                call = f"{caller} {number}"
                assert book.reserve(call, sid="s").granted
                ran.append(call)
                book.settle(call, "success", sid="s")

    with ThreadPoolExecutor(4) as threads:
        calling = [threads.submit(call_often, caller) for caller in range(4)]
        wait_until(lambda: len(ran) > 20)
        sentinels.ask(sentinels.sentinels[0], "FAILOVER", "COORDINATED")
        wait_until(lambda: sentinels.find_primaries() == {sentinels.replica.port})
        before = len(ran)
        wait_until(lambda: len(ran) > before + 20)
        stopped.set()
    for it in calling:
        it.result()
    wait_until(lambda: not ledger.count_open_settlements() and book.totals("s")[5] == 0)
    assert book.totals("s")[1] == len(ran)
    PORTAL.run(ledger.close())


def test_calls_wait_until_a_replica_has_them(own_valkey_url: str) -> None:
    """Without one they are denied; what they took meanwhile is given back."""
    replica = Valkey("--replicaof", "127.0.0.1", str(urlsplit(own_valkey_url).port))
    ledger: Any = open_ledger(f"{own_valkey_url}?replicas=1", wait_s=PATIENT_S)
    book = Book(ledger)
    try:
        wait_until(lambda: can_run(book, "a"))
        replica.kill()
        with pytest.raises(BackendError, match="0 of 1 replicas"):
            book.reserve("b", sid="s")
        replica.start()
        wait_until(lambda: can_run(book, "c"))
        wait_until(lambda: book.totals("s") == (3, 2, 2, 0, 0, 0))
        with redis.Redis(port=replica.port) as client:
            assert client.hget("edictum:{s}:h:s", "x:") == b"2"
    finally:
        replica.stop()
    PORTAL.run(ledger.close())


@pytest.mark.parametrize("url", ["redis://h?replicas=-1", "redis://h?replicas=all"])
def test_a_number_of_replicas_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(EdictumConfigError, match="replicas is"):
        open_ledger(url)


def can_run(book: Book, call: str) -> bool:
    try:
        return book.run(call, sid="s")
    except BackendError:
        return False


# --- A server that has just started ---------------------------------------------------------------


def test_a_server_without_an_append_only_file_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that reads its file, after a restart, says the same about itself: see below."""
    store = RedisStore("redis://127.0.0.1:1/0")
    store.check({"aof_enabled": 0, "loading": 1})
    store.check({"aof_enabled": 1, "loading": 0})
    assert not caplog.records
    for _ in range(2):
        store.check({"aof_enabled": 0, "loading": 0})
    (record,) = caplog.records
    assert vars(record)["edictum_event"] == "ledger.not_durable"


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="takes seconds; make soak runs it")
def test_a_server_that_reads_its_file_is_not_taken_for_one_without(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While it does, it says that it has no append-only file."""
    try:
        server = Valkey()
    except (NoServer, OSError) as exc:
        pytest.skip(str(exc))
    ledger: Any = open_ledger(f"{server.url}?wait=10s")
    try:
        with redis.Redis.from_url(server.url) as admin:
            pipe = admin.pipeline(transaction=False)
            for number in range(20_000):
                pipe.set(f"key{number}", "")
            pipe.execute()
        server.kill()
        server.options = ("--key-load-delay", "50")  # microseconds
        server.start()
        with redis.Redis.from_url(server.url) as admin:
            said: Any = admin.info()
        assert (said["loading"], said["aof_enabled"]) == (1, 0)
        book, session = Book(ledger), unique("loading")
        wait_until(lambda: not is_refused(book, session, BackendError))
        assert "append-only" not in caplog.text
    finally:
        PORTAL.run(ledger.close())
        server.stop()
