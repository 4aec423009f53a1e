"""MCP over streamable HTTP: a server at a URL, for a client on our stdin or for clients of a port
of ours.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, BinaryIO
from urllib.parse import urlsplit, urlunsplit

from edictum.adapters.mcp import VERSION_KEY, MCPAdapter, MCPMessage
from edictum.cli._mcp_port import addresses, listen
from edictum.cli._mcp_relay import BROKEN, Relay, governed
from edictum.cli._mcp_stdio import Console, between
from edictum.cli._mcp_wire import (
    EVENTS,
    JSON,
    events,
    failure,
    inside,
    is_answer,
    is_call,
    is_request,
    key_of,
    kind_of,
    messages,
    read,
)
from edictum.errors import EdictumConfigError

logger = logging.getLogger("edictum")
NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
# Headers that belong to one connection, and those that no longer hold for what we pass on.
DROPPED = {
    "host",
    "connection",
    "keep-alive",
    "transfer-encoding",
    "te",
    "upgrade",
    "content-length",
    "content-encoding",
    "accept-encoding",
    "last-event-id",
    "proxy-authorization",
    "proxy-connection",
}
UNREADABLE = object()
OURS = re.compile(
    rb"/(?![/\\])"
)  # a path, which leads back to where the client asked; two slashes begin another host
# how long a connection waits for another request: less than servers allow, or one of both would
# close it under a call
IDLE_S = 3.0
REST_S = 1.0  # how long a stream may go on after its answer


def load(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as exc:
        raise EdictumConfigError(
            f"{module} is not installed.", hint="Run: pip install 'edictum[mcp]'"
        ) from exc


def new_client(headers: Mapping[str, str]) -> Any:
    httpx = load("httpx")
    limits = httpx.Limits(max_connections=None, keepalive_expiry=IDLE_S)
    return httpx.AsyncClient(
        headers=dict(headers), timeout=httpx.Timeout(30, read=None), limits=limits
    )


def routing(message: MCPMessage) -> dict[str, str]:
    """Headers by which servers of the newer protocol route a request; they must repeat what it
    says.
    """
    params, method = inside(message, "params"), message.get("method")
    version = inside(params, "_meta").get(VERSION_KEY)
    if not isinstance(version, str) or not isinstance(method, str):
        return {}
    name = params.get(NAMED_BY.get(method, ""))
    named = {"mcp-name": in_header(name)} if isinstance(name, str) else {}
    return {"mcp-protocol-version": version, "mcp-method": method, **named}


def in_header(text: str) -> str:
    plain = (
        text.isascii() and text.isprintable() and text == text.strip() and not text.startswith("=?")
    )
    return text if plain else f"=?base64?{base64.b64encode(text.encode()).decode()}?="


# --- A client on our stdin ------------------------------------------------------------------------


class Url:
    """The server, seen by one client."""

    def __init__(
        self, url: str, headers: Mapping[str, str], deliver: Callable[[Any], Awaitable[None]]
    ) -> None:
        self._url, self._deliver, self._client = url, deliver, new_client(headers)
        self._session: dict[str, str] = {}
        self._posts: dict[Any, asyncio.Task[None]] = {}

    async def send(self, message: MCPMessage) -> None:
        method = message.get("method")
        given_up = (
            key_of(inside(message, "params").get("requestId"))
            if method == "notifications/cancelled"
            else None
        )
        if given_up in self._posts and not self._session:
            self._posts[
                given_up
            ].cancel()  # the newer protocol has no such notification: closing the stream says it
        elif is_request(message):
            self._keep(key_of(message["id"]), self._request(message))
        else:
            await self._tell(message)
        if method == "notifications/initialized":
            self._keep("listening", self._listen())

    def _keep(self, key: Any, work: Any) -> None:
        self._posts[key] = task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._posts.pop(key, None))

    async def _tell(self, message: MCPMessage) -> None:
        """What wants no answer: nobody would read why it failed, and nothing else fails with it."""
        try:
            await self._post(message)
        except Exception as exc:
            logger.warning(
                "the server did not take a message (%s): %s: %s",
                message.get("method", "an answer"),
                type(exc).__name__,
                exc,
            )

    async def _request(self, message: MCPMessage) -> None:
        """Every request gets an answer: if the server gives none, an error."""
        try:
            why = "the server gave no answer" if not await self._post(message) else None
        except Exception as exc:
            why = f"{type(exc).__name__}: {exc}"
        if why is not None:
            await self._deliver(failure(message["id"], why))

    async def _post(self, message: MCPMessage) -> bool:
        headers = {"accept": f"{JSON}, {EVENTS}", **self._session, **routing(message)}
        answered = False
        async with self._client.stream(
            "POST", self._url, json=message, headers=headers
        ) as response:
            self._session |= {
                key: response.headers[key] for key in ("mcp-session-id",) if key in response.headers
            }
            async for said in messages(response):
                if not is_answer(said):
                    await self._deliver(said)
                elif is_request(message) and not answered:
                    answered = True
                    self._agree(message, said)
                    await self._deliver(
                        {**said, "id": message["id"]}
                    )  # what comes on this way answers this request
            if response.status_code >= 400 and not answered:
                raise ConnectionError(f"the server answered with status {response.status_code}")
        return answered

    def _agree(self, asked: MCPMessage, said: MCPMessage) -> None:
        """The version of the protocol that the server chose, which every later request repeats."""
        version = inside(said, "result").get("protocolVersion")
        if asked["method"] == "initialize" and isinstance(version, str):
            self._session["mcp-protocol-version"] = version

    async def _listen(self) -> None:
        """What the server says of its own accord; many offer no such stream."""
        try:
            async with self._client.stream(
                "GET", self._url, headers={"accept": EVENTS, **self._session}
            ) as response:
                if response.status_code == 200:
                    async for said in events(response):
                        if not is_answer(said):
                            await self._deliver(said)
        except Exception as exc:
            logger.warning(
                "the stream of the server's own messages broke off: %s", type(exc).__name__
            )

    async def stop(self) -> None:
        for task in list(self._posts.values()):
            task.cancel()
        if "mcp-session-id" in self._session:
            await asyncio.wait_for(
                asyncio.gather(
                    self._client.delete(self._url, headers=self._session), return_exceptions=True
                ),
                5,
            )
        await self._client.aclose()


async def serve_url(
    adapter: MCPAdapter, url: str, headers: Mapping[str, str], out: BinaryIO
) -> int:
    console = Console(out)

    async def deliver(said: Any) -> None:
        await relay.from_server(said)

    server = Url(url, headers, deliver)
    relay = Relay(adapter, console.send, server.send)

    async def up() -> None:
        async for message in console.messages():
            await relay.from_client(message)

    async def down() -> None:
        await asyncio.Event().wait()  # a URL has no end of its own

    return await between(asyncio.create_task(up()), asyncio.create_task(down()), relay, server.stop)


# --- Clients of a port of ours --------------------------------------------------------------------


class Gateway:
    """An ASGI application that passes requests on to the server of a URL, under the same paths."""

    def __init__(self, adapter: MCPAdapter, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        self._adapter, self._origin, self._client = (
            adapter,
            f"{parts.scheme}://{parts.netloc}",
            new_client(headers),
        )
        self._ending: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = await _body(receive)
        said = _parsed(scope, body)
        calls = [
            message for message in (said if isinstance(said, list) else [said]) if is_call(message)
        ]
        if said is UNREADABLE or (calls and (isinstance(said, list) or "id" not in calls[0])):
            await _respond(
                send,
                400,
                {"content-type": "text/plain"},
                b"Calls of tools are JSON, have an id, and are sent one by one.",
            )
        elif calls:
            await self._govern(scope, calls[0], receive, send)
        else:
            await self._pass(scope, said, body, send)

    def _open(self, scope: Any, body: bytes) -> Any:
        headers = [
            (key.decode("latin-1"), value.decode("latin-1")) for key, value in scope["headers"]
        ]
        query = f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
        kept = [(key, value) for key, value in headers if key not in DROPPED]
        return self._client.stream(
            scope["method"], self._origin + scope["path"] + query, headers=kept, content=body
        )

    async def _pass(self, scope: Any, said: Any, body: bytes, send: Any) -> None:
        async with AsyncExitStack() as held:
            try:
                written = json.dumps(said).encode() if isinstance(said, (dict, list)) else body
                response = await held.enter_async_context(self._open(scope, written))
            except Exception as exc:
                await _not_passed(send, said, exc)
                return
            await send(
                {
                    "type": "http.response.start",
                    "status": response.status_code,
                    "headers": self._kept(response.headers),
                }
            )
            if kind_of(response) == EVENTS:
                await _pass_events(response, said, send)
            else:
                async for part in response.aiter_bytes():
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _govern(self, scope: Any, request: MCPMessage, receive: Any, send: Any) -> None:
        """One call. What the server says before its answer is streamed; the answer is what the
        guard made of it.
        """
        news: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        heard = Heard()

        async def forward(message: MCPMessage) -> MCPMessage:
            async with AsyncExitStack() as held:
                response = await held.enter_async_context(
                    self._open(scope, json.dumps(message).encode())
                )
                if response.status_code != 200:
                    heard.status, heard.headers = (
                        response.status_code,
                        _without_body(self._kept(response.headers)),
                    )
                stream = messages(response)
                async for said in stream:
                    if is_answer(said):
                        heard.answered = True
                        self._let_end(stream, held.pop_all())
                        return said
                    await news.put(("event", said))
                raise ConnectionError(f"the server gave no answer (status {response.status_code})")

        call = asyncio.create_task(governed(self._adapter, request, forward))
        call.add_done_callback(
            lambda done: news.put_nowait(("answer", None if done.cancelled() else done.result()))
        )
        gone = asyncio.create_task(_disconnected(receive, call))
        try:
            await _reply(heard, news, send)
        finally:
            gone.cancel()

    def _let_end(self, stream: AsyncIterator[Any], held: AsyncExitStack) -> None:
        """The answer does not wait for the end of its stream."""
        task = asyncio.create_task(_end(stream, held))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _kept(self, headers: Any) -> list[tuple[bytes, bytes]]:
        """Headers of the server. A redirect to itself leads back to us: a client that followed it
        elsewhere would pass us by.
        """
        kept = [(key, value) for key, value in headers.multi_items() if key not in DROPPED]
        return [
            (
                key.encode("latin-1"),
                (self._here(value) if key == "location" else value).encode("latin-1"),
            )
            for key, value in kept
        ]

    def _here(self, location: str) -> str:
        with suppress(ValueError):
            if _place(location) == _place(self._origin):
                return urlunsplit(("", "", *urlsplit(location)[2:])) or "/"
        return location


@dataclass
class Heard:
    """What the server said to one call besides messages. Its status and headers pass; of its body
    nothing but the judged answer.
    """

    status: int = 200
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    answered: bool = False

    @property
    def has_body(self) -> bool:
        """A refusal without an answer is told by its status. A success without one is not: clients
        would wait.
        """
        return self.answered or self.status < 300

    def start(self, kind: str) -> MCPMessage:
        status, headers = (
            (self.status, self.headers) if self.answered or not self.has_body else (200, [])
        )
        typed = [(b"content-type", kind.encode())] if self.has_body else []
        return {"type": "http.response.start", "status": status, "headers": [*headers, *typed]}


async def _reply(heard: Heard, news: asyncio.Queue[tuple[str, Any]], send: Any) -> None:
    kind, said = await news.get()
    if kind == "answer":
        await send(heard.start(JSON))
        await send(
            {"type": "http.response.body", "body": _written(said) if heard.has_body else b""}
        )
        return
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", EVENTS.encode())],
        }
    )
    while kind == "event":
        await _event(send, said)
        kind, said = await news.get()
    await _event(send, said)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _pass_events(response: Any, said: Any, send: Any) -> None:
    """Answers come with their requests. One to another request, a call perhaps, is judged there, or
    would be by nobody.
    """
    asked = {
        key_of(message["id"])
        for message in (said if isinstance(said, list) else [said])
        if is_request(message)
    }
    async for message in events(response):
        if not is_answer(message) or key_of(message.get("id")) in asked:
            await _event(send, message)


async def _not_passed(send: Any, said: Any, exc: Exception) -> None:
    logger.warning("a message could not be passed on to the server: %s", type(exc).__name__)
    error = failure(
        said["id"] if is_request(said) else None,
        f"The server cannot be reached ({type(exc).__name__}).",
    )
    await _respond(send, 502, {"content-type": JSON}, json.dumps(error).encode())


def _without_body(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Without those that describe a body that is not sent, and without the way to a place where
    nobody would judge the call.
    """
    return [
        (key, value)
        for key, value in headers
        if key != b"content-type" and (key != b"location" or OURS.match(value))
    ]


