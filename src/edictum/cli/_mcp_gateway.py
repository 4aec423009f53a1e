"""MCP over HTTP: a server at a URL, for clients of a port of ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urljoin, urlsplit

from edictum._logs import MCP_DROPPED, log
from edictum.adapters._mcp import MCPClient
from edictum.adapters.mcp import MCPAdapter, MCPMessage
from edictum.cli._mcp_access import (
    OWN_PATH,
    RESOURCE_PATH,
    AccessCheck,
    get_headers,
    make_path,
    move_challenge,
    move_resource,
)
from edictum.cli._mcp_application import (
    BAD_CALL,
    UNREADABLE_BODY,
    PortApplication,
    StreamTimes,
    accepts_events,
    parse_request_body,
)
from edictum.cli._mcp_direct import DirectClient, is_direct
from edictum.cli._mcp_elicitation import CANCELLED, Elicitations, can_elicit, is_initialize
from edictum.cli._mcp_http import (
    SESSION_HEADER,
    SESSION_KEY,
    VERSION_HEADER,
    make_http_client,
    make_routing_headers,
)
from edictum.cli._mcp_relay import UNWRITABLE, answer_call
from edictum.cli._mcp_resume import read_with_resumption
from edictum.cli._mcp_sse import SseSession
from edictum.cli._mcp_streams import (
    Headers,
    Owner,
    ReplyStream,
    Response,
    ResumableStreams,
    make_length,
)
from edictum.cli._mcp_tokens import TokenError, TokenVerifier
from edictum.cli._mcp_wire import (
    ENDPOINT,
    EVENTS_TYPE,
    INTERNAL_ERROR,
    JSON_TYPE,
    StreamEvent,
    as_list,
    get_media_type,
    get_object,
    is_answer,
    is_call,
    is_request,
    iter_events,
    make_error_response,
    normalize_id,
)

# Headers that belong to one connection, and those that no longer hold for what we pass on.
DROPPED_HEADERS = {
    *("host", "connection", "keep-alive", "transfer-encoding", "te", "upgrade"),
    *("content-length", "content-encoding", "accept-encoding"),
    *("proxy-authorization", "proxy-connection"),
}
# They repeat what a request says.
ROUTING_HEADERS = {"mcp-method", "mcp-name", VERSION_HEADER}
# Those of a request that has a body, and a stream that continues an earlier one has none.
BODY_HEADERS = {"content-type", "accept", "last-event-id"}
# What passes of the answer to a call, unless its status is 200, by which nothing passes.
REFUSAL_HEADERS = {
    *(b"www-authenticate", b"retry-after", b"location", b"allow", b"mcp-session-id"),
    *(b"access-control-allow-origin", b"access-control-expose-headers"),
}
UNJUDGED = "The answer can no longer be judged: this stream was left for too long."
UNREACHABLE = "The server cannot be reached ({})."
BEGUN_S = 0.1  # after which a call is answered by a stream, if the server answers by one
MAX_SESSIONS = 100_000  # of clients, that are remembered


class Gateway(PortApplication):
    """An ASGI application that passes requests on to the server of a URL, under the same paths."""

    def __init__(
        self,
        adapter: MCPAdapter,
        url: str,
        headers: Mapping[str, str],
        times: StreamTimes | None = None,
        access: AccessCheck | None = None,
        verifier: TokenVerifier | None = None,
    ) -> None:
        parts = urlsplit(url)
        super().__init__(parts.path or "/", times, access, verifier)
        self._elicitations = Elicitations()
        self._adapter = adapter
        self._client = (
            DirectClient(url, headers)
            if is_direct(url)
            else make_http_client(headers, keeps_cookies=False)
        )
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._sessions = NegotiatedSessions()
        self._streams = ResumableStreams(self._times.return_s)
        self._sse: dict[str, SseSession] = {}  # by the path to which a client sends

    async def close(self) -> None:
        """Give up what is open, and close all connections."""
        await super().close()
        await self._client.aclose()

    async def _route(self, scope: Any, body: bytes, response: Response) -> None:
        parsed = parse_request_body(scope, body)
        sse = self._sse.get(_get_target(scope)) if scope["method"] == "POST" else None
        calls = [message for message in as_list(parsed) if is_call(message)]
        is_bad_call = bool(calls) and (isinstance(parsed, list) or "id" not in calls[0])
        try:
            client = await self._identify(scope, parsed)
        except TokenError:
            await response.refuse_token(self._find_metadata_url(scope))
            return
        if parsed is UNREADABLE_BODY or is_bad_call:
            await response.respond(400, "text/plain", BAD_CALL)
        elif sse is not None:
            await sse.from_client(scope, parsed, client.principal)
            await response.respond(202, "text/plain", b"Accepted")
        elif self._elicitations.take(parsed, client.identify().session_id):
            await response.respond(202, "text/plain", b"")
        elif calls:
            await self._govern(scope, calls[0], response, client)
        elif (left := self._find_left_stream(scope)) is not None:
            await self._return_to(left, response)
        else:
            await self._pass(scope, parsed, body, response)

    async def _identify(self, scope: Any, parsed: Any) -> MCPClient:
        """Return who sends a request; raise TokenError if a token is wanted and not valid."""
        principal = await self._find_principal(scope, parsed)
        return MCPClient(self._sessions.find(scope), principal)

    def _open_stream(
        self, scope: Any, body: bytes, routing: Mapping[str, str] | None = None
    ) -> Any:
        """Send a request as the client did; ``routing`` replaces headers that say what it is."""
        headers = _list_headers(scope, DROPPED_HEADERS | (ROUTING_HEADERS if routing else set()))
        headers += (routing or {}).items()
        place = self._origin + _get_target(scope)
        return self._client.stream(scope["method"], place, headers=headers, content=body)

    def _resume_stream(self, scope: Any, event_id: str | None) -> Any:
        """Open the stream that continues the answer to a request, after an event of it."""
        headers = _list_headers(scope, DROPPED_HEADERS | BODY_HEADERS)
        headers += [("accept", EVENTS_TYPE), ("last-event-id", event_id or "")]
        return self._client.stream("GET", self._origin + _get_target(scope), headers=headers)

    def _read_events(
        self, scope: Any, got: Any, is_done: Callable[[], bool]
    ) -> AsyncGenerator[StreamEvent, None]:
        return read_with_resumption(
            got, lambda event_id: self._resume_stream(scope, event_id), is_done
        )

    def _find_left_stream(self, scope: Any) -> ReplyStream | None:
        wanted = get_headers(scope, b"last-event-id") if scope["method"] == "GET" else []
        return self._streams.find(_get_owner(scope), wanted[0]) if len(wanted) == 1 else None

    async def _return_to(self, stream: ReplyStream, response: Response) -> None:
        try:
            await response.start_stream()
            await stream.write_to(response)
        finally:
            self._streams.release(stream)

    # --- What is not a call -----------------------------------------------------------------------

    async def _pass(self, scope: Any, parsed: Any, body: bytes, response: Response) -> None:
        """Pass on what is not a call, and the server's response to it."""
        asked = {normalize_id(each["id"]) for each in as_list(parsed) if is_request(each)}
        stream = ReplyStream(self._times.silence_s, asked)
        if asked:
            self._streams.add(_get_owner(scope), stream)
        try:
            async with AsyncExitStack() as held:
                written = json.dumps(parsed).encode() if isinstance(parsed, (dict, list)) else body
                try:
                    got = await held.enter_async_context(self._open_stream(scope, written))
                except Exception as exc:
                    await _say_unreachable(parsed, exc, response)
                    return
                self._note_session(scope, parsed, got)
                await self._pass_response(scope, got, held, stream, response)
        finally:
            self._streams.release(stream)

    async def _pass_response(
        self, scope: Any, got: Any, held: AsyncExitStack, stream: ReplyStream, response: Response
    ) -> None:
        headers = self._keep_headers(got.headers, scope)
        metadata = self._make_metadata(scope)
        if metadata is not None and not got.is_success:  # the server knows of no tokens
            await response.respond(200, JSON_TYPE, metadata)
        elif get_media_type(got) != EVENTS_TYPE:
            await self._pass_body(scope, got, headers, response)
        else:
            source = self._pass_own_events if scope["method"] == "GET" else self._pass_answers
            self._keep(stream.start(source(scope, got, held.pop_all(), stream)))
            await response.start_stream(got.status_code, headers)
            await stream.write_to(response)

    def _note_session(self, scope: Any, parsed: Any, got: Any) -> None:
        """Remember a session that begins, and forget what has ended."""
        method = parsed.get("method") if isinstance(parsed, dict) else None
        if is_initialize(parsed):
            self._sessions.add(scope, got.headers, can_elicit(parsed))
        elif method == CANCELLED:
            given_up = get_object(parsed, "params").get("requestId")
            self._streams.cancel(_get_owner(scope), normalize_id(given_up))
        elif scope["method"] == "DELETE" and got.is_success:
            self._sessions.forget(scope)

    async def _pass_body(self, scope: Any, got: Any, headers: Headers, response: Response) -> None:
        if get_media_type(got) == JSON_TYPE:
            body = await got.aread()  # all of it, before the client is told that there is one
            if scope["path"].startswith(RESOURCE_PATH):
                body = move_resource(body, self._origin, scope)
            await response.start(got.status_code, [*headers, make_length(body)])
            await response.end(body)
            return
        await response.start(got.status_code, headers)
        async for part in got.aiter_bytes():
            await response.write(part)
        await response.end()

    async def _pass_answers(
        self, scope: Any, got: Any, held: AsyncExitStack, stream: ReplyStream
    ) -> None:
        """Pass on what answers a request, but no other answers: those were not judged."""
        waiting = set(stream.asked)

        def keep(message: MCPMessage) -> MCPMessage | None:
            key = normalize_id(message.get("id"))
            may_pass = not is_answer(message) or key in waiting
            waiting.difference_update({key} if is_answer(message) else ())
            return message if may_pass else None

        async with held, aclosing(self._read_events(scope, got, lambda: not waiting)) as events:
            async for event in events:
                for kept in _filter_event(event, keep):
                    await stream.add(kept)

    async def _pass_own_events(
        self, scope: Any, got: Any, held: AsyncExitStack, stream: ReplyStream
    ) -> None:
        """Pass on messages that the server sends unasked. An answer among them was not judged."""
        owner, is_resumed = _get_owner(scope), bool(get_headers(scope, b"last-event-id"))
        has_answer = False

        def keep(message: MCPMessage) -> MCPMessage | None:
            nonlocal has_answer
            if not is_answer(message):
                return message
            key = normalize_id(message.get("id"))
            # Some servers repeat answers of other streams, to requests that are still open.
            is_lost = is_resumed and not self._streams.has_asked(owner, key)
            has_answer = is_resumed
            return make_error_response(message.get("id"), UNJUDGED) if is_lost else None

        async with held, aclosing(iter_events(got)) as events:
            async for event in events:
                if event.name == ENDPOINT:
                    await self._pass_sse(event, events, scope, stream)
                    return
                for kept in _filter_event(event, keep):
                    await stream.add(kept)
        if has_answer:  # which the client did not get, so it would open the stream again and again
            await asyncio.get_running_loop().create_future()

    async def _pass_sse(
        self,
        first: StreamEvent,
        events: AsyncGenerator[StreamEvent, None],
        scope: Any,
        stream: ReplyStream,
    ) -> None:
        """Serve a client of HTTP+SSE, for as long as it reads its stream."""
        here = self._origin + _get_target(scope)
        place = make_path(urljoin(here, first.data.strip()), self._origin)
        if place is None or place in self._sse:  # nor could answers to two clients be distinguished
            raise ConnectionError("clients of this stream would send to another server's place")
        self._sse[place] = session = SseSession(self._adapter, stream, self._post, place)
        try:
            await stream.add(replace(first, data=place))
            async for event in events:
                await session.from_server(event)
        finally:
            self._sse.pop(place, None)
            await session.close()

    async def _post(self, scope: Any, message: MCPMessage) -> None:
        async with self._open_stream(scope, json.dumps(message).encode()) as got:
            if not got.is_success:
                raise ConnectionError(f"the server answered with status {got.status_code}")

    # --- Calls ------------------------------------------------------------------------------------

    async def _govern(
        self, scope: Any, request: MCPMessage, response: Response, client: MCPClient
    ) -> None:
        """Govern one call. Messages of the server before its answer are streamed unchanged."""
        stream = ReplyStream(self._times.silence_s, {normalize_id(request["id"])})
        status, client = ServerStatus(), self._add_elicitation(scope, client, stream)

        async def forward(message: MCPMessage) -> MCPMessage:
            if message["id"] == request["id"]:
                return await self._ask_server(scope, message, stream, status)
            routing = make_routing_headers(message)  # the catalog asks, not the client
            return await self._ask_server(scope, message, stream, ServerStatus(), routing)

        async def answer() -> None:
            made = await answer_call(self._adapter, request, forward, client)
            status.answer = StreamEvent(_encode(made), "message", status.event_id)
            await stream.add_last(status.answer)

        self._keep(stream.start(answer()))
        self._streams.add(_get_owner(scope), stream)
        try:
            first = await stream.get(self._times.silence_s if accepts_events(scope) else None)
            if first is not None and first is status.answer:
                await status.respond(response, first)
                return
            await response.start_stream()
            await stream.write_to(response, first)
        finally:
            self._streams.release(stream)

    def _add_elicitation(self, scope: Any, client: MCPClient, stream: ReplyStream) -> MCPClient:
        """Return the client with a way to ask the person behind it, if it has one."""
        if not self._sessions.can_elicit(scope):
            return client

        async def send(message: MCPMessage) -> None:
            await stream.add(StreamEvent(_encode(message), "message"))

        elicit = self._elicitations.make_asker(send, client.identify().session_id)
        return MCPClient(client.session_id, client.principal, elicit)

    async def _ask_server(
        self,
        scope: Any,
        message: MCPMessage,
        stream: ReplyStream,
        status: ServerStatus,
        routing: Mapping[str, str] | None = None,
    ) -> MCPMessage:
        async with AsyncExitStack() as held:
            opening = self._open_stream(scope, json.dumps(message).encode(), routing)
            got = await _enter_response(held, opening)
            is_stream = get_media_type(got) == EVENTS_TYPE
            if got.status_code != 200:
                status.code = got.status_code
                status.headers = _keep_refusal_headers(self._keep_headers(got.headers, scope))
            elif is_stream:
                # so a client that waits sees that the server has begun; most answers are there
                held.callback(
                    asyncio.get_running_loop().call_later(BEGUN_S, stream.show_start).cancel
                )
            events = self._read_events(scope, got, lambda: status.is_answered)
            held.push_async_callback(events.aclose)
            async for event in events:
                messages = event.parse()
                if (answer := next(filter(is_answer, messages), None)) is not None:
                    status.is_answered, status.event_id = True, event.event_id
                    if is_stream:
                        self._end_later(events, held.pop_all())
                    return answer
                for kept in _filter_event(event, lambda said: said):
                    await stream.add(kept)
            raise ConnectionError(f"the server gave no answer (status {got.status_code})")

    def _end_later(self, events: AsyncGenerator[Any, None], held: AsyncExitStack) -> None:
        """Read a stream to its end, so that its connection can be used again, but do not wait."""

        async def read_rest() -> None:
            with suppress(Exception):  # the answer has been passed on: what fails now does no harm
                async with held, asyncio.timeout(self._times.rest_s):  # close one that continues
                    async for _ in events:
                        pass

        self._keep(asyncio.create_task(read_rest()))

    # --- Headers ----------------------------------------------------------------------------------

    def _keep_headers(self, headers: Any, scope: Any) -> Headers:
        """Return the server's headers. What leads to the server must not lead around us."""
        kept = [item for item in headers.multi_items() if item[0] not in DROPPED_HEADERS]
        own = [(key, self._move_header(key, value, scope)) for key, value in kept]
        return [(key.encode("latin-1"), value.encode("latin-1")) for key, value in own]

    def _move_header(self, key: str, value: str, scope: Any) -> str:
        if key == "location":
            return make_path(value, self._origin) or value
        return move_challenge(value, self._origin, scope) if key == "www-authenticate" else value


