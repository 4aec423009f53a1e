"""MCP on the wire: a ``tools/call`` request, whatever carries it, and the answer of the server.
``edictum mcp-proxy`` is made of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from edictum.adapters._base import CANARY, Adapter, OnWarn, as_text
from edictum.adapters._mcp import Asked, WireResult, alike, is_own
from edictum.adapters._wire import same
from edictum.execution.portal import PORTAL

VERSION_KEY = (  # only requests of the newer protocol carry their version
    "io.modelcontextprotocol/protocolVersion"
)
INVALID_PARAMS = -32602
Message = dict[str, Any]
QUESTION = ("resultType", "inputRequests", "requestState")
UNKNOWN: Message = {"code": -32603, "message": "The server gave no result that can be judged."}


class ServerError(Exception):
    """The server answered with an error of the protocol."""

    def __init__(self, error: Message) -> None:
        data, code = error.get("data"), error.get("code")
        self.error = {
            "code": code if type(code) is int else UNKNOWN["code"],
            "message": as_text(error.get("message", "")),
        }
        self.error |= {} if data is None else {"data": data}
        self.said = f"{self.error['message']}{'' if data is None else ' ' + as_text(data)}"
        super().__init__(self.said)


class MCPAdapter(Adapter):
    """Governs calls that are on their way to a server: ``await adapter.answer(request,
    forward)``.
    """

    def control_flow(self) -> tuple[type[BaseException], ...]:
        return (Asked,)

    async def answer(
        self,
        request: Message,
        forward: Callable[[Message], Awaitable[Message]],
        on_postcondition_warn: OnWarn | None = None,
    ) -> Message:
        """The answer to a ``tools/call`` request. ``forward`` sends a request to the server and
        gives its answer.
        """
        params, made, answered = request.get("params"), WireResult(), None
        if (wrong := _malformed(params)) is not None:
            return _message(request, error={"code": INVALID_PARAMS, "message": wrong})
        assert isinstance(params, dict)

        async def body(args: dict[str, Any]) -> Any:
            nonlocal answered
            answered = await forward(
                request
                if same(args, params.get("arguments", {}))
                else {**request, "params": {**params, "arguments": args}}
            )
            return made.take(_result(answered))

        options: dict[str, Any] = {
            "call_id": str(request["id"]),
            "flag": made.flag,
            "on_warn": on_postcondition_warn,
        }
        try:
            reply = await self.acall(params["name"], params.get("arguments") or {}, body, **options)
        except Asked:
            return _message(request, result=_question(answered))
        if isinstance(error := reply.error, ServerError):
            return _message(
                request,
                error=(
                    error.error
                    if str(error) == error.said
                    else {"code": error.error["code"], "message": str(error)}
                ),
            )
        if error is not None:
            return _message(request, error={**UNKNOWN, "message": str(error)})
        result = made.answer(reply)
        if result is made.result:
            return _message(
                request, result=result
            )  # not the server's own message: what else is in it nobody judged
        if made.result is not None and not alike(
            made.result.get("structuredContent"), result.get("structuredContent")
        ):
            result["isError"] = True
        return _message(request, result=_modern(params, result))

    def _probe(self, target: Any, tool: Callable[..., Any]) -> str:
        """``target`` is a function that sends a request as a client of the proxy would, and gives
        the answer.
        """
        request: Message = {
            "jsonrpc": "2.0",
            "id": CANARY,
            "method": "tools/call",
            "params": {"name": CANARY, "arguments": {}},
        }

        async def forward(asked: Message) -> Message:
            return _message(asked, result={"content": [{"type": "text", "text": tool()}]})

        return as_text(
            PORTAL.run(self.answer(request, forward) if target is None else target(request))
        )


def _malformed(params: Any) -> str | None:
    """Why such a call cannot be checked; it goes no further."""
    if not isinstance(params, dict) or not isinstance(params.get("name"), str):
        return "A call needs the name of a tool."
    if not isinstance(params.get("arguments") or {}, dict):
        return "The arguments are not an object."
    return (
        "A call that runs as a task cannot be governed: its result would come later."
        if params.get("task") is not None
        else None
    )


def _result(answer: Message) -> Message:
    result, error = answer.get("result"), answer.get("error")
    if "result" not in answer and isinstance(error, dict):
        raise ServerError(error)
    if not isinstance(result, dict) or error is not None:
        raise ServerError(UNKNOWN)
    if result.get("resultType") == "input_required":
        raise Asked
    if not _is_tool_result(result):
        raise ServerError(UNKNOWN)
    return result


def _is_tool_result(result: Message) -> bool:
    return (
        isinstance(result.get("content") or [], list)
        and isinstance(result.get("_meta") or {}, dict)
        and isinstance(result.get("isError") or False, bool)
        and result.get("resultType", "complete") == "complete"
        and "task" not in result
    )


def _question(answer: Message | None) -> Message:
    """The server's question to its client, without what is no part of one."""
    asked = (answer or {}).get("result") or {}
    meta = asked.get("_meta")
    own = (
        {key: value for key, value in meta.items() if is_own(key, value)}
        if isinstance(meta, dict)
        else {}
    )
    return {key: asked[key] for key in QUESTION if key in asked} | ({"_meta": own} if own else {})


def _message(request: Message, **said: Any) -> Message:
    return {"jsonrpc": "2.0", "id": request["id"], **said}


def _modern(params: Message, result: Message) -> Message:
    meta = params.get("_meta")
    return (
        {**result, "resultType": "complete"}
        if isinstance(meta, dict) and VERSION_KEY in meta
        else result
    )
