"""Approvals of the person behind an MCP client, who is asked by elicitation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Unpack

from edictum.adapters._mcp import Elicit, MCPClient
from edictum.adapters._mcp_pins import reveal_hidden
from edictum.approval.port import (
    ApprovalBackend,
    ApprovalDecision,
    ApprovalRequest,
    ApprovalStatus,
    RequestKeeper,
    RequestOptions,
)
from edictum.core.values import dumps
from edictum.errors import EdictumError

MAX_ARGS_CHARS = 2_000
ANSWER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"approve": {"type": "boolean", "title": "Run this call?"}},
    "required": ["approve"],
}
# The client of the call that is governed in this context.
CLIENT: ContextVar[MCPClient | None] = ContextVar("edictum_mcp_client", default=None)


@contextmanager
def asking(client: MCPClient | None) -> Iterator[None]:
    """Name the client whose person is asked about calls that are made inside."""
    token = CLIENT.set(client)
    try:
        yield
    finally:
        CLIENT.reset(token)


class ClientApprovals(RequestKeeper):
    """Asks the person behind the client; clients that cannot ask have ``other``, if there is one.

    Only an answer that is accepted with ``approve`` set is a yes.
    """

    def __init__(self, other: ApprovalBackend | None = None) -> None:
        self._other = other
        self._waiting: dict[str, tuple[ApprovalRequest, MCPClient, Elicit]] = {}
        self._passed_on: set[str] = set()

    async def request_approval(
        self,
        tool_name: str,
        tool_args: Mapping[str, Any],
        message: str,
        **options: Unpack[RequestOptions],
    ) -> ApprovalRequest:
        client = CLIENT.get()
        if client is not None and client.elicit is not None:
            return await super().request_approval(tool_name, tool_args, message, **options)
        if self._other is None:
            raise EdictumError("the client does not offer elicitation, so no person can be asked")
        request = await self._other.request_approval(tool_name, tool_args, message, **options)
        self._passed_on.add(request.approval_id)
        return request

    def _keep(self, request: ApprovalRequest) -> None:
        client = CLIENT.get()
        assert client is not None
        assert client.elicit is not None
        self._waiting[request.approval_id] = (request, client, client.elicit)

    async def wait_for_decision(
        self, approval_id: str, timeout: float | None = None
    ) -> ApprovalDecision:
        if self._other is not None and approval_id in self._passed_on:
            decision = await self._other.wait_for_decision(approval_id, timeout)
            self._passed_on.discard(approval_id)
            return decision
        request, client, elicit = self._waiting.pop(approval_id)
        try:
            answer = await asyncio.wait_for(elicit(_describe(request), ANSWER_SCHEMA), timeout)
        except TimeoutError:
            return ApprovalDecision(False, status=ApprovalStatus.TIMEOUT)
        content = answer.get("content")
        is_yes = isinstance(content, dict) and content.get("approve") is True
        approved = answer.get("action") == "accept" and is_yes
        status = ApprovalStatus.APPROVED if approved else ApprovalStatus.DENIED
        approver = None if client.principal is None else client.principal.user_id
        return ApprovalDecision(approved, approver, None, status, digest=request.digest)

    async def withdraw(self, approval_id: str) -> None:
        self._waiting.pop(approval_id, None)
        withdraw = getattr(self._other, "withdraw", None)
        if approval_id in self._passed_on and withdraw is not None:
            await withdraw(approval_id)
        self._passed_on.discard(approval_id)


def _describe(request: ApprovalRequest) -> str:
    """Return what a person reads; characters that are not seen are written out."""
    args = dumps(request.tool_args)
    shown = args if len(args) <= MAX_ARGS_CHARS else f"{args[:MAX_ARGS_CHARS]}... (shortened)"
    return reveal_hidden(f"{request.message}\n\nTool: {request.tool_name}\nArguments: {shown}")