class NegotiatedSessions:
    """The session ids that the server has given to clients; what a client made up is not one."""

    def __init__(self, most: int = MAX_SESSIONS) -> None:
        # whether the client can ask the person behind it, by id, in the order of their last use
        self._known: dict[str, bool] = {}
        self._most = most

    def add(self, scope: Any, answered: Mapping[str, str], can_ask: bool = False) -> None:
        """Remember the id in the server's answer, unless it only repeats the client's."""
        if (given := answered.get(SESSION_HEADER)) and not get_headers(scope, SESSION_KEY):
            self._known[given] = can_ask
            if len(self._known) > self._most:
                del self._known[next(iter(self._known))]

    def find(self, scope: Any) -> str | None:
        """Return the id that a request bears, if it is known and the only one."""
        borne = get_headers(scope, SESSION_KEY)
        if len(borne) != 1 or borne[0] not in self._known:
            return None
        self._known[borne[0]] = self._known.pop(borne[0])
        return borne[0]

    def can_elicit(self, scope: Any) -> bool:
        """Return whether the client of a request said that it can ask the person behind it."""
        return self._known.get(self.find(scope) or "", False)

    def forget(self, scope: Any) -> None:
        for borne in get_headers(scope, SESSION_KEY):
            self._known.pop(borne, None)


