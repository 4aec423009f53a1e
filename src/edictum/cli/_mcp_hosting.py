"""MCP over HTTP for a server that is started with a command: each session has a process of its own.

A session begins with ``initialize`` and ends when its client says so, does nothing for a while, or
its process ends; a client that uses an ended session is told to begin a new one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from edictum._logs import MCP_STOPPED, log
from edictum.adapters._mcp import MCPClient
from edictum.adapters.mcp import MCPAdapter, MCPMessage
from edictum.cli._mcp_access import get_headers, list_path_steps
from edictum.cli._mcp_application import (
    BAD_CALL,
    UNREADABLE_BODY,
    PortApplication,
    StreamTimes,
    accepts_events,
    parse_request_body,
)
from edictum.cli._mcp_elicitation import CANCELLED, is_initialize
from edictum.cli._mcp_http import SESSION_KEY
from edictum.cli._mcp_relay import Relay
from edictum.cli._mcp_stdio import SIGNALLED_TIMEOUT_S, STOP_TIMEOUT_S, ServerProcess
from edictum.cli._mcp_streams import STREAM_HEADERS, Headers, ReplyStream, Response
from edictum.cli._mcp_tokens import TokenError, TokenVerifier
from edictum.cli._mcp_wire import (
    INVALID_REQUEST,
    JSON_TYPE,
    MessageKey,
    StreamEvent,
    is_answer,
    is_request,
    make_error_response,
    normalize_id,
)
from edictum.core.call import Principal
from edictum.errors import EdictumConfigError

HOSTED_PATH = "/mcp"
IDLE_S = 1800.0  # after which a session without any request is ended
MAX_PROCESSES = 100
TEXT = "text/plain"
SERVER_ENDED = "The server has ended."


class HostedServers(PortApplication):
    """Starts a server for each client, and offers all of them under one URL."""

    def __init__(
        self,
        adapter: MCPAdapter,
        command: Sequence[str],
        times: StreamTimes | None = None,
        verifier: TokenVerifier | None = None,
        *,
        idle_s: float = IDLE_S,
        most: int = MAX_PROCESSES,
    ) -> None:
        super().__init__(HOSTED_PATH, times, None, verifier)
        self._adapter, self._command = adapter, command
        self._idle_s, self._most = idle_s, most
        self._sessions: dict[str, HostedSession] = {}
        self._starting = 0  # processes of sessions to come

    async def close(self) -> None:
        ends = [session.close(SIGNALLED_TIMEOUT_S) for session in self._sessions.values()]
        await asyncio.gather(*ends, return_exceptions=True)
        await super().close()

    async def _route(self, scope: Any, body: bytes, response: Response) -> None:
        if (metadata := self._make_metadata(scope)) is not None:
            await response.respond(200, JSON_TYPE, metadata)
            return
        if list_path_steps(scope["path"]) != list_path_steps(self.path):
            await response.respond(404, TEXT, f"MCP is at {self.path}.".encode())
            return
        parsed = parse_request_body(scope, body)
        try:
            principal = await self._find_principal(scope, parsed)
        except TokenError:
            await response.refuse_token(self._find_metadata_url(scope))
            return
        if parsed is UNREADABLE_BODY or isinstance(parsed, list):
            await response.respond(400, TEXT, BAD_CALL)
        elif scope["method"] == "POST" and is_initialize(parsed) and is_request(parsed):
            await self._begin(scope, parsed, principal, response)
        else:
            await self._go_on(scope, parsed, principal, response)

    async def _begin(
        self, scope: Any, parsed: MCPMessage, principal: Principal | None, response: Response
    ) -> None:
        """Start a process for a new session, and pass the first request to it."""
        if len(self._sessions) + self._starting >= self._most:
            log(MCP_STOPPED, "there are %d sessions, and no more are begun", self._most)
            await response.respond(503, TEXT, b"There are too many sessions.")
            return
        self._starting += 1
        try:
            server = await ServerProcess.start(self._command)
        except EdictumConfigError as exc:
            log(MCP_STOPPED, "%s", exc)
            failure = make_error_response(parsed["id"], "The server could not be started.")
            await response.respond(502, JSON_TYPE, json.dumps(failure).encode())
            return
        finally:
            self._starting -= 1
        session_id = uuid4().hex
        session = HostedSession(self._adapter, server, session_id, principal, self._times.silence_s)
        self._sessions[session_id] = session
        self._keep(session.task)
        session.task.add_done_callback(lambda _: self._sessions.pop(session_id, None))
        headers = [(SESSION_KEY, session_id.encode())]
        try:
            await self._use(session, session.ask(scope, parsed, response, headers))
        except asyncio.CancelledError:  # the client has gone, and was not told its session
            session.task.cancel()
            raise

    async def _go_on(
        self, scope: Any, parsed: Any, principal: Principal | None, response: Response
    ) -> None:
        borne = get_headers(scope, SESSION_KEY)
        session = self._sessions.get(borne[0]) if len(borne) == 1 else None
        method = scope["method"]
        if session is None or not session.belongs_to(principal):
            known = (
                (404, b"This session has ended, or never began.")
                if borne
                else (400, b"Begin a session.")
            )
            await response.respond(known[0], TEXT, known[1])
        elif method == "DELETE":
            await session.close(STOP_TIMEOUT_S)
            await response.respond(200, TEXT, b"")
        elif method == "GET":
            await self._use(session, session.listen(response))
        elif method == "POST" and isinstance(parsed, dict):
            session.set_principal(principal)
            await self._use(session, session.ask(scope, parsed, response))
        else:
            await response.respond(405, TEXT, b"")

    async def _use(self, session: HostedSession, work: Any) -> None:
        """Serve a request; the session is ended if it is then idle for too long."""
        session.uses += 1
        try:
            await work
        finally:
            session.uses -= 1
            if session.idle is not None:
                session.idle.cancel()
            loop = asyncio.get_running_loop()
            session.idle = loop.call_later(self._idle_s, _end_idle, session)


def _end_idle(session: HostedSession) -> None:
    if session.uses == 0:
        session.task.cancel()


class HostedSession:
    """One client and its process. ``task`` runs until the process, or the session, has ended."""

    def __init__(
        self,
        adapter: MCPAdapter,
        server: ServerProcess,
        session_id: str,
        principal: Principal | None,
        silence_s: float,
    ) -> None:
        self._server, self._id, self._silence_s = server, session_id, silence_s
        client = MCPClient(session_id, principal)
        self._owner = client.identify().session_id
        self._relay = Relay(adapter, self._to_client, server.send, client)
        self._answers: dict[MessageKey, ReplyStream] = {}  # of open requests
        self._own = ReplyStream(silence_s)  # messages that the server sends unasked
        self._timeout_s = STOP_TIMEOUT_S
        self.uses = 0  # requests that are open
        self.idle: asyncio.TimerHandle | None = None
        self.task = self._own.start(self._run())

    def belongs_to(self, principal: Principal | None) -> bool:
        return bool(MCPClient(self._id, principal).identify().session_id == self._owner)

    def set_principal(self, principal: Principal | None) -> None:
        """Use the claims of the client's last token."""
        self._relay.client = MCPClient(self._id, principal)

    async def close(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.task.cancel()
        await asyncio.wait({self.task})

    async def ask(
        self, scope: Any, message: MCPMessage, response: Response, headers: Headers | None = None
    ) -> None:
        """Pass a message on, and the answer back, if there is to be one."""
        if not is_request(message):
            await self._relay.from_client(message)
            await response.respond(202, TEXT, b"")
            return
        key = normalize_id(message["id"])
        if key in self._answers:
            failure = make_error_response(
                message["id"], "The id of this request is in use.", INVALID_REQUEST
            )
            await response.respond(400, JSON_TYPE, json.dumps(failure).encode())
            return
        self._answers[key] = stream = ReplyStream(self._silence_s, {key})
        try:
            await self._relay.from_client(message)
            await self._reply(scope, stream, response, headers or [])
        finally:
            if self._answers.get(key) is stream:  # the client has gone without an answer
                del self._answers[key]
                given_up = {"method": CANCELLED, "params": {"requestId": message["id"]}}
                with suppress(OSError):
                    await self._relay.from_client({"jsonrpc": "2.0", **given_up})

    async def _reply(
        self, scope: Any, stream: ReplyStream, response: Response, headers: Headers
    ) -> None:
        """Write an answer that comes first as it is, and otherwise as a stream."""
        first = await stream.get(self._silence_s if accepts_events(scope) else None)
        if first is not None and stream.take_end():
            await response.respond(200, JSON_TYPE, first.data.encode(), headers)
            return
        await response.start_stream(headers=[*STREAM_HEADERS, *headers])
        await stream.write_to(response, first)

    async def listen(self, response: Response) -> None:
        await response.start_stream()
        await self._own.write_to(response)

    async def _to_client(self, message: MCPMessage) -> None:
        event = StreamEvent(json.dumps(message), "message")
        if is_answer(message):
            stream = self._answers.pop(normalize_id(message.get("id")), None)
            if stream is not None:
                await stream.add_last(event)
        elif self._answers:  # most likely it is about the request that came last
            await next(reversed(self._answers.values())).add(event)
        else:
            self._own.offer(event)

    async def _run(self) -> None:
        """Pass on the server's messages until it ends; then nothing stays open."""
        try:
            async for message in self._server.messages():
                await self._relay.from_server(message)
            log(MCP_STOPPED, "the server of a session has ended")
        finally:
            await self._relay.fail_all(SERVER_ENDED)
            await self._relay.close()
            await self._server.stop(self._timeout_s)
