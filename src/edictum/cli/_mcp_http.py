"""MCP over streamable HTTP: a server at a URL, for a client on our stdin."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, BinaryIO

from edictum._logs import MCP_DROPPED, log
from edictum._optional import import_optional
from edictum.adapters.mcp import VERSION_KEY, MCPAdapter, MCPMessage
from edictum.cli._mcp_elicitation import CANCELLED
from edictum.cli._mcp_relay import Relay
from edictum.cli._mcp_stdio import ClientStdio, relay_until_end
from edictum.cli._mcp_wire import (
    EVENTS_TYPE,
    JSON_TYPE,
    get_object,
    is_answer,
    is_request,
    iter_events,
    iter_messages,
    make_error_response,
    normalize_id,
)

NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
SESSION_HEADER, VERSION_HEADER = "mcp-session-id", "mcp-protocol-version"
KEEP_ALIVE_S = 3.0  # less than servers allow, or one of both would close it under a call
END_SESSION_TIMEOUT_S = 5.0


def make_http_client(headers: Mapping[str, str]) -> Any:
    httpx = import_optional("httpx", "mcp")
    limits = httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_S)
    timeout = httpx.Timeout(30, read=None)
    return httpx.AsyncClient(headers=dict(headers), timeout=timeout, limits=limits)


def make_routing_headers(message: MCPMessage) -> dict[str, str]:
    """Return the headers by which newer servers route a request; they repeat what it says."""
    params, method = get_object(message, "params"), message.get("method")
    version = get_object(params, "_meta").get(VERSION_KEY)
    if not isinstance(version, str) or not isinstance(method, str):
        return {}
    name = params.get(NAMED_BY.get(method, ""))
    named = {"mcp-name": encode_header(name)} if isinstance(name, str) else {}
    return {VERSION_HEADER: version, "mcp-method": method, **named}


def encode_header(text: str) -> str:
    is_plain = text.isascii() and text.isprintable() and text == text.strip()
    if is_plain and not text.startswith("=?"):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


class ServerUrl:
    """The server, seen by one client."""

    def __init__(
        self, url: str, headers: Mapping[str, str], deliver: Callable[[Any], Awaitable[None]]
    ) -> None:
        self._url, self._deliver, self._client = url, deliver, make_http_client(headers)
        self._session: dict[str, str] = {}
        self._posts: dict[Any, asyncio.Task[None]] = {}

    async def send(self, message: MCPMessage) -> None:
        method, given_up = message.get("method"), None
        if method == CANCELLED:
            given_up = normalize_id(get_object(message, "params").get("requestId"))
        if given_up in self._posts and not self._session:
            # the newer protocol has no such notification: closing the stream says it
            self._posts[given_up].cancel()
        elif is_request(message):
            self._start(normalize_id(message["id"]), self._send_request(message))
        else:
            await self._send_notification(message)
        if method == "notifications/initialized":
            self._start("listening", self._listen())

    def _start(self, key: Any, work: Coroutine[Any, Any, None]) -> None:
        self._posts[key] = task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._posts.pop(key, None))

    async def _send_notification(self, message: MCPMessage) -> None:
        """Send what wants no answer; that it failed is logged, and nothing else fails with it."""
        try:
            await self._post(message)
        except Exception as exc:
            what, kind = message.get("method", "an answer"), type(exc).__name__
            log(MCP_DROPPED, "the server did not take a message (%s): %s: %s", what, kind, exc)

    async def _send_request(self, message: MCPMessage) -> None:
        """Send a request. If the server gives no answer, the answer is an error."""
        try:
            reason = None if await self._post(message) else "the server gave no answer"
        except Exception as exc:
            reason = f"{type(exc).__name__}: {exc}"
        if reason is not None:
            await self._deliver(make_error_response(message["id"], reason))

    async def _post(self, message: MCPMessage) -> bool:
        """Send a message and deliver what comes back; return whether an answer was among it."""
        accept = {"accept": f"{JSON_TYPE}, {EVENTS_TYPE}"}
        headers = {**accept, **self._session, **make_routing_headers(message)}
        answered = False
        sending = self._client.stream("POST", self._url, json=message, headers=headers)
        async with sending as response:
            if SESSION_HEADER in response.headers:
                self._session[SESSION_HEADER] = response.headers[SESSION_HEADER]
            async for said in iter_messages(response):
                if not is_answer(said):
                    await self._deliver(said)
                elif is_request(message) and not answered:
                    answered = True
                    version = get_object(said, "result").get("protocolVersion")
                    if message["method"] == "initialize" and isinstance(version, str):
                        self._session[VERSION_HEADER] = version  # later requests repeat it
                    # whatever its id is: what comes on this way answers this request
                    await self._deliver({**said, "id": message["id"]})
            if response.status_code >= 400 and not answered:
                raise ConnectionError(f"the server answered with status {response.status_code}")
        return answered

    async def _listen(self) -> None:
        """Deliver what the server says of its own accord; many offer no such stream."""
        headers = {"accept": EVENTS_TYPE, **self._session}
        try:
            async with self._client.stream("GET", self._url, headers=headers) as response:
                if response.status_code == 200:
                    async for said in iter_events(response):
                        if not is_answer(said):
                            await self._deliver(said)
        except Exception as exc:
            kind = type(exc).__name__
            log(MCP_DROPPED, "the stream of the server's own messages broke off: %s", kind)

    async def stop(self) -> None:
        for task in list(self._posts.values()):
            task.cancel()
        if SESSION_HEADER in self._session:
            ending = self._client.delete(self._url, headers=self._session)
            either = asyncio.gather(ending, return_exceptions=True)
            await asyncio.wait_for(either, END_SESSION_TIMEOUT_S)
        await self._client.aclose()


async def serve_url(
    adapter: MCPAdapter, url: str, headers: Mapping[str, str], out: BinaryIO
) -> int:
    """Pass messages between our client and a server at a URL; return the exit code."""
    client = ClientStdio(out)

    async def deliver(said: Any) -> None:
        await relay.from_server(said)

    server = ServerUrl(url, headers, deliver)
    relay = Relay(adapter, client.send, server.send)
    never = asyncio.Event().wait()  # a URL has no end of its own
    return await relay_until_end(client, relay, never, server.stop)
