"""Between one MCP client and one MCP server: everything passes as it is, except for tool calls and
their answers.

An answer passes only if it belongs to an open request. All others are dropped: they could be a
tool's result that nobody judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from edictum.adapters.mcp import MCPAdapter, MCPMessage
from edictum.cli._mcp_wire import (
    Key,
    failure,
    inside,
    is_answer,
    is_call,
    is_request,
    key_of,
    unpacked,
)

logger = logging.getLogger("edictum")
Send = Callable[[MCPMessage], Awaitable[None]]
INVALID, BROKEN = -32600, -32603
LAST_WORDS_S = 5.0  # how long calls may take to end once the server is gone


async def governed(
    adapter: MCPAdapter, request: MCPMessage, forward: Callable[[MCPMessage], Awaitable[MCPMessage]]
) -> MCPMessage:
    """The answer to a call; always one."""
    try:
        return await adapter.answer(request, forward)
    except Exception as exc:
        logger.error("a call could not be answered: %s", type(exc).__name__)
        return failure(request["id"], "The answer to this call could not be made.", BROKEN)


class Relay:
    """Give it what the client and the server say; it says the rest with ``to_client`` and
    ``to_server``.
    """

    def __init__(self, adapter: MCPAdapter, to_client: Send, to_server: Send) -> None:
        self._adapter, self._to_client, self._to_server = adapter, to_client, to_server
        # Calls that the server has been asked. One that was given up stays, so that its late answer
        # is not taken for another's.
        self._asked: dict[Key, asyncio.Future[MCPMessage]] = {}
        self._calls: dict[Key, asyncio.Task[None]] = {}
        self._open: dict[
            Key, Any
        ] = {}  # other requests of the client, with their ids as the client wrote them

    async def from_client(self, said: Any) -> None:
        for message in said if isinstance(said, list) else [said]:
            try:
                await self._take(message)
            except OSError:
                raise  # one of both sides is gone
            except Exception as exc:
                await self._not_passed(message, exc)

    async def from_server(self, said: Any) -> None:
        for message in unpacked(said):
            if not is_answer(message):
                await self._tell(message)
                continue
            key = key_of(message.get("id"))
            waiting = self._asked.pop(key, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
            elif waiting is None and key in self._open:
                await self._tell({**message, "id": self._open.pop(key)})
            elif waiting is None:
                logger.warning("an answer of the server was dropped: no open request waits for it")

    async def lost(self, why: str) -> None:
        """The server has gone: everything that waits for it has failed."""
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_result(failure(None, why))
        with contextlib.suppress(OSError):  # the client may be gone as well
            while self._open:
                await self._to_client(failure(self._open.popitem()[1], why))
        if self._calls:
            await asyncio.wait(self._calls.values(), timeout=LAST_WORDS_S)

    async def close(self) -> None:
        """The client or the server has gone: open calls are recorded as cancelled."""
        open_calls = list(self._calls.values())
        for task in open_calls:
            task.cancel()
        await asyncio.gather(*open_calls, return_exceptions=True)

    # --- From the client --------------------------------------------------------------------------

    async def _take(self, message: Any) -> None:
        if not isinstance(message, dict):
            await self._to_client(failure(None, "A message is an object.", INVALID))
        elif is_call(message) and "id" not in message:
            # It wants no answer, and could be neither counted nor redacted: it goes nowhere.
            logger.warning("a tools/call without an id was dropped")
        elif is_request(message) and self._in_use(key_of(message["id"])):
            await self._to_client(
                failure(message["id"], "The id of this request is in use.", INVALID)
            )
        elif is_call(message):
            self._start(message)
        elif not self._cancelled(message):
            if is_request(message):
                self._open[key_of(message["id"])] = message["id"]
            await self._to_server(message)

    def _in_use(self, key: Key) -> bool:
        return key in self._calls or key in self._asked or key in self._open

    async def _not_passed(self, message: Any, exc: Exception) -> None:
        logger.warning("a message of the client could not be passed on: %s", type(exc).__name__)
        if is_request(message):
            self._open.pop(key_of(message["id"]), None)
            await self._to_client(
                failure(message["id"], "This message could not be passed on.", INVALID)
            )

    def _cancelled(self, message: MCPMessage) -> bool:
        """Whether the client gave up one of our calls; the server hears of it when it was asked
        already.
        """
        if message.get("method") != "notifications/cancelled":
            return False
        task = self._calls.get(key_of(inside(message, "params").get("requestId")))
        return task is not None and task.cancel()

    # --- Calls ------------------------------------------------------------------------------------

    def _start(self, message: MCPMessage) -> None:
        key = key_of(message["id"])
        self._calls[key] = task = asyncio.create_task(self._govern(message))
        task.add_done_callback(lambda _: self._calls.pop(key, None))

    async def _govern(self, message: MCPMessage) -> None:
        answer = await governed(self._adapter, message, self._ask)
        with contextlib.suppress(OSError):  # the client is gone; whoever reads from it will notice
            await self._tell(answer)

    async def _ask(self, message: MCPMessage) -> MCPMessage:
        key = key_of(message["id"])
        answer: asyncio.Future[MCPMessage] = asyncio.get_running_loop().create_future()
        self._asked[key] = answer
        try:
            await self._to_server(message)
            return await answer
        except asyncio.CancelledError:
            params = {"requestId": message["id"], "reason": "The call was given up."}
            with contextlib.suppress(Exception):  # the server may be gone
                await self._to_server(
                    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
                )
            raise
        except Exception:
            self._asked.pop(key, None)  # it never got there
            raise

    async def _tell(self, message: MCPMessage) -> None:
        """To the client; what cannot be written, such as a structure that is too deep, is an error
        for who waits for it.
        """
        try:
            await self._to_client(message)
        except (RecursionError, ValueError, TypeError) as exc:
            logger.warning("a message of the server could not be passed on: %s", type(exc).__name__)
            if is_answer(message):
                await self._to_client(
                    failure(message.get("id"), "The server's answer cannot be passed on.", BROKEN)
                )
