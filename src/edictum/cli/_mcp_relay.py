"""Between one MCP client and one MCP server: everything passes as it is, except for tool calls and their answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from edictum.adapters.mcp import MCPAdapter, Message

logger = logging.getLogger("edictum")
Send = Callable[[Message], Awaitable[None]]
Key = tuple[type, Any]  # 1 and "1" are different ids


def is_call(message: Any) -> bool:
    return isinstance(message, dict) and message.get("method") == "tools/call"


def is_answer(message: Any) -> bool:
    return isinstance(message, dict) and "method" not in message and "id" in message


def key_of(message_id: Any) -> Key:
    return type(message_id), message_id if isinstance(message_id, (str, int, float)) else repr(message_id)


class Relay:
    """Give it what the client and the server say; it says the rest with ``to_client`` and ``to_server``."""

    def __init__(self, adapter: MCPAdapter, to_client: Send, to_server: Send) -> None:
        self._adapter, self._to_client, self._to_server = adapter, to_client, to_server
        # Calls that the server has been asked. One that was given up stays, so that its late answer is not taken for another's.
        self._asked: dict[Key, asyncio.Future[Message]] = {}
        self._calls: dict[Key, asyncio.Task[None]] = {}

    async def from_client(self, said: Any) -> None:
        for message in said if isinstance(said, list) else [said]:
            if is_call(message):
                await self._start(message)
            elif not self._cancelled(message):
                await self._to_server(message)

    async def from_server(self, said: Any) -> None:
        for message in said if isinstance(said, list) else [said]:
            waiting = self._asked.pop(key_of(message["id"]), None) if is_answer(message) else None
            if waiting is None:
                await self._to_client(message)
            elif not waiting.done():
                waiting.set_result(message)

    async def close(self) -> None:
        """The client or the server has gone: open calls are recorded as cancelled."""
        open_calls = list(self._calls.values())
        for task in open_calls:
            task.cancel()
        await asyncio.gather(*open_calls, return_exceptions=True)

    async def _start(self, message: Message) -> None:
        """A call without an id wants no answer, and could be neither counted nor redacted: it goes nowhere."""
        if "id" not in message:
            logger.warning("a tools/call without an id was dropped")
            return
        key = key_of(message["id"])
        if key in self._calls or key in self._asked:
            error = {"code": -32600, "message": "The id of this request is in use."}
            await self._to_client({"jsonrpc": "2.0", "id": message["id"], "error": error})
            return
        self._calls[key] = task = asyncio.create_task(self._govern(message))
        task.add_done_callback(lambda _: self._calls.pop(key, None))

    async def _govern(self, message: Message) -> None:
        await self._to_client(await self._adapter.answer(message, self._ask))

    def _cancelled(self, message: Any) -> bool:
        """Whether the client gave up one of our calls; the server hears of it when it was asked already."""
        if not isinstance(message, dict) or message.get("method") != "notifications/cancelled":
            return False
        task = self._calls.get(key_of((message.get("params") or {}).get("requestId")))
        return task is not None and task.cancel()

    async def _ask(self, message: Message) -> Message:
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[key_of(message["id"])] = answer
        await self._to_server(message)
        try:
            return await answer
        except asyncio.CancelledError:
            params = {"requestId": message["id"], "reason": "The call was given up."}
            with contextlib.suppress(Exception):  # the server may be gone
                await self._to_server({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
            raise
