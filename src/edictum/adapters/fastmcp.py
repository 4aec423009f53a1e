"""FastMCP: a middleware that goes around every tool call that a server gets."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from edictum.adapters._base import CANARY, Adapter, OnWarn
from edictum.adapters._mcp import Asked, WireResult
from edictum.execution.portal import PORTAL

if TYPE_CHECKING:
    from edictum.call_options import CallOptions


class FastMCPAdapter(Adapter):
    """Governs the tools of a server:
    ``server.add_middleware(FastMCPAdapter(guard).as_middleware())``.
    """

    requires: ClassVar = {"fastmcp": ("4.1", "5")}

    def control_flow(self) -> tuple[type[BaseException], ...]:
        return (Asked,)

    def retold(self, error: BaseException, text: str) -> BaseException:
        """What is no error of FastMCP would reach the client as an error of the protocol, with
        another text.
        """
        exceptions = self.load("fastmcp.exceptions")
        raised: BaseException = (
            error if isinstance(error, exceptions.FastMCPError) else exceptions.ToolError(text)
        )
        return super().retold(raised, text)

    def as_middleware(self, on_postcondition_warn: OnWarn | None = None) -> Any:
        """For ``server.add_middleware(...)`` or ``FastMCP(middleware=[...])``: all transports,
        mounted servers and proxies too.
        """
        adapter = self

        class EdictumMiddleware(self.load("fastmcp.server.middleware").Middleware):  # type: ignore[misc]
            async def on_call_tool(self, context: Any, call_next: Any) -> Any:
                return await adapter._govern(context, call_next, on_postcondition_warn)

        return EdictumMiddleware()

    @cached_property
    def _tools(self) -> Any:
        return self.load("fastmcp.tools.base")

    async def _govern(self, context: Any, call_next: Any, on_warn: OnWarn | None) -> Any:
        asked, made, tools, returned = context.message, WireResult(), self._tools, None
        if self.is_around(asked, asked.arguments or {}):
            return await call_next(context)

        async def body(args: dict[str, Any]) -> Any:
            nonlocal returned
            handed_on = asked.model_copy(update={"arguments": args})
            with self.around(handed_on, args):
                returned = await call_next(context.copy(message=handed_on))
            if isinstance(returned, tools.InputRequiredToolResult):
                raise Asked
            return (
                made.take(_wire(returned)) if isinstance(returned, tools.ToolResult) else returned
            )

        try:
            reply = await self.acall(
                asked.name,
                asked.arguments or {},
                body,
                flag=made.flag,
                on_warn=on_warn,
                **_call_id(context),
            )
        except Asked:
            return returned
        if reply.error is None and made.result is None and reply.get() is returned:
            return returned  # an extension of FastMCP answered in a form of its own
        answer = made.answer(reply)
        if answer is made.result:
            return returned
        if not answer["isError"] and not await self._fits(context, answer.get("structuredContent")):
            answer["isError"] = True
        # Not a copy of what the tool returned: that would keep the raw result inside.
        return tools.ToolResult.from_mcp_result(
            self.load("mcp_types").CallToolResult.model_validate(answer)
        )

    async def _fits(self, context: Any, structure: Any) -> bool:
        """Whether a client takes the structure that we made: what is not as the tool declared it is
        refused, unless it is an error.
        """
        tool = await context.fastmcp_context.fastmcp.get_tool(context.message.name)
        schema = None if tool is None else tool.output_schema
        if schema is None:
            return True
        nothing_else = self.load(
            "referencing"
        ).Registry()  # by default a $ref to another place would be fetched from there
        try:
            judge = self.load("jsonschema.validators").validator_for(schema)(
                schema, registry=nothing_else
            )
            return structure is not None and judge.is_valid(structure)
        except Exception:
            return False

    def _probe(self, target: Any, tool: Callable[..., Any]) -> str:
        fastmcp = self.load("fastmcp")
        if target is None:
            target = fastmcp.FastMCP("canary", middleware=[self.as_middleware()])
            target.tool(tool, name=CANARY)

        async def ask() -> str:
            async with fastmcp.Client(target) as client:
                return str(await client.call_tool(CANARY, {}, raise_on_error=False))

        return PORTAL.run(ask())


def _call_id(context: Any) -> CallOptions:
    """The id of the client's request. A call that the server's own code makes has none."""
    inside = context.fastmcp_context
    return (
        {} if inside is None or inside.request_context is None else {"call_id": inside.request_id}
    )


def _wire(result: Any) -> dict[str, Any]:
    blocks = [
        block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content
    ]
    return {
        "content": blocks,
        "structuredContent": result.structured_content,
        "_meta": result.meta,
        "isError": result.is_error,
    }
