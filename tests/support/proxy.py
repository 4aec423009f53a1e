"""A proxy between a client and a server on the loopback that breaks things on purpose, and counts
what it broke.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import threading
from collections import Counter
from typing import Literal

Mode = Literal["clean", "slow", "faulty", "silent", "cut", "garbage"]


class Proxy:
    """``clean`` passes everything on; ``slow`` keeps each answer for ``delay_s``; ``faulty`` drops, delays and truncates; ``silent`` swallows
    answers; ``cut`` refuses; ``garbage`` answers with noise. With ``tls`` it speaks that, to a
    server that need not; ``accepted`` counts connections whose handshake went through.
    """

    def __init__(
        self,
        target_port: int,
        seed: int = 1,
        rate: float = 0.05,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.mode: Mode = "clean"
        self.delay_s = 0.0
        self.faults: Counter[str] = Counter()
        self.accepted = 0
        self._tls = tls
        self._target = target_port
        self._random = random.Random(seed)
        self._rate = rate
        self._loop = asyncio.new_event_loop()
        if tls is not None:
            self._loop.set_exception_handler(lambda loop, what: None)  # handshakes broken off
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port: int = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(5)

    async def _listen(self) -> int:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        try:
            if self.mode != "cut":
                there, back = await asyncio.open_connection("127.0.0.1", self._target)
                try:
                    await asyncio.gather(
                        self._pump(reader, back, answers=False),
                        self._pump(there, writer, answers=True),
                    )
                finally:
                    await shut(back)
        except (OSError, Cut):
            pass
        finally:
            await shut(writer)
            self._tasks.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        while chunk := await reader.read(65_536):
            if self.mode == "silent" and answers:
                self.faults["silent"] += 1
                continue
            if self.mode == "slow" and answers:
                self.faults["slow"] += 1
                await asyncio.sleep(self.delay_s)
            if self.mode == "garbage" and answers:
                self.faults["garbage"] += 1
                chunk = b"?lies?\r\n" * 4
            if self.mode == "cut":
                raise Cut
            if self.mode == "faulty" and self._random.random() < self._rate:
                chunk = await self._break(chunk, writer)
            writer.write(chunk)
            await writer.drain()
        raise Cut  # one side has gone, so the other goes as well

    async def _break(self, chunk: bytes, writer: asyncio.StreamWriter) -> bytes:
        fault = self._random.choice(("drop", "delay", "truncate"))
        self.faults[fault] += 1
        if fault == "delay":
            await asyncio.sleep(self._random.uniform(0.001, 0.02))
            return chunk
        if fault == "truncate":
            writer.write(chunk[: self._random.randrange(len(chunk))])
            await writer.drain()
        raise Cut

    def cut(self) -> None:
        """End every connection that is open now, and refuse new ones."""
        self.mode = "cut"
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Cut(Exception):
    """End this connection."""


async def shut(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError, asyncio.CancelledError):
        await writer.wait_closed()