@dataclass
class ServerStatus:
    """The server's status and headers for one call. Of its body only the judged answer passes."""

    code: int = 200
    headers: Headers = field(default_factory=list)
    is_answered: bool = False
    event_id: str | None = None  # of the event with the server's answer
    answer: StreamEvent | None = None  # the judged one

    async def respond(self, response: Response, answer: StreamEvent) -> None:
        """Send an answer without a stream. A refusal of the server that has none is its status.

        After a success clients would wait for one.
        """
        if self.is_answered:
            await response.respond(self.code, JSON_TYPE, answer.data.encode(), self.headers)
        elif self.code < 300:
            await response.respond(200, JSON_TYPE, answer.data.encode())
        else:
            await response.start(self.code, self.headers)
            await response.end()


def _filter_event(
    event: StreamEvent, keep: Callable[[MCPMessage], MCPMessage | None]
) -> Iterator[StreamEvent]:
    """Yield an event with the messages that are kept, written anew; its id passes even if none."""
    kept = [message for message in map(keep, event.parse()) if message is not None]
    for message in kept[:-1]:
        yield StreamEvent(_encode(message), event.name)
    yield replace(event, data=_encode(kept[-1])) if kept else replace(event, data="", name="")


def _keep_refusal_headers(headers: Headers) -> Headers:
    """Return the headers that tell a client what to do, without redirects around us.

    In others a result could stand that was not judged.
    """
    return [
        (key, value)
        for key, value in headers
        if key in REFUSAL_HEADERS
        and (key != b"location" or OWN_PATH.match(value.decode("latin-1")))
    ]


