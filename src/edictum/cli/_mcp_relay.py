"""Between one MCP client and one MCP server: all passes unchanged, except tool calls and answers.

An answer passes only if it belongs to an open request. All others are dropped: they could be a
tool's result that was not judged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from edictum._logs import MCP_DROPPED, MCP_STOPPED, log
from edictum.adapters._mcp import MCPClient
from edictum.adapters.mcp import Forward, MCPAdapter, MCPMessage
from edictum.cli._mcp_elicitation import CANCELLED, Elicitations, can_elicit, is_initialize
from edictum.cli._mcp_wire import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MessageKey,
    as_list,
    get_object,
    is_answer,
    is_call,
    is_request,
    list_messages,
    make_error_response,
    normalize_id,
)

SendMessage = Callable[[MCPMessage], Awaitable[None]]
UNWRITABLE = "The server's answer cannot be passed on."
CLOSING_TIMEOUT_S = 5.0  # how long calls may take to end once the server is gone


async def answer_call(
    adapter: MCPAdapter, request: MCPMessage, forward: Forward, client: MCPClient | None = None
) -> MCPMessage:
    """Return the answer to a call; there is always one."""
    try:
        return await adapter.answer(request, forward, client=client)
    except Exception as exc:
        log(MCP_STOPPED, "a call could not be answered: %s", type(exc).__name__)
        reason = "The answer to this call could not be made."
        return make_error_response(request["id"], reason, INTERNAL_ERROR)


class Relay:
    """Passes the messages of client and server on with ``to_client`` and ``to_server``."""

    def __init__(
        self,
        adapter: MCPAdapter,
        to_client: SendMessage,
        to_server: SendMessage,
        client: MCPClient | None = None,
    ) -> None:
        self._adapter, self._to_client, self._to_server = adapter, to_client, to_server
        self.client = client or MCPClient()
        # Calls that the server has been asked. One that was given up stays, so that its late answer
        # is not taken for another's.
        self._asked: dict[MessageKey, asyncio.Future[MCPMessage]] = {}
        self._calls: dict[MessageKey, asyncio.Task[None]] = {}
        self._elicitations = Elicitations()
        self._can_ask = False  # whether the client can ask the person behind it
        # Other requests of the client, with their ids as the client wrote them.
        self._open: dict[MessageKey, Any] = {}

    async def from_client(self, parsed: Any) -> None:
        for message in as_list(parsed):
            try:
                await self._pass_to_server(message)
            except OSError:
                raise  # one side is gone
            except Exception as exc:
                kind = type(exc).__name__
                log(MCP_DROPPED, "a message of the client could not be passed on: %s", kind)
                if is_request(message):
                    self._open.pop(normalize_id(message["id"]), None)
                    reason = "This message could not be passed on."
                    failure = make_error_response(message["id"], reason, INVALID_REQUEST)
                    await self._to_client(failure)

    async def from_server(self, parsed: Any) -> None:
        for message in list_messages(parsed):
            if not is_answer(message):
                await self._pass_to_client(message)
                continue
            key = normalize_id(message.get("id"))
            waiting = self._asked.pop(key, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
            elif waiting is None and key in self._open:
                await self._pass_to_client({**message, "id": self._open.pop(key)})
            elif waiting is None:
                log(
                    MCP_DROPPED, "an answer of the server was dropped: no open request waits for it"
                )

    async def fail_all(self, reason: str) -> None:
        """Answer everything that waits for the server with an error: it has gone."""
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_result(make_error_response(None, reason))
        with contextlib.suppress(OSError):  # the client may be gone as well
            while self._open:
                await self._to_client(make_error_response(self._open.popitem()[1], reason))
        if self._calls:
            await asyncio.wait(self._calls.values(), timeout=CLOSING_TIMEOUT_S)

    async def close(self) -> None:
        """Cancel open calls, which records them: the client or the server has gone."""
        open_calls = list(self._calls.values())
        for task in open_calls:
            task.cancel()
        await asyncio.gather(*open_calls, return_exceptions=True)

    # --- From the client --------------------------------------------------------------------------

    async def _pass_to_server(self, message: Any) -> None:
        if self._elicitations.take(message):
            return
        if is_initialize(message):
            self._can_ask = can_elicit(message)
        if not isinstance(message, dict):
            failure = make_error_response(None, "A message is an object.", INVALID_REQUEST)
            await self._to_client(failure)
        elif is_call(message) and "id" not in message:
            # It wants no answer, and could be neither counted nor redacted.
            log(MCP_DROPPED, "a tools/call without an id was dropped")
        elif is_request(message) and any(
            normalize_id(message["id"]) in held for held in (self._calls, self._asked, self._open)
        ):
            reason = "The id of this request is in use."
            await self._to_client(make_error_response(message["id"], reason, INVALID_REQUEST))
        elif is_call(message):
            self._start_call(message)
        elif not self._cancel_call(message):
            if is_request(message):
                self._open[normalize_id(message["id"])] = message["id"]
            await self._to_server(message)

    def _cancel_call(self, message: MCPMessage) -> bool:
        """Cancel the call that the client gives up, if it is one of ours."""
        if message.get("method") != CANCELLED:
            return False
        task = self._calls.get(normalize_id(get_object(message, "params").get("requestId")))
        return task is not None and task.cancel()

    # --- Calls ------------------------------------------------------------------------------------

    def _start_call(self, message: MCPMessage) -> None:
        key = normalize_id(message["id"])
        self._calls[key] = task = asyncio.create_task(self._govern(message))
        task.add_done_callback(lambda _: self._calls.pop(key, None))

    async def _govern(self, message: MCPMessage) -> None:
        elicit = self._elicitations.make_asker(self._to_client) if self._can_ask else None
        client = MCPClient(self.client.session_id, self.client.principal, elicit)
        answer = await answer_call(self._adapter, message, self._ask_server, client)
        with contextlib.suppress(OSError):  # the client is gone, which its reader will notice
            await self._pass_to_client(answer)

    async def _ask_server(self, message: MCPMessage) -> MCPMessage:
        key = normalize_id(message["id"])
        answer: asyncio.Future[MCPMessage] = asyncio.get_running_loop().create_future()
        self._asked[key] = answer
        try:
            await self._to_server(message)
            return await answer
        except asyncio.CancelledError:
            params = {"requestId": message["id"], "reason": "The call was given up."}
            with contextlib.suppress(Exception):  # the server may be gone
                await self._to_server({"jsonrpc": "2.0", "method": CANCELLED, "params": params})
            raise
        except Exception:
            self._asked.pop(key, None)  # it never got there
            raise

    async def _pass_to_client(self, message: MCPMessage) -> None:
        """Send a message; an answer that cannot be written, as one too deep, becomes an error."""
        try:
            await self._to_client(message)
        except (RecursionError, ValueError, TypeError) as exc:
            log(
                MCP_DROPPED,
                "a message of the server could not be passed on: %s",
                type(exc).__name__,
            )
            if is_answer(message):
                failure = make_error_response(message.get("id"), UNWRITABLE, INTERNAL_ERROR)
                await self._to_client(failure)
