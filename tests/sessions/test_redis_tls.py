"""``rediss://`` and ``valkeys://`` over real TLS, and signing in: what is trusted works, the rest
is refused and says what to do.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from loops import Loop, OnLoop
from tls import Authority

from edictum import Edictum, ToolDenied
from edictum.errors import BackendError
from edictum.execution.portal import PORTAL
from edictum.sessions import open as open_ledger
from edictum.testing.ledger import Book
from support.proxy import Proxy
from support.servers import NoServer, Valkey


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@pytest.fixture
def front(valkey_url: str, authority: Authority) -> Iterator[Proxy]:
    front = Proxy(urlsplit(valkey_url).port or 0, tls=authority.server_context("127.0.0.1"))
    yield front
    front.close()


@pytest.fixture(params=["thread", "loop"])
def opened(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Any]]:
    """Ledgers over the blocking and over the asynchronous client."""
    made: list[Any] = []

    def make(url: str) -> Any:
        ledger: Any = open_ledger(url)
        made.append(OnLoop(ledger) if request.param == "loop" else ledger)
        return made[-1]

    yield make
    for ledger in made:
        closing = ledger.close()
        if request.param == "thread":
            PORTAL.run(closing)


def refusal(url: str) -> str:
    """What a caller is told, and that it is told by denying the call."""
    ledger: Any = open_ledger(f"{url}{'&' if '?' in url else '?'}wait=20")
    with pytest.raises(BackendError) as raised:
        PORTAL.run(ledger.snapshot("s"))
    outcome = Edictum(backend=ledger).dispatch_sync("work", {}, lambda: "ran")
    assert isinstance(outcome, ToolDenied)
    assert outcome.policy_error
    PORTAL.run(ledger.close())
    return str(raised.value)


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_a_trusted_authority(front: Proxy, authority: Authority, scheme: str, opened: Any) -> None:
    book = Book(opened(f"{scheme}://127.0.0.1:{front.port}/0?ssl_ca_certs={authority.file}"))
    session = f"tls {scheme} {authority.file}"
    book.reset(session)
    assert book.run("a", sid=session)
    assert book.totals(session) == (1, 1, 1, 0, 0, 0)
    assert front.accepted > 0


def test_a_certificate_of_our_own(valkey_url: str, authority: Authority, opened: Any) -> None:
    """A server that asks for one lets in who has one, and nobody else."""
    context = authority.server_context("127.0.0.1")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.file)
    front = Proxy(urlsplit(valkey_url).port or 0, tls=context)
    where = f"rediss://127.0.0.1:{front.port}/0?ssl_ca_certs={authority.file}"
    certificate, key = authority.client_files("agent@example.org")
    assert Book(opened(f"{where}&ssl_certfile={certificate}&ssl_keyfile={key}")).run(
        "a", sid=f"certificate {authority.file}"
    )
    assert f"rediss://127.0.0.1:{front.port}/0" in refusal(where)
    front.close()


def test_another_authority(front: Proxy, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    told = refusal(f"rediss://127.0.0.1:{front.port}/0?ssl_ca_certs={other.file}")
    assert f"rediss://127.0.0.1:{front.port}/0" in told
    assert "CERTIFICATE_VERIFY_FAILED" in told
    assert "add ?ssl_ca_certs=" in told
    assert front.accepted == 0


def test_no_authority_is_not_every_authority(front: Proxy) -> None:
    assert "add ?ssl_ca_certs=" in refusal(f"rediss://127.0.0.1:{front.port}/0")


def test_a_certificate_for_another_server(valkey_url: str, authority: Authority) -> None:
    front = Proxy(urlsplit(valkey_url).port or 0, tls=authority.server_context("elsewhere.example"))
    told = refusal(f"rediss://127.0.0.1:{front.port}/0?ssl_ca_certs={authority.file}")
    assert "must name the server as its certificate does" in told
    front.close()


def test_a_port_without_tls() -> None:
    """It answers as a server without TLS does when it happens to see the end of a line in a
    handshake; else it waits for one.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"-ERR unknown command\r\n")
        writer.close()

    loop = Loop()
    server = loop.run(asyncio.start_server, answer, "127.0.0.1", 0)
    assert "does not speak TLS on this port" in refusal(
        f"rediss://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    )
    loop.run(server.close)
    loop.end()


# --- Signing in -----------------------------------------------------------------------------------


RIGHTS = (
    "~edictum:*",
    "+@read",
    "+@write",
    "+@scripting",
    "+info",
    "+time",
    "+select",
    "+cluster|slots",
)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Valkey]:
    """A server with a password for the default user, and more users: two with what a ledger needs,
    one with less.
    """
    users = (
        "--user",
        "ledger",
        "on",
        ">key",
        *RIGHTS,
        "--user",
        "odd",
        "on",
        ">p@ss/w?rd",
        *RIGHTS,
        "--user",
        "reader",
        "on",
        ">key",
        "~*",
        "+@read",
    )
    try:
        server = Valkey("--requirepass", "sesame", *users)
    except (NoServer, OSError) as exc:
        pytest.skip(str(exc))
    yield server
    server.stop()


@pytest.mark.parametrize("who", [":sesame", "default:sesame", "ledger:key", "odd:p%40ss%2Fw%3Frd"])
def test_signing_in(guarded: Valkey, who: str, opened: Any) -> None:
    ledger = opened(f"redis://{who}@127.0.0.1:{guarded.port}/0")
    book, session = Book(ledger), f"as {who}"
    book.reset(session)
    assert book.run("a", sid=session)
    assert book.totals(session) == (1, 1, 1, 0, 0, 0)
    assert session in [it.session_id for it in book._now(ledger.sessions(100))]


@pytest.mark.parametrize("who", ["", ":wrong@", "ledger:wrong@", "nobody:key@"])
def test_signing_in_wrongly(guarded: Valkey, who: str) -> None:
    told = refusal(f"redis://{who}127.0.0.1:{guarded.port}/0")
    assert "Check the user and the password in the URL" in told
    assert "wrong@" not in told


def test_a_user_without_the_rights(guarded: Valkey) -> None:
    told = refusal(f"redis://reader:key@127.0.0.1:{guarded.port}/0")
    assert all(right in told for right in RIGHTS)


def test_signing_in_over_tls(guarded: Valkey, authority: Authority, opened: Any) -> None:
    front = Proxy(guarded.port, tls=authority.server_context("localhost"))
    where = f"localhost:{front.port}/0?ssl_ca_certs={authority.file}"
    assert "Check the user" in refusal(f"rediss://ledger:wrong@{where}")
    book, session = Book(opened(f"rediss://ledger:key@{where}")), f"over tls {authority.file}"
    book.reset(session)
    assert book.run("a", sid=session)