def _place(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


async def _end(stream: AsyncIterator[Any], held: AsyncExitStack) -> None:
    """Read to the end, so that the connection can serve the next call. A stream that goes on is
    closed, and its connection with it.
    """
    with suppress(Exception):  # the answer is here: what goes wrong after it is nobody's loss
        async with held, asyncio.timeout(REST_S):
            async for _ in stream:
                pass


def _parsed(scope: Any, body: bytes) -> Any:
    """What a request says, if it says JSON. Forms, of a login for instance, are no MCP messages."""
    if not body:
        return None
    try:
        return read(body)
    except ValueError:
        kinds = [value.lower() for key, value in scope["headers"] if key == b"content-type"]
        form = any(kind.startswith(b"application/x-www-form-urlencoded") for kind in kinds)
        return None if form and not _may_be_json(body) else UNREADABLE


def _may_be_json(body: bytes) -> bool:
    """Whether another reader than Python's may find a message there. A form is ASCII, and begins
    with the name of a field.
    """
    return not body.isascii() or b"\0" in body or body.lstrip()[:1] in (b"{", b"[")


async def _body(receive: Any) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def _disconnected(receive: Any, call: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    call.cancel()


async def _respond(send: Any, status: int, headers: Mapping[str, str], body: bytes) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def _event(send: Any, message: Any) -> None:
    data = b"event: message\ndata: %s\n\n" % _written(message)
    await send({"type": "http.response.body", "body": data, "more_body": True})


def _written(message: Any) -> bytes:
    try:
        return json.dumps(message).encode()
    except (RecursionError, ValueError):  # it could be read, but is too deep to be written
        return json.dumps(
            failure(message.get("id"), "The server's answer cannot be passed on.", BROKEN)
        ).encode()


async def serve_port(
    adapter: MCPAdapter, url: str, headers: Mapping[str, str], host: str, port: int
) -> int:
    uvicorn = load("uvicorn")
    config = uvicorn.Config(
        Gateway(adapter, url, headers), log_level="warning", lifespan="off", ws="none"
    )
    sockets = listen(host, port)
    print(
        f"edictum mcp-proxy: listening on {addresses(sockets, urlsplit(url).path)}",
        file=sys.stderr,
        flush=True,
    )
    await uvicorn.Server(config).serve(sockets)
    return 0
