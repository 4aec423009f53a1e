"""TLS in front of a server on the loopback that has none: the test wheel's Valkey is built without
it.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import trustme
from loops import Loop

from support.proxy import shut


class Authority:
    """Signs certificates, and is a file that clients can be told to trust."""

    def __init__(self, directory: Path, name: str) -> None:
        self._authority = trustme.CA()
        self._directory = directory
        self.file = directory / f"{name}.pem"
        self._authority.cert_pem.write_to_path(self.file)

    def server_context(self, *names: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert(*names).configure_cert(context)
        return context

    def client_files(self, name: str) -> tuple[Path, Path]:
        """A certificate for that client, and its key."""
        issued, certificate, key = (
            self._authority.issue_cert(name),
            self._directory / "client.pem",
            self._directory / "client.key",
        )
        issued.cert_chain_pems[0].write_to_path(certificate)
        issued.private_key_pem.write_to_path(key)
        return certificate, key


class TlsFront:
    """Takes TLS connections and passes what is said on to a port without TLS. It counts those whose
    handshake went through.
    """

    def __init__(self, target_port: int, context: ssl.SSLContext) -> None:
        self.accepted = 0
        self._target = target_port
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = Loop()
        self._loop.loop.set_exception_handler(
            lambda loop, what: None
        )  # handshakes that clients break off
        self.port: int = self._loop.run(self._listen)

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            ways = [
                asyncio.create_task(_pump(reader, back)),
                asyncio.create_task(_pump(there, writer)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            await shut(back)
            await shut(writer)
            self._tasks.discard(task)

    def close(self) -> None:
        self._loop.run(self._close)
        self._loop.end()

    async def _close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(65_536):
        writer.write(chunk)
        await writer.drain()
