"""MCP on the wire: governed requests and their answers; ``edictum mcp-proxy`` uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Unpack

from edictum.adapters._base import Adapter, AdapterOptions
from edictum.adapters._canary import CANARY
from edictum.adapters._identity import Identity
from edictum.adapters._mcp import InputRequired, MCPClient, make_text
from edictum.adapters._mcp_approvals import asking
from edictum.adapters._mcp_catalog import ServerTools
from edictum.adapters._mcp_exchange import (
    INVALID_PARAMS,
    READS,
    VERSION_KEY,
    Exchange,
    Forward,
    MCPMessage,
    ToolExchange,
    make_message,
)
from edictum.adapters._mcp_pins import PinFile
from edictum.adapters._mcp_retries import ApprovalQuestion, split_retry
from edictum.adapters._reply import OnWarn, ToolReply, to_text
from edictum.execution.portal import PORTAL

__all__ = ["VERSION_KEY", "Forward", "MCPAdapter", "MCPMessage"]


class MCPAdapter(Adapter):
    """Governs requests on their way to a server: ``await adapter.answer(request, forward)``."""

    context_name: ClassVar = "the MCPClient"
    session_hint: ClassVar = "With edictum mcp-proxy, verify tokens (--jwks). "
    can_store: ClassVar = False
    lifts_default_limits: ClassVar = True

    def __init__(
        self, *args: Any, pins: PinFile | None = None, **options: Unpack[AdapterOptions]
    ) -> None:
        super().__init__(*args, **options)
        self._catalog = ServerTools(self.guard, pins)

    def identify(self, context: MCPClient) -> Identity:
        return context.identify()

    def control_flow(self) -> tuple[type[BaseException], ...]:
        return (InputRequired,)

    async def answer(
        self,
        request: MCPMessage,
        forward: Forward,
        on_postcondition_warn: OnWarn = None,
        client: MCPClient | None = None,
    ) -> MCPMessage:
        """Answer a governed request: a call, a list of tools, a resource or a prompt.

        ``forward`` sends a request to the server for its answer.
        """
        method = request.get("method")
        if method == "tools/list":
            return self._filter(request, await forward(request))
        request, client = split_retry(request, client)
        exchange: Exchange
        if method in READS:
            exchange = READS[method](request, forward)
        else:
            exchange = ToolExchange(request, forward, self._catalog)
        if (problem := exchange.find_problem()) is not None:
            return make_message(request, error={"code": INVALID_PARAMS, "message": problem})
        try:
            with asking(client):
                reply = await self._govern(
                    exchange, request, forward, on_postcondition_warn, client
                )
        except ApprovalQuestion as question:
            return make_message(request, result=question.result)
        except InputRequired:
            return exchange.make_question()
        return exchange.answer(reply)

    async def _govern(
        self,
        exchange: Exchange,
        request: MCPMessage,
        forward: Forward,
        on_warn: OnWarn,
        client: MCPClient | None,
    ) -> ToolReply:
        name, call_id = exchange.name, str(request["id"])
        if isinstance(exchange, ToolExchange) and name != CANARY:
            await self._catalog.complete(name, request, forward)
            problem = self._catalog.find_problem(name)
            problem = problem or self._catalog.find_odd_case(name, exchange.args)
            if problem is not None:
                return await self.adeny(
                    name, exchange.args, problem, call_id=call_id, context=client
                )
        return await self.acall(
            name,
            exchange.args,
            exchange.run,
            call_id=call_id,
            flag=exchange.flag,
            on_warn=on_warn,
            context=client,
            parameters=self._catalog.get_parameters(name),
        )

    def _filter(self, request: MCPMessage, answer: MCPMessage) -> MCPMessage:
        """Return the answer to ``tools/list`` with the tools that a client may use."""
        if isinstance(result := answer.get("result"), dict):
            return {**answer, "id": request["id"], "result": self._catalog.filter_list(result)}
        return {**answer, "id": request["id"]}

    def _probe(self, target: Any, tool: Callable[..., Any]) -> str:
        """Send the request by ``target``, as a client of the proxy would, and return the answer."""
        params = {"name": CANARY, "arguments": {}}
        request = {"jsonrpc": "2.0", "id": CANARY, "method": "tools/call", "params": params}

        async def forward(asked: MCPMessage) -> MCPMessage:
            return make_message(asked, result={"content": [make_text(tool())]})

        answer = self.answer(request, forward) if target is None else target(request)
        return to_text(PORTAL.run(answer))
