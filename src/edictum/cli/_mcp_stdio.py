"""MCP over stdio, one JSON message per line: our own stdin and stdout, and a server's."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

from edictum._logs import MCP_DROPPED, MCP_STOPPED, log
from edictum.adapters.mcp import MCPAdapter, MCPMessage
from edictum.cli._mcp_relay import Relay
from edictum.cli._mcp_wire import PARSE_ERROR, find_unread_id, make_error_response, parse_json
from edictum.errors import EdictumConfigError

LONGEST_LINE = 1 << 30
STOP_TIMEOUT_S = 5.0
SIGNALLED_TIMEOUT_S = 0.5  # clients kill a server two seconds after the signal
SIGNALLED = 128 + signal.SIGTERM  # the exit code
NOT_JSON = "This is not JSON, or too deep or too large to be read."


def encode_line(message: MCPMessage) -> bytes:
    """Write a message anew: two readers may understand one with doubled keys differently."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class ClientStdio:
    """The client, which started us."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._writing = asyncio.Lock()
        # A thread that dies with the process: a read of stdin cannot be called off.
        threading.Thread(target=self._read, args=(asyncio.get_running_loop(),), daemon=True).start()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        # not sys.stdin, which Python flushes at exit
        stdin = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115  # read to the end
        line = b"\n"
        while line:
            line = stdin.readline()
            loop.call_soon_threadsafe(self._lines.put_nowait, line)

    async def messages(self) -> AsyncIterator[Any]:
        while line := await self._lines.get():
            try:
                yield parse_json(line)
            except ValueError:
                if line.strip():
                    await self.send(
                        make_error_response(find_unread_id(line), NOT_JSON, PARSE_ERROR)
                    )

    async def send(self, message: MCPMessage) -> None:
        async with self._writing:
            await asyncio.to_thread(self._write, encode_line(message))

    def _write(self, line: bytes) -> None:
        self._out.write(line)
        self._out.flush()


class ServerProcess:
    """A server that we start and stop."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout

    @classmethod
    async def start(cls, command: Sequence[str]) -> ServerProcess:
        pipe = asyncio.subprocess.PIPE
        options: dict[str, Any] = {"stdin": pipe, "stdout": pipe, "limit": LONGEST_LINE}
        try:
            return cls(await asyncio.create_subprocess_exec(*command, **options))
        except OSError as exc:
            raise EdictumConfigError(
                f"The server could not be started: {exc}", hint="Give the command after --."
            ) from exc

    async def send(self, message: MCPMessage) -> None:
        self._stdin.write(encode_line(message))
        await self._stdin.drain()

    async def messages(self) -> AsyncIterator[Any]:
        while line := await self._stdout.readline():
            try:
                # what is judged is what is passed on, with its broken letters replaced
                yield parse_json(line.decode("utf-8-sig", "replace"))
            except ValueError:  # what the line says is not logged: it was not judged
                size = len(line)
                log(MCP_DROPPED, "the server wrote a line of %d bytes that is not valid JSON", size)
                if (unread := find_unread_id(line)) is not None:
                    yield make_error_response(unread, "The server's answer cannot be read.")

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Stop the server as the protocol asks for: close its stdin, wait, then end it."""
        self._stdin.close()
        for end in (self._process.terminate, self._process.kill):
            try:
                return await asyncio.wait_for(self._process.wait(), timeout_s)
            except TimeoutError:
                end()
        return await self._process.wait()


async def serve_process(adapter: MCPAdapter, command: Sequence[str], out: BinaryIO) -> int:
    """Pass messages between our client and a server that we start; return the exit code."""
    server = await ServerProcess.start(command)
    client = ClientStdio(out)
    relay = Relay(adapter, client.send, server.send)

    async def pass_down() -> None:
        async for message in server.messages():
            await relay.from_server(message)

    return await relay_until_end(client, relay, pass_down(), server.stop)


async def relay_until_end(
    client: ClientStdio,
    relay: Relay,
    pass_down: Coroutine[Any, Any, Any],
    stop: Callable[..., Awaitable[int | None]],
) -> int:
    """Pass messages until one side ends; return 0 when that was the client, 1 for the server.

    A signal (SIGTERM, Ctrl-C) ends it as well: open calls are recorded, and the server is stopped.
    """

    async def pass_up() -> None:
        async for message in client.messages():
            await relay.from_client(message)

    up, down = asyncio.create_task(pass_up()), asyncio.create_task(pass_down)
    try:
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await relay.close()
        await stop(SIGNALLED_TIMEOUT_S)
        raise
    served = up.done() and up.exception() is None
    if not served:
        await relay.fail_all("The server has ended, or cannot be reached any more.")
    await relay.close()
    code = await stop()
    if not served:
        errors = [task.exception() for task in (up, down) if task.done()]
        said = "".join(f", {type(exc).__name__}: {exc}" for exc in errors if exc is not None)
        ended = "the server has ended or cannot be reached"
        exit_code = "" if code is None else f" (its exit code is {code})"
        log(MCP_STOPPED, "stopped, because %s%s%s", ended, exit_code, said)
    for task in (up, down):
        task.cancel()
    await asyncio.gather(up, down, return_exceptions=True)
    return 0 if served else 1


def run_until_signal(work: Coroutine[Any, Any, int]) -> int:
    """Run to the end, or until a signal cancels it; return the exit code."""

    async def run() -> int:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        with suppress(NotImplementedError):  # Windows lacks this signal
            loop.add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        return SIGNALLED