# --- Requests -------------------------------------------------------------------------------------


def _get_target(scope: Any) -> str:
    query = f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
    return f"{scope['path']}{query}"


def _list_headers(scope: Any, dropped: set[str]) -> list[tuple[str, str]]:
    headers = [(key.decode("latin-1"), value.decode("latin-1")) for key, value in scope["headers"]]
    return [(key, value) for key, value in headers if key not in dropped]


def _get_owner(scope: Any) -> Owner:
    """Return the client's session and token, by which it is known when it returns."""
    names = (SESSION_KEY, b"authorization")
    session, token = ("\n".join(get_headers(scope, name)) for name in names)
    return session, token


async def _enter_response(held: AsyncExitStack, opening: Any) -> Any:
    """Return the response to a call; a failure does not tell the client where the server is."""
    try:
        return await held.enter_async_context(opening)
    except Exception as exc:
        raise ConnectionError(UNREACHABLE.format(type(exc).__name__)) from exc


async def _say_unreachable(parsed: Any, exc: Exception, response: Response) -> None:
    kind = type(exc).__name__
    log(MCP_DROPPED, "a message could not be passed on to the server: %s", kind)
    message_id = parsed["id"] if is_request(parsed) else None
    error = make_error_response(message_id, UNREACHABLE.format(kind))
    await response.respond(502, JSON_TYPE, json.dumps(error).encode())


def _encode(message: Any) -> str:
    try:
        return json.dumps(message)
    except (RecursionError, ValueError):  # it could be read, but is too deep to be written
        return json.dumps(make_error_response(message.get("id"), UNWRITABLE, INTERNAL_ERROR))
