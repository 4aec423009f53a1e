"""MCP over streamable HTTP: a server at a URL, for clients of a port of ours."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from edictum._logs import MCP_DROPPED, log
from edictum._optional import import_optional
from edictum.adapters._mcp import MCPClient
from edictum.adapters.mcp import MCPAdapter, MCPMessage
from edictum.cli._mcp_elicitation import Elicitations, can_elicit, is_initialize
from edictum.cli._mcp_http import (
    SESSION_HEADER,
    VERSION_HEADER,
    make_http_client,
    make_routing_headers,
)
from edictum.cli._mcp_port import list_addresses, listen
from edictum.cli._mcp_relay import UNWRITABLE, answer_call
from edictum.cli._mcp_tokens import TokenError, TokenVerifier
from edictum.cli._mcp_wire import (
    EVENTS_TYPE,
    INTERNAL_ERROR,
    JSON_TYPE,
    as_list,
    get_media_type,
    is_answer,
    is_call,
    is_request,
    iter_events,
    iter_messages,
    make_error_response,
    normalize_id,
    parse_json,
)

Headers = list[tuple[bytes, bytes]]
# Headers that belong to one connection, and those that no longer hold for what we pass on.
DROPPED_HEADERS = {
    *("host", "connection", "keep-alive", "transfer-encoding", "te", "upgrade"),
    *("content-length", "content-encoding", "accept-encoding", "last-event-id"),
    *("proxy-authorization", "proxy-connection"),
}
MESSAGE_KEYS = {"jsonrpc", "method"}
# They repeat what a request says.
ROUTING_HEADERS = {"mcp-method", "mcp-name", VERSION_HEADER}
# What passes of the answer to a call, unless its status is 200, by which nothing passes.
REFUSAL_HEADERS = {
    *(b"www-authenticate", b"retry-after", b"location", b"allow", b"mcp-session-id"),
    *(b"access-control-allow-origin", b"access-control-expose-headers"),
}
UNREADABLE_BODY = object()
FORM_TYPE = b"application/x-www-form-urlencoded"
BAD_CALL = b"Calls of tools are JSON, have an id, and are sent one by one."
# A path, which leads back to where the client asked; two slashes begin another host.
OWN_PATH = re.compile(rb"/(?![/\\])")
DEFAULT_PORTS = {"http": 80, "https": 443}
STREAM_REST_S = 1.0  # how long a stream may go on after its answer
MAX_SESSIONS = 100_000  # of clients, that are remembered


class Gateway:
    """An ASGI application that passes requests on to the server of a URL, under the same paths."""

    def __init__(
        self,
        adapter: MCPAdapter,
        url: str,
        headers: Mapping[str, str],
        stream_rest_s: float = STREAM_REST_S,
        verifier: TokenVerifier | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._path, self._verifier = parts.path or "/", verifier
        self._elicitations = Elicitations()
        self._adapter, self._client = adapter, make_http_client(headers)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._stream_rest_s = stream_rest_s
        self._sessions = NegotiatedSessions()
        self._ending: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, response = await _read_body(receive), Response(send)
        parsed = _parse_body(scope, body)
        calls = [message for message in as_list(parsed) if is_call(message)]
        is_bad_call = bool(calls) and (isinstance(parsed, list) or "id" not in calls[0])
        try:
            client = await self._identify(scope, parsed)
        except TokenError:
            await response.refuse_token()
            return
        if parsed is UNREADABLE_BODY or is_bad_call:
            await response.respond(400, "text/plain", BAD_CALL)
        elif self._elicitations.take(parsed, client.identify().session_id):
            await response.respond(202, "text/plain", b"")
        elif calls:
            await self._govern(scope, calls[0], receive, response, client)
        else:
            await self._pass(scope, parsed, body, response)

    async def _identify(self, scope: Any, parsed: Any) -> MCPClient:
        """Return who sends a request; raise TokenError if a token is wanted and not valid."""
        principal = None
        if self._verifier is not None and self._needs_token(scope["path"], parsed):
            principal = await self._verifier.find_principal(scope["headers"])
        return MCPClient(self._sessions.find(scope), principal)

    def _needs_token(self, path: str, parsed: Any) -> bool:
        """Return whether a request may be one of MCP: not where to log in, nor the login itself."""
        if any(isinstance(it, dict) and MESSAGE_KEYS & it.keys() for it in as_list(parsed)):
            return True
        root = self._path.rstrip("/")
        is_below = path == root or path.startswith(f"{root}/")
        return is_below and not path.startswith("/.well-known/")

    def _open_stream(
        self, scope: Any, body: bytes, routing: Mapping[str, str] | None = None
    ) -> Any:
        """Send a request as the client did; ``routing`` replaces headers that say what it is."""
        headers = [
            (key.decode("latin-1"), value.decode("latin-1")) for key, value in scope["headers"]
        ]
        dropped = DROPPED_HEADERS | (ROUTING_HEADERS if routing else set())
        kept = [(key, value) for key, value in headers if key not in dropped]
        kept += (routing or {}).items()
        query = f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
        place = self._origin + scope["path"] + query
        return self._client.stream(scope["method"], place, headers=kept, content=body)

    async def _pass(self, scope: Any, parsed: Any, body: bytes, response: Response) -> None:
        """Pass on what is not a call, and the server's response to it."""
        async with AsyncExitStack() as held:
            try:
                written = json.dumps(parsed).encode() if isinstance(parsed, (dict, list)) else body
                got = await held.enter_async_context(self._open_stream(scope, written))
            except Exception as exc:
                kind = type(exc).__name__
                log(MCP_DROPPED, "a message could not be passed on to the server: %s", kind)
                message_id = parsed["id"] if is_request(parsed) else None
                error = make_error_response(message_id, f"The server cannot be reached ({kind}).")
                await response.respond(502, JSON_TYPE, json.dumps(error).encode())
                return
            if is_initialize(parsed):
                self._sessions.add(scope, got.headers, can_elicit(parsed))
            await response.start(got.status_code, self._keep_headers(got.headers))
            if get_media_type(got) == EVENTS_TYPE:
                await _pass_events(got, parsed, response)
            else:
                async for part in got.aiter_bytes():
                    await response.write(part)
            await response.end()

    async def _govern(
        self, scope: Any, request: MCPMessage, receive: Any, response: Response, client: MCPClient
    ) -> None:
        """Govern one call. What the server says before its answer is streamed as it is."""
        news: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        status = ServerStatus()

        async def forward(message: MCPMessage) -> MCPMessage:
            async with AsyncExitStack() as held:
                is_asked = message["id"] == request["id"]  # by the client, not by the catalog
                routing = None if is_asked else make_routing_headers(message)
                opening = self._open_stream(scope, json.dumps(message).encode(), routing)
                got = await held.enter_async_context(opening)
                if is_asked and got.status_code != 200:
                    status.code = got.status_code
                    status.headers = _keep_refusal_headers(self._keep_headers(got.headers))
                stream = iter_messages(got)
                async for said in stream:
                    if is_answer(said):
                        status.answered = is_asked
                        self._end_later(stream, held.pop_all())
                        return said
                    await news.put(("event", said))
                raise ConnectionError(f"the server gave no answer (status {got.status_code})")

        def report(done: asyncio.Task[MCPMessage]) -> None:
            news.put_nowait(("answer", None if done.cancelled() else done.result()))

        client = self._add_elicitation(scope, client, news)
        call = asyncio.create_task(answer_call(self._adapter, request, forward, client))
        call.add_done_callback(report)
        watching = asyncio.create_task(_cancel_at_disconnect(receive, call))
        try:
            await _reply(status, news, response)
        finally:
            watching.cancel()

    def _add_elicitation(self, scope: Any, client: MCPClient, news: Any) -> MCPClient:
        """Return the client with a way to ask the person behind it, if it has one."""
        if not self._sessions.can_elicit(scope):
            return client

        async def send(message: MCPMessage) -> None:
            await news.put(("event", message))

        owner = client.identify().session_id
        elicit = self._elicitations.make_asker(send, owner)
        return MCPClient(client.session_id, client.principal, elicit)

    def _end_later(self, stream: AsyncIterator[Any], held: AsyncExitStack) -> None:
        """Read a stream to its end, so that its connection can be used again, but do not wait."""

        async def read_rest() -> None:
            with suppress(Exception):  # the answer has been passed on: what fails now does no harm
                async with held, asyncio.timeout(self._stream_rest_s):  # close one that goes on
                    async for _ in stream:
                        pass

        task = asyncio.create_task(read_rest())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _keep_headers(self, headers: Any) -> Headers:
        """Return the server's headers. A redirect to itself must not lead a client around us."""
        kept = [item for item in headers.multi_items() if item[0] not in DROPPED_HEADERS]
        own = [(key, self._redirect_here(key, value)) for key, value in kept]
        return [(key.encode("latin-1"), value.encode("latin-1")) for key, value in own]

    def _redirect_here(self, key: str, value: str) -> str:
        with suppress(ValueError):
            if key == "location" and _get_origin(value) == _get_origin(self._origin):
                return urlunsplit(("", "", *urlsplit(value)[2:])) or "/"
        return value


