"""Elicitation: questions of the proxy to the person behind an MCP client, and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

from edictum.adapters._mcp import Elicit
from edictum.adapters._mcp_retries import can_show_forms
from edictum.adapters.mcp import MCPMessage
from edictum.cli._mcp_wire import get_object

CANCELLED = "notifications/cancelled"


def is_initialize(message: Any) -> bool:
    return isinstance(message, dict) and message.get("method") == "initialize"


def can_elicit(initialize: MCPMessage) -> bool:
    """Return whether a client says in its first request that it shows forms to a person."""
    capabilities = get_object(get_object(initialize, "params"), "capabilities")
    return can_show_forms(capabilities)


class Elicitations:
    """The questions that wait for an answer; a client answers only those that it was asked."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Any, asyncio.Future[MCPMessage]]] = {}

    def make_asker(
        self, send: Callable[[MCPMessage], Awaitable[None]], owner: Any = None
    ) -> Elicit:
        """Return a function that asks with ``send``; only ``owner`` can answer."""

        async def elicit(message: str, schema: dict[str, Any]) -> dict[str, Any]:
            key, answer = f"edictum-{uuid4()}", asyncio.get_running_loop().create_future()
            params = {"message": message, "requestedSchema": schema}
            self._waiting[key] = (owner, answer)
            try:
                await send({**_make("elicitation/create", params), "id": key})
                return get_object(await answer, "result")
            except asyncio.CancelledError:
                with suppress(Exception):  # the client may be gone
                    await send(_make(CANCELLED, {"requestId": key}))
                raise
            finally:
                del self._waiting[key]

        return elicit

    def take(self, message: Any, owner: Any = None) -> bool:
        """Take the answer to a question; return whether the message was one."""
        if not isinstance(message, dict) or "method" in message:
            return False
        key = message.get("id")
        asked, answer = (
            self._waiting.get(key, (None, None)) if isinstance(key, str) else (None,) * 2
        )
        if answer is None or asked != owner:
            return False
        if not answer.done():
            answer.set_result(message)
        return True


def _make(method: str, params: MCPMessage) -> MCPMessage:
    return {"jsonrpc": "2.0", "method": method, "params": params}
