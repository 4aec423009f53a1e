"""FastMCP: a middleware that goes around every tool call that a server gets."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, ClassVar, Unpack

from edictum.adapters._base import Adapter, AdapterOptions
from edictum.adapters._canary import CANARY
from edictum.adapters._fastmcp_calls import (
    FastMCPCall,
    filter_tools,
    find_call_id,
    holding,
    list_tools,
    to_wire,
)
from edictum.adapters._identity import Identity
from edictum.adapters._mcp import (
    InputRequired,
    MCPClient,
    WireResult,
    make_principal,
    mark_as_error,
)
from edictum.adapters._mcp_catalog import ServerTools
from edictum.adapters._mcp_pins import PinFile
from edictum.adapters._reply import OnWarn
from edictum.execution.portal import PORTAL


class FastMCPAdapter(Adapter):
    """Governs a server: ``server.add_middleware(FastMCPAdapter(guard).as_middleware())``."""

    requires: ClassVar = {"fastmcp": ("4.1", "5")}

    context_name: ClassVar = "FastMCP's MiddlewareContext"
    can_store: ClassVar = False
    lifts_default_limits: ClassVar = True

    def __init__(
        self,
        *args: Any,
        pins: str | os.PathLike[str] | None = None,
        **options: Unpack[AdapterOptions],
    ) -> None:
        super().__init__(*args, **options)
        self._catalog = ServerTools(self.guard, None if pins is None else PinFile(pins))

    def identify(self, context: Any) -> Identity:
        """Return the subject of a verified token, or else the negotiated session.

        Not FastMCP's ``Context.session_id``: newer connections get another one for each request,
        and a server without sessions takes it from a header that any client can set.
        """
        token = self.load("fastmcp.server.dependencies").get_access_token()
        if token is not None and (subject := token.subject or token.claims.get("sub")):
            return MCPClient(principal=make_principal(subject, token.claims)).identify()
        request = getattr(context.fastmcp_context, "request_context", None)
        connection = getattr(getattr(request, "session", None), "_connection", None)
        return MCPClient(getattr(connection, "session_id", None)).identify()

    def control_flow(self) -> tuple[type[BaseException], ...]:
        return (InputRequired,)

    def with_redacted_text(self, error: BaseException, text: str) -> BaseException:
        """Return an exception of FastMCP: only those reach the client with their text."""
        exceptions = self.load("fastmcp.exceptions")
        if not isinstance(error, exceptions.FastMCPError):
            error = exceptions.ToolError(text)
        return super().with_redacted_text(error, text)

    def as_middleware(self, on_postcondition_warn: OnWarn = None) -> Any:
        """Return a middleware for all transports, mounted servers and proxies too."""
        adapter = self
        base: Any = self.load("fastmcp.server.middleware").Middleware

        class EdictumMiddleware(base):  # type: ignore[misc]  # the base is known at run time only
            async def on_call_tool(self, context: Any, call_next: Any) -> Any:
                return await adapter._govern(context, call_next, on_postcondition_warn)

            async def on_list_tools(self, context: Any, call_next: Any) -> Any:
                return filter_tools(adapter._catalog, await call_next(context))

        return EdictumMiddleware()

    @cached_property
    def _tools(self) -> Any:
        return self.load("fastmcp.tools.base")

    async def _govern(self, context: Any, call_next: Any, on_warn: OnWarn) -> Any:
        asked, wire, tools, returned = context.message, WireResult(), self._tools, None
        args, server = asked.arguments or {}, context.fastmcp_context.fastmcp
        if self.is_around(asked, args):
            return await call_next(context)

        async def body(checked: dict[str, Any]) -> Any:
            nonlocal returned
            passed_on = asked.model_copy(update={"arguments": checked})
            judged = FastMCPCall(server, asked.name, checked, self.hold_to_checked_args)
            with self.around(passed_on, checked), holding(judged):
                returned = await call_next(context.copy(message=passed_on))
            if isinstance(returned, tools.InputRequiredToolResult):
                raise InputRequired
            is_result = isinstance(returned, tools.ToolResult)
            return wire.take(to_wire(returned)) if is_result else returned

        call_id = find_call_id(context)
        await self._catalog.complete(asked.name, {}, partial(list_tools, server))
        if (problem := self._catalog.find_problem(asked.name)) is not None:
            details = {"call_id": call_id, "context": context}
            reply = await self.adeny(asked.name, args, problem, **details)
            return await self._make_result(context, wire.answer(reply))
        parameters = await self._find_parameters(context)
        try:
            reply = await self.acall(
                asked.name,
                args,
                body,
                call_id=call_id,
                flag=wire.flag,
                on_warn=on_warn,
                context=context,
                parameters=parameters,
            )
        except InputRequired:
            return returned
        if reply.error is None and wire.result is None and reply.get() is returned:
            return returned  # an extension of FastMCP answered in a form of its own
        answer = wire.answer(reply)
        return returned if answer is wire.result else await self._make_result(context, answer)

    async def _find_parameters(self, context: Any) -> Any:
        """Return the schema of a tool for which there are contracts; finding it may cost a
        request.
        """
        try:
            plan = self.guard.policy.plan(context.message.name)
            if not (plan.before or plan.after or plan.session):
                return None
            tool = await context.fastmcp_context.fastmcp.get_tool(context.message.name)
            return tool.parameters
        except Exception:
            return None

    async def _make_result(self, context: Any, answer: dict[str, Any]) -> Any:
        """Return a new result: a copy of the tool's would keep the raw one inside."""
        if not answer["isError"] and not await self._fits(context, answer.get("structuredContent")):
            answer = mark_as_error(answer)
        result = self.load("mcp_types").CallToolResult.model_validate(answer)
        return self._tools.ToolResult.from_mcp_result(result)

    async def _fits(self, context: Any, structure: Any) -> bool:
        """Return whether the structure is as the tool declared: clients refuse others."""
        tool = await context.fastmcp_context.fastmcp.get_tool(context.message.name)
        schema = None if tool is None else tool.output_schema
        if schema is None:
            return True
        # without a registry of our own, a $ref to another place would be fetched from there
        registry = self.load("referencing").Registry()
        try:
            kind = self.load("jsonschema.validators").validator_for(schema)
            return structure is not None and kind(schema, registry=registry).is_valid(structure)
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