class NegotiatedSessions:
    """The session ids that the server has given to clients; what a client made up is not one."""

    def __init__(self, most: int = MAX_SESSIONS) -> None:
        # whether the client can ask the person behind it, by id, in the order of their last use
        self._known: dict[str, bool] = {}
        self._most = most

    def add(self, scope: Any, answered: Mapping[str, str], can_ask: bool = False) -> None:
        """Remember the id in the server's answer, unless it only repeats the client's."""
        if (given := answered.get(SESSION_HEADER)) and not _get_session_headers(scope):
            self._known[given] = can_ask
            if len(self._known) > self._most:
                del self._known[next(iter(self._known))]

    def find(self, scope: Any) -> str | None:
        """Return the id that a request bears, if it is known and the only one."""
        borne = _get_session_headers(scope)
        if len(borne) != 1 or borne[0] not in self._known:
            return None
        self._known[borne[0]] = self._known.pop(borne[0])
        return borne[0]

    def can_elicit(self, scope: Any) -> bool:
        """Return whether the client of a request said that it can ask the person behind it."""
        return self._known.get(self.find(scope) or "", False)


def _get_session_headers(scope: Any) -> list[str]:
    name = SESSION_HEADER.encode()
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


async def _pass_events(got: Any, parsed: Any, response: Response) -> None:
    """Pass on events, but only the answers to this request: others were not judged."""
    asked = {normalize_id(each["id"]) for each in as_list(parsed) if is_request(each)}
    async for message in iter_events(got):
        if not is_answer(message) or normalize_id(message.get("id")) in asked:
            await response.write_event(message)


