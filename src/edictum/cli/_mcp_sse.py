"""MCP over HTTP+SSE, the older transport: a client reads one stream, and sends to another place."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from edictum.adapters._mcp import MCPClient
from edictum.adapters.mcp import MCPAdapter, MCPMessage
from edictum.cli._mcp_relay import Relay
from edictum.cli._mcp_streams import ReplyStream
from edictum.cli._mcp_wire import StreamEvent
from edictum.core.call import Principal

# Sends a message to the server with the headers of a request; raises if it is not taken.
Post = Callable[[Any, MCPMessage], Awaitable[None]]


class SseSession:
    """One client of such a server: what it sends is answered on the stream that it reads."""

    def __init__(self, adapter: MCPAdapter, stream: ReplyStream, post: Post, place: str) -> None:
        self._stream, self._post = stream, post
        self._scope: Any = None  # of the client's last request: its token may change
        self._place = place  # the server has made it up for this client
        self._relay = Relay(adapter, self._to_client, self._to_server, MCPClient(place))

    async def from_client(self, scope: Any, parsed: Any, principal: Principal | None) -> None:
        self._scope, self._relay.client = scope, MCPClient(self._place, principal)
        await self._relay.from_client(parsed)

    async def from_server(self, event: StreamEvent) -> None:
        messages = event.parse()
        await self._relay.from_server(messages)
        if not messages:
            await self._stream.add(event)

    async def close(self) -> None:
        await self._relay.close()

    async def _to_client(self, message: MCPMessage) -> None:
        await self._stream.add(StreamEvent(json.dumps(message), "message"))

    async def _to_server(self, message: MCPMessage) -> None:
        await self._post(self._scope, message)
