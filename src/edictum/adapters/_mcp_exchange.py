"""One request of an MCP client that is governed, and its answer.

Beside calls of tools, reading a resource and getting a prompt are governed: as calls of
``mcp.resources.read`` and ``mcp.prompts.get``, with the parameters of the request as arguments.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from edictum.adapters._mcp import InputRequired, WireResult, is_own, is_tool_result, mark_as_error
from edictum.adapters._mcp_catalog import ServerTools
from edictum.adapters._reply import ToolReply, to_text
from edictum.core.values import has_same_form, is_same

# only requests of the newer protocol carry their version
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CALL_DENIED, INVALID_PARAMS = -32000, -32602
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


class Exchange:
    """A governed request: which call it is, how it is made, and how its outcome is told."""

    name: str
    args: MCPMessage

    def __init__(self, request: MCPMessage, forward: Forward) -> None:
        params = request.get("params")
        self.params: MCPMessage = params if isinstance(params, dict) else {}
        self._request, self._forward = request, forward
        self._answer: MCPMessage = {}  # the server's

    def find_problem(self) -> str | None:
        """Return why the request cannot be checked, if it cannot; it goes no further."""
        raise NotImplementedError

    def flag(self, value: Any) -> str | None:
        return None

    async def run(self, args: MCPMessage) -> Any:
        """Ask the server; return what is judged."""
        self._answer = await self._forward(self._with_args(args))
        return self._take(_read_result(self._answer, self._is_result))

    def make_question(self) -> MCPMessage:
        """Return the server's question to its client, without what does not belong to one."""
        asked = self._answer.get("result") or {}
        question = {key: asked[key] for key in QUESTION_KEYS if key in asked}
        question |= _keep_own_meta(asked)
        return make_message(self._request, result=question)

    def answer(self, reply: ToolReply) -> MCPMessage:
        """Return a new message, not the server's own: what else is in that was not judged."""
        if isinstance(reply.error, ServerError):
            return make_message(self._request, error=reply.error.render())
        if reply.error is not None:
            unreadable = {**UNREADABLE_RESULT, "message": str(reply.error)}
            return make_message(self._request, error=unreadable)
        return self._make_answer(reply)

    def _make_result(self, result: MCPMessage) -> MCPMessage:
        """Return the answer with a result that is not the server's own."""
        meta = self.params.get("_meta")
        if isinstance(meta, dict) and VERSION_KEY in meta:
            result = {**result, "resultType": "complete"}
        return make_message(self._request, result=result)

    def _with_args(self, args: MCPMessage) -> MCPMessage:
        raise NotImplementedError

    def _is_result(self, result: MCPMessage) -> bool:
        raise NotImplementedError

    def _take(self, result: MCPMessage) -> Any:
        raise NotImplementedError

    def _make_answer(self, reply: ToolReply) -> MCPMessage:
        raise NotImplementedError


class ToolExchange(Exchange):
    """A ``tools/call`` request."""

    def __init__(self, request: MCPMessage, forward: Forward, catalog: ServerTools) -> None:
        super().__init__(request, forward)
        self.name, self.args = self.params.get("name") or "", self.params.get("arguments") or {}
        self._catalog, self._wire = catalog, WireResult()

    def find_problem(self) -> str | None:
        if not isinstance(self.params.get("name"), str):
            return "A call needs the name of a tool."
        if not isinstance(self.params.get("arguments") or {}, dict):
            return "The arguments are not an object."
        if self.params.get("task") is not None:
            return "A call that runs as a task cannot be governed: its result would come later."
        return None

    def flag(self, value: Any) -> str | None:
        return self._wire.flag(value)

    def _with_args(self, args: MCPMessage) -> MCPMessage:
        if is_same(args, self.params.get("arguments", {})):
            return self._request
        return {**self._request, "params": {**self.params, "arguments": args}}

    def _is_result(self, result: MCPMessage) -> bool:
        return is_tool_result(result)

    def _take(self, result: MCPMessage) -> Any:
        return self._wire.take(result)

    def _make_answer(self, reply: ToolReply) -> MCPMessage:
        judged, result = self._wire.result, self._wire.answer(reply)
        if result is judged:
            return make_message(self._request, result=result)
        if judged is not None and not self._fits(judged, result):
            result = mark_as_error(result)
        return self._make_result(result)

    def _fits(self, judged: MCPMessage, made: MCPMessage) -> bool:
        """Return whether a client takes the structure that stands in the place of the server's."""
        given, structure = judged.get("structuredContent"), made.get("structuredContent")
        if made["isError"] or is_same(given, structure):
            return True
        if self._catalog.knows(self.name):
            return self._catalog.fits(self.name, structure)
        return has_same_form(given, structure)


