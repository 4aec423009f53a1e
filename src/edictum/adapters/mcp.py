"""MCP on the wire: a ``tools/call`` request and its answer; ``edictum mcp-proxy`` uses it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from edictum.adapters._base import Adapter
from edictum.adapters._canary import CANARY
from edictum.adapters._identity import Identity
from edictum.adapters._mcp import (
    InputRequired,
    MCPClient,
    WireResult,
    is_own,
    is_tool_result,
    make_text,
    name_session,
)
from edictum.adapters._reply import OnWarn, ToolReply, to_text
from edictum.core.values import has_same_form, is_same
from edictum.execution.portal import PORTAL

# only requests of the newer protocol carry their version
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
INVALID_PARAMS = -32602
QUESTION_KEYS = ("resultType", "inputRequests", "requestState")
MCPMessage = dict[str, Any]
Forward = Callable[[MCPMessage], Awaitable[MCPMessage]]
UNREADABLE_RESULT: MCPMessage = {
    "code": -32603,
    "message": "The server gave no result that can be judged.",
}


class ServerError(Exception):
    """The server answered with an error of the protocol."""

    def __init__(self, error: MCPMessage) -> None:
        data, code = error.get("data"), error.get("code")
        message = to_text(error.get("message", ""))
        self.code = code if type(code) is int else UNREADABLE_RESULT["code"]
        self._error = {"code": self.code, "message": message}
        self._error |= {} if data is None else {"data": data}
        self._text = message if data is None else f"{message} {to_text(data)}"
        super().__init__(self._text)

    def render(self) -> MCPMessage:
        """Return the error as the server gave it, or only its text if that was redacted."""
        if str(self) == self._text:
            return self._error
        return {"code": self.code, "message": str(self)}


class MCPAdapter(Adapter):
    """Governs calls on their way to a server: ``await adapter.answer(request, forward)``."""

    context_name: ClassVar = "the MCPClient"
    can_store: ClassVar = False

    def identify(self, context: MCPClient) -> Identity:
        return Identity(name_session(context.session_id))

    def control_flow(self) -> tuple[type[BaseException], ...]:
        return (InputRequired,)

    async def answer(
        self,
        request: MCPMessage,
        forward: Forward,
        on_postcondition_warn: OnWarn = None,
        client: MCPClient | None = None,
    ) -> MCPMessage:
        """Answer a ``tools/call`` request. ``forward`` sends one to the server for its answer."""
        params = request.get("params")
        if (problem := _find_problem(params)) is not None:
            return _make_message(request, error={"code": INVALID_PARAMS, "message": problem})
        assert isinstance(params, dict)
        call = MCPExchange(request, params, forward)
        try:
            reply = await self.acall(
                params["name"],
                params.get("arguments") or {},
                call.run,
                call_id=str(request["id"]),
                flag=call.wire.flag,
                on_warn=on_postcondition_warn,
                context=client,
            )
        except InputRequired:
            return call.make_question()
        return call.answer(reply)

    def _probe(self, target: Any, tool: Callable[..., Any]) -> str:
        """Send the request by ``target``, as a client of the proxy would, and return the answer."""
        params = {"name": CANARY, "arguments": {}}
        request = {"jsonrpc": "2.0", "id": CANARY, "method": "tools/call", "params": params}

        async def forward(asked: MCPMessage) -> MCPMessage:
            return _make_message(asked, result={"content": [make_text(tool())]})

        answer = self.answer(request, forward) if target is None else target(request)
        return to_text(PORTAL.run(answer))


class MCPExchange:
    """One ``tools/call`` request and its answer."""

    def __init__(self, request: MCPMessage, params: MCPMessage, forward: Forward) -> None:
        self._request, self._params, self._forward = request, params, forward
        self._answer: MCPMessage = {}  # the server's
        self.wire = WireResult()

    async def run(self, args: dict[str, Any]) -> Any:
        request = self._request
        if not is_same(args, self._params.get("arguments", {})):
            request = {**request, "params": {**self._params, "arguments": args}}
        self._answer = await self._forward(request)
        return self.wire.take(_read_result(self._answer))

    def make_question(self) -> MCPMessage:
        """Return the server's question to its client, without what does not belong to one."""
        asked = self._answer.get("result") or {}
        question = {key: asked[key] for key in QUESTION_KEYS if key in asked}
        meta = asked.get("_meta")
        if isinstance(meta, dict):
            own = {key: value for key, value in meta.items() if is_own(key, value)}
            question |= {"_meta": own} if own else {}
        return _make_message(self._request, result=question)

    def answer(self, reply: ToolReply) -> MCPMessage:
        """Return a new message, not the server's own: what else is in that was not judged."""
        error, judged = reply.error, self.wire.result
        if isinstance(error, ServerError):
            return _make_message(self._request, error=error.render())
        if error is not None:
            unreadable = {**UNREADABLE_RESULT, "message": str(error)}
            return _make_message(self._request, error=unreadable)
        result = self.wire.answer(reply)
        if result is not judged:
            structure = result.get("structuredContent")
            if judged is not None and not has_same_form(judged.get("structuredContent"), structure):
                result["isError"] = True
            meta = self._params.get("_meta")
            if isinstance(meta, dict) and VERSION_KEY in meta:
                result["resultType"] = "complete"
        return _make_message(self._request, result=result)


def _find_problem(params: Any) -> str | None:
    """Return why such a call cannot be checked, if it cannot; it goes no further."""
    if not isinstance(params, dict) or not isinstance(params.get("name"), str):
        return "A call needs the name of a tool."
    if not isinstance(params.get("arguments") or {}, dict):
        return "The arguments are not an object."
    if params.get("task") is not None:
        return "A call that runs as a task cannot be governed: its result would come later."
    return None


def _read_result(answer: MCPMessage) -> MCPMessage:
    result, error = answer.get("result"), answer.get("error")
    if "result" not in answer and isinstance(error, dict):
        raise ServerError(error)
    if not isinstance(result, dict) or error is not None:
        raise ServerError(UNREADABLE_RESULT)
    if result.get("resultType") == "input_required":
        raise InputRequired
    if not is_tool_result(result):
        raise ServerError(UNREADABLE_RESULT)
    return result


def _make_message(request: MCPMessage, **said: Any) -> MCPMessage:
    return {"jsonrpc": "2.0", "id": request["id"], **said}
