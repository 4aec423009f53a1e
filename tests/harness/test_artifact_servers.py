"""Artifacts on servers as people run them: processes that fork, passwords that change, poolers,
sentinels, servers that fall silent.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from edictum import EdictumConfigError
from edictum.harness._artifact_postgres import PostgresBackend
from edictum.harness._artifact_redis import RedisBackend
from edictum.harness.artifact_backends import open_backend
from edictum.harness.artifact_store import ArtifactError, ArtifactStore
from support.proxy import Proxy
from support.servers import NoServer, PgBouncer, ValkeySentinels
from support.waiting import wait_until

AWAY = "127.0.0.1:1"


@pytest.fixture
def postgres(postgres_server: tuple[str, str]) -> str:
    url, origin = postgres_server
    if not url:
        pytest.skip(origin)
    return url


@pytest.fixture(params=["valkey", "postgres"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    name = f"t_{abs(hash(str(tmp_path)))}"
    if request.param == "valkey":
        made: Any = RedisBackend(request.getfixturevalue("broker_url"), name)
    else:
        made = PostgresBackend(request.getfixturevalue("postgres"), name)
    yield made
    made.close()


def store_and_read(store: ArtifactStore, text: str) -> None:
    ref = store.store("s", text, "t")
    assert store.retrieve(ref.artifact_id) == text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_workers_use_the_store_of_their_parent(backend: Any) -> None:
    """As under gunicorn --preload: each has its own connections, and the parent keeps its own."""
    store = ArtifactStore(backend)
    store_and_read(store, "parent")
    children = []
    for number in range(3):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                for each in range(10):
                    store_and_read(store, f"child {number}, {each}")
                os._exit(0)
            except BaseException:
                os._exit(1)
        children.append(child)
    for each in range(10):
        store_and_read(store, f"parent, {each}")
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert ended == [0, 0, 0]
    assert len(backend.list()) == 41


def test_a_password_that_changes_is_read_again(broker_url: str, tmp_path: Path) -> None:
    """From the file that the URL names, as for sessions; connections are made anew."""
    password, name = tmp_path / "password", f"t_{abs(hash(str(tmp_path)))}"
    place = broker_url.partition("://")[2]
    admin = redis.Redis.from_url(broker_url)

    def set_password(text: str) -> None:
        admin.execute_command("ACL", "SETUSER", name, "reset", "on", f">{text}", "~*", "+@all")
        admin.execute_command("CLIENT", "KILL", "USER", name)

    set_password("first")
    password.write_text("first\n")
    backend = RedisBackend(f"redis://{name}@{place}?password_file={password}", name)
    try:
        store = ArtifactStore(backend)
        store_and_read(store, "one")
        set_password("second")
        with pytest.raises(ArtifactError, match="Check the user and the password"):
            store.store("s", "two", "t")
        password.write_text("second\n")
        store_and_read(store, "three")
    finally:
        backend.close()
        admin.execute_command("ACL", "DELUSER", name)
        admin.close()


@pytest.mark.slow
def test_a_pooler_may_stand_before_the_database(postgres: str, tmp_path: Path) -> None:
    """In transaction mode: what follows may reach another server process."""
    try:
        pooler = PgBouncer(int(postgres.rpartition(":")[2].partition("/")[0]))
    except (NoServer, OSError) as exc:
        pytest.skip(str(exc))
    backends = [
        PostgresBackend(f"{pooler.url}?pooler=transaction", f"t_{abs(hash(str(tmp_path)))}")
        for _ in range(3)
    ]
    try:
        stores = [ArtifactStore(backend) for backend in backends]
        for number in range(30):
            store_and_read(stores[number % 3], f"text {number}")
        assert len(backends[0].list()) == 30
    finally:
        for backend in backends:
            backend.close()
        pooler.stop()


@pytest.mark.slow
def test_the_server_that_sentinel_promotes_is_found() -> None:
    """Artifacts that the replica has are read from it, and new ones are stored there."""
    try:
        servers = ValkeySentinels()
    except (NoServer, OSError) as exc:
        pytest.skip(str(exc))
    backend = open_backend(f"{servers.url}?wait=3s")
    try:
        wait_until(servers.have_met)
        store = ArtifactStore(backend)
        ref = store.store("s", "before", "t")
        replica = redis.Redis(port=servers.replica.port)
        wait_until(lambda: replica.exists("edictum:artifacts"))
        replica.close()
        servers.primary.kill()
        wait_until(lambda: servers.find_primaries() == {servers.replica.port})

        def can_read() -> bool:
            try:
                return store.retrieve(ref.artifact_id) == "before"
            except ArtifactError:
                return False

        wait_until(can_read)
        store_and_read(store, "after")
    finally:
        assert isinstance(backend, RedisBackend)
        backend.close()
        servers.stop()


def test_a_server_that_falls_silent_is_not_waited_for(backend: Any, request: Any) -> None:
    """An ArtifactError after ``wait``; once it answers, the store goes on."""
    is_redis = isinstance(backend, RedisBackend)
    url = request.getfixturevalue("broker_url" if is_redis else "postgres")
    before, _, rest = url.rpartition(":")
    port, _, database = rest.partition("/")
    line = Proxy(int(port))
    silent = type(backend)(f"{before}:{line.port}/{database}?wait=300ms", "t_silent")
    try:
        store = ArtifactStore(silent)
        store_and_read(store, "one")
        line.mode = "silent"
        with pytest.raises(ArtifactError):
            store.store("s", "two", "t")
        line.mode = "clean"
        store_and_read(store, "three")
    finally:
        silent.close()
        line.close()


@pytest.mark.parametrize("option", ["lease=3s", "ttl=1d", "replicas=1", "schema=x", "migrate=1"])
@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_options_of_other_stores_are_refused(scheme: str, option: str) -> None:
    with pytest.raises(EdictumConfigError, match="Artifacts have no option"):
        open_backend(f"{scheme}://{AWAY}/0?{option}")


@pytest.mark.parametrize("url", ["redis://{}/0?protocol=9", "postgresql://{}/db?sslmode=perhaps"])
def test_a_bad_url_is_refused_when_the_store_is_made(url: str) -> None:
    with pytest.raises(EdictumConfigError):
        ArtifactStore(url.format(AWAY))


def test_a_url_that_cannot_be_used_does_not_show_its_password() -> None:
    with pytest.raises(EdictumConfigError) as raised:
        open_backend("nothing+like+that://ada:hunter2@host/bucket")
    assert "hunter2" not in str(raised.value)
    assert "nothing+like+that" in str(raised.value)


async def test_a_store_can_be_used_in_a_loop(backend: Any) -> None:
    """From threads, as a turn does."""
    store = ArtifactStore(backend)
    texts = [f"text {number}" for number in range(8)]
    await asyncio.gather(*(asyncio.to_thread(store_and_read, store, text) for text in texts))
    assert len(backend.list()) == 8