class ReadExchange(Exchange):
    """A ``resources/read`` or ``prompts/get`` request. A refusal is an error of the protocol."""

    part: str  # of the result, a list
    required: str  # the parameter that names what is read
    keys: tuple[str, ...]  # the parameters that are judged

    def __init__(self, request: MCPMessage, forward: Forward) -> None:
        super().__init__(request, forward)
        self.args = {key: self.params[key] for key in self.keys if key in self.params}
        self._result: MCPMessage = {}
        self._judged: MCPMessage = {}

    def find_problem(self) -> str | None:
        if not isinstance(self.params.get(self.required), str):
            return f"The request needs '{self.required}', a text."
        return None

    def _with_args(self, args: MCPMessage) -> MCPMessage:
        if is_same(args, self.args):
            return self._request
        return {**self._request, "params": {**self.params, **args}}

    def _is_result(self, result: MCPMessage) -> bool:
        return isinstance(result.get(self.part), list)

    def _take(self, result: MCPMessage) -> Any:
        own = {"resultType", *(["_meta"] if _has_own_meta_only(result) else [])}
        self._result = result
        self._judged = {key: part for key, part in result.items() if key not in own}
        return self._judged

    def _make_answer(self, reply: ToolReply) -> MCPMessage:
        if reply.text is not None:
            return make_message(self._request, error={"code": CALL_DENIED, "message": reply.text})
        if reply.value is self._judged:
            return make_message(self._request, result=self._result)
        value = reply.value
        has_form = isinstance(value, dict) and has_same_form(self._judged, value)
        made = value if has_form else self._make_parts(to_text(value))
        return self._make_result({**made, **_keep_own_meta(self._result)})

    def _make_parts(self, text: str) -> MCPMessage:
        """Return a result that says a text, in the place of one that must not be shown."""
        raise NotImplementedError


class ResourceExchange(ReadExchange):
    name, part, required, keys = "mcp.resources.read", "contents", "uri", ("uri",)

    def _make_parts(self, text: str) -> MCPMessage:
        return {"contents": [{"uri": self.params["uri"], "text": text}]}


class PromptExchange(ReadExchange):
    name, part, required, keys = "mcp.prompts.get", "messages", "name", ("name", "arguments")

    def _make_parts(self, text: str) -> MCPMessage:
        return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}


READS: dict[str, type[ReadExchange]] = {
    "resources/read": ResourceExchange,
    "prompts/get": PromptExchange,
}


def make_message(request: MCPMessage, **said: Any) -> MCPMessage:
    return {"jsonrpc": "2.0", "id": request["id"], **said}


def _has_own_meta_only(result: MCPMessage) -> bool:
    meta = result.get("_meta") or {}
    return isinstance(meta, dict) and all(is_own(key, value) for key, value in meta.items())


def _keep_own_meta(result: MCPMessage) -> MCPMessage:
    """Return the protocol's own metadata of a result, as a part of one."""
    meta = result.get("_meta")
    own = {key: it for key, it in meta.items() if is_own(key, it)} if isinstance(meta, dict) else {}
    return {"_meta": own} if own else {}


def _read_result(answer: MCPMessage, is_result: Callable[[MCPMessage], bool]) -> MCPMessage:
    result, error = answer.get("result"), answer.get("error")
    if "result" not in answer and isinstance(error, dict):
        raise ServerError(error)
    if not isinstance(result, dict) or error is not None:
        raise ServerError(UNREADABLE_RESULT)
    if result.get("resultType") == "input_required":
        raise InputRequired
    if not is_result(result):
        raise ServerError(UNREADABLE_RESULT)
    return result
