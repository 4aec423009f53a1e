"""FastMCP: a middleware that goes around every tool call that a server gets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

from edictum.adapters._base import CANARY, Adapter, OnWarn, Reply, as_text
from edictum.execution.portal import PORTAL

PARTS = {"content", "structured_content", "meta"}


class Asked(Exception):
    """A tool asked its client for input instead of giving a result; the client will send the same call again, with the answer."""


class FastMCPAdapter(Adapter):
    """Governs the tools of a server: ``server.add_middleware(FastMCPAdapter(guard).as_middleware())``."""

    requires: ClassVar = {"fastmcp": ("4.1", "5")}

    def control_flow(self) -> tuple[type[BaseException], ...]:
        return (Asked,)

    def retold(self, error: BaseException, text: str) -> BaseException:
        """What is no error of FastMCP would reach the client as an error of the protocol, with another text."""
        exceptions = self.load("fastmcp.exceptions")
        raised: BaseException = error if isinstance(error, exceptions.FastMCPError) else exceptions.ToolError(text)
        return super().retold(raised, text)

    def as_middleware(self, on_postcondition_warn: OnWarn | None = None) -> Any:
        """For ``server.add_middleware(...)`` or ``FastMCP(middleware=[...])``: all transports, mounted servers and proxies too."""
        adapter = self

        class EdictumMiddleware(self.load("fastmcp.server.middleware").Middleware):  # type: ignore[misc]
            async def on_call_tool(self, context: Any, call_next: Any) -> Any:
                return await adapter._govern(context, call_next, on_postcondition_warn)

        return EdictumMiddleware()

    async def _govern(self, context: Any, call_next: Any, on_warn: OnWarn | None) -> Any:
        asked, made = context.message, Made(self.load("mcp_types"), self.load("fastmcp.tools.base"))

        async def body(args: dict[str, Any]) -> Any:
            return made.take(await call_next(context.copy(message=asked.model_copy(update={"arguments": args}))))

        try:
            reply = await self.acall(asked.name, asked.arguments or {}, body, flag=made.flag, on_warn=on_warn, **_call_id(context))
        except Asked as ask:
            return ask.args[0]
        answer = made.answer(reply)
        if answer is not made.result and not answer.is_error and not await self._fits(context, answer.structured_content):
            return made.answer(reply, failed=True)
        return answer

    async def _fits(self, context: Any, structure: Any) -> bool:
        """Whether a client takes the structure that we made. What is not as the tool declared it is refused, unless it is an error."""
        tool = await context.fastmcp_context.fastmcp.get_tool(context.message.name)
        schema = None if tool is None else tool.output_schema
        return schema is None or (
            structure is not None and self.load("jsonschema.validators").validator_for(schema)(schema).is_valid(structure)
        )

    def _probe(self, target: Any, tool: Callable[..., Any]) -> str:
        fastmcp = self.load("fastmcp")
        if target is None:
            target = fastmcp.FastMCP("canary", middleware=[self.as_middleware()])
            target.tool(tool, name=CANARY)

        async def ask() -> str:
            async with fastmcp.Client(target) as client:
                return str(await client.call_tool(CANARY, {}, raise_on_error=False))

        return PORTAL.run(ask())


def _call_id(context: Any) -> dict[str, str]:
    """The id of the client's request. A call that the server's own code makes has none."""
    inside = context.fastmcp_context
    return {} if inside is None or inside.request_context is None else {"call_id": inside.request_id}


class Made:
    """One result in MCP's terms: the blocks that a model reads, and the same as a structure, or something else as a structure."""

    def __init__(self, types: Any, tools: Any) -> None:
        self._types, self._tools, self.result, self._shown = types, tools, None, None
        self._wrapped = False  # whether the value stands in {"result": value}: a structure has to be an object

    def take(self, result: Any) -> Any:
        """What the guard judges: the tool's value, or all parts of the result where they do not say the same."""
        if isinstance(result, self._tools.InputRequiredToolResult):
            raise Asked(result)
        self.result = result
        self._shown = self._value(result) if isinstance(result, self._tools.ToolResult) else result
        return self._shown

    def _value(self, result: Any) -> Any:
        blocks = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]
        structure, meta = result.structured_content, {key: value for key, value in (result.meta or {}).items() if key != "fastmcp"}
        self._wrapped = structure is not None and structure.keys() == {"result"} and _same(blocks, structure["result"])
        value = _plain(blocks) if structure is None else structure["result"] if self._wrapped else structure
        if not meta and (structure is None or _same(blocks, value)):
            return value
        return {"content": blocks, "structured_content": structure, "meta": meta}

    def flag(self, value: Any) -> str | None:
        return "isError is set" if getattr(self.result, "is_error", False) else None

    def answer(self, reply: Reply, failed: bool = False) -> Any:
        """The result as the tool gave it, or a new one where the guard changed something: a copy would keep the raw one inside."""
        value, failed = reply.get(), reply.failed or failed
        if self.result is not None and value is self._shown and failed == getattr(self.result, "is_error", failed):
            return self.result
        parts = self._parts(value) if reply.text is None else {"content": [_text(reply.text)]}
        return self._tools.ToolResult.from_mcp_result(self._types.CallToolResult.model_validate({**parts, "isError": failed}))

    def _parts(self, value: Any) -> dict[str, Any]:
        """The value as the parts of a result, in the form that it had."""
        meta = {key: kept for key, kept in (getattr(self.result, "meta", None) or {}).items() if key == "fastmcp"}
        if isinstance(self._shown, dict) and self._shown.keys() == PARTS and isinstance(value, dict) and value.keys() == PARTS:
            return {"content": value["content"], "structuredContent": value["structured_content"], "_meta": {**meta, **value["meta"]}}
        if isinstance(self._shown, list) and not self._wrapped and isinstance(value, list):
            return {"content": value}
        structure = {"result": value} if self._wrapped else value if isinstance(value, dict) else None
        return {"content": [] if value is None else [_text(as_text(value))], "structuredContent": structure, "_meta": meta or None}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _plain(blocks: list[dict[str, Any]]) -> Any:
    """The value behind blocks without a structure: nothing, one text, or the blocks themselves."""
    if not blocks:
        return None
    return blocks[0]["text"] if blocks == [_text(str(blocks[0].get("text")))] else blocks


def _same(blocks: list[dict[str, Any]], value: Any) -> bool:
    """Whether the blocks only repeat the value, as a text or as JSON."""
    text = _plain(blocks)
    try:
        return bool(text == value or (isinstance(text, str) and json.loads(text) == value))
    except ValueError:
        return False
