"""Hooks that do nothing, wired in the place of an adapter's: what a framework takes for being
hooked at all, whoever does it.

Each has the methods that the conformance suite's driver calls on the adapter. Where an adapter goes
around the tools themselves, and no hook of the framework is in between, there is nothing to leave
empty.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def langchain() -> Any:
    from langchain.agents.middleware import AgentMiddleware

    class Empty(AgentMiddleware):  # type: ignore[type-arg]
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            return handler(request)

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            return await handler(request)

    return SimpleNamespace(as_middleware=lambda _: Empty())


def agno() -> Any:
    def hook(function_name: str, function_call: Any, arguments: dict[str, Any]) -> Any:
        return function_call(**arguments)

    return SimpleNamespace(as_tool_hook=lambda _: hook)


def google_adk() -> Any:
    from google.adk.plugins.base_plugin import BasePlugin

    class Empty(BasePlugin):
        async def before_tool_callback(
            self, *, tool: Any, tool_args: Any, tool_context: Any
        ) -> None:
            return None

    return SimpleNamespace(as_plugin=lambda _: Empty(name="empty"))


def pydantic_ai() -> Any:
    from pydantic_ai.capabilities import AbstractCapability

    class Empty(AbstractCapability):  # type: ignore[type-arg]
        async def wrap_tool_execute(
            self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any
        ) -> Any:
            return await handler(args)

    return SimpleNamespace(as_capability=lambda _: Empty())


def semantic_kernel() -> Any:
    from semantic_kernel.filters import FilterTypes

    async def empty(context: Any, next: Any) -> None:
        await next(context)

    def register(kernel: Any, _: Any) -> None:
        kernel.add_filter(FilterTypes.AUTO_FUNCTION_INVOCATION, empty)
        kernel.add_filter(FilterTypes.FUNCTION_INVOCATION, empty)

    return SimpleNamespace(register=register)


def fastmcp() -> Any:
    from fastmcp.server.middleware import Middleware

    class Empty(Middleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            return await call_next(context)

    return SimpleNamespace(as_middleware=lambda _: Empty())


def claude_agent_sdk() -> Any:
    from claude_agent_sdk import HookMatcher

    async def empty(*_: Any) -> dict[str, Any]:
        return {}

    events = ("PreToolUse", "PostToolUse")
    return SimpleNamespace(
        wrap_tools=lambda tools, _: tools,
        to_sdk_hooks=lambda _: {event: [HookMatcher(hooks=[empty])] for event in events},
    )


EMPTY = {
    make.__name__: make
    for make in (
        langchain,
        agno,
        google_adk,
        pydantic_ai,
        semantic_kernel,
        fastmcp,
        claude_agent_sdk,
    )
}
