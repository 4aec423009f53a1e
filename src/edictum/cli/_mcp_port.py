"""The port of ``--http``, opened before anything is served, so that errors show at the start."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from typing import Any

from edictum.errors import EdictumConfigError

MAX_PORT = 65_535
# One address of a name such as localhost may be of a family that the machine does not have.
ABSENT = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port; without a host it is this machine alone."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= MAX_PORT):
        hint = (
            f"Write HOST:PORT or PORT, with a port from 0 (any that is free) to {MAX_PORT}, for"
            " example 127.0.0.1:8080."
        )
        raise EdictumConfigError(f"--http {text!r} has no valid port.", hint=hint)
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def listen(host: str, port: int) -> list[socket.socket]:
    """Return sockets on all addresses of the host."""
    sockets: list[socket.socket] = []
    try:
        _open_all(sockets, host, port)
    except (OSError, UnicodeError) as exc:  # a host name that cannot be encoded is a UnicodeError
        for opened in sockets:
            opened.close()
        why = getattr(exc, "strerror", None) or exc
        problem = f"--http cannot listen on {_join(host, port)}: {why}."
        hint = "Give a host of this machine and a free port."
        raise EdictumConfigError(problem, hint=hint) from exc
    return sockets


def _open_all(sockets: list[socket.socket], host: str, port: int) -> None:
    absent: OSError | None = None
    kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
    for family, _, _, _, address in socket.getaddrinfo(host, port, type=kind, flags=flags):
        try:
            opened = socket.create_server(address, family=family)
            # connections inherit it: an answer must not wait for the client's acknowledgements
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sockets.append(opened)
        except OSError as exc:
            if exc.errno not in ABSENT:
                raise
            absent = exc
    if not sockets and absent is not None:
        raise absent


class JoinedWrites:
    """A transport that sends the head of an answer and its body with one system call, if both are
    written in one turn of the event loop.

    A client that receives only the head wakes up in vain.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._parts = transport, list[bytes]()

    def write(self, data: bytes) -> None:
        self._parts.append(data)
        if len(self._parts) > 1:
            self._send()
        else:
            asyncio.get_running_loop().call_soon(self._send)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def join_writes(protocol: Any) -> Any:
    """Return a protocol of the web server whose connections join what is written."""

    class JoiningProtocol(protocol):  # type: ignore[misc]  # the web server chooses its base
        def connection_made(self, transport: Any) -> None:
            super().connection_made(JoinedWrites(transport))

    return JoiningProtocol


def list_addresses(sockets: Sequence[socket.socket], path: str) -> str:
    """Return what clients may be given as the server's URL."""
    return ", ".join(f"http://{_join(*each.getsockname()[:2])}{path}" for each in sockets)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
