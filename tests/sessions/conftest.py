"""Session stores for these tests; each says in the last lines of the run whether it was there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from edictum.execution.portal import PORTAL
from edictum.sessions import open as open_ledger
from support.proxy import Proxy
from support.servers import NoServer, Valkey


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


@pytest.fixture
def own_valkey_url(record_property: Callable[[str, object], None]) -> Iterator[str]:
    """A Valkey that no other test uses, for one that changes the server's settings."""
    try:
        server = Valkey()
    except (NoServer, OSError) as exc:
        record_property("session_store", f"valkey: NOT TESTED, {exc}")
        pytest.skip(str(exc))
    yield server.url
    server.stop()
