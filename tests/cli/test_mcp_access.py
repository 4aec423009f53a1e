"""Which hosts and origins may use the port of ``edictum mcp-proxy --http``, and under which URL."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from edictum.cli._mcp_access import (
    check_access,
    make_path,
    move_challenge,
    move_resource,
    move_url,
)
from edictum.cli._mcp_port import listen

SERVER = "http://server.example:9000"


def request(*hosts: str, origin: str | None = None, scheme: str = "http") -> Any:
    headers = [(b"host", host.encode()) for host in hosts]
    headers += [] if origin is None else [(b"origin", origin.encode())]
    return {"headers": headers, "scheme": scheme}


def find_status(host: str, allowed: list[str], asked: Any) -> int | None:
    sockets = listen(host, 0)
    try:
        refusal = check_access(sockets, host, allowed).find_refusal(asked)
    finally:
        for each in sockets:
            each.close()
    return None if refusal is None else refusal[0]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request("127.0.0.1:8080"), None),
        (request("LOCALHOST"), None),
        (request("[::1]:8080"), None),
        (request("localhost:8080", origin="http://localhost:6274"), None),
        (request("evil.example"), 421),
        (request("localhost.evil.example"), 421),
        (request("127.0.0.1@evil.example"), 421),
        (request("[::1"), 421),
        (request(), 421),
        (request("localhost", "evil.example"), 421),
        (request("localhost", origin="https://evil.example"), 403),
        (request("localhost", origin="null"), 403),
        (request("localhost", origin="http://localhost.evil.example"), 403),
    ],
)
def test_a_loopback_port_serves_only_names_of_this_machine(asked: Any, status: int | None) -> None:
    assert find_status("127.0.0.1", [], asked) == status


@pytest.mark.parametrize(
    ("host", "allowed", "status"),
    [
        ("127.0.0.1", ["Agents.Example"], None),
        ("127.0.0.1", ["*"], None),
        ("127.0.0.1", ["other.example"], 421),
        ("0.0.0.0", [], None),
        ("0.0.0.0", ["other.example"], 421),
        ("0.0.0.0", ["agents.example"], None),
    ],
)
def test_more_names_can_be_allowed_and_a_public_port_may_be_narrowed(
    host: str, allowed: list[str], status: int | None
) -> None:
    assert find_status(host, allowed, request("agents.example")) == status
    if status is None:
        asked = request("agents.example", origin="https://agents.example")
        assert find_status(host, allowed, asked) is None


def test_answers_on_the_port_do_not_wait_for_acknowledgements() -> None:
    (opened,) = listen("127.0.0.1", 0)
    with opened, socket.create_connection(opened.getsockname()):
        accepted, _ = opened.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    ("url", "moved"),
    [
        (f"{SERVER}/mcp", "https://proxy.example/mcp"),
        ("HTTP://Server.Example:9000/mcp?a=b", "https://proxy.example/mcp?a=b"),
        (SERVER, "https://proxy.example"),
        ("http://server.example/mcp", "http://server.example/mcp"),
        ("https://login.example", "https://login.example"),
        ("http://[", "http://["),
    ],
)
def test_a_url_of_the_server_becomes_one_of_the_proxy(url: str, moved: str) -> None:
    asked = request("proxy.example", scheme="https")
    assert move_url(url, SERVER, asked) == moved
    assert move_challenge(f'Bearer resource_metadata="{url}"', SERVER, asked) == (
        f'Bearer resource_metadata="{moved}"'
    )


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'{"resource": 1}', b"[" * 100_000])
def test_metadata_in_another_form_passes_as_it_is(body: bytes) -> None:
    assert move_resource(body, SERVER, request("proxy.example")) == body


@pytest.mark.parametrize(
    ("url", "path"),
    [
        (f"{SERVER}/message?id=1", "/message?id=1"),
        ("/message", "/message"),
        ("//other.example/message", None),
        ("https://server.example:9000/message", None),
        ("http://[", None),
    ],
)
def test_a_place_of_the_server_is_a_path_of_the_proxy(url: str, path: str | None) -> None:
    assert make_path(url, SERVER) == path
