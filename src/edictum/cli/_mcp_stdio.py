"""MCP over stdio: one JSON message per line. Our own stdin and stdout, and a server that we
start.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, BinaryIO

from edictum.adapters.mcp import MCPAdapter, MCPMessage
from edictum.cli._mcp_relay import Relay
from edictum.cli._mcp_wire import failure, id_of_unread, read
from edictum.errors import EdictumConfigError

logger = logging.getLogger("edictum")
LONGEST_LINE = 1 << 30
PATIENCE_S = 5.0


def line_of(message: MCPMessage) -> bytes:
    """Written anew, never as it came: two readers may understand a message with doubled keys
    differently.
    """
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class Console:
    """The client, which started us."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._writing = asyncio.Lock()
        # A thread that dies with the process: a read of stdin cannot be called off.
        threading.Thread(target=self._read, args=(asyncio.get_running_loop(),), daemon=True).start()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        stdin, line = (
            open(sys.stdin.fileno(), "rb", closefd=False),  # noqa: SIM115  # not sys.stdin, which Python flushes at exit
            b"\n",
        )
        while line:
            line = stdin.readline()
            loop.call_soon_threadsafe(self._lines.put_nowait, line)

    async def messages(self) -> AsyncIterator[Any]:
        while line := await self._lines.get():
            try:
                yield read(line)
            except ValueError:
                if line.strip():
                    await self.send(
                        failure(
                            id_of_unread(line),
                            "This is not JSON, or too deep or too large to be read.",
                            -32700,
                        )
                    )

    async def send(self, message: MCPMessage) -> None:
        async with self._writing:
            await asyncio.to_thread(self._write, line_of(message))

    def _write(self, line: bytes) -> None:
        self._out.write(line)
        self._out.flush()


class Process:
    """A server that we start and stop."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    @classmethod
    async def start(cls, command: Sequence[str]) -> Process:
        pipe = asyncio.subprocess.PIPE
        try:
            return cls(
                await asyncio.create_subprocess_exec(
                    *command, stdin=pipe, stdout=pipe, limit=LONGEST_LINE
                )
            )
        except OSError as exc:
            raise EdictumConfigError(
                f"The server could not be started: {exc}", hint="Give the command after --."
            ) from exc

    async def send(self, message: MCPMessage) -> None:
        self._stdin.write(line_of(message))
        await self._stdin.drain()

    async def messages(self) -> AsyncIterator[Any]:
        while line := await self._stdout.readline():
            try:
                yield read(
                    line.decode("utf-8-sig", "replace")
                )  # what is judged is what is passed on, with its broken letters replaced
            except ValueError:
                logger.warning(
                    "the server wrote a line of %d bytes that cannot be read as JSON", len(line)
                )  # not what it says
                if (unread := id_of_unread(line)) is not None:
                    yield failure(unread, "The server's answer cannot be read.")

    async def stop(self) -> int:
        """As the protocol asks for: close its stdin, wait, then end it."""
        self._stdin.close()
        for end in (self._process.terminate, self._process.kill):
            try:
                return await asyncio.wait_for(self._process.wait(), PATIENCE_S)
            except TimeoutError:
                end()
        return await self._process.wait()


async def serve_process(adapter: MCPAdapter, command: Sequence[str], out: BinaryIO) -> int:
    """Stand between our client and the server; 0 when the client ended it, 1 when the server
    did.
    """
    server = await Process.start(command)
    console = Console(out)
    relay = Relay(adapter, console.send, server.send)

    async def up() -> None:
        async for message in console.messages():
            await relay.from_client(message)

    async def down() -> None:
        async for message in server.messages():
            await relay.from_server(message)

    return await between(asyncio.create_task(up()), asyncio.create_task(down()), relay, server.stop)


async def between(
    up: asyncio.Task[None],
    down: asyncio.Task[None],
    relay: Relay,
    stop: Callable[[], Awaitable[int | None]],
) -> int:
    """Until one side ends."""
    await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
    served = up.done() and up.exception() is None
    if not served:
        await relay.lost("The server has ended, or cannot be reached any more.")
    await relay.close()
    code = await stop()
    if not served:
        logger.error("%s", _why(up, down, code))
    for task in (up, down):
        task.cancel()
    await asyncio.gather(up, down, return_exceptions=True)
    return 0 if served else 1


def _why(up: asyncio.Task[None], down: asyncio.Task[None], code: int | None) -> str:
    errors = [
        error for task in (up, down) if task.done() and (error := task.exception()) is not None
    ]
    said = "".join(f", {type(error).__name__}: {error}" for error in errors)
    return (
        "ended, because the server did or cannot be"
        f" reached{'' if code is None else f' (its exit code is {code})'}{said}"
    )
