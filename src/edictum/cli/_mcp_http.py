"""MCP over HTTP: a server at a URL, for a client on our stdin."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, BinaryIO
from urllib.parse import urljoin

from edictum._logs import MCP_DROPPED, log
from edictum._optional import import_optional
from edictum.adapters.mcp import VERSION_KEY, MCPAdapter, MCPMessage
from edictum.cli._mcp_access import is_at
from edictum.cli._mcp_direct import KEEP_ALIVE_S
from edictum.cli._mcp_elicitation import CANCELLED
from edictum.cli._mcp_relay import Relay
from edictum.cli._mcp_resume import read_again_and_again, read_with_resumption
from edictum.cli._mcp_stdio import STOP_TIMEOUT_S, ClientStdio, relay_until_end
from edictum.cli._mcp_wire import (
    ENDPOINT,
    EVENTS_TYPE,
    JSON_TYPE,
    StreamEvent,
    get_object,
    is_answer,
    is_request,
    iter_answer,
    make_error_response,
    normalize_id,
)

NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
SESSION_HEADER, VERSION_HEADER = "mcp-session-id", "mcp-protocol-version"
SESSION_KEY = SESSION_HEADER.encode()
ENDPOINT_TIMEOUT_S = 30.0
ACCEPT_EVENTS = {"accept": EVENTS_TYPE}
OLDER_STATUS = {400, 404, 405}  # by which a server of HTTP+SSE refuses to be greeted at its URL


def make_http_client(headers: Mapping[str, str], *, keeps_cookies: bool = True) -> Any:
    """Return a client. One for several users keeps no cookies, which users would share."""
    httpx = import_optional("httpx", "mcp")
    jar = CookieJar(DefaultCookiePolicy(allowed_domains=None if keeps_cookies else []))
    limits = httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_S)
    timeout = httpx.Timeout(30, read=None)
    return httpx.AsyncClient(headers=dict(headers), timeout=timeout, limits=limits, cookies=jar)


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
        self._sse: SseServer | None = None  # if it speaks the older transport
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
        """Send a message and deliver what comes back; return whether it has an answer."""
        if self._sse is not None:
            await self._sse.send(message)
            return True  # it comes on the stream
        is_first = message.get("method") == "initialize"
        headers = {**self._session, **make_routing_headers(message)}
        headers["accept"] = f"{JSON_TYPE}, {EVENTS_TYPE}"
        sending = self._client.stream("POST", self._url, json=message, headers=headers)
        async with sending as response:
            if SESSION_HEADER in response.headers:
                self._session[SESSION_HEADER] = response.headers[SESSION_HEADER]
            is_answered = await self._read_answer(message, response)
        if is_answered or response.status_code < 400:
            return is_answered
        if is_first and response.status_code in OLDER_STATUS and await self._start_sse():
            return await self._post(message)
        raise ConnectionError(f"the server answered with status {response.status_code}")

    async def _read_answer(self, message: MCPMessage, response: Any) -> bool:
        """Deliver the messages of a response, and of the streams that continue it."""
        is_answered = not is_request(message)  # it wants none
        async with aclosing(
            read_with_resumption(response, self._open, lambda: is_answered)
        ) as events:
            async for event in events:
                for said in event.parse():
                    if not is_answer(said):
                        await self._deliver(said)
                    elif not is_answered:
                        is_answered = True
                        await self._deliver(self._note_answer(message, said))
        return is_answered and is_request(message)

    def _note_answer(self, message: MCPMessage, said: MCPMessage) -> MCPMessage:
        version = get_object(said, "result").get("protocolVersion")
        if message["method"] == "initialize" and isinstance(version, str):
            self._session[VERSION_HEADER] = version  # later requests repeat it
        # whatever its id is: what comes on this way answers this request
        return {**said, "id": message["id"]}

    def _open(self, event_id: str | None) -> Any:
        """Open a stream of the server, after an event of an earlier one."""
        after = {} if event_id is None else {"last-event-id": event_id}
        headers = {"accept": EVENTS_TYPE, **self._session, **after}
        return self._client.stream("GET", self._url, headers=headers)

    async def _listen(self) -> None:
        """Deliver messages that the server sends unasked; many offer no such stream."""
        if self._sse is not None:
            return
        async with aclosing(read_again_and_again(self._open)) as events:
            async for event in events:
                for said in _parse_or_log(event):
                    if not is_answer(said):
                        await self._deliver(said)

    async def _start_sse(self) -> bool:
        """Try the older transport; return whether the server speaks it."""
        sse = SseServer(self._client, self._url, self._deliver)
        self._start("stream", sse.read())
        if not await sse.is_open():
            return False
        self._sse = sse
        return True

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        for task in list(self._posts.values()):
            task.cancel()
        if SESSION_HEADER in self._session:
            ending = self._client.delete(self._url, headers=self._session)
            either = asyncio.gather(ending, return_exceptions=True)
            with suppress(TimeoutError):
                await asyncio.wait_for(either, timeout_s)
        await self._client.aclose()


class SseServer:
    """A server of HTTP+SSE: it says on a stream where to send to, and answers on that stream."""

    def __init__(self, client: Any, url: str, deliver: Callable[[Any], Awaitable[None]]) -> None:
        self._client, self._url, self._deliver = client, url, deliver
        self._endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._open: dict[Any, Any] = {}  # requests without an answer

    async def is_open(self) -> bool:
        try:
            return await asyncio.wait_for(asyncio.shield(self._endpoint), ENDPOINT_TIMEOUT_S) != ""
        except TimeoutError:
            return False

    async def send(self, message: MCPMessage) -> None:
        if is_request(message):
            self._open[normalize_id(message["id"])] = message["id"]
        response = await self._client.post(await self._endpoint, json=message)
        if response.status_code >= 400:
            raise ConnectionError(f"the server answered with status {response.status_code}")

    async def read(self) -> None:
        """Deliver the server's messages until its stream ends; then nothing can be answered."""
        try:
            opening = self._client.stream("GET", self._url, headers=ACCEPT_EVENTS)
            async with opening as response, aclosing(iter_answer(response)) as events:
                async for event in events:
                    await self._take(event)
        except Exception as exc:
            log(MCP_DROPPED, "the stream of the server broke off: %s", type(exc).__name__)
        finally:
            if not self._endpoint.done():
                self._endpoint.set_result("")
        for message_id in list(self._open.values()):
            await self._deliver(make_error_response(message_id, "The server ended its stream."))

    async def _take(self, event: StreamEvent) -> None:
        if event.name == ENDPOINT and not self._endpoint.done():
            endpoint = urljoin(self._url, event.data.strip())
            self._endpoint.set_result(endpoint if is_at(endpoint, self._url) else "")
        elif event.name != ENDPOINT:
            for said in _parse_or_log(event):
                if is_answer(said):
                    self._open.pop(normalize_id(said.get("id")), None)
                await self._deliver(said)


def _parse_or_log(event: StreamEvent) -> list[MCPMessage]:
    try:
        return event.parse()
    except ValueError as exc:
        log(MCP_DROPPED, "an event of the server is dropped: %s", exc)
        return []


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