class Response:
    """Writes one response of ASGI."""

    def __init__(self, send: Any) -> None:
        self._send = send

    async def start(self, status: int, headers: Headers) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def write_event(self, message: Any) -> None:
        await self.write(b"event: message\ndata: %s\n\n" % _encode(message))

    async def end(self, body: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def refuse_token(self) -> None:
        await self.start(401, [(b"www-authenticate", b'Bearer error="invalid_token"')])
        await self.end()

    async def respond(self, status: int, media_type: str, body: bytes) -> None:
        await self.start(status, [(b"content-type", media_type.encode())])
        await self.end(body)


@dataclass
class ServerStatus:
    """The server's status and headers for one call. Of its body only the judged answer passes."""

    code: int = 200
    headers: Headers = field(default_factory=list)
    answered: bool = False

    @property
    def has_body(self) -> bool:
        """A refusal without an answer has only its status. After a success clients would wait."""
        return self.answered or self.code < 300

    async def start(self, response: Response) -> None:
        typed = [(b"content-type", JSON_TYPE.encode())] if self.has_body else []
        if self.answered or not self.has_body:
            await response.start(self.code, [*self.headers, *typed])
        else:
            await response.start(200, typed)


async def _reply(
    status: ServerStatus, news: asyncio.Queue[tuple[str, Any]], response: Response
) -> None:
    kind, message = await news.get()
    if kind == "answer":
        await status.start(response)
        await response.end(_encode(message) if status.has_body else b"")
        return
    await response.start(200, [(b"content-type", EVENTS_TYPE.encode())])
    while kind == "event":
        await response.write_event(message)
        kind, message = await news.get()
    await response.write_event(message)
    await response.end()


def _keep_refusal_headers(headers: Headers) -> Headers:
    """Return the headers that tell a client what to do, without redirects around us.

    In others a result could stand that was not judged.
    """
    return [
        (key, value)
        for key, value in headers
        if key in REFUSAL_HEADERS and (key != b"location" or OWN_PATH.match(value))
    ]


def _get_origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or DEFAULT_PORTS.get(parts.scheme)


def _parse_body(scope: Any, body: bytes) -> Any:
    """Return the JSON in a request; None for a form, such as a login's."""
    if not body:
        return None
    try:
        return parse_json(body)
    except ValueError:
        kinds = [value.lower() for key, value in scope["headers"] if key == b"content-type"]
        is_form = any(kind.startswith(FORM_TYPE) for kind in kinds)
        # another parser may find a message in it: a form is ASCII, and begins with a name
        may_be_json = not body.isascii() or b"\0" in body or body.lstrip()[:1] in (b"{", b"[")
        return None if is_form and not may_be_json else UNREADABLE_BODY


async def _read_body(receive: Any) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def _cancel_at_disconnect(receive: Any, call: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    call.cancel()


def _encode(message: Any) -> bytes:
    try:
        return json.dumps(message).encode()
    except (RecursionError, ValueError):  # it could be read, but is too deep to be written
        return json.dumps(
            make_error_response(message.get("id"), UNWRITABLE, INTERNAL_ERROR)
        ).encode()


async def serve_port(
    adapter: MCPAdapter,
    url: str,
    headers: Mapping[str, str],
    host: str,
    port: int,
    verifier: TokenVerifier | None = None,
) -> int:
    """Serve the clients of a port; return the exit code."""
    uvicorn = import_optional("uvicorn", "mcp")
    gateway = Gateway(adapter, url, headers, verifier=verifier)
    config = uvicorn.Config(gateway, log_level="warning", lifespan="off", ws="none")
    sockets = listen(host, port)
    served = list_addresses(sockets, urlsplit(url).path)
    print(f"edictum mcp-proxy: listening on {served}", file=sys.stderr, flush=True)
    await uvicorn.Server(config).serve(sockets)
    return 0
