"""An ASGI application for MCP on a port: who may ask, how requests begin and end, how it stops."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edictum._logs import MCP_DROPPED, log
from edictum._optional import import_optional
from edictum.cli._mcp_access import (
    ANY_HOST,
    RESOURCE_PATH,
    AccessCheck,
    check_access,
    get_headers,
    list_path_steps,
    make_metadata,
    make_own_url,
)
from edictum.cli._mcp_port import join_writes, list_addresses, listen
from edictum.cli._mcp_relay import CLOSING_TIMEOUT_S
from edictum.cli._mcp_streams import RETURN_S, SILENCE_S, Response
from edictum.cli._mcp_tokens import TokenVerifier
from edictum.cli._mcp_wire import EVENTS_TYPE, as_list, parse_json
from edictum.core.call import Principal

MESSAGE_KEYS = {"jsonrpc", "method"}
UNREADABLE_BODY = object()
FORM_TYPE = "application/x-www-form-urlencoded"
BAD_CALL = b"Calls of tools are JSON, have an id, and are sent one by one."
STREAM_REST_S = 1.0  # how long a stream may last after its answer
SHUTDOWN_S = 5  # how long open requests may take to end when the proxy is stopped


@dataclass(frozen=True)
class StreamTimes:
    """How long things may take, in seconds."""

    rest_s: float = STREAM_REST_S
    silence_s: float = SILENCE_S
    return_s: float = RETURN_S


class PortApplication:
    """Answers requests of MCP clients, each in a task that ends with its client."""

    def __init__(
        self,
        path: str,
        times: StreamTimes | None = None,
        access: AccessCheck | None = None,
        verifier: TokenVerifier | None = None,
    ) -> None:
        self.path, self._verifier = path, verifier
        self._times, self.access = times or StreamTimes(), access or AccessCheck([ANY_HOST])
        self._tasks: set[asyncio.Task[None]] = set()  # what is done for requests, or after them

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        if scope["type"] != "http":
            return
        response = Response(send)
        if (refusal := self.access.find_refusal(scope)) is not None:
            await response.respond(refusal[0], "text/plain", refusal[1])
            return
        body = await _read_body(receive)
        work = asyncio.current_task()
        assert work is not None
        watching = asyncio.create_task(_cancel_at_disconnect(receive, work))
        try:
            await self._answer(scope, body, response)
        except asyncio.CancelledError:  # the client has gone, or the web server is stopped
            if not response.is_started and not watching.done():
                await response.respond(503, "text/plain", b"The proxy was stopped.")
        finally:
            watching.cancel()
        if response.is_stream and not response.is_ended:
            await response.end()

    async def _live(self, receive: Any, send: Any) -> None:
        """Report that the application is ready, and close it when the web server is stopped."""
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def close(self) -> None:
        """Give up what is open, which records calls as failed."""
        open_tasks = list(self._tasks)
        for task in open_tasks:
            task.cancel()
        if open_tasks:
            await asyncio.wait(open_tasks, timeout=CLOSING_TIMEOUT_S)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, scope: Any, body: bytes, response: Response) -> None:
        """Answer a request; what goes wrong is one line in the log, and ends this request only."""
        try:
            await self._route(scope, body, response)
        except Exception as exc:
            log(MCP_DROPPED, "a request could not be answered: %s", type(exc).__name__)
            if not response.is_started:
                await response.respond(502, "text/plain", b"The server's answer cannot be read.")

    async def _route(self, scope: Any, body: bytes, response: Response) -> None:
        raise NotImplementedError

    # --- Tokens -----------------------------------------------------------------------------------

    async def _find_principal(self, scope: Any, parsed: Any) -> Principal | None:
        """Return who sends a request; raise TokenError if a token is wanted and not valid."""
        if self._verifier is None or not self._needs_token(scope["path"], parsed):
            return None
        return await self._verifier.find_principal(scope["headers"])

    def _needs_token(self, path: str, parsed: Any) -> bool:
        """Return whether a request may be one of MCP: not where to log in, nor the login itself."""
        if any(isinstance(it, dict) and MESSAGE_KEYS & it.keys() for it in as_list(parsed)):
            return True
        root, asked = list_path_steps(self.path), list_path_steps(path)
        return asked[: len(root)] == root and asked[:1] != [".well-known"]

    def _find_metadata_url(self, scope: Any) -> str | None:
        """Return where a client learns who makes the tokens that we verify, if we know."""
        if self._verifier is None or self._verifier.issuer is None:
            return None
        return make_own_url(RESOURCE_PATH + self.path.rstrip("/"), scope)

    def _make_metadata(self, scope: Any) -> bytes | None:
        """Return our own metadata if it is asked for, and we know who makes tokens."""
        issuer = None if self._verifier is None else self._verifier.issuer
        if not issuer or not scope["path"].startswith(RESOURCE_PATH):
            return None
        return make_metadata(self.path, issuer, scope)


# --- Requests -------------------------------------------------------------------------------------


def accepts_events(scope: Any) -> bool:
    return any(EVENTS_TYPE in value.lower() for value in get_headers(scope, b"accept"))


def parse_request_body(scope: Any, body: bytes) -> Any:
    """Return the JSON in a request; None for a form, such as a login's."""
    if not body:
        return None
    try:
        return parse_json(body)
    except ValueError:
        kinds = [value.lower() for value in get_headers(scope, b"content-type")]
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


async def _cancel_at_disconnect(receive: Any, work: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    work.cancel()


# --- The web server -------------------------------------------------------------------------------


async def serve_application(
    application: PortApplication, host: str, port: int, allowed_hosts: Sequence[str]
) -> int:
    """Serve the clients of a port; return the exit code."""
    uvicorn = import_optional("uvicorn", "mcp")
    sockets = listen(host, port)
    application.access = check_access(sockets, host, allowed_hosts)
    options = {"log_level": "warning", "lifespan": "on", "ws": "none", "access_log": False}
    config = uvicorn.Config(application, timeout_graceful_shutdown=SHUTDOWN_S, **options)
    config.load()
    config.http_protocol_class = join_writes(config.http_protocol_class)
    served = list_addresses(sockets, application.path)
    print(f"edictum mcp-proxy: listening on {served}", file=sys.stderr, flush=True)
    await uvicorn.Server(config).serve(sockets)
    return 0
