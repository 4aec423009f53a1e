"""MCP on the wire: a ``tools/call`` request, whatever carries it, and the answer of the server. ``edictum mcp-proxy`` is made of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from edictum.adapters._base import CANARY, Adapter, OnWarn, as_text
from edictum.adapters._mcp import Asked, WireResult, alike
from edictum.adapters._wire import same
from edictum.execution.portal import PORTAL

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"  # only requests of the newer protocol carry their version
INVALID_PARAMS = -32602
Message = dict[str, Any]
UNKNOWN: Message = {"code": -32603, "message": "The server gave no result that can be judged."}


class ServerError(Exception):
    """The server answered with an error of the protocol."""

    def __init__(self, error: Message) -> None:
        self.error, data = error, error.get("data")
        self.said = f"{error.get('message', '')}{'' if data is None else ' ' + as_text(data)}"
        super().__init__(self.said)


class MCPAdapter(Adapter):
    """Governs calls that are on their way to a server: ``await adapter.answer(request, forward)``."""

    def control_flow(self) -> tuple[type[BaseException], ...]:
        return (Asked,)

    async def answer(
        self, request: Message, forward: Callable[[Message], Awaitable[Message]], on_postcondition_warn: OnWarn | None = None
    ) -> Message:
        """The answer to a ``tools/call`` request. ``forward`` sends a request to the server and gives its answer."""
        params, made, answered = request.get("params"), WireResult(), None
        if (wrong := _malformed(params)) is not None:
            return _message(request, error={"code": INVALID_PARAMS, "message": wrong})
        assert isinstance(params, dict)

        async def body(args: dict[str, Any]) -> Any:
            nonlocal answered
            answered = await forward(
                request if same(args, params.get("arguments", {})) else {**request, "params": {**params, "arguments": args}}
            )
            return made.take(_result(answered))

        options: dict[str, Any] = {"call_id": str(request["id"]), "flag": made.flag, "on_warn": on_postcondition_warn}
        try:
            reply = await self.acall(params["name"], params.get("arguments") or {}, body, **options)
        except Asked:
            return answered or {}
        if isinstance(error := reply.error, ServerError):
            return _message(
                request, error=error.error if str(error) == error.said else {**UNKNOWN, **error.error, "message": str(error), "data": None}
            )
        if error is not None:
            return _message(request, error={**UNKNOWN, "message": str(error)})
        result = made.answer(reply)
        if answered is not None and result is made.result:
            return answered
        if made.result is not None and not alike(made.result.get("structuredContent"), result.get("structuredContent")):
            result["isError"] = True
        return _message(request, result=_modern(params, result))

    def _probe(self, target: Any, tool: Callable[..., Any]) -> str:
        """``target`` is a function that sends a request as a client of the proxy would, and gives the answer."""
        request: Message = {"jsonrpc": "2.0", "id": CANARY, "method": "tools/call", "params": {"name": CANARY, "arguments": {}}}

        async def forward(asked: Message) -> Message:
            return _message(asked, result={"content": [{"type": "text", "text": tool()}]})

        return as_text(PORTAL.run(self.answer(request, forward) if target is None else target(request)))


def _malformed(params: Any) -> str | None:
    """Why such a call cannot be checked; it goes no further."""
    if not isinstance(params, dict) or not isinstance(params.get("name"), str):
        return "A call needs the name of a tool."
    if not isinstance(params.get("arguments") or {}, dict):
        return "The arguments are not an object."
    return "A call that runs as a task cannot be governed: its result would come later." if params.get("task") is not None else None


def _result(answer: Message) -> Message:
    result = answer.get("result")
    if "result" not in answer and isinstance(answer.get("error"), dict):
        raise ServerError(answer["error"])
    if not isinstance(result, dict):
        raise ServerError(UNKNOWN)
    if result.get("resultType") == "input_required":
        raise Asked
    if not isinstance(result.get("content", []), list) or result.get("resultType", "complete") != "complete" or "task" in result:
        raise ServerError(UNKNOWN)
    return result


def _message(request: Message, **said: Any) -> Message:
    return {"jsonrpc": "2.0", "id": request["id"], **said}


def _modern(params: Message, result: Message) -> Message:
    return {**result, "resultType": "complete"} if VERSION_KEY in (params.get("_meta") or {}) else result
