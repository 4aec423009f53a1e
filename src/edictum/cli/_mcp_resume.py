"""Resume event streams of a server that ended too early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from typing import Any

from edictum.cli._mcp_wire import EVENTS_TYPE, StreamEvent, get_media_type, iter_answer

# Opens the stream after an event; None: a new one.
Reopen = Callable[[str | None], AbstractAsyncContextManager[Any]]
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
MAX_FAILURES = 5  # in a row


class NotResumed(ConnectionError):
    """The server does not resume a stream that it ended."""


@dataclass
class StreamPosition:
    """Up to where a stream was read, and how long to wait before it is opened again."""

    event_id: str | None = None
    wait_s: float = FIRST_WAIT_S
    failures: int = 0  # in a row: attempts that brought no event

    def note(self, event: StreamEvent) -> None:
        self.failures = 0
        self.event_id = event.event_id or self.event_id
        if event.retry_ms is not None:
            self.wait_s = event.retry_ms / 1000

    async def wait(self) -> None:
        await asyncio.sleep(min(self.wait_s * 2.0**self.failures, LONGEST_WAIT_S))
        self.failures += 1


async def read_with_resumption(
    response: Any, reopen: Reopen, is_done: Callable[[], bool]
) -> AsyncGenerator[StreamEvent, None]:
    """Yield the events of an answer, and of the streams that continue it, until it is done.

    A stream without event ids ends where it ends; one that broke off raises what broke it.
    """
    position = StreamPosition()
    async with AsyncExitStack() as held:
        while True:
            broken = None
            try:
                async with aclosing(iter_answer(response)) as events:
                    async for event in events:
                        position.note(event)
                        yield event
            except Exception as exc:  # of the connection: what an event says is not read here
                broken = exc
            if is_done() or position.event_id is None:
                if broken is not None:
                    raise broken
                return
            await held.aclose()
            response = await _open_again(held, reopen, position)


async def _open_again(held: AsyncExitStack, reopen: Reopen, position: StreamPosition) -> Any:
    while position.failures < MAX_FAILURES:
        await position.wait()
        response = None
        with suppress(Exception):  # it cannot be reached now; perhaps it can the next time
            response = await held.enter_async_context(reopen(position.event_id))
        if response is not None and is_open_stream(response):
            return response
        await held.aclose()
        if response is not None and response.status_code < 500:
            break
    raise NotResumed("the server ended the stream before its answer, and does not resume it")


async def read_again_and_again(reopen: Reopen) -> AsyncGenerator[StreamEvent, None]:
    """Yield the events of a stream without an end, opened again until the server refuses it."""
    position, is_refused = StreamPosition(), False
    while not is_refused:
        with suppress(Exception):  # it broke off, or the server cannot be reached now
            async with reopen(position.event_id) as response:
                is_refused = not is_open_stream(response) and response.status_code < 500
                async with aclosing(iter_answer(response)) as events:
                    async for event in events:
                        position.note(event)
                        yield event
        if not is_refused:
            await position.wait()


def is_open_stream(response: Any) -> bool:
    return response.status_code == 200 and get_media_type(response) == EVENTS_TYPE
